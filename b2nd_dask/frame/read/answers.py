"""Add to a reduction what the statistics of chunks tell of it: their elements need not be read."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from b2nd_dask.format.grid import AxisSlice, Grid
from b2nd_dask.format.index import ChunkKind
from b2nd_dask.format.statistics import ChunkStatistics
from b2nd_dask.frame.read.plan import RegionPlan
from b2nd_dask.frame.read.reduction import Answers, Ask
from b2nd_dask.frame.read.total import Total


def add_answers(
    total: Total, plan: RegionPlan, statistics: ChunkStatistics, grid: Grid, ask: Ask
) -> NDArray[np.bool_]:
    """Add what statistics tell of the stored chunks of a region.

    Returns
    -------
    ndarray of bool
        Which of the touched chunks were added.
    """
    found = statistics.of_chunks(plan.chunks)
    counts = element_counts(plan.slices, grid)
    answers = ask(found, counts)
    asked = (plan.kinds == ChunkKind.STORED) & found.known
    left = asked
    for element, chosen in answers.settled:
        if (chosen := chosen & left).any():
            total.add_constants(element, chosen)
            left = left & ~chosen
    left = _add_whole(total, answers, counts, left, are_whole(plan.slices, grid, total.axis))
    return asked & ~left


def _add_whole(
    total: Total,
    answers: Answers,
    counts: NDArray[np.int64],
    left: NDArray[np.bool_],
    whole: NDArray[np.bool_],
) -> NDArray[np.bool_]:
    """Add whole chunks; return what is left."""
    if answers.totals is not None:
        fields, known = answers.totals
        if (chosen := left & whole & known).any():
            total.add_totals(fields, chosen)
            left = left & ~chosen
    if answers.classes:
        told = sum(each for _, each in answers.classes) == counts
        if (chosen := left & whole & told).any():
            for element, each in answers.classes:
                total.add_counted(element, np.where(chosen, each, 0))
            left = left & ~chosen
    return left


def element_counts(slices: tuple[list[AxisSlice], ...], grid: Grid) -> NDArray[np.int64]:
    """Count the elements of each touched chunk, in C order; those behind the edge do not count."""
    extents = [_extents(cells, axis, grid) for axis, cells in enumerate(slices)]
    return _outer(np.multiply, extents, np.dtype(np.int64))


def are_whole(
    slices: tuple[list[AxisSlice], ...], grid: Grid, axis: tuple[int, ...]
) -> NDArray[np.bool_]:
    """Tell which of the touched chunks have all of their elements in one element of the result.

    Parameters
    ----------
    axis : tuple of int
        Reduced axes. Along the others such a chunk has the length 1.
    """
    wholes = []
    for i, cells in enumerate(slices):
        extents = _extents(cells, i, grid)
        lengths = np.array([len(cell.inner) for cell in cells], np.int64)
        wholes.append((lengths == extents) & ((extents == 1) | (i in axis)))
    return _outer(np.logical_and, wholes, np.dtype(np.bool_))


def _extents(cells: list[AxisSlice], axis: int, grid: Grid) -> NDArray[np.int64]:
    starts = np.array([cell.cell for cell in cells], np.int64) * grid.chunks[axis]
    return np.minimum(grid.chunks[axis], grid.shape[axis] - starts)


def _outer(ufunc: np.ufunc, axes: list[NDArray[Any]], dtype: np.dtype[Any]) -> NDArray[Any]:
    found: NDArray[Any] = np.ones(1, dtype)
    for along in axes:
        found = ufunc(found[:, None], along).reshape(-1)
    return found
