"""Reduce a region during the read: decode chunk by chunk, without an array of the region.

Small chunks are reduced in groups. Chunks that statistics answer or a predicate prunes are skipped.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from b2nd_dask.format.chunk.chunk_header import ChunkKind
from b2nd_dask.format.chunk.codec import read_only
from b2nd_dask.format.grid import Grid, boxes_between, contiguous_box, per_chunk
from b2nd_dask.format.statistics import ChunkStatistics
from b2nd_dask.frame.open.cache import OpenedFrame
from b2nd_dask.frame.open.opening import ParsedFrame
from b2nd_dask.frame.read.buffers import BOX_NBYTES, result_pool, scratch
from b2nd_dask.frame.read.decode import Fill, decode_part
from b2nd_dask.frame.read.fetch import fetch_all
from b2nd_dask.frame.read.plan import MOST_BATCH, Axes, RegionPlan
from b2nd_dask.frame.read.reduction import PartialResult, Reduction, Total, count_in_box, of_one
from b2nd_dask.frame.read.region import (
    new_array,
    only_element,
    parts_of,
    read_parts,
    read_region,
    requests_of,
    special_elements,
)
from b2nd_dask.storage import Item, Span

#: Least chunks of a group, since fewer save no time; and most, since each needs some objects.
_LEAST_CHUNKS, _MOST_CHUNKS = 8, 1024


def unanswered(
    parsed: ParsedFrame, plan: RegionPlan, reduction: Reduction, total: Total | None = None
) -> RegionPlan:
    """Plan a reduction without the chunks that statistics answer; add the answers to `total`."""
    # statistics are unpacked at the first access
    if reduction.ask is None or parsed.statistics is None:
        return plan
    grid = parsed.grid
    found = parsed.statistics.of_chunks(plan.chunks)
    counts = touched_counts(plan, grid)
    answers = reduction.ask(found, counts)
    stored = (plan.kinds == ChunkKind.STORED) & found.known
    left, sizes = stored, plan.sizes(reduction.axis)
    counted = []
    for element, often in answers.counted:
        is_constant = left & (often == counts)
        counted.append((element, np.where(is_constant, sizes, 0)))
        left = left & ~is_constant
    whole = left & _are_whole(plan, grid, reduction.axis)
    totals, known = answers.totals or ({}, np.False_)
    by_totals = whole & known
    left = left & ~by_totals
    by_counts = whole & left & (sum(often for _, often in answers.counted) == counts)
    for (_, own), (_, often) in zip(counted, answers.counted, strict=True):
        own[by_counts] = often[by_counts]
    if total is not None:
        for element, own in counted:
            total.add_counted(element, own)
        if by_totals.any():
            total.add_totals(totals, by_totals)
    return plan.without(stored & ~(left & ~by_counts))


def unanswered_nbytes(parsed: ParsedFrame, axes: Axes, reduction: Reduction) -> int | None:
    """Compute the bytes of the elements that a reduction reads, since statistics do not answer it.

    None without statistics, or if all chunks repeat one element, and nothing is read.
    """
    if parsed.statistics is None or parsed.index.single_kind:
        return None
    plan, grid = unanswered(parsed, RegionPlan.of(parsed, axes), reduction), parsed.grid
    left = plan.kinds == ChunkKind.STORED
    return int(plan.sizes(range(grid.ndim))[left].sum()) * grid.itemsize


def touched_counts(plan: RegionPlan, grid: Grid) -> NDArray[np.int64]:
    """Count all elements of each touched chunk, without the padding behind the array's edge."""
    return per_chunk(grid.lengths(cells.numbers for cells in plan.cells))


def _are_whole(plan: RegionPlan, grid: Grid, axis: tuple[int, ...]) -> NDArray[np.bool_]:
    """Find the chunks that are selected as a whole and reduced to one element.

    Along axes that are not reduced, such a chunk has the length 1.
    """
    lengths = grid.lengths(cells.numbers for cells in plan.cells)
    along = enumerate(zip(plan.cells, lengths, strict=True))
    wholes = [
        (cells.lengths == extents) & ((extents == 1) | (i in axis)) for i, (cells, extents) in along
    ]
    return per_chunk(wholes) > 0


Predicate = Callable[[ChunkStatistics, NDArray[np.int64]], NDArray[np.bool_]]
"""A condition on chunks by their statistics and numbers of elements. If it is true, any elements in
the range of the chunk lead to the same result, so the chunk need not be read."""


def _pruned(parsed: ParsedFrame, plan: RegionPlan, predicate: Predicate) -> NDArray[np.bool_]:
    """Whether a predicate prunes each chunk of a plan; the frame has statistics."""
    assert parsed.statistics is not None  # noqa: S101
    found = parsed.statistics.of_chunks(plan.chunks)
    stored = found.known & (plan.kinds == ChunkKind.STORED)
    pruned: NDArray[np.bool_] = predicate(found, touched_counts(plan, parsed.grid)) & stored
    return pruned


def read_pruned(opened: OpenedFrame, axes: Axes, fill: Fill, predicate: Predicate) -> NDArray[Any]:
    """Like `read_region`, but pruned chunks are filled with an element that they may contain.

    A region inside one pruned chunk is a zero-stride, read-only array of this element.
    """
    statistics = opened.parsed.statistics
    if statistics is None or not all(axes):
        return read_region(opened, axes, fill)
    plan = RegionPlan.of(opened.parsed, axes)
    pruned = _pruned(opened.parsed, plan, predicate)
    if not pruned.any():
        return read_region(opened, axes, fill)
    shape, least = tuple(map(len, axes)), statistics.least[plan.chunks[pruned]]
    if len(pruned) == 1:
        return np.broadcast_to(least.view(fill.dtype)[0], shape)
    out = new_array(plan, fill, shape, result_pool.empty)
    for element, part in zip(least.view(out.dtype), plan.parts(pruned), strict=True):
        out[part.out] = element
    read_parts(opened, plan.without(pruned), fill, out)
    return out.view(fill.dtype)


def expected_reads(
    opened: OpenedFrame, axes: Axes, predicate: Predicate | None = None
) -> Iterator[Item]:
    """List the first requests to a store, in order, of `read_region` or `read_pruned`."""
    if not all(axes) or opened.parsed.index.single_kind:
        return
    plan = RegionPlan.of(opened.parsed, axes)
    if predicate is not None and opened.parsed.statistics is not None:
        plan = plan.without(_pruned(opened.parsed, plan, predicate))
    for each in requests_of(opened, list(plan.parts()), axes):
        span = Span(each.start, each.start + each.first)
        if item := opened.reader.item(each.member, span):
            yield item


def reduce_region(
    opened: OpenedFrame, axes: Axes, fill: Fill, reduction: Reduction
) -> PartialResult:
    """Reduce a region of ascending positions along each axis, at least one each.

    Chunks that repeat one element are counted, not expanded; chunks that statistics answer are not
    read. The dtype of `fill` is not structured. Raises `CorruptChunkError`,
    `UnsupportedFrameError` or `UninitializedChunkError`, which name the chunk.
    """
    element = only_element(opened, axes, fill)
    if element is not None:
        counts = count_in_box([slice(0, len(axis)) for axis in axes], reduction.axis)
        one = of_one(element, len(axes), reduction)
        return reduction.accumulation.repeat(one, counts)
    plan = RegionPlan.of(opened.parsed, axes)
    total, sizes = Total(plan, reduction), plan.sizes(reduction.axis)
    for _, chosen, element in special_elements(fill, plan.kinds, plan.chunks):
        total.add_counted(element, np.where(chosen, sizes, 0))
    plan = unanswered(opened.parsed, plan, reduction, total)
    if _in_groups(opened, plan):
        _add_groups(opened, axes, fill, plan, total)
    else:
        _add_chunks(opened, fill, plan, total)
    return total.fields


def group_nbytes(grid: Grid) -> int:
    """Compute the most bytes of a group of chunks; 0 if chunks are reduced one by one."""
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
    opened: OpenedFrame, axes: Axes, fill: Fill, plan: RegionPlan, total: Total
) -> None:
    """Add boxes of small chunks that are all stored."""
    itemsize = fill.dtype.itemsize
    grid = opened.parsed.grid
    for out in _boxes(plan, group_nbytes(grid) // grid.chunk_nbytes):
        region = tuple(axis[along] for axis, along in zip(axes, out, strict=True))
        shape = tuple(map(len, region))
        with scratch.borrow(math.prod(shape) * itemsize) as buffer:
            elements = buffer.view(fill.dtype).reshape(shape)
            total.add_elements(read_only(read_region(opened, region, fill, into=elements)), out)


def _boxes(plan: RegionPlan, most: int) -> Iterator[tuple[slice, ...]]:
    """Divide a region into boxes of at most `most` chunks, longest along the last axes."""
    bounds = (
        [*cells.bounds[:-1:count].tolist(), int(cells.bounds[-1])]
        for cells, count in zip(plan.cells, contiguous_box(plan.counts, most), strict=True)
    )
    return boxes_between(bounds)


def _add_chunks(opened: OpenedFrame, fill: Fill, plan: RegionPlan, total: Total) -> None:
    """Add stored chunks, decoded one after the other into a scratch buffer."""
    parts = parts_of(opened, plan)
    for fetched in fetch_all(opened, requests_of(opened, parts, plan.claims)):
        part = parts[fetched.number]
        shape = tuple(map(len, part.inner))
        with scratch.borrow(math.prod(shape) * fill.dtype.itemsize) as buffer:
            elements = buffer.view(fill.dtype).reshape(shape)
            element = decode_part(opened, fetched, part, fill, elements, in_order=total.keeps_axes)
            if element is None:
                total.add_elements(read_only(elements), part.out)
            else:
                total.add_constant(part.out, element)
