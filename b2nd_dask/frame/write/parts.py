"""A pending frame, whose plan lies in its staging area, and its parts: committed all at once.

A part is a box of whole chunks. The write that has staged all of them leaves its manifest in the
staging area, named after the box: a part that is staged again replaces its manifest.
"""

from __future__ import annotations

import errno
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np

from b2nd_dask.errors import B2ndError, FrameFormatError
from b2nd_dask.format.array_meta import array_meta_of
from b2nd_dask.format.grid import Grid
from b2nd_dask.format.header import header_len_of, parse_header
from b2nd_dask.format.trailer import parse_trailer
from b2nd_dask.frame.access import open_b2nd
from b2nd_dask.frame.array import Frame
from b2nd_dask.frame.members.files import require_no_link_out
from b2nd_dask.frame.write.conflicts import ChunkBox
from b2nd_dask.frame.write.new_frame import FramePlan
from b2nd_dask.frame.write.records import (
    ChunkRecords,
    body_of,
    put_manifest,
    require_all,
    with_digest,
)
from b2nd_dask.frame.write.staged_parts import (
    manifests_of,
    names_by_box,
    records_of_parts,
    require_apart,
)
from b2nd_dask.frame.write.transaction import Transaction, clean_up, has_published
from b2nd_dask.storage import Location, Staging, staging_for

#: Of the staging area of all frames that are begun: any process finds it without a search.
AREA_KEY = b"in parts".hex()
PLAN_NAME = "plan"
_MAGIC = b"b2ndplan"
#: Magic, key, a byte of flags, and the frame without chunks; a digest of all stands behind it.
_KEY = slice(len(_MAGIC), len(_MAGIC) + 8)
_REPLACE, _STATS = 1, 2


@dataclass(frozen=True, eq=False)
class PendingFrame(Transaction):
    """A frame that appears when its parts are committed."""

    frame_key: str
    """For its write id: 16 hexadecimal digits."""

    @classmethod
    def at(cls, location: Location, plan: FramePlan, *, replace: bool, key: str) -> Self:
        """Reach the staging area of a frame; a commit of it that was killed is gone on with."""
        return cls(plan, plan.staging(location, replace=replace, resume_key=AREA_KEY), key)

    @property
    def write_key(self) -> str:
        """See `Transaction.write_key`."""
        return self.frame_key

    def to_bytes(self) -> bytes:
        """Write the plan as the header and trailer of the frame, without an index."""
        flags = _REPLACE * self.staging.replace | _STATS * self.plan.stats
        front = _MAGIC + bytes.fromhex(self.frame_key) + bytes([flags])
        return front + self.plan.empty_frame()

    def begin(self) -> Self:
        """Make the staging area, or find that the same frame was begun already.

        Raises
        ------
        FileExistsError
            The target is there and may not be replaced, or another frame was begun there.
        """
        # a commit goes on with what is there, who begins anew does not
        staging, plan = replace(self.staging, resumable=False), self.to_bytes()
        if PLAN_NAME not in staging.names():
            # not prepared: any process may remove the area
            staging.check_target()
            staging.make_area()
            # another job may begin it in this moment
            if staging.put_new(PLAN_NAME, with_digest(plan)):
                return self
        # whatever its key is
        if _plan_in(staging)[_KEY.stop :] != plan[_KEY.stop :]:
            raise FileExistsError(
                errno.EEXIST,
                "another frame was begun here, with other options: commit it, or remove it by "
                f"remove_staging(..., key={AREA_KEY!r})",
                staging.label,
            )
        return self

    def join(self, fill: Any) -> None:
        """Make the frame of the parts that are staged, unless another commit has."""
        # killed behind the switch to the new frame, before its staging area was removed
        if self.is_published():
            return
        # not under the lock, which tasks share that stage something
        manifests = manifests_of(self.staging, self.plan.grid)
        records = records_of_parts(manifests, self.plan, self.staging, fill)
        with self.staging.exclusive():
            if self.is_published():
                return
            if manifests != manifests_of(self.staging, self.plan.grid):
                raise B2ndError(
                    "parts were staged while they were committed: commit when all jobs have ended",
                    path=self.staging.label,
                )
            self.publish(records)


def pending_at(location: Location) -> PendingFrame:
    """Find the frame that was begun at a location.

    Raises
    ------
    FileNotFoundError
        None was, or it is committed.
    """
    # of either form: the plan says which
    area = staging_for(location, sparse=True, replace=False, header_len=0, resume_key=AREA_KEY)
    body = _plan_in(area)
    flags, frame = body[_KEY.stop], body[_KEY.stop + 1 :]
    try:
        header = parse_header(frame, len(frame))
        meta = array_meta_of(header.metalayers)
        dtype = meta.dtype or np.dtype(f"V{header.typesize}")
        grid = Grid(meta.shape, meta.chunks, meta.blocks, dtype.itemsize)
        vlmeta = parse_trailer(frame[header_len_of(frame) :])
    except FrameFormatError as error:
        raise error.located(path=area.label) from None
    plan = FramePlan.of_header(header, grid, dtype, vlmeta, stats=bool(flags & _STATS))
    return PendingFrame.at(location, plan, replace=bool(flags & _REPLACE), key=body[_KEY].hex())


def _plan_in(staging: Staging) -> bytes:
    """Read the plan in a staging area, without the digest behind it."""
    try:
        body = body_of(staging.get(PLAN_NAME), _MAGIC)
    except FileNotFoundError as error:
        raise FileNotFoundError(
            errno.ENOENT,
            "no frame is begun here, or it is committed: b2nd_dask.create begins one",
            staging.label,
        ) from error
    if body is None or len(body) <= _KEY.stop:
        raise FrameFormatError(
            "the plan of the frame that was begun here is damaged: remove_staging removes it",
            path=staging.label,
        )
    return body


@dataclass(frozen=True, eq=False)
class Part(Transaction):
    """A part of a pending frame, which appears when that is committed."""

    box: ChunkBox
    frame_key: str
    """Of the frame."""

    def begin(self) -> Self:
        """Find the staging area of the frame; see `Transaction.begin`."""
        self._require_pending()
        return self

    def commit(self, records: ChunkRecords) -> str:
        """Enter the part, whose chunks are all staged; see `Transaction.commit`.

        Raises
        ------
        B2ndError
            Chunks are missing, or another part has some of the same chunks.
        FileNotFoundError
            The frame was committed or given up meanwhile.
        """
        staging, grid = self.staging, self.plan.grid
        wanted = self.box.chunks(grid)
        with self.reached():
            require_all(records, wanted, staging.label, outcome="the part is not staged")
            staging.sync(records.parts)
            with staging.exclusive():
                self._require_pending()
                if len(wanted):
                    others = [other for other in names_by_box(staging, grid) if other != self.box]
                    require_apart(((self.box, other) for other in others), grid, staging.label)
                    put_manifest(records, staging, fsync=True)
        return staging.label

    def unreached(self, error: OSError) -> OSError:
        """See `Transaction.unreached`."""
        return self._if_committed() or super().unreached(error)

    def _if_committed(self) -> OSError | None:
        """The error where the frame is committed."""
        if not has_published(self.staging, self.frame_key):
            return None
        return FileNotFoundError(
            errno.ENOENT,
            "the frame was committed meanwhile, without what was staged now: write that by "
            'to_b2nd(..., mode="r+", region=...)',
            self.staging.label,
        )

    def _require_pending(self) -> None:
        """Check that the frame is not committed yet, nor given up."""
        if committed := self._if_committed():
            raise committed
        if _plan_in(self.staging)[_KEY].hex() != self.frame_key:
            raise FileNotFoundError(
                errno.ENOENT, "the frame was given up meanwhile, and begun anew", self.staging.label
            )


def commit(urlpath: Any, *, fill: Any = None, storage_options: Any = None) -> Frame:
    """Make the parts that were staged of a frame the frame, all at once.

    The last step of three, which may run in as many processes, on as many machines and at any
    time: `create` begins a frame, ``to_b2nd(x, urlpath, mode="stage", region=...)`` stages parts of
    it, from the jobs of an array for instance, and `commit` joins them. Until then nothing is
    there under the frame's name, or the old frame is. Call it when all jobs have ended. It reads
    what was staged once, to see that it is as the jobs wrote it.

    Parameters
    ----------
    urlpath : str or os.PathLike
        As for `create`.
    fill : scalar, optional
        What the elements of missing parts hold. By default it is an error that parts are missing.
    storage_options : mapping, optional
        For the fsspec filesystem of a URL.

    Returns
    -------
    Frame

    Raises
    ------
    FileNotFoundError
        No frame was begun there, or it is committed already.
    TypeError, OverflowError
        The dtype cannot hold the `fill`.
    B2ndError
        Parts are missing and there is no `fill`, parts overlap, or what a job staged is damaged.
    FileExistsError
        A frame has appeared there that `create` was not told to replace.
    OSError
        The store failed; what was staged stays, and the same call goes on.

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
    # another commit of the same frame may be faster, and remove what was staged
    with pending.once():
        pending.join(fill)
    # not under the lock: NFS keeps a file that is open, and with it the directory
    clean_up(pending.staging)
    return open_b2nd(urlpath, storage_options=storage_options)
