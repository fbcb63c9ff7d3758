"""What pictures of the chunk grid show of each chunk: kind, sizes, codec, statistics.

Also the colours of kinds, and grids with fewer cells.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from b2nd_dask.format.index import ChunkKind
from b2nd_dask.format.statistics import supports_statistics
from b2nd_dask.frame.array import Frame
from b2nd_dask.frame.chunk_table import ONE_VALUE, ChunkTable
from b2nd_dask.frame.info import KIND_NAMES

#: Of a cell that stands for chunks of several kinds.
MIXED = 9

#: What `Frame.stats` knows of each chunk.
STATISTICS = ("min", "max", "mean", "nans", "nonzeros")


class Kind(NamedTuple):
    """How a kind of chunks is shown."""

    name: str
    css: str
    light: str
    """Its colour on white."""
    dark: str
    """Its colour on black."""


def _kind(code: int, css: str, light: str, dark: str) -> Kind:
    return Kind(KIND_NAMES.get(code, "several kinds"), css, light, dark)


#: From the palette of Okabe and Ito, which people with any colour vision tell apart; what has no
#: data is pale.
KINDS: dict[int, Kind] = {
    ChunkKind.STORED: _kind(ChunkKind.STORED, "stored", "#0072b2", "#3d9bd9"),
    MIXED: _kind(MIXED, "mixed", "#7fb9dc", "#1f5f8c"),
    ChunkKind.ZEROS: _kind(ChunkKind.ZEROS, "zeros", "#e3e6ea", "#3a414b"),
    ONE_VALUE: _kind(ONE_VALUE, "value", "#009e73", "#2fc49a"),
    ChunkKind.NAN: _kind(ChunkKind.NAN, "nan", "#e69f00", "#f0b93a"),
    ChunkKind.UNINIT: _kind(ChunkKind.UNINIT, "uninit", "#cc79a7", "#d98cb8"),
}


def step_for(counts: tuple[int, ...], most: tuple[int, ...]) -> tuple[int, ...]:
    """How many chunks along each axis a cell stands for, where there are to be at most so many."""
    return tuple(max(1, -(-n // m)) for n, m in zip(counts, most, strict=True))


def binned_kinds(kinds: NDArray[np.uint8], step: tuple[int, ...]) -> NDArray[np.uint8]:
    """Put neighbouring chunks into one cell each.

    Parameters
    ----------
    kinds : ndarray of uint8
        In the shape of the chunk grid.
    step : tuple of int
        Chunks of a cell along each axis; fewer at the edge.

    Returns
    -------
    ndarray of uint8
        The kind that all chunks of a cell share, or `MIXED`.

    Examples
    --------
    >>> binned_kinds(np.array([0, 0, 1, 1, 0, 1, 4], np.uint8), (2,))
    array([0, 1, 9, 4], dtype=uint8)
    """
    if kinds.size and not any(kinds.strides):
        counts = tuple(-(-n // s) for n, s in zip(kinds.shape, step, strict=True))
        return np.broadcast_to(kinds.reshape(-1)[:1].reshape(()), counts)
    low = high = kinds
    for axis, size in enumerate(step):
        if size > 1:
            starts = np.arange(0, kinds.shape[axis], size)
            low = np.minimum.reduceat(low, starts, axis)
            high = np.maximum.reduceat(high, starts, axis)
    mixed: NDArray[Any] = np.where(low == high, low, np.uint8(MIXED))
    return mixed.astype(np.uint8)


def binned_means(values: NDArray[np.float64], step: tuple[int, ...]) -> NDArray[np.float64]:
    """Means of the numbers that cells stand for; NaN where there is none.

    Examples
    --------
    >>> binned_means(np.array([1.0, 3, np.nan, np.nan, 5]), (2,))
    array([ 2., nan,  5.])
    """
    total, count = np.nan_to_num(values), np.isfinite(values).astype(np.float64)
    for axis, size in enumerate(step):
        if size > 1:
            starts = np.arange(0, values.shape[axis], size)
            total, count = (np.add.reduceat(each, starts, axis) for each in (total, count))
    none: NDArray[np.float64] = np.full(total.shape, np.nan)
    return np.divide(total, count, out=none, where=count > 0)


def require_known(frame: Frame, table: ChunkTable, by: str) -> None:
    """Check that codecs or sizes of chunks are known where they are to be shown.

    Raises
    ------
    ValueError
        They are not, since they stand in chunks that are in a store.
    """
    if by == "codec" and not table.is_exact:
        raise ValueError(f"{frame.path}: codecs stand in the chunks, which are in a store")
    if by in ("cbytes", "ratio") and len(table.stored) and not len(table.nbytes):
        raise ValueError(f"{frame.path}: a sparse frame in a store says no sizes of its chunks")


def chunk_sizes(table: ChunkTable, by: str) -> NDArray[np.float64]:
    """Compressed bytes ("cbytes") or ratio of each chunk, in C order; NaN of those without data."""
    values = np.full(table.kinds.size, np.nan)
    if len(table.stored):
        nbytes = np.maximum(table.nbytes[table.data], 1)
        values[table.stored[table.data]] = nbytes if by == "cbytes" else table.chunk_nbytes / nbytes
    return values


def with_codecs(table: ChunkTable, first: int) -> NDArray[np.uint8]:
    """Kinds of chunks; of those that hold data the number of the codec, from `first` on."""
    if table.codecs is None:
        return table.kinds
    flat = table.kinds.reshape(-1).copy()
    flat[table.stored[table.data]] = first + table.codecs[table.data]
    return flat.reshape(table.kinds.shape)


def chunk_statistic(frame: Frame, name: str) -> NDArray[np.float64]:
    """One statistic of each chunk, in C order of the chunk grid; NaN where there is none.

    Times are their ticks.

    Parameters
    ----------
    name : str
        One of `STATISTICS`.

    Raises
    ------
    ValueError
        The frame does not hold it.
    """
    if frame.stats is None:
        known = supports_statistics(frame.dtype)
        hint = "b2nd_dask.add_stats adds statistics" if known else f"elements of {frame.dtype}"
        raise ValueError(f"{frame.path}: no {name} is known of its chunks: {hint}")
    found = getattr(frame.stats.chunks, name)
    if found is None or found.dtype.kind == "c":
        raise ValueError(f"{frame.path}: the {name} of complex numbers has no place on a scale")
    values = np.ma.filled(_numbers(found).astype(np.float64), np.nan)
    values[~np.isfinite(values)] = np.nan
    return values.reshape(-1)


def statistic_text(value: float, name: str, dtype: np.dtype[Any]) -> str:
    """A number of `chunk_statistic` as people read it; times of the frame's dtype as times."""
    if dtype.kind in "mM" and name in ("min", "max", "mean"):
        return str(np.array(round(value), np.int64).view(dtype.newbyteorder("=")))
    return f"{value:.3g}"


def _numbers(column: NDArray[Any]) -> NDArray[Any]:
    if column.dtype.kind in "mM":
        return column.astype(column.dtype.newbyteorder("=")).view(np.int64)
    return column
