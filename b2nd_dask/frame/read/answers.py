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
from b2nd_dask.frame.read.decode import Fill
from b2nd_dask.frame.read.plan import RegionPlan, per_chunk
from b2nd_dask.frame.read.reduction import Counted, PerChunk, Reduction, Total
from b2nd_dask.frame.read.region import new_array, read_parts, read_region


@dataclass(frozen=True, eq=False)
class Answered:
    """What statistics answer of the touched chunks; arrays have an entry for each."""

    counted: Counted
    """Of the selected elements of each chunk."""
    totals: PerChunk
    by_totals: NDArray[np.bool_]
    """Chunks of which `totals` are the partial results."""
    chunks: NDArray[np.bool_]
    """Chunks of which nothing needs to be read."""

    def add_to(self, total: Total) -> None:
        """Add what statistics answer to a reduction."""
        for element, counts in self.counted:
            total.add_counted(element, counts)
        if self.by_totals.any():
            total.add_totals(self.totals, self.by_totals)


def answered_by(
    statistics: ChunkStatistics, plan: RegionPlan, grid: Grid, how: Reduction
) -> Answered | None:
    """Ask statistics for a reduction of a region; None where it asks nothing."""
    if how.ask is None:
        return None
    found = statistics.of_chunks(plan.chunks)
    counts = touched_counts(plan, grid)
    answers = how.ask(found, counts)
    stored = (plan.kinds == ChunkKind.STORED) & found.known
    left, sizes = stored, plan.sizes(how.axis)
    counted = []
    for element, often in answers.counted:
        is_constant = left & (often == counts)
        counted.append((element, np.where(is_constant, sizes, 0)))
        left = left & ~is_constant
    whole = left & _are_whole(plan, grid, how.axis)
    totals, known = answers.totals or ({}, np.False_)
    by_totals = whole & known
    left = left & ~by_totals
    by_counts = whole & left & (sum(often for _, often in answers.counted) == counts)
    for (_, own), (_, often) in zip(counted, answers.counted, strict=True):
        own[by_counts] = often[by_counts]
    return Answered(counted, totals, by_totals, stored & ~(left & ~by_counts))


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
    return int(plan.sizes(range(grid.ndim))[left].sum()) * grid.itemsize


def touched_counts(plan: RegionPlan, grid: Grid) -> NDArray[np.int64]:
    """Count all elements of each touched chunk, without what lies behind the array's edge."""
    return per_chunk(_extents(plan, grid))


def _are_whole(plan: RegionPlan, grid: Grid, axis: tuple[int, ...]) -> NDArray[np.bool_]:
    """Tell which chunks have all of their elements in one element of the result.

    Along axes that are not reduced such a chunk has the length 1.
    """
    along = enumerate(zip(plan.cells, _extents(plan, grid), strict=True))
    wholes = [
        (cells.lengths == extents) & ((extents == 1) | (i in axis)) for i, (cells, extents) in along
    ]
    return per_chunk(wholes) > 0


def _extents(plan: RegionPlan, grid: Grid) -> list[NDArray[np.int64]]:
    """Elements of the touched chunks along each axis."""
    axes = zip(plan.cells, grid.chunks, grid.shape, strict=True)
    return [np.minimum(chunk, size - cells.numbers * chunk) for cells, chunk, size in axes]


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
    out = new_array(plan, fill, tuple(map(len, axes)), result_pool.empty)
    least = found.least.view(out.dtype)
    for at, part in zip(np.flatnonzero(pruned).tolist(), plan.parts(pruned), strict=True):
        out[part.out] = least[at]
    read_parts(opened, plan.without(pruned), fill, out)
    return out.view(fill.dtype)
