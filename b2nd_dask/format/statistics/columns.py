"""Statistics of all chunks of a frame, as columns; and the row of one in the table of chunks."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from b2nd_dask.format.grid import Grid
from b2nd_dask.format.index import ChunkKind, OffsetIndex

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
    def columns(self) -> tuple[NDArray[Any], ...]:
        """All columns, in this order."""
        return tuple(getattr(self, field.name) for field in fields(self))

    @property
    def has_range(self) -> bool:
        """Whether `least` and `greatest` mean something: complex numbers have no order."""
        return self.least.dtype.kind != "c"

    def of_chunks(self, chunks: NDArray[np.int64]) -> ChunkStatistics:
        """Choose some chunks, by their numbers."""
        if len(chunks) == len(self.known) and np.array_equal(chunks, np.arange(len(chunks))):
            return self
        return ChunkStatistics(*(column[chunks] for column in self.columns))

    def rows(self, of: slice = slice(None)) -> NDArray[Any]:
        """Make the rows of some chunks, all by default."""
        rows = np.empty(len(self.known[of]), statistics_row(self.least.dtype))
        for field in fields(self):
            rows[field.name] = getattr(self, field.name)[of]
        return rows


def supports_statistics(dtype: np.dtype[Any] | None) -> bool:
    """Whether there are statistics of elements of a dtype: numbers, bool and times."""
    if dtype is None or dtype.kind not in _TOTALS:
        return False
    return dtype.itemsize in _WIDTHS.get(dtype.kind, (1, 2, 4, 8))


@lru_cache
def statistics_row(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """Make the dtype of the statistics of one chunk, whose columns are those of `ChunkStatistics`.

    They are in the order in which an entry stores them, and as wide.
    """
    ends = [("least", dtype), ("greatest", dtype)]
    counts = [("nans", "<u4"), ("nonzeros", "<u4"), ("known", "u1")]
    return np.dtype([("total", _TOTALS[dtype.kind]), *ends, *counts])


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
    every = ChunkStatistics(*(_spread(column, at) for column in stored.columns))
    every.known[kinds == ChunkKind.ZEROS] = True
    is_nan = kinds == ChunkKind.NAN
    # of other dtypes it is an error to read them
    if dtype.kind == "f" and dtype.itemsize in (4, 8) and is_nan.any():
        every.known[is_nan] = True
        every.least[is_nan] = every.greatest[is_nan] = np.nan
        every.nans[is_nan] = every.nonzeros[is_nan] = element_counts(grid)[is_nan]
    return every


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
    zeros = (np.zeros((), column.dtype) for column in stored.columns)
    every = ChunkStatistics(*(np.broadcast_to(zero, (nchunks,)) for zero in zeros))
    return replace(every, known=np.broadcast_to(np.bool_(known), (nchunks,)))


def _spread(column: NDArray[Any], at: NDArray[np.bool_]) -> NDArray[Any]:
    spread = np.zeros(len(at), column.dtype)
    spread[at] = column
    return spread
