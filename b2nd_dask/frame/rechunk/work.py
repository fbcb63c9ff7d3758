"""Tasks of a rechunk: read a region and stage it as chunks, or copy chunks.

Intermediate frames are written into the staging area of the target, which is removed at the end.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Self

import numpy as np

from b2nd_dask.format.chunk.chunk_header import Special
from b2nd_dask.format.grid import Grid
from b2nd_dask.format.index import ChunkKind
from b2nd_dask.frame.access import frame_at
from b2nd_dask.frame.open.cache import OpenedFrame, located
from b2nd_dask.frame.read.buffers import scratch
from b2nd_dask.frame.read.chunk_requests import ChunkRequest
from b2nd_dask.frame.read.decode import decode_raw
from b2nd_dask.frame.read.fetch import ChunkBytes, fetch_all
from b2nd_dask.frame.read.read_cost import ReadCosts, Region, uncompressed_costs
from b2nd_dask.frame.rechunk.source import (
    Box,
    RegionSource,
    Source,
    StoredChunks,
    View,
)
from b2nd_dask.frame.reference import FrameReference
from b2nd_dask.frame.write.new_frame import FramePlan, plan_frame
from b2nd_dask.frame.write.records import ChunkRecords, merge_records
from b2nd_dask.frame.write.transaction import Transaction
from b2nd_dask.frame.write.writer import StagedBatches, write_block
from b2nd_dask.storage import Location, Staging

#: For intermediate frames, which are read once and soon: speed matters more than size.
_CPARAMS = {"codec": "lz4", "clevel": 1}


def rechunk_region(source: Source, region: Box, opened: Transaction, *before: Any) -> ChunkRecords:
    """Task that reads a region of whole chunks of the new frame, and stages these.

    The task waits for the result `before`.
    """
    plan, staging = opened.plan, opened.staging
    if opened.was_published:
        # already published, which the commit also finds
        return ChunkRecords.of_special(plan.row)
    if isinstance(source, StoredChunks):
        ((_, chunks),) = source.regions(region)
        return opened.stage(partial(_copy, source.frame, *chunks, plan, staging))
    origin = tuple(along.start for along in region)
    elements = source.read(region)
    return opened.stage(lambda: write_block(elements, origin, plan, staging))


def _copy(
    frame: FrameReference, first: int, last: int, plan: FramePlan, staging: Staging
) -> ChunkRecords:
    """Stage chunks as they are stored; verify each by its checksum if it has one.

    The chunks are those from `first` to `last`, exclusive. Both frames have the same grid, dtype
    and compression.
    """
    staged = StagedBatches(plan.row, staging)
    with frame.reading() as (source, _):
        kinds = source.parsed.index.kinds[first:last]
        requests = [
            ChunkRequest(chunk, None)
            for chunk in (first + np.flatnonzero(kinds == ChunkKind.STORED)).tolist()
        ]
        # for a special chunk, stage its element: the user's `uninit` may have changed it
        constants = (first + np.flatnonzero(kinds != ChunkKind.STORED)).tolist()
        statistics = frame.statistics if plan.stats else None
        known = () if statistics is None else (statistics.rows(slice(first, last)),)
        for fetched in fetch_all(source, requests):
            chunk, header = fetched.chunk, fetched.header
            if header.special == Special.UNINIT:
                constants.append(chunk)
                continue
            if source.digests is None:
                # a new checksum would declare a damaged chunk valid
                _require_decodes(source, fetched)
            payload = bytes(fetched.data[: header.cbytes])
            staged.add(chunk, payload, *(rows[chunk - first] for rows in known))
        tables = [staged.finish()]
    for chunk in constants:
        axes = plan.grid.extent(chunk)
        origin = tuple(axis.start for axis in axes)
        tables.append(write_block(frame.read_axes(axes), origin, plan, staging))
    return merge_records(tables)


def _require_decodes(opened: OpenedFrame, fetched: ChunkBytes) -> None:
    with scratch.borrow(opened.parsed.grid.chunk_nbytes) as raw, located(opened, fetched.chunk):
        decode_raw(opened.parsed, fetched, raw)


@dataclass(frozen=True, eq=False)
class IntermediateFrame(Transaction):
    """The write of an intermediate frame; nothing is staged again after its publication."""

    location: Location

    @classmethod
    def of(cls, outer: Staging, grid: Grid, dtype: np.dtype[Any], key: str) -> Self:
        """Plan an intermediate frame in the target's staging; default blocks replace the grid's.

        `key` is 16 hexadecimal digits: the same for all runs of a resumable write.
        """
        location = outer.inside(f"{key}.b2nd")
        plan = plan_frame(grid.shape, dtype, chunks=grid.chunks, cparams=_CPARAMS)
        staging = plan.staging(
            location,
            resume_key=key if outer.resumable else None,
            # without resume, no process reads it after a power cut
            fsync=outer.resumable,
        )
        return cls(plan, staging, location, is_delayed=True)

    @property
    def grid(self) -> Grid:
        """Chunks and blocks of the frame."""
        return self.plan.grid

    @property
    def dtype(self) -> np.dtype[Any]:
        """Dtype of its elements."""
        return self.plan.dtype

    def read_costs(self, regions: Sequence[Region]) -> ReadCosts:
        """Like `FrameReference.read_costs`, as if uncompressed, since the ratio is unknown."""
        return uncompressed_costs(self.plan.grid, regions)

    def stage(self, write: Callable[[], ChunkRecords]) -> ChunkRecords:
        """See `Transaction.stage`."""
        nothing = ChunkRecords.of_special(self.plan.row)
        return nothing if self.was_published else super().stage(write)

    def commit(self, records: ChunkRecords) -> str:
        """See `Transaction.commit`; empty if the frame was removed with the target's area."""
        if self.was_published:
            return self.staging.label if self.is_published() else ""
        return super().commit(records)


def begin_intermediate(
    intermediate: IntermediateFrame, outer: Transaction, is_needed: bool
) -> IntermediateFrame:
    """Task that starts an intermediate frame in the staging area of the target.

    `is_needed` says whether functions read the frame, which dask repeats with the tasks.
    """
    if outer.was_published and not is_needed:
        return replace(intermediate, was_published=True)
    if outer.was_published:
        # the repeated commit of the target removes it
        outer.staging.make_area()
    return intermediate.begin()


def open_view(
    intermediate: IntermediateFrame, view: View, batch_nbytes: int, published: str
) -> RegionSource | None:
    """Task that opens a view of an intermediate frame; `published` is the result of its commit."""
    if not published:
        return None
    return RegionSource(frame_at(intermediate.location), view, batch_nbytes)
