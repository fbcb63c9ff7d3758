"""A frame that is pending until its parts are committed: its plan, in its staging area."""

from __future__ import annotations

import errno
from dataclasses import dataclass, replace
from typing import Self

import numpy as np

from b2nd_dask.errors import FrameFormatError
from b2nd_dask.format.array_meta import array_meta_of
from b2nd_dask.format.grid import Grid
from b2nd_dask.format.header import header_len_of, parse_header
from b2nd_dask.format.trailer import parse_trailer
from b2nd_dask.frame.write.new_frame import FramePlan
from b2nd_dask.frame.write.records import with_digest
from b2nd_dask.storage import Location, Staging, staging_for

#: Of the staging area of all frames that are begun: any process finds it without a search.
AREA_KEY = b"in parts".hex()
PLAN_NAME = "plan"
_MAGIC = b"b2ndplan"
#: Magic, key, a byte of flags; behind the plan stands a digest of all.
_REPLACE, _STATS = 1, 2
_FRONT, _DIGEST_NBYTES = len(_MAGIC) + 8 + 1, 8


@dataclass(frozen=True, eq=False, slots=True)
class PendingFrame:
    """A frame that appears when its parts are committed."""

    plan: FramePlan
    replace: bool
    """Whether a frame that is there may be replaced."""
    key: str
    """Of this frame, for its write id: 16 hexadecimal digits."""

    def to_bytes(self) -> bytes:
        """Write the plan as the header and trailer of the frame, without an index."""
        flags = _REPLACE * self.replace | _STATS * self.plan.stats
        front = _MAGIC + bytes.fromhex(self.key) + bytes([flags])
        return with_digest(front + self.plan.empty_frame())

    @classmethod
    def from_bytes(cls, data: bytes) -> Self:
        """Read what `to_bytes` wrote; FrameFormatError for anything else."""
        body = data[:-_DIGEST_NBYTES]
        if not body.startswith(_MAGIC) or with_digest(body) != data:
            raise FrameFormatError(
                "the plan of the frame that was begun here is damaged: remove_staging removes it"
            )
        flags, frame = body[_FRONT - 1], body[_FRONT:]
        header = parse_header(frame, len(frame))
        meta = array_meta_of(header.metalayers)
        dtype = meta.dtype or np.dtype(f"V{header.typesize}")
        grid = Grid(meta.shape, meta.chunks, meta.blocks, dtype.itemsize)
        vlmeta = parse_trailer(frame[header_len_of(frame) :]).vlmeta
        plan = FramePlan.of_header(header, grid, dtype, vlmeta, stats=bool(flags & _STATS))
        return cls(plan, bool(flags & _REPLACE), body[len(_MAGIC) : _FRONT - 1].hex())

    def staging(self, location: Location) -> Staging:
        """Reach the staging area; a commit that was killed is gone on with."""
        return self.plan.staging(location, replace=self.replace, resume_key=AREA_KEY)


def begin_parts(location: Location, pending: PendingFrame) -> None:
    """Make the staging area of a frame, or find that the same frame was begun already.

    Raises
    ------
    FileExistsError
        The target is there and may not be replaced, or another frame was begun there.
    """
    staging = pending.staging(location)
    if PLAN_NAME not in staging.names():
        staging.prepare()
        # another job may begin it in this moment
        if staging.put_new(PLAN_NAME, pending.to_bytes()):
            return
    there = pending_in(staging)
    # whatever its key is
    if replace(there, key=pending.key).to_bytes() != pending.to_bytes():
        raise FileExistsError(
            errno.EEXIST,
            "another frame was begun here, with other options: commit it, or remove it by "
            f"remove_staging(..., key={AREA_KEY!r})",
            location.label,
        )


def pending_at(location: Location) -> PendingFrame:
    """Find the frame that was begun at a location.

    Raises
    ------
    FileNotFoundError
        None was, or it is committed.
    """
    # of either form: the plan says which
    return pending_in(
        staging_for(location, sparse=True, replace=False, header_len=0, resume_key=AREA_KEY)
    )


def pending_in(staging: Staging) -> PendingFrame:
    """Read the plan in a staging area; errors as for `pending_at`."""
    try:
        data = staging.get(PLAN_NAME)
    except FileNotFoundError as error:
        raise FileNotFoundError(
            errno.ENOENT,
            "no frame is begun here, or it is committed: b2nd_dask.create begins one",
            staging.label,
        ) from error
    try:
        return PendingFrame.from_bytes(data)
    except FrameFormatError as error:
        raise error.located(path=staging.label) from None
