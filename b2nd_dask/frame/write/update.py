"""Changing a frame: its requirements, conflicts with concurrent updates, the next state.

Every update stores the state that it was planned on. When it is published, the frame's history has
the later updates, each with its box of chunks. Updates of disjoint boxes do not conflict.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

import numpy as np
import xxhash
from numpy.typing import NDArray

from b2nd_dask.errors import StaleFrameError, UnsupportedFrameError
from b2nd_dask.format.chunk.chunk_header import ChunkKind
from b2nd_dask.format.grid import Grid
from b2nd_dask.format.index import special_code
from b2nd_dask.format.integrity import ChecksumState
from b2nd_dask.format.labels import COORDS
from b2nd_dask.format.metalayers import array_meta_of
from b2nd_dask.format.trailer import UNKNOWN, History, PastUpdate
from b2nd_dask.frame.access import frame_at
from b2nd_dask.frame.info import dims_of
from b2nd_dask.frame.open.opening import ParsedFrame, parse_frame
from b2nd_dask.frame.reference import FrameReference
from b2nd_dask.frame.write.new_frame import FramePlan
from b2nd_dask.frame.write.records import ChunkBox, ChunkRecords, require_all
from b2nd_dask.frame.write.transaction import Envelope, Transaction, publish
from b2nd_dask.storage import (
    CHANGED,
    FrameState,
    LocalUpdate,
    Location,
    is_same_file,
)


def update_plan(old: ParsedFrame, shape: tuple[int, ...]) -> FramePlan:
    """Plan the frame after an update of its shape and some of its chunks.

    `shape` is the one after the update, not smaller along any axis. Raises UnsupportedFrameError
    for a frame that must be rewritten instead.
    """
    header = old.header
    grid = Grid(shape, old.grid.chunks, old.grid.blocks, old.grid.itemsize)
    in_elements = len(array_meta_of(header.metalayers).shape) < grid.ndim
    if old.stored_dtype is None or 0 in old.grid.chunks or in_elements:
        raise UnsupportedFrameError(
            "a frame without a dtype, with chunks of 0 elements, or with elements that are arrays "
            'cannot be updated; rewrite it with mode="w"'
        )
    if header.compression.needs_shape:
        raise UnsupportedFrameError(
            "its codec or filter needs the array's shape, but b2nd_dask compresses each chunk "
            "alone; change the frame with python-blosc2"
        )
    stats = old.statistics is not None
    plan = FramePlan.of_header(header, grid, old.stored_dtype, old.vlmeta, stats=stats)
    if len(plan.header()) != header.header_len:
        raise UnsupportedFrameError(
            'the header of this frame would change its length; rewrite the frame with mode="w"'
        )
    return plan


def require_no_coordinates(frame: FrameReference, axis: int) -> None:
    """Raise ValueError if a coordinate inside a frame has the dim of an axis that grows.

    The coordinate would be too short.
    """
    dims = dims_of(frame) or ()
    stored = frame.vlmeta[COORDS] if dims and COORDS in frame.vlmeta else None
    for name, raw in stored.items() if isinstance(stored, dict) else ():
        # another value is an entry of the user
        own = dims_of(frame_at(Location.of(raw))) if isinstance(raw, bytes) else None
        if dims[axis] in (own or ()):
            raise ValueError(
                f"{frame.label}: its coordinate {name!r} has the dim {dims[axis]!r} and would "
                "be too short; append an xarray.DataArray, with coordinates, by append_dim="
            )


def state_of(parsed: ParsedFrame) -> FrameState:
    """Extract the state of a frame that a change in place needs."""
    header = parsed.header
    lengths = header.header_len, header.frame_len, header.cbytes
    return FrameState(parsed.identity, header.sparse, *lengths)


@dataclass(frozen=True, eq=False)
class Update(Transaction):
    """A change of a frame, published on top of concurrent updates.

    The plan describes the frame without these updates.
    """

    staging: LocalUpdate
    token: bytes
    """Token of the state that the update was planned on; see `ParsedFrame.token`."""
    shape: tuple[int, ...]
    """Shape of this state."""
    box: ChunkBox
    """The written chunks, in the grid after the update."""
    carries: bool
    """Whether some of them contain elements of the old chunks."""
    replaced: str
    """`entries_digest` of these chunks in the state of `token`."""
    entries: Mapping[str, bytes]
    """Entries of vlmeta that the update changes."""

    def publish(self, records: ChunkRecords) -> None:
        """Publish the update; see `Transaction.publish`.

        Raises `StaleFrameError`, and leaves the frame unchanged, if another update wrote the same
        chunks, or the frame is not the planned one.
        """
        plan, staging = self.plan, self.staging
        with closing(staging.location.open()) as reader:
            present = parse_frame(reader)
        if staging.key in (update.key for update in present.history.updates):
            return
        require_all(records, self.box.chunks(plan.grid), staging.label)
        self._require_disjoint(present)
        appends = self.shape != plan.grid.shape
        now = update_plan(present, plan.grid.shape if appends else present.grid.shape)
        now = replace(now, vlmeta={**now.vlmeta, **self.entries})
        rows = records.rows.copy()
        if len(rows) and plan.grid.counts != now.grid.counts:
            cells = np.unravel_index(rows["chunk"], plan.grid.counts)
            rows["chunk"] = np.ravel_multi_index(cells, now.grid.counts)
        history = history_with(present, staging.key, self.box, now.grid)
        numbers = frozenset(present.index.offsets.tolist() if plan.sparse else ())
        rebased = replace(staging, old=state_of(present)._replace(numbers=numbers))
        table = _extend(present.columns.table(), present.grid.counts, now.grid.counts)
        # clears statistics, too: the records have none if they were added after the plan
        table[rows["chunk"]] = np.zeros((), table.dtype)
        envelope = Envelope.planned(now, staging.key, history)
        publish(ChunkRecords(records.parts, rows), table, envelope, rebased)

    def _require_disjoint(self, present: ParsedFrame) -> None:
        """Check that the update applies to the current state of the frame.

        Raises `StaleFrameError` if other software changed or replaced the frame, another update
        wrote the same chunks, or both this update and another one append.
        """
        plan, label = self.plan, self.staging.label
        since = present.updates_since(self.token)
        # a long history drops its oldest updates
        lost = since is None and bool(present.history.updates) and present.history.base == UNKNOWN
        if not self._is_of_array(present) or (since is None and not lost):
            raise StaleFrameError(CHANGED, path=label)
        if self.shape != present.grid.shape and self.shape != plan.grid.shape:
            raise StaleFrameError(
                f"{CHANGED}: its shape is now {present.grid.shape}, and was {self.shape} when this "
                f"append was planned{_writes(', changed by', since or ())}. Append again, one "
                "after the other",
                path=label,
            )
        for update in since or ():
            written = ChunkBox.between(update.first, update.last, present.grid)
            common = self.box.common(written)
            if common.nchunks:
                raise StaleFrameError(
                    f"{CHANGED}: this update writes the chunks of the elements "
                    f"{common.region(present.grid)}{_writes(', as did', [update])}. To apply it "
                    f"after that one, write again. Chunks (of {plan.grid.chunks} elements) are "
                    "written whole; regions that start and end at multiples of these lengths share "
                    "no chunk",
                    path=label,
                )
        # without the history of updates, compare the chunks. This proves nothing if the update read
        # old elements, since these may have been different for a while
        is_proven = not lost or (self.replaced.endswith("+") and not self.carries)
        if entries_digest(present, self.box) != self.replaced or not is_proven:
            raise StaleFrameError(
                f"{CHANGED}: other updates wrote some chunks of the elements "
                f"{self.box.region(plan.grid)}, or so many updates were published that this cannot "
                "be ruled out. Write again",
                path=label,
            )

    def _is_of_array(self, present: ParsedFrame) -> bool:
        """Whether a frame, apart from its shape, is still the planned one."""
        plan, grid, header = self.plan, present.grid, present.header
        same = (grid.chunks, grid.blocks, present.stored_dtype, header.compression, header.sparse)
        planned = (plan.grid.chunks, plan.grid.blocks, plan.dtype, plan.compression, plan.sparse)
        # each update of a sparse frame creates a new index file
        same_file = header.sparse or is_same_file(self.staging.old.identity, present.identity)
        is_damaged = present.columns.checksums.state is ChecksumState.DAMAGED
        return same == planned and same_file and not is_damaged


def _extend(table: NDArray[Any], before: tuple[int, ...], after: tuple[int, ...]) -> NDArray[Any]:
    """Copy a table of chunks into a grid that is at least as large.

    If the retained chunks have no checksums, the new ones get none; `seal` can add them to all.
    """
    moved = np.zeros(after, table.dtype)
    moved["offset"] = special_code(ChunkKind.ZEROS)
    moved[tuple(slice(0, n) for n in before)] = table.reshape(before)
    return moved.reshape(-1)


def open_for_update(location: Location) -> FrameReference:
    """Open a frame for an update, with verification of all reads unless it has no checksums.

    An update writes new checksums of old elements and of the shape, which must not hide damage.
    Raises FileNotFoundError if there is no frame, `ChecksumError` if its checksums
    are not valid.
    """
    checksums = frame_at(location, verify=False).parsed.columns.checksums
    is_absent = checksums.state is ChecksumState.ABSENT
    return frame_at(location, verify="auto" if is_absent else True)


def history_with(present: ParsedFrame, key: str, box: ChunkBox, grid: Grid) -> History:
    """Append an update to the history. `grid`: the chunk grid after the update.

    A new history starts with the keys of earlier writes, so that these stay known as published.
    """
    past, then = present.history, present.identity.changed // 1_000_000
    base = past.base if past.updates else present.token
    known = past.updates or [PastUpdate(by, then, 1, 0) for by in reversed(present.keys)]
    earlier = (
        PastUpdate(by, published, *ChunkBox.between(first, last, present.grid).ends(grid))
        for by, published, first, last in known
    )
    now = time.time_ns() // 1_000_000
    return History(base, (*earlier, PastUpdate(key, now, *box.ends(grid))))


def entries_digest(frame: ParsedFrame, box: ChunkBox) -> str:
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


def _writes(verb: str, updates: Sequence[PastUpdate]) -> str:
    """Format the updates since the plan after a verb; the newest suffice."""
    texts = [
        f"{key} (published at {datetime.fromtimestamp(ms / 1000, UTC):%Y-%m-%d %H:%M:%S} UTC)"
        for key, ms, _, _ in updates[-3:]
    ]
    return f"{verb} the write {' and '.join(texts)}" if texts else ""
