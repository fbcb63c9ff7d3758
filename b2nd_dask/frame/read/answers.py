"""Statistics pruning, and results from statistics: chunks that need not be read."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from b2nd_dask.format.grid import Grid
from b2nd_dask.format.index import ChunkKind
from b2nd_dask.format.statistics import ChunkStatistics, element_counts
from b2nd_dask.frame.open.opening import OpenedFrame, ParsedFrame
from b2nd_dask.frame.read.buffers import result_pool
from b2nd_dask.frame.read.decode import Fill, carrier
from b2nd_dask.frame.read.partial_results import Cells
from b2nd_dask.frame.read.plan import RegionPlan
from b2nd_dask.frame.read.reduction import Answers, Reduction, Total
from b2nd_dask.frame.read.region import read_region


@dataclass(frozen=True, eq=False)
class Answered:
    """What statistics answer of the touched chunks; masks have an entry for each."""

    answers: Answers
    constants: list[NDArray[np.bool_]]
    """For each element of `Answers.constants` the chunks that it stands for."""
    by_totals: NDArray[np.bool_]
    """Chunks of which `Answers.totals` is added."""
    by_classes: NDArray[np.bool_]
    """Chunks of which `Answers.classes` are added."""

    @property
    def chunks(self) -> NDArray[np.bool_]:
        """Chunks of which nothing needs to be read."""
        answered = self.by_totals | self.by_classes
        for chosen in self.constants:
            answered = answered | chosen
        return answered

    def add_to(self, total: Total) -> None:
        """Add what statistics answer to a reduction."""
        for (element, _), chosen in zip(self.answers.constants, self.constants, strict=True):
            if chosen.any():
                total.add_constants(element, chosen)
        if self.answers.totals is not None and self.by_totals.any():
            total.add_totals(self.answers.totals[0], self.by_totals)
        if self.by_classes.any():
            for element, counts in self.answers.classes:
                total.add_counted(element, np.where(self.by_classes, counts, 0))


def answered_by(
    statistics: ChunkStatistics, plan: RegionPlan, grid: Grid, how: Reduction
) -> Answered | None:
    """Ask statistics for a reduction of a region; None where it asks nothing."""
    if how.ask is None:
        return None
    found = statistics.of_chunks(plan.chunks)
    counts = touched_counts(plan, grid)
    answers = how.ask(found, counts)
    left = (plan.kinds == ChunkKind.STORED) & found.known
    constants = []
    for _, chosen in answers.constants:
        constants.append(left & chosen)
        left = left & ~chosen
    left = left & _are_whole(plan, grid, how.axis)
    nothing = np.zeros(len(left), np.bool_)
    by_totals = nothing if answers.totals is None else left & answers.totals[1]
    left = left & ~by_totals
    by_classes = nothing
    if answers.classes:
        by_classes = left & (sum(each for _, each in answers.classes) == counts)
    return Answered(answers, constants, by_totals, by_classes)


def unanswered_nbytes(parsed: ParsedFrame, axes: tuple[range, ...], how: Reduction) -> int | None:
    """Bytes of elements that a reduction would read, since no statistics tell of them.

    None without statistics, and where all chunks repeat one element: none is looked at in any case.
    """
    statistics = parsed.statistics
    if statistics is None or parsed.index.single_kind:
        return None
    plan, grid = RegionPlan.of(parsed, axes), parsed.grid
    answered = answered_by(statistics, plan, grid, how)
    stored = plan.kinds == ChunkKind.STORED
    left = stored if answered is None else stored & ~answered.chunks
    cells = Cells(plan.cells, how.axis)
    lengths = [cells.lengths(axis) for axis in range(grid.ndim)]
    return int(_outer(np.multiply, lengths, np.dtype(np.int64))[left].sum()) * grid.itemsize


def touched_counts(plan: RegionPlan, grid: Grid) -> NDArray[np.int64]:
    """Count all elements of each touched chunk, without what lies behind the array's edge."""
    extents = [_extents(plan, axis, grid) for axis in range(grid.ndim)]
    return _outer(np.multiply, extents, np.dtype(np.int64))


def _are_whole(plan: RegionPlan, grid: Grid, axis: tuple[int, ...]) -> NDArray[np.bool_]:
    """Tell which chunks have all of their elements in one element of the result.

    Along axes that are not reduced such a chunk has the length 1.
    """
    cells = Cells(plan.cells, axis)
    wholes = []
    for i in range(grid.ndim):
        extents = _extents(plan, i, grid)
        wholes.append((cells.lengths(i) == extents) & ((extents == 1) | (i in axis)))
    return _outer(np.logical_and, wholes, np.dtype(np.bool_))


def _extents(plan: RegionPlan, axis: int, grid: Grid) -> NDArray[np.int64]:
    starts = plan.cells[axis].numbers * grid.chunks[axis]
    return np.minimum(grid.chunks[axis], grid.shape[axis] - starts)


def _outer(ufunc: np.ufunc, axes: list[NDArray[Any]], dtype: np.dtype[Any]) -> NDArray[Any]:
    found: NDArray[Any] = np.ones(1, dtype)
    for along in axes:
        found = ufunc(found[:, None], along).reshape(-1)
    return found


class Predicate(Protocol):
    """A condition on chunks that their statistics may show to hold."""

    def __call__(self, statistics: ChunkStatistics, counts: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Say for each chunk, of so many elements, whether any elements of its range will do."""


def pruned_share(parsed: ParsedFrame, predicate: Predicate) -> float:
    """Which part of the chunks need not be read due to a predicate; 0 without statistics.

    What is not stored is not read in any case.
    """
    if parsed.statistics is None or parsed.index.single_kind:
        return 0.0
    pruned = predicate(parsed.statistics, element_counts(parsed.grid))
    return float((pruned & (parsed.index.kinds == ChunkKind.STORED)).mean())


def read_pruned(
    opened: OpenedFrame, axes: tuple[range, ...], fill: Fill, predicate: Predicate
) -> NDArray[Any]:
    """As `read_region`, but pruned chunks read as an element that they may have.

    Parameters
    ----------
    axes : tuple of range
        Ascending positions to read along each axis.
    """
    statistics = opened.parsed.statistics
    if statistics is None or not all(axes):
        return read_region(opened, axes, fill)
    plan = RegionPlan.of(opened.parsed, axes)
    found = statistics.of_chunks(plan.chunks)
    counts = touched_counts(plan, opened.parsed.grid)
    pruned = predicate(found, counts) & found.known & (plan.kinds == ChunkKind.STORED)
    if not pruned.any():
        return read_region(opened, axes, fill)
    out = result_pool.empty(tuple(map(len, axes)), carrier(fill.dtype))
    least = found.least.view(out.dtype)
    for at, part in zip(np.flatnonzero(pruned).tolist(), plan.parts(pruned), strict=True):
        out[part.out] = least[at]
    for part in plan.parts(~pruned):
        region = tuple(axis[along] for axis, along in zip(axes, part.out, strict=True))
        where = out[part.out]
        elements = read_region(opened, region, fill, into=where)
        if not np.may_share_memory(elements, where):
            where[...] = elements.view(out.dtype)
    return out.view(fill.dtype)
