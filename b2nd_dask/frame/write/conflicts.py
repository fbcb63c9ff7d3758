"""Updates of one frame beside each other: which chunks each writes, and whether two of them meet.

Every update remembers the state that it was planned on. When it publishes, the frame's history says
which updates came in between, and which box of chunks each wrote: those that are disjoint from its
own do not matter to it.
"""

from __future__ import annotations

import math
import time
from datetime import UTC, datetime
from typing import Any, NamedTuple, Self

import numpy as np
import xxhash
from numpy.typing import NDArray

from b2nd_dask.errors import StaleFrameError
from b2nd_dask.format.grid import Grid
from b2nd_dask.format.trailer import UNKNOWN, History, PastUpdate
from b2nd_dask.frame.open.opening import ParsedFrame
from b2nd_dask.frame.write.new_frame import FramePlan
from b2nd_dask.storage import CHANGED, Identity, is_same_file


class ChunkBox(NamedTuple):
    """The chunks of a region, by their coordinates in the chunk grid."""

    start: tuple[int, ...]
    stop: tuple[int, ...]
    """Not larger than `start` along an axis where there are none."""

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
        """Make the box that has its first and its last chunk where these chunks are."""
        return cls(grid.cell(first), tuple(at + 1 for at in grid.cell(last)))

    @property
    def nchunks(self) -> int:
        """Number of chunks."""
        ends = zip(self.start, self.stop, strict=True)
        return math.prod(max(b - a, 0) for a, b in ends)

    @property
    def is_empty(self) -> bool:
        """Whether there are no chunks; the box of a 0-d array has one."""
        return self.nchunks == 0

    def chunks(self, grid: Grid) -> NDArray[np.int64]:
        """Number the chunks, ascending."""
        if self.is_empty:
            return np.empty(0, np.int64)
        cells = [np.arange(a, b) for a, b in zip(self.start, self.stop, strict=True)]
        return _numbers(np.ix_(*cells), grid.counts).reshape(-1)

    def common(self, other: ChunkBox) -> ChunkBox:
        """Find the chunks that are in both."""
        return ChunkBox(
            tuple(map(max, self.start, other.start)), tuple(map(min, self.stop, other.stop))
        )

    def axes(self, grid: Grid) -> tuple[range, ...]:
        """The elements of the chunks, along each axis."""
        ends = zip(self.start, self.stop, grid.chunks, grid.shape, strict=True)
        return tuple(range(a * c, min(b * c, n)) for a, b, c, n in ends)

    def region(self, grid: Grid) -> str:
        """The same, as NumPy's index has them."""
        return "[" + ", ".join(f"{axis.start}:{axis.stop}" for axis in self.axes(grid)) + "]"


class UpdateBase(NamedTuple):
    """The state of a frame that an update was planned on, and what the update changes of it."""

    token: bytes
    """Of the state; see `ParsedFrame.token`."""
    shape: tuple[int, ...]
    """Before the update."""
    identity: Identity
    box: ChunkBox
    """The chunks that are written, in the grid after the update."""
    carries: bool
    """Whether some of them get old elements."""
    entries: str
    """Digest of what the index says of these chunks."""

    @classmethod
    def of(cls, frame: ParsedFrame, box: ChunkBox, *, carries: bool) -> Self:
        """Remember a frame as it is now."""
        entries = _entries_digest(frame, box)
        return cls(frame.token, frame.grid.shape, frame.identity, box, carries, entries)


def require_disjoint(
    base: UpdateBase, plan: FramePlan, present: ParsedFrame, label: str
) -> tuple[int, ...]:
    """Check that an update can be made of the present state of a frame as it was planned.

    Returns
    -------
    tuple of int
        The shape after the update.

    Raises
    ------
    StaleFrameError
        Other software changed the frame, it was replaced, others wrote the same chunks, or it was
        appended to and this is an append too.
    """
    since = present.updates_since(base.token)
    # the oldest updates are left out of a long history
    lost = since is None and bool(present.history.updates) and present.history.base == UNKNOWN
    if not _is_same_array(base, plan, present) or (since is None and not lost):
        raise StaleFrameError(CHANGED, path=label)
    if base.shape != present.grid.shape and base.shape != plan.grid.shape:
        raise StaleFrameError(
            f"{CHANGED}: it has the shape {present.grid.shape} now, and had {base.shape} when this "
            f"append was planned{_named(since or ())}. Append again, one after the other",
            path=label,
        )
    for update in since or ():
        common = base.box.common(_box_of(update, present.grid))
        if not common.is_empty:
            raise StaleFrameError(
                f"{CHANGED}: this update writes the chunks of the elements "
                f"{common.region(present.grid)}{_named([update])}. Write it again if it is to come "
                f"after that one. Chunks, of {plan.grid.chunks} elements, are written whole: "
                "regions that begin and end at multiples of these share none",
                path=label,
            )
    # without the updates themselves only their results tell
    if _entries_digest(present, base.box) != base.entries or (lost and not _is_proven(base)):
        raise StaleFrameError(
            f"{CHANGED}: others wrote some of the chunks of the elements "
            f"{base.box.region(plan.grid)}, or so many updates came in between that this cannot be "
            "ruled out. Write again",
            path=label,
        )
    return present.grid.shape if base.shape == plan.grid.shape else plan.grid.shape


def history_with(present: ParsedFrame, key: str, box: ChunkBox, grid: Grid) -> History:
    """Append an update to the history. `grid`: the chunk grid after the update."""
    past = present.history
    base = past.base if past.updates else present.token
    earlier = (
        PastUpdate(update.key, update.published, *_ends(_box_of(update, present.grid), grid))
        for update in past.updates
    )
    now = time.time_ns() // 1_000_000
    return History(base, (*earlier, PastUpdate(key, now, *_ends(box, grid))))


def renumbered(chunks: NDArray[np.int64], before: Grid, after: Grid) -> NDArray[np.int64]:
    """Number chunks of one grid in another, of the same chunks but for its shape."""
    if before.counts == after.counts or not len(chunks):
        return chunks
    return _numbers(np.unravel_index(chunks, before.counts), after.counts)


def _is_same_array(base: UpdateBase, plan: FramePlan, present: ParsedFrame) -> bool:
    """Whether a frame is, but for its shape, what an update was planned on."""
    grid, header = present.grid, present.header
    same = (grid.chunks, grid.blocks, present.stored_dtype, header.compression, header.sparse)
    planned = (plan.grid.chunks, plan.grid.blocks, plan.dtype, plan.compression, plan.sparse)
    # each update of a sparse frame makes a new file of its index
    same_file = header.sparse or is_same_file(base.identity, present.identity)
    return same == planned and same_file and not present.columns.checksums.is_damaged


def _is_proven(base: UpdateBase) -> bool:
    """Whether index entries and checksums that are as they were show that nobody was overwritten.

    Not where old elements were read, which may have been others for a while.
    """
    return not base.carries and base.entries.endswith("+")


def _entries_digest(frame: ParsedFrame, box: ChunkBox) -> str:
    """Digest offsets and checksums of those chunks of a box that a frame has.

    Ends in "+" if checksums are among it: equal offsets then are equal chunks.
    """
    whole = ChunkBox((0,) * frame.grid.ndim, frame.grid.counts)
    chunks = box.common(whole).chunks(frame.grid)
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


def _ends(box: ChunkBox, grid: Grid) -> tuple[int, int]:
    """Number the first and the last chunk of a box; the last is smaller where there are none."""
    if box.is_empty:
        return 1, 0
    cells = tuple(np.array([a, b - 1]) for a, b in zip(box.start, box.stop, strict=True))
    numbers = _numbers(cells, grid.counts).tolist()
    return numbers[0], numbers[-1]


def _numbers(cells: tuple[NDArray[Any], ...], counts: tuple[int, ...]) -> NDArray[np.int64]:
    """Number the chunks at some coordinates; the chunk of a 0-d array has none."""
    numbers = np.ravel_multi_index(cells, counts) if counts else np.zeros(1)
    return np.asarray(numbers, np.int64)


def _named(updates: tuple[PastUpdate, ...] | list[PastUpdate]) -> str:
    """Name the updates that came before; the newest are enough."""
    said = [
        f"{key}, which published at {datetime.fromtimestamp(ms / 1000, UTC):%Y-%m-%d %H:%M:%S} UTC"
        for key, ms, _, _ in updates[-3:]
    ]
    return f", as did the write {' and '.join(said)}" if said else ""
