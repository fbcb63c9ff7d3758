"""Read a region for work whose result some chunks cannot change: these are not read."""

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


class Settles(Protocol):
    """Work on elements of which statistics may tell that they do not matter."""

    def __call__(self, statistics: ChunkStatistics, counts: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Tell for each chunk, of so many elements, whether any elements of its range will do."""


def settled_share(parsed: ParsedFrame, settles: Settles) -> float:
    """Which part of the chunks does not matter for some work.

    0 without statistics, and where all chunks repeat one element: none is looked at in any case.
    """
    if parsed.statistics is None or parsed.index.single_kind or not len(parsed.index):
        return 0.0
    return float(settles(parsed.statistics, element_counts(parsed.grid)).mean())


def read_unsettled(
    opened: OpenedFrame, axes: tuple[range, ...], fill: Fill, settles: Settles
) -> NDArray[Any]:
    """As `read_region`, but chunks that are settled read as an element that they may have.

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
    settled = settles(found, counts) & found.known & (plan.kinds == ChunkKind.STORED)
    if not settled.any():
        return read_region(opened, axes, fill)
    out = result_pool.empty(tuple(map(len, axes)), carrier(fill.dtype))
    least = found.least.view(out.dtype)
    for at, part in zip(np.flatnonzero(settled).tolist(), plan.parts(settled), strict=True):
        out[part.out] = least[at]
    for part in plan.parts(~settled):
        region = tuple(axis[along] for axis, along in zip(axes, part.out, strict=True))
        where = out[part.out]
        elements = read_region(opened, region, fill, into=where)
        if not np.may_share_memory(elements, where):
            where[...] = elements.view(out.dtype)
    return out.view(fill.dtype)
