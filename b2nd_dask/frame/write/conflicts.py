"""Concurrent updates of a frame: the chunks of each update, and conflicts between updates.

Every update stores the state that it was planned on. At its publication, the frame's history lists
the updates since this state, with the box of chunks of each. Updates of disjoint boxes do not
conflict.
"""

from __future__ import annotations

import math
import time
from datetime import UTC, datetime
from typing import NamedTuple, Self

import numpy as np
import xxhash
from numpy.typing import NDArray

from b2nd_dask.errors import StaleFrameError
from b2nd_dask.format.grid import Grid
from b2nd_dask.format.integrity import ChecksumState
from b2nd_dask.format.trailer import UNKNOWN, History, PastUpdate
from b2nd_dask.frame.open.opening import ParsedFrame
from b2nd_dask.frame.write.new_frame import FramePlan
from b2nd_dask.storage import CHANGED, Identity, is_same_file


class ChunkBox(NamedTuple):
    """The chunks of a region, by their coordinates in the chunk grid."""

    start: tuple[int, ...]
    stop: tuple[int, ...]
    """Exclusive end; at most `start` along an axis without chunks."""

    @classmethod
    def of(cls, origin: tuple[int, ...], shape: tuple[int, ...], grid: Grid) -> Self:
        """Find the chunks that a region of elements touches."""
        start = tuple(at // max(c, 1) for at, c in zip(origin, grid.chunks, strict=True))
        if 0 in shape:
            return cls(start, start)
        ends = zip(origin, shape, grid.chunks, strict=True)
        return cls(start, tuple(-(-(at + n) // c) for at, n, c in ends))

    @classmethod
    def between(cls, first: int, last: int, grid: Grid) -> Self:
        """Build the box with these first and last chunks."""
        return cls(grid.cell(first), tuple(at + 1 for at in grid.cell(last)))

    @property
    def nchunks(self) -> int:
        """Number of chunks; the box of a 0-d array has one."""
        ends = zip(self.start, self.stop, strict=True)
        return math.prod(max(b - a, 0) for a, b in ends)

    def within(self, grid: Grid) -> ChunkBox:
        """The chunks that exist in a grid."""
        return self.common(ChunkBox((0,) * grid.ndim, grid.counts))

    def chunks(self, grid: Grid) -> NDArray[np.int64]:
        """Number the chunks, ascending."""
        ends = zip(self.start, self.stop, strict=True)
        return grid.chunk_numbers(np.arange(a, b) for a, b in ends)

    def ends(self, grid: Grid) -> tuple[int, int]:
        """Compute the first and last chunk number; the last is smaller for an empty box."""
        if not self.nchunks:
            return 1, 0
        ends = zip(self.start, self.stop, strict=True)
        corners = grid.chunk_numbers(np.array([a, b - 1]) for a, b in ends)
        return int(corners[0]), int(corners[-1])

    def common(self, other: ChunkBox) -> ChunkBox:
        """Compute the intersection of two boxes."""
        return ChunkBox(
            tuple(map(max, self.start, other.start)), tuple(map(min, self.stop, other.stop))
        )

    def axes(self, grid: Grid) -> tuple[range, ...]:
        """Positions of the elements of the chunks along each axis."""
        ends = zip(self.start, self.stop, grid.chunks, grid.shape, strict=True)
        return tuple(range(a * c, min(b * c, n)) for a, b, c, n in ends)

    def region(self, grid: Grid) -> str:
        """Format the positions as a NumPy index."""
        return "[" + ", ".join(f"{axis.start}:{axis.stop}" for axis in self.axes(grid)) + "]"


class UpdateBase(NamedTuple):
    """The state of a frame that an update was planned on, and the chunks that it changes."""

    token: bytes
    """Token of the state; see `ParsedFrame.token`."""
    shape: tuple[int, ...]
    """Shape before the update."""
    identity: Identity
    box: ChunkBox
    """The written chunks, in the grid after the update."""
    carries: bool
    """Whether some of them receive old elements."""
    entries: str
    """Digest of the index entries of these chunks."""

    @classmethod
    def of(cls, frame: ParsedFrame, box: ChunkBox, *, carries: bool) -> Self:
        """Record the current state of a frame."""
        entries = _entries_digest(frame, box)
        return cls(frame.token, frame.grid.shape, frame.identity, box, carries, entries)


def require_disjoint(
    base: UpdateBase, plan: FramePlan, present: ParsedFrame, label: str
) -> tuple[int, ...]:
    """Check that an update applies to the current state of a frame; return the shape after it.

    Raises `StaleFrameError` if other software changed or replaced the frame, another update wrote
    the same chunks, or both this update and another one append.
    """
    since = present.updates_since(base.token)
    # a long history drops its oldest updates
    lost = since is None and bool(present.history.updates) and present.history.base == UNKNOWN
    if not _is_same_array(base, plan, present) or (since is None and not lost):
        raise StaleFrameError(CHANGED, path=label)
    if base.shape != present.grid.shape and base.shape != plan.grid.shape:
        raise StaleFrameError(
            f"{CHANGED}: its shape is now {present.grid.shape}, and was {base.shape} when this "
            f"append was planned{_named(', changed by', since or ())}. Append again, one after the "
            "other",
            path=label,
        )
    for update in since or ():
        common = base.box.common(_box_of(update, present.grid))
        if common.nchunks:
            raise StaleFrameError(
                f"{CHANGED}: this update writes the chunks of the elements "
                f"{common.region(present.grid)}{_named(', as did', [update])}. To apply it after "
                f"that one, write again. Chunks, of {plan.grid.chunks} elements, are written "
                "whole: regions that start and end at multiples of these share none",
                path=label,
            )
    # without the history of updates, compare their results
    if _entries_digest(present, base.box) != base.entries or (lost and not _is_proven(base)):
        raise StaleFrameError(
            f"{CHANGED}: other updates wrote some chunks of the elements "
            f"{base.box.region(plan.grid)}, or so many updates were published that this cannot be "
            "ruled out. Write again",
            path=label,
        )
    return present.grid.shape if base.shape == plan.grid.shape else plan.grid.shape


def history_with(present: ParsedFrame, key: str, box: ChunkBox, grid: Grid) -> History:
    """Append an update to the history. `grid`: the chunk grid after the update."""
    past = present.history
    base = past.base if past.updates else present.token
    earlier = (
        PastUpdate(update.key, update.published, *_box_of(update, present.grid).ends(grid))
        for update in past.updates
    )
    now = time.time_ns() // 1_000_000
    return History(base, (*earlier, PastUpdate(key, now, *box.ends(grid))))


def renumbered(chunks: NDArray[np.int64], before: Grid, after: Grid) -> NDArray[np.int64]:
    """Convert chunk numbers of one grid to another that differs only in the array's shape."""
    if before.counts == after.counts or not len(chunks):
        return chunks
    return np.ravel_multi_index(np.unravel_index(chunks, before.counts), after.counts)


def _is_same_array(base: UpdateBase, plan: FramePlan, present: ParsedFrame) -> bool:
    """Whether a frame, apart from its shape, is still the planned one."""
    grid, header = present.grid, present.header
    same = (grid.chunks, grid.blocks, present.stored_dtype, header.compression, header.sparse)
    planned = (plan.grid.chunks, plan.grid.blocks, plan.dtype, plan.compression, plan.sparse)
    # each update of a sparse frame creates a new index file
    same_file = header.sparse or is_same_file(base.identity, present.identity)
    is_damaged = present.columns.checksums.state is ChecksumState.DAMAGED
    return same == planned and same_file and not is_damaged


def _is_proven(base: UpdateBase) -> bool:
    """Whether unchanged index entries and checksums prove that no chunk was overwritten.

    They do not if old elements were read, since these may have been different for a while.
    """
    return not base.carries and base.entries.endswith("+")


def _entries_digest(frame: ParsedFrame, box: ChunkBox) -> str:
    """Compute a digest of the offsets and checksums of a box's existing chunks.

    It ends in "+" if it contains checksums: then equal offsets mean equal chunks.
    """
    chunks = box.within(frame.grid).chunks(frame.grid)
    digest = xxhash.xxh3_128(frame.index.offsets[chunks].astype("<i8").tobytes())
    digests = frame.columns.digests
    if digests is None or not frame.columns.checksums.is_valid:
        return digest.hexdigest()
    digest.update(digests[chunks].astype("<u8").tobytes())
    return digest.hexdigest() + "+"


def _box_of(update: PastUpdate, grid: Grid) -> ChunkBox:
    """The chunks that an update wrote."""
    if update.last < update.first or update.last >= grid.nchunks:
        return ChunkBox((0,) * grid.ndim, (0,) * grid.ndim)
    return ChunkBox.between(update.first, update.last, grid)


def _named(verb: str, updates: tuple[PastUpdate, ...] | list[PastUpdate]) -> str:
    """Format the updates since the plan after a verb; the newest suffice."""
    said = [
        f"{key} (published at {datetime.fromtimestamp(ms / 1000, UTC):%Y-%m-%d %H:%M:%S} UTC)"
        for key, ms, _, _ in updates[-3:]
    ]
    return f"{verb} the write {' and '.join(said)}" if said else ""
