"""Reduce a region while it is read: no array of it is built, chunks are decoded one by one.

Small ones are reduced in groups.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from b2nd_dask.format.chunk.codec import read_only
from b2nd_dask.format.grid import Grid, boxes_between, contiguous_box
from b2nd_dask.format.index import ChunkKind
from b2nd_dask.frame.open.opening import OpenedFrame
from b2nd_dask.frame.read.answers import answered_by
from b2nd_dask.frame.read.buffers import BOX_NBYTES, scratch
from b2nd_dask.frame.read.chunk_requests import batches
from b2nd_dask.frame.read.decode import Fill, decode_part
from b2nd_dask.frame.read.fetch import fetch
from b2nd_dask.frame.read.plan import MOST_BATCH, RegionPlan
from b2nd_dask.frame.read.reduction import PartialResult, Reduction, Total, count_in_box, of_one
from b2nd_dask.frame.read.region import chunk_requests, parts_of, read_region, special_element

#: A group of small chunks has room for at least so many, and takes so many at most: each needs some
#: objects.
_LEAST_CHUNKS, _MOST_CHUNKS = 8, 1024


def reduce_region(
    opened: OpenedFrame, axes: tuple[range, ...], fill: Fill, how: Reduction
) -> PartialResult:
    """Reduce a region.

    Chunks that repeat one element are counted, not expanded; of those whose statistics tell the
    result nothing is read.

    Parameters
    ----------
    axes : tuple of range
        Ascending positions to read along each axis, at least one each.
    fill : Fill
        Its dtype is that of the elements; not a structured one.

    Raises
    ------
    CorruptChunkError, UnsupportedFrameError, UninitializedChunkError
        With the chunk's number.
    """
    constant = opened.parsed.index.single_kind
    if constant:
        # of any number of chunks, none is looked at
        return _of_constant(special_element(fill, constant, 0), axes, how)
    plan = RegionPlan.of(opened.parsed, axes)
    total, sizes = Total(plan, how), plan.sizes(how.axis)
    for kind in np.unique(plan.kinds).tolist():
        if kind != ChunkKind.STORED:
            first = int(plan.chunks[np.argmax(plan.kinds == kind)])
            element = special_element(fill, kind, first)
            total.add_counted(element, np.where(plan.kinds == kind, sizes, 0))
    statistics = opened.parsed.statistics if how.ask is not None else None
    grid = opened.parsed.grid
    if statistics is not None and (answered := answered_by(statistics, plan, grid, how)):
        answered.add_to(total)
        plan = plan.without(answered.chunks)
    if _in_groups(opened, plan):
        _add_groups(opened, axes, fill, plan, total)
    else:
        _add_chunks(opened, fill, plan, total)
    return total.fields


def group_nbytes(grid: Grid) -> int:
    """Bytes of elements that are reduced at once, at most; 0 where chunks are taken one by one."""
    is_small = grid.chunk_nbytes * _LEAST_CHUNKS <= BOX_NBYTES
    return min(BOX_NBYTES, _MOST_CHUNKS * grid.chunk_nbytes) if is_small else 0


def _in_groups(opened: OpenedFrame, plan: RegionPlan) -> bool:
    return (
        len(plan.chunks) > 1
        and not plan.kinds.any()
        and opened.reader.batch_nbytes <= MOST_BATCH
        and group_nbytes(opened.parsed.grid) > 0
    )


def _add_groups(
    opened: OpenedFrame, axes: tuple[range, ...], fill: Fill, plan: RegionPlan, total: Total
) -> None:
    """Add boxes of small chunks, all of them stored."""
    itemsize = fill.dtype.itemsize
    grid = opened.parsed.grid
    for out in _boxes(plan, group_nbytes(grid) // grid.chunk_nbytes):
        region = tuple(axis[along] for axis, along in zip(axes, out, strict=True))
        shape = tuple(map(len, region))
        with scratch.borrow(math.prod(shape) * itemsize) as buffer:
            elements = buffer.view(fill.dtype).reshape(shape)
            total.add_elements(read_only(read_region(opened, region, fill, into=elements)), out)


def _boxes(plan: RegionPlan, most: int) -> Iterator[tuple[slice, ...]]:
    """Divide a region into boxes of at most so many chunks, long along the last axes."""
    bounds = (
        [*cells.bounds[:-1:count].tolist(), int(cells.bounds[-1])]
        for cells, count in zip(plan.cells, contiguous_box(plan.counts, most), strict=True)
    )
    return boxes_between(bounds)


def _of_constant(element: NDArray[Any], axes: tuple[range, ...], how: Reduction) -> PartialResult:
    region = tuple(slice(0, len(axis)) for axis in axes)
    counts = count_in_box(region, how.axis)
    return how.accumulation.repeat(of_one(element, len(axes), how), counts)


def _add_chunks(opened: OpenedFrame, fill: Fill, plan: RegionPlan, total: Total) -> None:
    """Add stored chunks, decoded one after the other into a scratch buffer."""
    parts = parts_of(opened, plan)
    requests = chunk_requests(opened, parts)
    for batch in batches(opened, requests, opened.reader.batch_nbytes):
        for fetched in fetch(opened, batch):
            part = parts[fetched.number]
            shape = tuple(map(len, part.inner))
            with scratch.borrow(math.prod(shape) * fill.dtype.itemsize) as buffer:
                elements = buffer.view(fill.dtype).reshape(shape)
                element = decode_part(
                    opened, fetched, part, fill, elements, in_order=total.keeps_axes
                )
                if element is None:
                    total.add_elements(read_only(elements), part.out)
                else:
                    total.add_constant(part.out, element)
