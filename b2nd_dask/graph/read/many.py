"""Many frames as one dask array: concatenated along an axis, or stacked along a new one.

One layer stands for all frames, as for one frame: each task has the region of the frames that its
block lies in, and slices that count from the first of these.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any

import dask.array as da
import numpy as np
from dask.base import tokenize
from numpy.typing import NDArray

from b2nd_dask.frame.joined import JoinedReference
from b2nd_dask.frame.read.plan import uniform_kinds
from b2nd_dask.frame.reference import FrameReference
from b2nd_dask.graph import _dask_compat
from b2nd_dask.graph.read.blocks import (
    BlockArgument,
    Chunks,
    ConstantRegion,
    FrameRegion,
    RegionBlocks,
    dask_array,
)
from b2nd_dask.graph.task_names import of_frame

#: No kind of chunks has this code.
_UNSEEN = 255


def joined_array(joined: JoinedReference, sizes: Chunks, name: str | None = None) -> da.Array:
    """Make a dask array of joined frames.

    Parameters
    ----------
    sizes : tuple of tuple of int
        Lengths of the blocks along each axis.
    """
    name = name or "read" + of_frame(joined.label, tokenize(joined, sizes))

    def layer() -> tuple[Any, ...]:
        parts = _Parts(joined, sizes[joined.axis])
        blocks, slices = JoinedBlocks(parts, sizes), JoinedSlices(parts, sizes)
        return _dask_compat.getter, blocks, slices

    return dask_array(joined, sizes, name, layer)


class _Parts:
    """The frames that each block along the joined axis lies in."""

    def __init__(self, joined: JoinedReference, along: tuple[int, ...]) -> None:
        self.joined = joined
        self._along = along
        self._known: dict[tuple[int, int], JoinedReference] = {}

    def __reduce__(self) -> tuple[Any, ...]:
        return _Parts, (self.joined, self._along)

    @cached_property
    def edges(self) -> NDArray[np.int64]:
        """Where each block begins along the axis, and where the last one ends."""
        return np.cumsum([0, *self._along])

    @cached_property
    def _frames(self) -> tuple[list[int], list[int]]:
        """Numbers of the first and the last frame of each block."""
        starts = self.joined.starts
        first = np.searchsorted(starts, self.edges[:-1], side="right") - 1
        last = np.searchsorted(starts, self.edges[1:] - 1, side="right") - 1
        first = np.minimum(first, len(starts) - 2)
        return first.tolist(), np.maximum(first, last).tolist()

    def of(self, block: int) -> JoinedReference:
        """The frames of a block; blocks in the same frames share one part."""
        numbers = self._frames[0][block], self._frames[1][block]
        if numbers not in self._known:
            start, stop = self.edges[block : block + 2].tolist()
            self._known[numbers] = self.joined.part(start, stop)
        return self._known[numbers]


class JoinedBlocks(RegionBlocks):
    """The argument of each block's task: the frames that it lies in, or a constant."""

    def __init__(self, parts: _Parts, chunks: Chunks) -> None:
        super().__init__(chunks, _kinds_of(parts, chunks))
        self._parts = parts
        self._regions: dict[tuple[int, int], FrameRegion | ConstantRegion] = {}

    @property
    def source(self) -> JoinedReference:
        """As `RegionBlocks.source`."""
        return self._parts.joined

    @property
    def frames(self) -> tuple[FrameReference, ...]:
        """As `RegionBlocks.frames`."""
        return self.source.frames

    def __getitem__(self, block: tuple[int, ...]) -> FrameRegion | ConstantRegion:
        part = self._parts.of(block[self.source.axis])
        known = id(part), self.kind_of(block)
        if known not in self._regions:
            constant = part.constant_element(known[1]) is not None
            self._regions[known] = ConstantRegion(known[1], part) if constant else FrameRegion(part)
        return self._regions[known]

    def __getstate__(self) -> dict[str, Any]:
        return super().__getstate__() | {"_regions": {}}


class JoinedSlices(BlockArgument):  # type: ignore[misc]
    """The argument of each block's task that slices its frames."""

    def __init__(self, parts: _Parts, chunks: Chunks) -> None:
        super().__init__(chunks)
        self._parts = parts
        self._plain = _dask_compat.ArraySliceDep(chunks)

    def __getitem__(self, block: tuple[int, ...]) -> tuple[slice, ...]:
        slices: tuple[slice, ...] = self._plain[block]
        axis = self._parts.joined.axis
        begin, along = self._parts.of(block[axis]).start, slices[axis]
        moved = slice(along.start - begin, along.stop - begin, None)
        return (*slices[:axis], moved, *slices[axis + 1 :])


def _kinds_of(parts: _Parts, chunks: Chunks) -> NDArray[np.uint8] | None:
    """Find for each block the kind that all chunks under it share; None if no block is special."""
    joined = parts.joined
    if 0 in joined.shape:
        return None
    kinds = np.full(tuple(map(len, chunks)), _UNSEEN, np.uint8)
    along = np.moveaxis(kinds, joined.axis, 0)
    edges, starts = parts.edges, joined.starts
    firsts = (np.searchsorted(edges, starts[:-1], side="right") - 1).tolist()
    stops = np.searchsorted(edges, starts[1:], side="left").tolist()
    for number, frame in enumerate(joined.frames):
        where = slice(firsts[number], stops[number])
        found = None
        if frame.chunk_kinds().any():
            inner = np.clip(edges[where.start : where.stop + 1], *starts[number : number + 2])
            found = _kinds_in(frame, joined, chunks, tuple(np.diff(inner).tolist()))
        if found is None:
            along[where] = 0
        else:
            seen = along[where] != _UNSEEN
            along[where] = np.where(seen & (along[where] != found), np.uint8(0), found)
    return kinds if kinds.any() else None


def _kinds_in(
    frame: FrameReference, joined: JoinedReference, chunks: Chunks, inner: tuple[int, ...]
) -> NDArray[np.uint8] | None:
    """Kinds of the parts of blocks in one frame, the joined axis in front."""
    axis = joined.axis
    own = () if joined.stacked else (inner,)
    sizes = (*chunks[:axis], *own, *chunks[axis + 1 :])
    found = uniform_kinds(frame.chunk_kinds(), frame.chunks, sizes)
    if found is None:
        return None
    return found[None] if joined.stacked else np.moveaxis(found, axis, 0)
