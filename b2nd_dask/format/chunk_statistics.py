"""Compute the statistics of a chunk's elements (docs/statistics.md), in few passes over them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from b2nd_dask.format.statistics import statistics_row

#: A piece stays in the L2 cache while all its statistics are computed. Smaller pieces cost more
#: calls (docs/decisions.md, Statistics).
_PIECE_NBYTES = 1 << 19
_NAT = np.int64(np.iinfo(np.int64).min)


class _Found(NamedTuple):
    """Statistics of some elements, during the computation."""

    least: Any
    """None if all elements are NaN."""
    greatest: Any
    total: Any
    """A Python int for integers."""
    nans: int
    nonzeros: int


def chunk_statistics(elements: NDArray[Any]) -> Any:
    """Compute the statistics of a chunk's valid elements, at least one, as a `statistics_row`.

    Their dtype is one that `supports_statistics`.

    Examples
    --------
    >>> row = chunk_statistics(np.array([1.0, np.nan, -2.0]))
    >>> float(row["least"]), float(row["total"]), int(row["nans"]), int(row["nonzeros"])
    (-2.0, -1.0, 1, 3)
    """
    with np.errstate(all="ignore"):
        steps = zip(elements.strides, elements.shape, strict=True)
        if all(stride == 0 or n == 1 for stride, n in steps):
            corner: tuple[Any, ...] = (*(slice(0, 1),) * elements.ndim, ...)
            found = _repeated(_find(elements[corner].reshape(-1)), elements.size)
        else:
            found = _merged([_find(piece) for piece in _pieces(elements)])
        return _row(found, elements.dtype)


def _pieces(elements: NDArray[Any]) -> Iterator[NDArray[Any]]:
    """Divide elements into contiguous pieces, in any order."""
    if elements.flags.f_contiguous:
        elements = elements.T
    if elements.flags.c_contiguous:
        flat = elements.reshape(-1)
        step = _PIECE_NBYTES // elements.itemsize
        for start in range(0, len(flat), step):
            yield flat[start : start + step]
        return
    step = len(elements) * _PIECE_NBYTES // elements.nbytes
    if step >= len(elements):
        yield elements.reshape(-1)
    elif step:
        for start in range(0, len(elements), step):
            yield elements[start : start + step].reshape(-1)
    else:
        for row in elements:
            yield from _pieces(row)


def _find(piece: NDArray[Any]) -> _Found:
    """Compute the statistics of a contiguous piece."""
    if not piece.dtype.isnative:
        piece = piece.astype(piece.dtype.newbyteorder("="))
    match piece.dtype.kind:
        case "b":
            nonzeros = int(np.count_nonzero(piece.view(np.uint8)))
            return _Found(nonzeros == piece.size, nonzeros > 0, nonzeros, 0, nonzeros)
        case "c":
            return _find_complex(piece)
        case "f":
            # NumPy compares and adds half floats one by one, which is slow
            return _find_floats(piece.astype(np.float32) if piece.itemsize == 2 else piece)
        case "m" | "M":
            return _find_ticks(piece.view(np.int64))
    return _find_integers(piece)


def _find_floats(piece: NDArray[Any]) -> _Found:
    least, size = np.minimum.reduce(piece), piece.size
    nans = 0
    # with a NaN among the elements, the least is NaN
    if least != least:
        piece = piece[~np.isnan(piece)]
        nans = size - piece.size
        if not piece.size:
            return _Found(None, None, 0.0, nans, nans)
        least = np.minimum.reduce(piece)
    greatest = np.maximum.reduce(piece)
    nonzeros = size
    if least <= 0 <= greatest:
        nonzeros = nans + int(np.count_nonzero(piece != 0))
    return _Found(least, greatest, np.add.reduce(piece, dtype=np.float64), nans, nonzeros)


def _find_complex(piece: NDArray[Any]) -> _Found:
    total, size = np.add.reduce(piece, dtype=np.complex128), piece.size
    if np.isnan(total):
        piece = piece[~np.isnan(piece)]
        total = np.add.reduce(piece, dtype=np.complex128)
    nans = size - piece.size
    return _Found(None, None, total, nans, nans + int(np.count_nonzero(piece != 0)))


def _find_ticks(ticks: NDArray[np.int64]) -> _Found:
    """Compute statistics of time ticks, which are integers; the least int64 is NaT."""
    size = ticks.size
    if np.minimum.reduce(ticks) == _NAT:
        ticks = ticks[ticks != _NAT]
        if not ticks.size:
            return _Found(None, None, 0, size, size)
    found = _find_integers(ticks)
    nans = size - ticks.size
    return found._replace(nans=nans, nonzeros=found.nonzeros + nans)


def _find_integers(piece: NDArray[Any]) -> _Found:
    least, greatest = np.minimum.reduce(piece), np.maximum.reduce(piece)
    nonzeros = piece.size
    if least <= 0 <= greatest:
        nonzeros = int(np.count_nonzero(piece))
    total = np.add.reduce(piece, dtype=statistics_row(piece.dtype)["total"])
    return _Found(least, greatest, int(total), 0, nonzeros)


def _repeated(one: _Found, size: int) -> _Found:
    """Compute the statistics of `size` copies of one element from those of the element."""
    total = one.total * size
    if isinstance(total, complex):
        # a complex product would multiply an infinite part by 0, which is NaN
        total = complex(one.total.real * size, one.total.imag * size)
    return _Found(one.least, one.greatest, total, one.nans * size, one.nonzeros * size)


def _merged(pieces: Sequence[_Found]) -> _Found:
    # NumPy scalars keep the dtype of the elements; Python integers would not
    least = [piece.least for piece in pieces if piece.least is not None]
    greatest = [piece.greatest for piece in pieces if piece.greatest is not None]
    return _Found(
        min(least, default=None),
        max(greatest, default=None),
        sum((piece.total for piece in pieces[1:]), start=pieces[0].total),
        sum(piece.nans for piece in pieces),
        sum(piece.nonzeros for piece in pieces),
    )


def _row(found: _Found, dtype: np.dtype[Any]) -> Any:
    row = np.zeros((), statistics_row(dtype))
    row["known"], row["nans"], row["nonzeros"] = True, found.nans, found.nonzeros
    total: Any = found.total
    if row.dtype["total"].kind in "iu":
        # integer sums wrap around as in NumPy
        total = np.array(int(total) & (1 << 64) - 1, np.uint64).astype(row.dtype["total"])
    row["total"] = total
    if dtype.kind != "c":
        missing = _NAT if dtype.kind in "mM" else np.nan
        row["least"] = missing if found.least is None else found.least
        row["greatest"] = missing if found.greatest is None else found.greatest
    return row[()]
