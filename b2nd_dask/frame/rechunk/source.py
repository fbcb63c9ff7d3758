"""Sources of a region: a view of a frame, the same elements in another shape, or stored chunks."""

from __future__ import annotations

import itertools
import math
import operator
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from b2nd_dask.format.grid import Grid
from b2nd_dask.format.index import ChunkKind
from b2nd_dask.frame.joined import JoinedReference, Readable
from b2nd_dask.frame.read.buffers import in_pages
from b2nd_dask.frame.read.chunk_requests import ChunkRequest, batches, witnesses
from b2nd_dask.frame.read.decode import carrier
from b2nd_dask.frame.read.fetch import fetch
from b2nd_dask.frame.read.read_cost import ChunkRange, Region
from b2nd_dask.frame.reference import FrameReference
from b2nd_dask.frame.write.records import ChunkBox

Box = tuple[slice, ...]


# not a tuple, which dask would search for tasks
@dataclass(frozen=True, slots=True)
class View:
    """A view of an array: a box of it, with permuted axes."""

    window: tuple[range, ...]
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

    def axes_of(self, region: Box) -> tuple[range, ...]:
        """Convert a region of the view to positions in the array."""
        axes = list(self.window)
        for axis, along in zip(self.order, region, strict=True):
            axes[axis] = axes[axis][along]
        return tuple(axes)

    def grid_of(self, grid: Grid) -> Grid:
        """The grid of the view for the planning of passes; it starts at a chunk."""
        # otherwise a region may touch one more block of a chunk, but not more than all
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
        axes = self.view.axes_of(region)
        for frame, chunks in self._edges(axes):
            if chunks:
                _verify(frame, chunks, self.batch_nbytes)
        elements = self.frame.read_axes(axes, batch_nbytes=self.batch_nbytes)
        return elements.transpose(self.view.order)

    def regions(self, region: Box) -> Iterator[tuple[Readable, Region]]:
        """List the reads of `read` for a region of the target."""
        axes = self.view.axes_of(region)
        yield self.frame, axes
        for frame, chunks in self._edges(axes):
            for chunk in chunks:
                yield frame, ChunkRange(chunk, chunk + 1)

    def _edges(self, axes: tuple[range, ...]) -> Iterator[tuple[FrameReference, list[int]]]:
        """List the `edge_chunks` of a region by frames."""
        frame, window = self.frame, list(self.view.window)
        # in a plan, an intermediate frame that nobody has written has none
        if isinstance(frame, FrameReference):
            yield frame, edge_chunks(frame, axes, self.view.window)
        if not isinstance(frame, JoinedReference):
            return
        parts = list(frame.split(axes))
        if parts:
            along, starts = window[frame.axis], frame.starts.tolist()
            ends = starts[parts[0].number], starts[parts[-1].number + 1]
            window[frame.axis] = range(max(along.start, ends[0]), min(along.stop, ends[1]))
        for part, whole in zip(parts, frame.split(tuple(window)), strict=True):
            yield part.frame, edge_chunks(part.frame, part.axes, whole.axes)


@dataclass(frozen=True, eq=False, slots=True)
class FlatSource:
    """A reshaped view of a frame: its elements in C order. As a task it may get no source."""

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


def edge_chunks(
    frame: FrameReference, axes: tuple[range, ...], window: tuple[range, ...]
) -> list[int]:
    """Find the chunks that a read of a region of a window must verify beside those that it does.

    No read of the window verifies a chunk whose witness (`witnesses`) is outside of it. Of all
    regions, the one with the position of the window nearest to the witness must.
    """
    grid = frame.grid
    sides = zip(window, grid.shape, grid.chunks, strict=True)
    if not any(w.start % max(c, 1) or (w.stop != n and w.stop % c) for w, n, c in sides):
        return []
    with frame.reading() as (opened, _):
        if opened.digests is None:
            return []
        box = ChunkBox.of(tuple(a.start for a in axes), tuple(map(len, axes)), grid)
        chunks = box.chunks(grid)
        chunks = chunks[opened.parsed.index.kinds[chunks] == ChunkKind.STORED]
        is_outside, is_nearest = np.zeros(len(chunks), np.bool_), np.ones(len(chunks), np.bool_)
        found = witnesses(chunks, opened.digests[chunks], grid)
        for at, along, whole in zip(found, axes, window, strict=True):
            nearest = np.clip(at, whole.start, whole.stop - 1)
            is_outside |= nearest != at
            is_nearest &= (nearest >= along.start) & (nearest < along.stop)
        chosen: list[int] = chunks[is_outside & is_nearest].tolist()
    return chosen


def _verify(frame: FrameReference, chunks: list[int], nbytes: int) -> None:
    """Verify chunks as the reads of witnesses do, `nbytes` compressed bytes at once."""
    block = np.zeros(1, np.int64)
    requests = [ChunkRequest(chunk, block, whole=True) for chunk in chunks]
    with frame.reading() as (opened, _):
        for batch in batches(opened, requests, nbytes):
            for _ in fetch(opened, batch):
                pass


@dataclass(frozen=True, eq=False, slots=True)
class StoredChunks:
    """The stored chunks of a frame, by their numbers along one axis."""

    frame: FrameReference

    def regions(self, region: Box) -> Iterator[tuple[FrameReference, ChunkRange]]:
        """See `RegionSource.regions`."""
        (chunks,) = region
        yield self.frame, ChunkRange(chunks.start, chunks.stop)


Source = RegionSource | FlatSource | StoredChunks


def flat_boxes(
    start: int, stop: int, shape: tuple[int, ...]
) -> Iterator[tuple[Box, tuple[int, int]]]:
    """Divide a range of an array in C order into boxes, each with its part of the range.

    Examples
    --------
    >>> for box, part in flat_boxes(3, 21, (4, 6)):
    ...     print([(along.start, along.stop) for along in box], part)
    [(0, 1), (3, 6)] (0, 3)
    [(1, 3), (0, 6)] (3, 15)
    [(3, 4), (0, 3)] (15, 18)
    """
    at = start
    # elements of whole rows along the last 0, 1, ... axes
    rows = list(itertools.accumulate(reversed(shape), operator.mul, initial=1))
    while at < stop:
        # the largest rows that start here and end inside the range
        whole, row = max((k, n) for k, n in enumerate(rows) if at % n == 0 and at + n <= stop)
        cell = [int(i) for i in np.unravel_index(at, shape)] if shape else []
        first, count = len(shape) - whole, 1
        box = [slice(i, i + 1) for i in cell[:first]] + [slice(0, n) for n in shape[first:]]
        if first:
            along = first - 1
            count = min(shape[along] - cell[along], (stop - at) // row)
            box[along] = slice(cell[along], cell[along] + count)
        yield tuple(box), (at - start, at - start + count * row)
        at += count * row
