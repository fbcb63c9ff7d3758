"""`Reduction`, the interface between reductions and reads, and the total of partial results.

A reduction has functions of elements and of statistics, and rules for merging and repetition.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from b2nd_dask.format.statistics import ChunkStatistics, multiplied
from b2nd_dask.frame.read.plan import RegionPlan

PartialResult = Mapping[str, NDArray[Any]]
"""Partial result of a reduction: arrays with length 1 along the reduced axes. Further axes may
follow those of the elements."""


def count_in_box(out: Sequence[slice], axis: tuple[int, ...]) -> NDArray[np.int64]:
    """Count the elements of a box for each element of the reduced result."""
    lengths = [along.stop - along.start for along in out]
    kept = [1 if i in axis else length for i, length in enumerate(lengths)]
    return np.full(kept, math.prod(lengths[i] for i in axis), np.int64)


@dataclass(frozen=True)
class Accumulation:
    """The rules by which partial results of one kind of reduction accumulate."""

    merge: Callable[[PartialResult, PartialResult], PartialResult]
    """Merge the partial results of two sets of elements; the order does not matter."""
    repeat: Callable[[PartialResult, NDArray[np.int64]], PartialResult]
    """Convert the partial result of one element to that of its repetition, with the number of
    occurrences for each element of the reduced result."""

    def merge_along(
        self, axis: int, fields: PartialResult, seen: NDArray[np.bool_]
    ) -> tuple[PartialResult, NDArray[np.bool_]]:
        """Merge the `seen` partial results by halves, for sums as precise as pairwise sums."""

        def part(values: NDArray[Any], start: int, stop: int) -> NDArray[Any]:
            return values[(slice(None),) * axis + (slice(start, stop),)]

        while (length := seen.shape[axis]) > 1:
            half, rest = (length + 1) // 2, length // 2
            ends = (0, rest), (half, length)
            first, second = ({k: part(v, *end) for k, v in fields.items()} for end in ends)
            one, other = (part(seen, *end) for end in ends)
            with np.errstate(all="ignore"):
                merged = self.merge(first, second)
            joined = {}
            for name, values in fields.items():
                more = (...,) + (None,) * (values.ndim - seen.ndim)
                alone = np.where(one[more], first[name], second[name])
                found = np.where((one & other)[more], merged[name], alone)
                joined[name] = np.concatenate([found, part(values, rest, half)], axis)
            fields, seen = joined, np.concatenate([one | other, part(seen, rest, half)], axis)
        return fields, seen


def extremes(ufunc: np.ufunc) -> Accumulation:
    """Accumulate by a `ufunc` that selects one of two values, such as `numpy.minimum`."""
    return Accumulation(partial(_merge_by, ufunc), _same)


def _merge_by(ufunc: np.ufunc, first: PartialResult, second: PartialResult) -> PartialResult:
    return {name: ufunc(values, second[name]) for name, values in first.items()}


def _repeat_by(
    apply: Callable[[NDArray[Any], NDArray[np.int64]], NDArray[Any]],
    one: PartialResult,
    counts: NDArray[np.int64],
) -> PartialResult:
    with np.errstate(all="ignore"):
        return {
            name: apply(values, counts.reshape(counts.shape + (1,) * (values.ndim - counts.ndim)))
            for name, values in one.items()
        }


def _same(one: PartialResult, counts: NDArray[np.int64]) -> PartialResult:
    return {name: np.broadcast_to(values, counts.shape).copy() for name, values in one.items()}


def _raised(values: NDArray[Any], counts: NDArray[np.int64]) -> NDArray[Any]:
    """Raise values to the power of counts, in their dtype; integers wrap around as in products."""
    whole = {"u": np.dtype("u8"), "i": np.dtype("i8")}
    wide = whole.get(values.dtype.kind, values.dtype)
    power: NDArray[Any] = np.power(values.astype(wide), counts.astype(wide))
    return power.astype(values.dtype)


def _merge_moments(first: PartialResult, second: PartialResult) -> PartialResult:
    """Merge counts, totals and sums of squared deviations (Chan, Golub and LeVeque 1979)."""
    n, m = first["n"], second["n"]
    with np.errstate(divide="ignore", invalid="ignore"):
        apart = np.abs(second["total"] / m - first["total"] / n)
        between = np.where((n > 0) & (m > 0), apart**2 * (n * (m / (n + m))), 0)
    squares = first["M"] + second["M"]
    squares += between[..., None].astype(squares.dtype)
    return {"total": first["total"] + second["total"], "n": n + m, "M": squares}


SUMS = Accumulation(partial(_merge_by, np.add), partial(_repeat_by, multiplied))
PRODUCTS = Accumulation(partial(_merge_by, np.multiply), partial(_repeat_by, _raised))
#: Fields ``n``, ``total`` and ``M``: count, sum, and sum of squared deviations from the mean.
MOMENTS = Accumulation(_merge_moments, SUMS.repeat)


PerChunk = Mapping[str, NDArray[Any]]
"""Fields of a partial result, with one value per chunk."""
Counted = Sequence[tuple[NDArray[Any], NDArray[np.int64]]]
"""0-d elements, each with its number of occurrences in each chunk."""


@dataclass(frozen=True, eq=False)
class Answers:
    """Answers of a reduction from statistics; arrays have one value per chunk."""

    counted: Counted = ()
    """For whole chunks; 0 if unknown. An element that fills a whole chunk fills each part of it."""
    totals: tuple[PerChunk, NDArray[np.bool_]] | None = None
    """Partial results of whole chunks, and a mask of the chunks with known results."""


Ask = Callable[[ChunkStatistics, NDArray[np.int64]], Answers]
"""Computes the answer for each chunk from its statistics and its number of elements."""


@dataclass(frozen=True)
class Reduction:
    """A reduction: its axes, the function of a box of elements, and the accumulation."""

    axis: tuple[int, ...]
    """Reduced axes in ascending order."""
    accumulation: Accumulation
    partial_result: Callable[[NDArray[Any]], PartialResult]
    """Reduces a box of elements, of any order and shape if all axes are reduced. Returns no fields
    if it selects none of the elements."""
    ask: Ask | None = None
    """Computes the results of chunks from their statistics, if possible."""


def of_one(element: NDArray[Any], ndim: int, reduction: Reduction) -> PartialResult:
    """Compute the partial result of a single element."""
    return reduction.partial_result(element.reshape((1,) * ndim))


class Total:
    """The accumulated partial results, for each element of the reduced result."""

    def __init__(self, plan: RegionPlan, reduction: Reduction) -> None:
        self._reduction, self._plan = reduction, plan
        self._shape = tuple(
            1 if i in reduction.axis else int(cells.bounds[-1])
            for i, cells in enumerate(plan.cells)
        )
        self._seen = np.zeros(self._shape, bool)
        self._last: tuple[bytes, PartialResult] | None = None
        self.fields: dict[str, NDArray[Any]] = {}

    @property
    def keeps_axes(self) -> bool:
        """Whether the position of an element in a box matters."""
        return len(self._reduction.axis) < len(self._shape)

    def add_elements(self, elements: NDArray[Any], out: tuple[slice, ...]) -> None:
        """Add a box of the region."""
        self._add(self._reduction.partial_result(elements), out)

    def add_constant(self, out: tuple[slice, ...], element: NDArray[Any]) -> None:
        """Add a box that repeats one element."""
        self._add(self._repeated(element, count_in_box(out, self._reduction.axis)), out)

    def add_counted(self, element: NDArray[Any], counts: NDArray[np.int64]) -> None:
        """Add copies of an element: `counts` for each chunk and each element of its result."""
        if counts.any():
            repeats = self._spread(self._in_cells(counts).sum(self._reduction.axis, keepdims=True))
            self._add(self._repeated(element, repeats), chosen=repeats > 0)

    def add_totals(self, totals: PerChunk, chosen: NDArray[np.bool_]) -> None:
        """Add the partial results of the chosen chunks of the plan.

        Each of these chunks contributes to only one element of the result.
        """
        fields: PartialResult = {name: self._in_cells(v) for name, v in totals.items()}
        seen = self._in_cells(chosen)
        for axis in self._reduction.axis:
            fields, seen = self._reduction.accumulation.merge_along(axis, fields, seen)
        new = {name: self._spread(values) for name, values in fields.items()}
        self._add(new, chosen=self._spread(seen))

    def _in_cells(self, values: NDArray[Any]) -> NDArray[Any]:
        """Reshape values of the plan's chunks to the shape of its cells."""
        return values.reshape(self._plan.counts)

    def _spread(self, values: NDArray[Any]) -> NDArray[Any]:
        """Repeat values of cells along the kept axes, once per element of the cell."""
        for i, cells in enumerate(self._plan.cells):
            if i not in self._reduction.axis:
                values = np.repeat(values, cells.lengths, axis=i)
        return values

    def _add(
        self,
        new: PartialResult,
        out: tuple[slice, ...] = (),
        chosen: NDArray[np.bool_] | None = None,
    ) -> None:
        """Add the partial result of a box of the region, or chosen elements of the whole result."""
        if not new:
            return
        box = (slice(0, 1) if i in self._reduction.axis else own for i, own in enumerate(out))
        where = (*box, ...)
        seen = self._seen[where]
        old = {name: values[where] for name, values in self._all(new).items()}
        merged = self._reduction.accumulation.merge(old, new) if seen.any() else new
        chosen = np.ones_like(seen) if chosen is None else chosen
        # not merged where no element was seen: the initial zeros would count
        for found, mask in ((merged, chosen & seen), (new, chosen & ~seen)):
            for name, values in old.items() if mask.any() else ():
                more = (...,) + (None,) * (values.ndim - mask.ndim)
                np.copyto(values, found[name], where=mask[more])
        seen |= chosen

    def _repeated(self, element: NDArray[Any], counts: NDArray[np.int64]) -> PartialResult:
        # consecutive chunks often repeat the same element
        content = element.tobytes()
        if self._last is None or self._last[0] != content:
            self._last = content, of_one(element, len(self._shape), self._reduction)
        return self._reduction.accumulation.repeat(self._last[1], counts)

    def _all(self, like: PartialResult) -> dict[str, NDArray[Any]]:
        """The arrays of the whole result, created when the dtypes of partial results are known."""
        if not self.fields:
            ndim = len(self._shape)
            self.fields = {
                name: np.zeros(self._shape + values.shape[ndim:], values.dtype)
                for name, values in like.items()
            }
        return self.fields
