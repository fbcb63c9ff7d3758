"""Pending frames: a plan in a staging area, and parts of the frame that one commit joins.

A part is a box of whole chunks. After its chunks are staged, its write puts a manifest into the
staging area, named after the box; staging the part again replaces the manifest. Errors for missing
or overlapping boxes, and for changed manifests or bytes, name the regions of the frame.
"""

from __future__ import annotations

import errno
import itertools
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np

from b2nd_dask.errors import B2ndError, FrameFormatError, StaleFrameError, locating
from b2nd_dask.format.header import geometry_of, header_len_of, parse_header
from b2nd_dask.format.trailer import TOKEN_NBYTES, parse_trailer
from b2nd_dask.frame.access import open_b2nd
from b2nd_dask.frame.array import Frame
from b2nd_dask.frame.members.store import require_no_link_out
from b2nd_dask.frame.write.new_frame import FramePlan
from b2nd_dask.frame.write.records import (
    ChunkBox,
    ChunkRecords,
    body_of,
    boxes_of,
    listed,
    merge_records,
    put_manifest,
    read_manifests,
    regions_of,
    require_all,
    require_disjoint,
    row_dtype,
    staged_records,
    with_digest,
)
from b2nd_dask.frame.write.transaction import NOTHING, Envelope, Transaction, state_at
from b2nd_dask.frame.write.writer import cast_fill, write_block
from b2nd_dask.storage import MEANWHILE, Location, Staging, staging_for

#: Key of the staging area of every pending frame, so that any process finds it without a search.
AREA_KEY = b"in parts".hex()
PLAN_NAME = "plan"
_MAGIC = b"b2ndpart"
#: Magic, key, base, a byte of flags, and the frame without chunks; a digest of all follows.
_KEY = slice(len(_MAGIC), len(_MAGIC) + 8)
_BASE = slice(_KEY.stop, _KEY.stop + TOKEN_NBYTES)
_REPLACE, _STATS = 1, 2


@dataclass(frozen=True, eq=False)
class PendingFrame(Transaction):
    """A frame that is published when its parts are committed."""

    base: bytes = NOTHING
    """State of the target at `create`; the commit replaces no target in another state."""

    @classmethod
    def at(
        cls, location: Location, plan: FramePlan, key: str, base: bytes = NOTHING, *, replace: bool
    ) -> Self:
        """Create the transaction for the frame at a location; it can resume a killed commit."""
        staging = plan.staging(location, replace=replace, resume_key=AREA_KEY)
        return cls(plan, staging, base, frame_key=key)

    def to_bytes(self) -> bytes:
        """Build the plan file: the header and trailer of the frame, without an index."""
        flags = _REPLACE * self.staging.replace | _STATS * self.plan.stats
        base = state_at(self.staging.location)[0] if self.staging.replace else NOTHING
        front = _MAGIC + bytes.fromhex(self.frame_key) + base + bytes([flags])
        return front + Envelope.planned(self.plan, None).without_chunks(row_dtype())

    def begin(self) -> Self:
        """Make the staging area, or verify that an existing one is for the same frame.

        Raises FileExistsError if the target exists and may not be replaced, or another pending
        frame exists there.
        """
        # `create` resumes nothing, unlike a commit
        staging, plan = replace(self.staging, resumable=False), self.to_bytes()
        # remove the area of a commit that was killed at its end; locked, since jobs start together
        with suppress(FileNotFoundError), staging.exclusive():
            if _is_committed(pending_at(staging.location)):
                staging.clean_up()
        if PLAN_NAME not in (names := staging.names()):
            # without `prepared`, since any process may remove the area
            staging.check_target()
            if names:
                # remains of an older frame, whose removal from a store was interrupted
                staging.discard()
            staging.make_area()
            # another job may create it at the same moment
            if staging.put(PLAN_NAME, with_digest(plan), only_new=True):
                return self
        # compare everything but the key and the base
        if _plan_in(staging)[_BASE.stop :] != plan[_BASE.stop :]:
            raise FileExistsError(
                errno.EEXIST,
                "a frame with other options was started at this path: commit it, or remove it by "
                f"remove_staging(..., key={AREA_KEY!r})",
                staging.label,
            )
        return self

    def join(self, fill: Any) -> None:
        """Publish the frame from the staged parts, unless another commit has."""
        # a commit was killed after the publication, before the removal of the staging area
        if self.is_published():
            return
        # first: a part that a killed commit has published would seem damaged in the checks below
        self._checked_staging()
        # without the lock, which would block tasks that stage
        manifests = read_manifests(self.staging)
        records = records_of_parts(manifests, self.plan, self.staging, fill)
        with self.staging.exclusive():
            if self.is_published():
                return
            if not _is_pending(self) or manifests != read_manifests(self.staging):
                raise B2ndError(
                    "a part was staged during the commit: commit again when all jobs have ended",
                    path=self.staging.label,
                )
            self.publish(records)

    def publish(self, records: ChunkRecords) -> None:
        """Publish the frame unless the target has changed; see `Transaction.publish`."""
        Transaction.publish(replace(self, staging=self._checked_staging()), records)

    def _checked_staging(self) -> Staging:
        """Restrict the staging to the current target; raise if that has changed since `create`."""
        staging = self.staging
        if staging.location.is_url and not staging.replace:
            return staging  # the publication checks this, and may continue an unfinished frame
        state, identity = state_at(staging.location)
        if state not in (NOTHING, self.base):
            if not staging.replace:
                raise FileExistsError(errno.EEXIST, MEANWHILE, staging.label)
            raise StaleFrameError(
                "a frame was written or changed here since create, and commit does not replace "
                "it: to keep this frame, remove the parts by remove_staging(..., "
                f"key={AREA_KEY!r}); to replace it, remove it and commit again",
                path=staging.label,
            )
        # another frame may still appear before the rename
        return replace(staging, replace=state != NOTHING, replaces=identity)


def _is_committed(write: Transaction) -> bool:
    """Whether a pending frame is published; False without chunks, since the frame has no key."""
    return bool(write.plan.grid.nchunks) and write.is_published()


def _is_pending(write: Transaction) -> bool:
    """Whether the staging area belongs to this write, not to a later one of the same path."""
    return _plan_in(write.staging)[_KEY].hex() == write.frame_key


def pending_at(location: Location) -> PendingFrame:
    """Find the pending frame at a location.

    Raises FileNotFoundError if there is none, or it is already committed.
    """
    # any form: the plan, which is read from here, has the real one
    area = staging_for(location, sparse=True, replace=False, header_len=0, resume_key=AREA_KEY)
    body = _plan_in(area)
    flags, frame = body[_BASE.stop], body[_BASE.stop + 1 :]
    with locating(path=area.label):
        header = parse_header(frame, len(frame))
        grid, dtype = geometry_of(header)
        vlmeta = parse_trailer(frame[header_len_of(frame) :])
    dtype = dtype or np.dtype(f"V{grid.itemsize}")
    plan = FramePlan.of_header(header, grid, dtype, vlmeta, stats=bool(flags & _STATS))
    key, base = body[_KEY].hex(), body[_BASE]
    # if nothing existed at `create`, nothing may be replaced
    replaces = bool(flags & _REPLACE) and base != NOTHING
    return PendingFrame.at(location, plan, key, base, replace=replaces)


def _plan_in(staging: Staging) -> bytes:
    """Read the plan in a staging area, without its digest."""
    try:
        body = body_of(staging.get(PLAN_NAME), _MAGIC)
    except FileNotFoundError as error:
        raise FileNotFoundError(
            errno.ENOENT,
            "no frame was started at this path, or it is committed: start one by b2nd_dask.create",
            staging.label,
        ) from error
    if body is None or len(body) <= _BASE.stop:
        raise FrameFormatError(
            "the plan of the frame that was started at this path is damaged: remove it by "
            "remove_staging",
            path=staging.label,
        )
    return body


@dataclass(frozen=True, eq=False)
class Part(Transaction):
    """A part of a pending frame, published with the frame."""

    box: ChunkBox

    def begin(self) -> Self:
        """Find the staging area of the frame; see `Transaction.begin`."""
        self._require_pending()
        return self

    def commit(self, records: ChunkRecords) -> str:
        """Add the part's manifest after all its chunks are staged; see `Transaction.commit`.

        Raises `B2ndError` if chunks are missing, or another part overlaps; FileNotFoundError if the
        pending frame was committed or removed.
        """
        staging, grid = self.staging, self.plan.grid
        wanted = self.box.chunks(grid)
        with self.naming_process():
            require_all(records, wanted, staging.label, outcome="the part is not staged")
            staging.sync(records.parts)
            with staging.exclusive():
                self._require_pending()
                if len(wanted):
                    others = (box for box in boxes_of(staging.names(), grid) if box != self.box)
                    require_disjoint(((self.box, other) for other in others), grid, staging.label)
                    put_manifest(records, staging, fsync=True)
        return staging.label

    def unreachable(self, error: OSError) -> OSError:
        """Raise FileNotFoundError if the frame is committed; see `Transaction.unreachable`."""
        self._require_uncommitted()
        return super().unreachable(error)

    def _require_uncommitted(self) -> None:
        if _is_committed(self):
            raise FileNotFoundError(
                errno.ENOENT,
                "the pending frame is already committed: change it by to_b2nd(..., "
                'mode="r+", region=...). An area of it that list_staging still shows is removed by '
                "commit or remove_staging",
                self.staging.label,
            )

    def _require_pending(self) -> None:
        """Check that the frame is neither committed nor removed."""
        self._require_uncommitted()
        if not _is_pending(self):
            raise FileNotFoundError(
                errno.ENOENT,
                "the frame was removed and started again in the meantime: stage this part again",
                self.staging.label,
            )


def commit(urlpath: Any, *, fill: Any = None, storage_options: Any = None) -> Frame:
    """Publish a frame from its staged parts, atomically.

    This is the last of three steps, in any number of processes and machines and at any time:
    `create` starts a frame, ``to_b2nd(x, urlpath, mode="stage", region=...)`` stages parts of it,
    for instance in a job array, and `commit` joins them. Until then the name has no frame, or the
    old one. Call it after the end of all jobs. It reads the staged bytes once, to verify them.

    Parameters
    ----------
    urlpath : str or os.PathLike
        As for `create`.
    fill : scalar, optional
        Value of the elements of missing parts. By default missing parts raise an error.
    storage_options : mapping, optional
        For the fsspec filesystem of a URL.

    Returns
    -------
    Frame

    Raises
    ------
    FileNotFoundError
        There is no pending frame, or it is already committed.
    TypeError, OverflowError
        The dtype cannot hold the `fill`.
    B2ndError
        Parts are missing without a `fill`, parts overlap, or staged bytes are damaged.
    StaleFrameError
        The frame that `create` may replace was replaced or changed since.
    FileExistsError
        A frame exists there that `create` may not replace.
    OSError
        The store failed. Staged chunks remain, and the same call resumes the commit.

    Examples
    --------
    >>> import pathlib, tempfile, b2nd_dask, numpy as np
    >>> path = pathlib.Path(tempfile.mkdtemp(), "a.b2nd")
    >>> b2nd_dask.create(path, (4, 6), "i2", chunks=(2, 6))
    >>> for job in range(2):
    ...     rows = slice(2 * job, 2 * job + 2)
    ...     _ = b2nd_dask.to_b2nd(np.full((2, 6), job, "i2"), path, mode="stage", region=rows)
    >>> commit(path)[:, 0]
    array([0, 0, 1, 1], dtype=int16)
    """
    location = Location.of(urlpath, storage_options=storage_options)
    require_no_link_out(location)
    pending = pending_at(location)
    # another commit of the same frame may finish first and remove the staged files
    with pending.once():
        pending.join(fill)
    # after the lock: NFS keeps an open file, and thus its directory
    with suppress(FileNotFoundError):
        if _is_pending(pending):
            pending.staging.clean_up()
    return open_b2nd(urlpath, storage_options=storage_options)


def records_of_parts(
    manifests: dict[str, bytes], plan: FramePlan, staging: Staging, fill: Any
) -> ChunkRecords:
    """Merge and verify the parts; errors name those that are missing, overlap or are damaged."""
    grid, boxes = plan.grid, boxes_of(manifests, plan.grid)
    staged = np.zeros(grid.nchunks, bool)
    for box in boxes:
        staged[box.chunks(grid)] = True
    # compare all pairs only if the parts overlap
    if np.count_nonzero(staged) < sum(box.nchunks for box in boxes):
        require_disjoint(itertools.combinations(boxes, 2), grid, staging.label)
    if fill is None and not staged.all():
        regions = regions_of(~staged, grid)
        raise B2ndError(
            f"{np.count_nonzero(~staged)} of {len(staged)} chunks were not staged: no part has "
            f"the elements {regions}. Stage them, or pass fill=",
            path=staging.label,
        )
    records = staged_records(manifests.values(), staging, plan.row, grid.nchunks)
    damaged = staged.copy()
    damaged[records.rows["chunk"]] = False
    if damaged.any():
        hit = [box.region(grid) for box in boxes if damaged[box.chunks(grid)].any()]
        raise B2ndError(
            f"{np.count_nonzero(damaged)} staged chunks are damaged or missing: stage the parts "
            f"{listed(hit)} again, then commit",
            path=staging.label,
        )
    if staged.all():
        return records
    elements, origin = np.broadcast_to(cast_fill(fill, plan.dtype), grid.shape), (0,) * grid.ndim
    missing = np.flatnonzero(~staged)
    return merge_records([records, write_block(elements, origin, plan, staging, chunks=missing)])
