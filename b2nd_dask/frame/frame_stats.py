"""`FrameStats`: the public view of the statistics in a frame."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from b2nd_dask.format.grid import Grid
from b2nd_dask.format.statistics import ChunkStatistics, element_counts

_NAMES = ("min", "max", "sum", "mean", "size", "nans", "nonzeros")


@dataclass(frozen=True, eq=False)
class FrameStats:
    """Statistics of all elements of a frame, and of each chunk, from the frame's records.

    Chunks are not read. A statistic is None if the dtype has none (order of complex numbers, sum of
    dates), if all elements are NaN, or if some chunks have no statistics
    (see `chunks.known`).
    """

    chunks: ChunkStats
    """Statistics of each chunk: arrays in the shape of the chunk grid."""

    @property
    def min(self) -> Any:
        """Least element, without NaN and NaT."""
        return self._end(self.chunks.min, np.min)

    @property
    def max(self) -> Any:
        """Greatest element, without NaN and NaT."""
        return self._end(self.chunks.max, np.max)

    @cached_property
    def sum(self) -> Any:
        """Sum without NaN and NaT; for integers modulo 2**64, as in NumPy."""
        dtype = self.chunks._dtype
        if dtype.kind == "M" or not self._all_known:
            return None
        with np.errstate(all="ignore"):
            total = np.add.reduce(self.chunks._columns.total)
        return total if dtype.kind != "m" else total.astype(dtype)

    @cached_property
    def mean(self) -> Any:
        """Mean without NaN and NaT."""
        dtype, n = self.chunks._dtype, 0 if self.nans is None else self.size - self.nans
        if not n or not self.chunks._exact.all():
            return None
        if dtype.kind in "fc":
            return self.sum / n
        # a Python sum, which does not wrap around
        total = sum(self.chunks._columns.total.tolist())
        if dtype.kind in "mM":
            # rounded towards zero, like NumPy's means of time spans
            ticks = abs(total) // n * (1 if total > 0 else -1)
            return np.array(ticks, np.int64).view(dtype)[()]
        return np.float64(total / n)

    @property
    def size(self) -> int:
        """Number of elements, NaN included."""
        return math.prod(self.chunks._grid.shape)

    @property
    def nans(self) -> int | None:
        """Number of elements that are NaN or NaT."""
        return int(self.chunks._columns.nans.sum()) if self._all_known else None

    @property
    def nonzeros(self) -> int | None:
        """Number of elements that differ from zero, NaN and NaT included."""
        return int(self.chunks._columns.nonzeros.sum()) if self._all_known else None

    def __repr__(self) -> str:
        values = ", ".join(f"{name}={text}" for name, text in self._texts())
        unknown = np.count_nonzero(~self.chunks.known)
        return f"<FrameStats {values}{f', {unknown} chunks unknown' * bool(unknown)}>"

    def _repr_html_(self) -> str:
        rows = (f"<tr><th>{name}</th><td>{text}</td></tr>" for name, text in self._texts())
        return f"<table>{''.join(rows)}</table>"

    def _texts(self) -> Iterator[tuple[str, str]]:
        for name in _NAMES:
            value = getattr(self, name)
            # a mean exists, but its sum has wrapped around
            wrapped = name == "mean" and self.size != self.nans
            missing = "none" if self._all_known and not wrapped else "unknown"
            yield name, missing if value is None else _text(value)

    @cached_property
    def _all_known(self) -> bool:
        return bool(self.chunks.known.all())

    def _end(self, ends: NDArray[Any] | None, choose: Any) -> Any:
        if ends is None or not self._all_known:
            return None
        found = np.ma.compressed(ends)
        return choose(found) if len(found) else None


@dataclass(frozen=True, eq=False, repr=False)
class ChunkStats:
    """Statistics of each chunk, in the shape of the chunk grid.

    Arrays are masked for chunks without statistics, or without this statistic.
    """

    _columns: ChunkStatistics
    _grid: Grid
    _dtype: np.dtype[Any]
    """Dtype of the elements, in native byte order."""

    @property
    def known(self) -> NDArray[np.bool_]:
        """Whether each chunk has statistics."""
        return self._columns.known.reshape(self._grid.counts)

    @property
    def min(self) -> NDArray[Any] | None:
        """Least elements; None for complex numbers."""
        return self._masked(self._columns.least, some=True) if self._columns.has_range else None

    @property
    def max(self) -> NDArray[Any] | None:
        """Greatest elements; None for complex numbers."""
        return self._masked(self._columns.greatest, some=True) if self._columns.has_range else None

    @property
    def sum(self) -> NDArray[Any] | None:
        """Sums without NaN and NaT; None for dates."""
        total = self._columns.total
        if self._dtype.kind == "M":
            return None
        return self._masked(total if self._dtype.kind != "m" else total.view(self._dtype))

    @property
    def mean(self) -> NDArray[Any]:
        """Means without NaN and NaT; also masked if a sum may have wrapped around."""
        n = np.maximum(1, element_counts(self._grid) - self._columns.nans)
        if self._dtype.kind in "mM":
            ticks = np.abs(self._columns.total) // n * np.sign(self._columns.total)
            means: NDArray[Any] = ticks.view(self._dtype)
        else:
            means = self._columns.total / n
        found = self._masked(means, some=True)
        inexact = ~self._exact.reshape(found.shape)
        return np.ma.masked_array(found, mask=np.ma.getmaskarray(found) | inexact)

    @property
    def size(self) -> NDArray[np.int64]:
        """Number of elements, without the padding behind the array's edge."""
        return element_counts(self._grid).reshape(self._grid.counts)

    @property
    def nans(self) -> NDArray[Any]:
        """Number of elements that are NaN or NaT."""
        return self._masked(self._columns.nans)

    @property
    def nonzeros(self) -> NDArray[Any]:
        """Number of elements that differ from zero, NaN and NaT included."""
        return self._masked(self._columns.nonzeros)

    def __repr__(self) -> str:
        return f"<ChunkStats of {' x '.join(map(str, self._grid.counts))} chunks>"

    def _masked(self, column: NDArray[Any], *, some: bool = False) -> NDArray[Any]:
        """Shape a column like the grid; mask unknown chunks and, with `some`, all-NaN chunks."""
        mask = ~self._columns.known
        if some:
            mask = mask | (self._columns.nans >= element_counts(self._grid))
        return np.ma.masked_array(column.copy(), mask=mask).reshape(self._grid.counts)

    @cached_property
    def _exact(self) -> NDArray[np.bool_]:
        """Whether the sum of integers in each chunk cannot have wrapped around."""
        kind, counts = self._dtype.kind, element_counts(self._grid)
        if kind not in "iumM":
            return np.ones(len(counts), bool)
        ends = (e.astype(self._dtype) for e in (self._columns.least, self._columns.greatest))
        low, high = ((e.view(np.int64) if kind in "mM" else e).astype(np.float64) for e in ends)
        # the margin allows for rounding in float64
        most = (2.0**64 if kind == "u" else 2.0**63) * (1 - 1e-12)
        fit = np.maximum(np.abs(low), np.abs(high)) * counts < most
        return fit | (self._columns.nans >= counts)


def _text(value: Any) -> str:
    return f"{value:.6g}" if isinstance(value, float) else str(value)
