"""Read a region without the chunks that statistics prune: those cannot change what is computed."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from b2nd_dask.format.index import ChunkKind
from b2nd_dask.format.statistics import ChunkStatistics, element_counts
from b2nd_dask.frame.open.opening import OpenedFrame, ParsedFrame
from b2nd_dask.frame.read.answers import touched_counts
from b2nd_dask.frame.read.buffers import result_pool
from b2nd_dask.frame.read.decode import Fill, carrier
from b2nd_dask.frame.read.plan import RegionPlan
from b2nd_dask.frame.read.region import read_region


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
