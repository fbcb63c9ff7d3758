"""Tasks of a rechunk: read a region of a source and stage it as chunks, or copy chunks.

A source is a view of a frame, the same elements in another shape, or stored chunks. Intermediate
frames are written into the staging area of the target, which is removed at the end.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from b2nd_dask.format.chunk.chunk_header import ChunkKind
from b2nd_dask.format.grid import Grid
from b2nd_dask.frame.access import frame_at
from b2nd_dask.frame.joined import Readable
from b2nd_dask.frame.open.cache import OpenedFrame, located
from b2nd_dask.frame.read.buffers import in_pages, scratch
from b2nd_dask.frame.read.decode import carrier, decode_raw
from b2nd_dask.frame.read.fetch import chunk_requests, fetch_all
from b2nd_dask.frame.read.plan import Axes
from b2nd_dask.frame.read.read_cost import ReadCosts, Region, uncompressed_costs
from b2nd_dask.frame.rechunk.passes import Box, flat_boxes
from b2nd_dask.frame.reference import FrameReference
from b2nd_dask.frame.write.new_frame import FramePlan, plan_frame
from b2nd_dask.frame.write.records import ChunkBox, ChunkRecords, merge_records
from b2nd_dask.frame.write.transaction import Transaction
from b2nd_dask.frame.write.writer import StagedBatches, write_block
from b2nd_dask.storage import Location, Staging

#: For intermediate frames, which are read once and soon: speed matters more than size.
_CPARAMS = {"codec": "lz4", "clevel": 1}


# not a tuple, which dask would search for tasks
@dataclass(frozen=True, slots=True)
class View:
    """A view of an array: a box of it, with permuted axes."""

    window: Axes
    """Positions of the box along each axis of the array."""
    order: tuple[int, ...]
    """The array's axis of each axis of the view."""

    @classmethod
    def whole(cls, shape: tuple[int, ...]) -> Self:
        """The view of a whole array."""
        return cls(tuple(map(range, shape)), tuple(range(len(shape))))

    def transposed(self, axes: tuple[int, ...]) -> Self:
        """Permute the axes of the view."""
        return replace(self, order=tuple(self.order[axis] for axis in axes))

    def cut(self, box: Box) -> Self:
        """The view of a box of the view."""
        return replace(self, window=self.axes_of(box))

    def axes_of(self, region: Box) -> Axes:
        """Convert a region of the view to positions in the array."""
        axes = list(self.window)
        for axis, along in zip(self.order, region, strict=True):
            axes[axis] = axes[axis][along]
        return tuple(axes)

    def grid_of(self, grid: Grid) -> Grid:
        """The grid of the view for plans of passes, which assume that it starts at a chunk."""
        # if it does not, regions may touch one more block of a chunk; assume that they touch all
        blocks = tuple(
            c if along.start and along.start % c and (along.start % b or c % b) else b
            for along, c, b in zip(self.window, grid.chunks, grid.blocks, strict=True)
        )
        sizes = tuple(map(len, self.window)), grid.chunks, blocks
        shape, chunks, blocks = (tuple(each[axis] for axis in self.order) for each in sizes)
        return Grid(shape, chunks, blocks, grid.itemsize)


@dataclass(frozen=True, eq=False, slots=True)
class RegionSource:
    """A view of a frame from which regions are read."""

    frame: Readable
    view: View
    batch_nbytes: int
    """Compressed bytes to read at once."""

    def read(self, region: Box) -> NDArray[Any]:
        """Read a region of the target; the reads of all regions verify every chunk of the view."""
        axes, claims, _ = self._region(region)
        elements = self.frame.read_axes(axes, batch_nbytes=self.batch_nbytes, claims=claims)
        return elements.transpose(self.view.order)

    def regions(self, region: Box) -> Iterator[tuple[Readable, Region]]:
        """List the reads of `read` for a region of the target."""
        yield self.frame, self._region(region)

    def _region(self, region: Box) -> Region:
        """Convert a region of the target to one of the frame.

        The witness of a chunk may lie outside of the view. Then the region with the nearest
        position claims it.
        """
        axes = self.view.axes_of(region)
        sides = zip(axes, self.view.window, self.frame.grid.shape, strict=True)
        claims = (
            range(a.start if a.start != w.start else 0, a.stop if a.stop != w.stop else n)
            for a, w, n in sides
        )
        return Region(axes, tuple(claims))


@dataclass(frozen=True, eq=False, slots=True)
class FlatSource:
    """A reshaped view of a frame: its elements in C order.

    In a graph `source` may be None, if the intermediate frame was removed with the staging area of
    the target; then nothing is read.
    """

    source: RegionSource
    source_shape: tuple[int, ...]
    """Shape of the view."""
    shape: tuple[int, ...]

    def read(self, region: Box) -> NDArray[Any]:
        """Read a region of the target that is contiguous in C order."""
        sizes = tuple(along.stop - along.start for along in region)
        dtype = self.source.frame.dtype
        elements = in_pages(sizes, carrier(dtype))
        flat = elements.reshape(-1)
        for box, (begin, end) in self._boxes(region):
            flat[begin:end] = self.source.read(box).reshape(-1).view(flat.dtype)
        return elements.view(dtype)

    def regions(self, region: Box) -> Iterator[tuple[Readable, Region]]:
        """See `RegionSource.regions`."""
        for box, _ in self._boxes(region):
            yield from self.source.regions(box)

    def _boxes(self, region: Box) -> Iterator[tuple[Box, tuple[int, int]]]:
        start = [along.start for along in region]
        first = int(np.ravel_multi_index(start, self.shape)) if start else 0
        count = math.prod(along.stop - along.start for along in region)
        return flat_boxes(first, first + count, self.source_shape)


@dataclass(frozen=True, eq=False, slots=True)
class StoredChunks:
    """The stored chunks of a frame, in regions of whole chunks."""

    frame: FrameReference

    def regions(self, region: Box) -> Iterator[tuple[Readable, Region]]:
        """See `RegionSource.regions`."""
        axes = tuple(range(along.start, along.stop) for along in region)
        yield self.frame, Region(axes, is_decoded=False)


Source = RegionSource | FlatSource | StoredChunks


def rechunk_region(source: Source, region: Box, write: Transaction, *before: Any) -> ChunkRecords:
    """Task that reads a region of the new frame, and stages it as whole chunks.

    It waits for the tasks whose results are `before`.
    """
    plan, staging = write.plan, write.staging
    if write.was_published:
        # the commit will also find that the frame is published
        return ChunkRecords.of_special(plan.row)
    origin = tuple(along.start for along in region)
    if isinstance(source, StoredChunks):
        sizes = tuple(along.stop - along.start for along in region)
        chunks = ChunkBox.of(origin, sizes, plan.grid).chunks(plan.grid)
        # opened outside of `stage`, which assumes that a missing file is one of the staging area
        with source.frame.reading() as (stored, _):
            return write.stage(lambda: _copy(source.frame, stored, chunks, plan, staging))
    elements = source.read(region)
    return write.stage(lambda: write_block(elements, origin, plan, staging))


def _copy(
    frame: FrameReference,
    source: OpenedFrame,
    chunks: NDArray[np.int64],
    plan: FramePlan,
    staging: Staging,
) -> ChunkRecords:
    """Stage chunks as they are stored; verify each by its checksum if it has one.

    Both frames have the same grid, dtype and compression.
    """
    staged = StagedBatches(plan.row, staging)
    is_stored = source.parsed.index.kinds[chunks] == ChunkKind.STORED
    requests = chunk_requests(source, chunks[is_stored])
    # special chunks are read, since the user's `uninit` may replace their element
    constants = chunks[~is_stored].tolist()
    statistics = frame.parsed.statistics if plan.stats else None
    known = () if statistics is None else (statistics.of_chunks(chunks).rows(),)
    for fetched in fetch_all(source, requests):
        chunk, header = fetched.chunk, fetched.header
        if header.special == ChunkKind.UNINIT:
            constants.append(chunk)
            continue
        if source.digests is None:
            # a new checksum would declare a damaged chunk valid
            with scratch.borrow(plan.grid.chunk_nbytes) as raw, located(source, chunk):
                decode_raw(source.parsed, fetched, raw)
        payload = bytes(fetched.data[: header.cbytes])
        staged.add(chunk, payload, *(rows[np.searchsorted(chunks, chunk)] for rows in known))
    tables = [staged.finish()]
    for chunk in constants:
        axes = plan.grid.extent(chunk)
        origin = tuple(axis.start for axis in axes)
        tables.append(write_block(frame.read_axes(axes), origin, plan, staging))
    return merge_records(tables)


@dataclass(frozen=True, eq=False)
class IntermediateFrame(Transaction):
    """The write of an intermediate frame; nothing is staged again after its publication."""

    location: Location

    @classmethod
    def of(cls, outer: Staging, grid: Grid, dtype: np.dtype[Any], key: str) -> Self:
        """Plan an intermediate frame in the target's staging area, with default blocks.

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
        """See `Transaction.commit`; returns "" if the frame was removed with the target's area."""
        if self.was_published:
            return self.staging.label if self.is_published() else ""
        return super().commit(records)


def begin_intermediate(
    intermediate: IntermediateFrame, outer: Transaction, is_needed: bool
) -> IntermediateFrame:
    """Task that starts an intermediate frame in the staging area of the target.

    `is_needed` says whether functions read the frame, which dask repeats with their tasks.
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
