"""Statistics of all chunks of a frame, as columns; and as rows while they are collected."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from b2nd_dask.format.grid import Grid
from b2nd_dask.format.index import ChunkKind, OffsetIndex

#: One chunk of any dtype: what tasks report, and what manifests keep. `least`, `greatest` and
#: `total` hold the bytes of a value, and zeros behind them.
ROW = np.dtype(
    [
        ("known", "?"),
        ("least", "V8"),
        ("greatest", "V8"),
        ("total", "V16"),
        ("nans", "<i8"),
        ("nonzeros", "<i8"),
    ]
)
#: Kinds of dtype, and the dtype of their sums.
_TOTALS = {"b": "<i8", "i": "<i8", "u": "<u8", "f": "<f8", "c": "<c16", "m": "<i8", "M": "<i8"}
_WIDTHS = {"f": (2, 4, 8), "c": (8, 16)}


@dataclass(frozen=True, eq=False, slots=True)
class ChunkStatistics:
    """What is known of the elements of each chunk; padding behind the array's edge never counts."""

    known: NDArray[np.bool_]
    """Whether there is a record of the chunk; the other columns hold nothing meaningful without."""
    least: NDArray[Any]
    """In the frame's dtype. NaN and NaT are left out; where all elements are, it is one, too."""
    greatest: NDArray[Any]
    total: NDArray[Any]
    """Sum without NaN and NaT: float64 or complex128; of integers, bool and the ticks of times
    int64 or uint64 modulo 2**64, as NumPy's. NaN where infinities of both signs meet."""
    nans: NDArray[np.int64]
    """Elements that are NaN or NaT."""
    nonzeros: NDArray[np.int64]
    """Elements that differ from zero, as NaN and NaT do."""

    @property
    def has_range(self) -> bool:
        """Whether `least` and `greatest` mean something: complex numbers have no order."""
        return self.least.dtype.kind != "c"

    def of_chunks(self, chunks: NDArray[np.int64]) -> ChunkStatistics:
        """Choose some chunks, by their numbers."""
        if len(chunks) == len(self.known) and np.array_equal(chunks, np.arange(len(chunks))):
            return self
        return ChunkStatistics(*(getattr(self, field.name)[chunks] for field in fields(self)))

    def rows(self, of: slice = slice(None)) -> NDArray[Any]:
        """Make the rows of some chunks, all by default."""
        rows = np.zeros(len(self.known[of]), ROW)
        for name in ("known", "nans", "nonzeros"):
            rows[name] = getattr(self, name)[of]
        for name in ("least", "greatest") if self.has_range else ():
            rows[name] = _padded(getattr(self, name)[of], 8)
        rows["total"] = _padded(self.total[of], 16)
        return rows


def supports_statistics(dtype: np.dtype[Any] | None) -> bool:
    """Whether there are statistics of elements of a dtype: numbers, bool and times."""
    if dtype is None or dtype.kind not in _TOTALS:
        return False
    return dtype.itemsize in _WIDTHS.get(dtype.kind, (1, 2, 4, 8))


def total_dtype(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """Find the dtype of sums."""
    return np.dtype(_TOTALS[dtype.kind])


def statistics_of_rows(rows: NDArray[Any], dtype: np.dtype[Any]) -> ChunkStatistics:
    """Make the columns of rows, for elements of a dtype."""
    total = total_dtype(dtype)
    blank = np.zeros(len(rows), dtype)
    least, greatest = (
        (blank, blank)
        if dtype.kind == "c"
        else (_values(rows["least"], dtype), _values(rows["greatest"], dtype))
    )
    nans, nonzeros = rows["nans"].astype(np.int64), rows["nonzeros"].astype(np.int64)
    known = rows["known"].copy()
    return ChunkStatistics(known, least, greatest, _values(rows["total"], total), nans, nonzeros)


def spread_to_all(stored: ChunkStatistics, index: OffsetIndex, grid: Grid) -> ChunkStatistics:
    """Give every chunk its statistics, of which those of the stored chunks are there.

    What the index says of special chunks, it says of their statistics, too.
    """
    if index.nstored == len(index) and len(index):
        return stored
    if index.single_kind and index.single_kind != ChunkKind.NAN:
        return _all_zeros(stored, len(index), known=index.single_kind == ChunkKind.ZEROS)
    kinds, dtype = index.kinds, stored.least.dtype
    at = kinds == ChunkKind.STORED
    known = kinds == ChunkKind.ZEROS
    known[at] = stored.known
    least, greatest, total, nans, nonzeros = (
        _spread(column, at)
        for column in (stored.least, stored.greatest, stored.total, stored.nans, stored.nonzeros)
    )
    is_nan = kinds == ChunkKind.NAN
    # of other dtypes it is an error to read them
    if dtype.kind == "f" and dtype.itemsize in (4, 8) and is_nan.any():
        known[is_nan] = True
        least[is_nan] = greatest[is_nan] = np.nan
        nans[is_nan] = nonzeros[is_nan] = element_counts(grid)[is_nan]
    return ChunkStatistics(known, least, greatest, total, nans, nonzeros)


def element_counts(grid: Grid) -> NDArray[np.int64]:
    """Count the elements of each chunk, without the padding behind the array's edge."""
    counts = np.ones((), np.int64)
    for size, chunk, n in zip(grid.shape, grid.chunks, grid.counts, strict=True):
        along = np.full(n, chunk, np.int64)
        if n:
            along[-1] = size - (n - 1) * chunk
        counts = np.multiply.outer(counts, along)
    return np.asarray(counts, np.int64).reshape(-1)


def _all_zeros(stored: ChunkStatistics, nchunks: int, *, known: bool) -> ChunkStatistics:
    """Statistics of chunks that one value in the file stands for: no memory for each."""
    zeros = (
        np.broadcast_to(np.zeros((), column.dtype), (nchunks,))
        for column in (stored.least, stored.greatest, stored.total, stored.nans, stored.nonzeros)
    )
    return ChunkStatistics(np.broadcast_to(np.bool_(known), (nchunks,)), *zeros)


def _spread(column: NDArray[Any], at: NDArray[np.bool_]) -> NDArray[Any]:
    spread = np.zeros(len(at), column.dtype)
    spread[at] = column
    return spread


def _padded(column: NDArray[Any], width: int) -> NDArray[Any]:
    """The bytes of values, with zeros behind them."""
    raw = np.zeros((len(column), width), np.uint8)
    itemsize = column.dtype.itemsize
    raw[:, :itemsize] = np.ascontiguousarray(column).view(np.uint8).reshape(-1, itemsize)
    return raw.view(f"V{width}")[:, 0]


def _values(column: NDArray[Any], dtype: np.dtype[Any]) -> NDArray[Any]:
    """The values of a dtype that the first bytes of each entry hold."""
    width = column.dtype.itemsize
    raw = np.ascontiguousarray(column).view(np.uint8).reshape(-1, width)
    return np.ascontiguousarray(raw[:, : dtype.itemsize]).view(dtype)[:, 0]
