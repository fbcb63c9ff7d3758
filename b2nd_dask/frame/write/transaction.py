"""A write as one transaction: it starts when its graph is computed; tasks stage, the last commits.

A commit joins the staged chunks, builds the envelope, and publishes the frame.

Each task may run twice: dask repeats tasks after the loss of a worker.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from b2nd_dask.errors import B2ndError
from b2nd_dask.format.header import with_new_tail
from b2nd_dask.format.index import build_index, stored_chunks
from b2nd_dask.format.integrity import build_tail
from b2nd_dask.format.trailer import TOKEN_NBYTES, History, build_marks, metadata_digest
from b2nd_dask.frame.open.opening import ParsedFrame, parse_frame
from b2nd_dask.frame.write.new_frame import FramePlan
from b2nd_dask.frame.write.records import ChunkRecords, put_manifest, require_all
from b2nd_dask.processes import unseen
from b2nd_dask.storage import ByteReader, Identity, Location, Span, Staging

#: States of a target without a frame (`state_at`): nothing is there, or something else.
NOTHING, _NO_FRAME = bytes(TOKEN_NBYTES), b"\1" * TOKEN_NBYTES

#: Errors of a duplicate task after the publication of its write: the staged files are gone, the
#: target exists, the frame to change differs, records are missing. Disk errors are not among them.
_DUPLICATE = (FileNotFoundError, FileExistsError, B2ndError)

_NOT_SHARED = (
    "all tasks of a write must see the target's folder, with the staged files of other tasks, at "
    "the same path (a shared file system, a mounted volume); otherwise write to a URL"
)


@dataclass(frozen=True, eq=False, slots=True)
class Envelope:
    """The envelope of a frame: header, metalayers and vlmeta, without index and checksums."""

    head: bytes
    """The header; its lengths are replaced."""
    sparse: bool
    array_meta: bytes
    """Content of the metalayer that holds the array's shape."""
    vlmeta: Mapping[str, bytes]
    """The user's entries."""
    key: str | None = None
    """Key of the write, for the write id."""
    past: History | None = None

    @classmethod
    def of(cls, reader: ByteReader, parsed: ParsedFrame, key: str | None) -> Self:
        """Copy the envelope of an existing frame without its history, with another write id."""
        header = parsed.header
        (head,) = reader.read([Span(0, header.header_len)])
        return cls(head, header.sparse, header.array_meta, parsed.vlmeta, key)

    @classmethod
    def planned(cls, plan: FramePlan, key: str | None, past: History | None = None) -> Self:
        """Build the envelope of a planned frame, with the write id of a key."""
        return cls(plan.header(), plan.sparse, plan.own_meta["b2nd"], plan.vlmeta, key, past)

    def build(self, table: NDArray[Any], cbytes: int) -> tuple[bytes, bytes]:
        """Build header and tail from the table of all chunks and the bytes of the stored ones."""
        index = b""
        if len(table):
            # the write id is behind the index, so a frame without index has none
            index = build_index(table["offset"])
            if self.key is not None:
                metadata = metadata_digest(self.array_meta, self.vlmeta)
                index += build_marks(self.key, self.past, metadata)
        stored = table[stored_chunks(table["offset"])]
        tail, has_vlmeta = build_tail(index, self.vlmeta, self.array_meta, stored)
        frame_len = len(self.head) + (0 if self.sparse else cbytes) + len(tail)
        sizes = {"cbytes": cbytes, "frame_len": frame_len}
        return with_new_tail(self.head, **sizes, has_vlmeta=has_vlmeta), tail

    def without_chunks(self, row: np.dtype[Any]) -> bytes:
        """Build the frame as if it had no chunks; `row` is the dtype of its records."""
        return b"".join(self.build(np.zeros(0, row["entry"]), 0))


def publish(
    records: ChunkRecords, table: NDArray[Any], envelope: Envelope, staging: Staging
) -> None:
    """Join staged chunks, build header, index and trailer, and publish the frame.

    This enters the records into the table of all chunks, except columns that the table lacks.
    """
    chunks, entries = records.rows["chunk"], records.rows["entry"]
    is_stored = entries["offset"] == 0
    placement = staging.join(records.parts, records.rows[is_stored])
    # without new chunks the table may be read-only
    if len(chunks):
        for name in set(table.dtype.names or ()).intersection(entries.dtype.names or ()):
            table[name][chunks] = entries[name]
        table["offset"][chunks[is_stored]] = placement.positions
    staging.publish(placement, *envelope.build(table, placement.data_nbytes))


@dataclass(frozen=True, eq=False)
class Transaction:
    """The write of a new frame. It pickles, so tasks in any process take part."""

    plan: FramePlan
    staging: Staging
    is_delayed: bool = field(default=False, kw_only=True)
    """Whether the user computes the tasks, and the first one makes the staging area. Otherwise the
    caller makes it, and no late task makes it again after a failure."""
    was_published: bool = field(default=False, kw_only=True)
    """Whether this write had published its frame before it started: dask repeats tasks after the
    loss of a worker, or a Delayed is computed twice. Then the staging area is made only if a task
    needs it."""

    frame_key: str = field(default="", kw_only=True)
    """Key that identifies the write in the frame; by default that of the staging area."""

    @property
    def write_key(self) -> str:
        """Key that identifies the write in the frame."""
        return self.frame_key or self.staging.key

    def begin(self) -> Self:
        """Make the staging area, unless the caller has; return the transaction for other tasks.

        Raises FileExistsError if the target exists and is not the result of this write, OSError if
        the location is not writable.
        """
        if self.staging.is_prepared:
            return self
        if self.is_published():
            return replace(self, was_published=True)
        if self.is_delayed:
            with self.naming_process():
                self.staging.check_target()
                self.staging.make_area()
        return self

    def stage(self, write: Callable[[], ChunkRecords]) -> ChunkRecords:
        """Stage chunks; a repeated task whose frame is published already returns no records.

        If the write is resumable, also write a manifest.
        """
        try:
            records = write()
            if self.staging.resumable:
                # if a power cut loses the manifest, its chunks are computed again
                put_manifest(records, self.staging, fsync=False)
        except FileNotFoundError as error:
            problem = self.unreachable(error)
            if not self.is_published():
                raise problem from error
        else:
            return records
        if not self.was_published:
            return ChunkRecords.of_special(self.plan.row)
        self.staging.make_area()
        return write()

    def commit(self, records: ChunkRecords) -> str:
        """Publish the staged chunks: lock, join, build, publish, clean up.

        Takes the records of all written chunks; returns the path or URL of the frame. Raises
        `B2ndError` if chunks are missing, OSError if the store failed; the target is then
        unchanged.
        """
        if self.was_published:
            # no task has made it if all blocks are constant
            self.staging.make_area()
        with self.naming_process(), self.once(), self.staging.exclusive():
            self.publish(records)
        # after the lock: NFS keeps an open file, and thus its directory
        self.staging.clean_up()
        return self.staging.label

    def publish(self, records: ChunkRecords) -> None:
        """Publish the frame with the staged chunks, under the lock of `Staging.exclusive`."""
        plan, nchunks = self.plan, self.plan.grid.nchunks
        require_all(records, np.arange(nchunks), self.staging.label)
        table = np.zeros(nchunks, plan.row["entry"])
        publish(records, table, Envelope.planned(plan, self.write_key), self.staging)

    def is_published(self) -> bool:
        """Whether this write made the frame at the target, or is among its recorded updates.

        False if there is no frame.
        """
        try:
            with closing(self.staging.location.open()) as reader:
                if self.plan.grid.nchunks:
                    return self.write_key in parse_frame(reader).keys
                # a frame without chunks has no key: compare its metadata, which is all of it
                whole = Envelope.planned(self.plan, None).without_chunks(self.plan.row)
                return reader.read([Span(0, len(whole) + 1)]) == [whole]
        except (OSError, B2ndError):
            return False

    @contextmanager
    def once(self) -> Iterator[None]:
        """Ignore an error of a duplicate if this write has already published its frame."""
        try:
            yield
        except _DUPLICATE:
            if not self.is_published():
                raise

    @contextmanager
    def naming_process(self) -> Iterator[None]:
        """Name the process in errors of a missing folder, which other processes may see."""
        try:
            yield
        except (FileNotFoundError, NotADirectoryError, PermissionError) as error:
            if error.errno in (None, errno.EPERM):
                # an error of a store or of a read-only file is the same in all processes
                raise
            raise self.unreachable(error) from error

    def unreachable(self, error: OSError) -> OSError:
        """Build an error that names the process without access to the staging area."""
        label = self.staging.label
        if self.staging.location.is_url:
            # the same in all processes
            return type(error)(error.errno, error.strerror, label)
        return unseen(error, label, _NOT_SHARED)


def begin(transaction: Transaction) -> Transaction:
    """Task that starts a write."""
    return transaction.begin()


def commit(transaction: Transaction, records: ChunkRecords) -> str:
    """Task that commits a write."""
    return transaction.commit(records)


def state_at(location: Location) -> tuple[bytes, Identity | None]:
    """Read the state of a target: the token of its frame, and its identity."""
    try:
        with closing(location.open()) as reader:
            parsed = parse_frame(reader)
    except FileNotFoundError:
        return NOTHING, None
    except B2ndError:
        return _NO_FRAME, None
    return parsed.token, parsed.identity
