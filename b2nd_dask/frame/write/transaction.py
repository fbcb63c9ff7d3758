"""A write as one transaction: it begins when its graph is computed, tasks stage, one commits.

To commit is to join what is staged, to build what surrounds it, and to publish the frame.

Each of these may run twice: dask runs tasks again when a worker is lost.
"""

from __future__ import annotations

import errno
import logging
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
from b2nd_dask.format.trailer import (
    MARKS_NBYTES,
    TAIL_LEN,
    History,
    build_history,
    build_write_id,
    metadata_digest,
    parse_marks,
    trailer_len_of,
)
from b2nd_dask.frame.open.opening import ParsedFrame, read_header, steadily
from b2nd_dask.frame.write.new_frame import FramePlan
from b2nd_dask.frame.write.records import ChunkRecords, put_manifest, require_all
from b2nd_dask.processes import unseen
from b2nd_dask.storage import ByteReader, Identity, Span, Staging

logger = logging.getLogger("b2nd_dask")

#: What a duplicate of a task meets after its write has published: the parts are gone, the target is
#: there, the frame that it changes is another one, records are missing. Not a failing disk.
_DUPLICATE = (FileNotFoundError, FileExistsError, B2ndError)

_NOT_SHARED = (
    "all tasks of a write need its folder, and what others have staged there, under the same path "
    "(a shared file system, a mounted volume); otherwise write to a URL"
)


#: Keys of writes that failed in this process, whose other threads may still run tasks of them.
_given_up: set[str] = set()


@dataclass(frozen=True, eq=False, slots=True)
class Envelope:
    """The envelope of a frame: header, metalayers and vlmeta, without index and checksums."""

    head: bytes
    """The header; its lengths are replaced."""
    sparse: bool
    array_meta: bytes
    """Content of the metalayer that gives the array's shape."""
    vlmeta: Mapping[str, bytes]
    """The user's entries."""
    key: str | None = None
    """Of the write, for the write id."""
    past: History | None = None

    @classmethod
    def of(
        cls, reader: ByteReader, parsed: ParsedFrame, key: str | None, past: History | None = None
    ) -> Self:
        """Take the envelope of an existing frame, with the write id and history that are given."""
        header = parsed.header
        (head,) = reader.read([Span(0, header.header_len)])
        return cls(head, header.sparse, header.array_meta, parsed.vlmeta, key, past)

    @classmethod
    def planned(cls, plan: FramePlan, key: str | None, past: History | None = None) -> Self:
        """Make the envelope of a planned frame, which the write of a key makes."""
        return cls(plan.header(), plan.sparse, plan.own_meta["b2nd"], plan.vlmeta, key, past)

    def around(self, table: NDArray[Any], cbytes: int) -> tuple[bytes, bytes]:
        """Build header and tail, by the table of all chunks and the bytes of those stored."""
        index = b""
        if len(table):
            # behind the index, if there is one
            index = build_index(table["offset"])
            if self.past is not None:
                index += build_history(self.past, metadata_digest(self.array_meta, self.vlmeta))
            if self.key is not None:
                index += build_write_id(self.key)
        stored = table[stored_chunks(table["offset"])]
        tail, has_vlmeta = build_tail(index, self.vlmeta, self.array_meta, stored)
        frame_len = len(self.head) + (0 if self.sparse else cbytes) + len(tail)
        sizes = {"cbytes": cbytes, "frame_len": frame_len}
        return with_new_tail(self.head, **sizes, has_vlmeta=has_vlmeta), tail


def publish_records(
    records: ChunkRecords, table: NDArray[Any], envelope: Envelope, staging: Staging
) -> None:
    """Enter what tasks report of the chunks into the table of the frame, and publish it."""
    chunks, entries = records.rows["chunk"], records.rows["entry"]
    for name, dtype in (table.dtype.fields or {}).items():
        # of a frame that got statistics after the write was planned they are unknown
        known = name in (entries.dtype.names or ())
        table[name][chunks] = entries[name] if known else np.zeros((), dtype[0])
    stored = records.rows[entries["offset"] == 0]
    publish(ChunkRecords(records.parts, stored), table, envelope, staging)


def publish(
    stored: ChunkRecords, table: NDArray[Any], envelope: Envelope, staging: Staging
) -> None:
    """Join staged chunks, build header, index and trailer, and publish the frame.

    Parameters
    ----------
    table : ndarray
        Of all chunks; gets the offsets of the staged ones.
    """
    placement = staging.join(stored)
    if len(stored.rows):
        table["offset"][stored.rows["chunk"]] = placement.positions
    staging.publish(placement, *envelope.around(table, placement.data_nbytes))


@dataclass(frozen=True, eq=False)
class Transaction:
    """A new frame that is written. Pickles, so that tasks in any process take part."""

    plan: FramePlan
    staging: Staging
    was_published: bool = field(default=False, kw_only=True)
    """Whether this very write had published its frame before it began. Then dask has lost a worker
    and some of its tasks may run again, or a Delayed is computed twice. The staging area is made by
    the first task that needs it: nobody would remove it after the last."""

    @property
    def write_key(self) -> str:
        """Identifies the write in the frame."""
        return self.staging.key

    def begin(self) -> Self:
        """Make the staging area, when the graph is computed; gives what other tasks work with.

        Raises
        ------
        FileExistsError
            The target is there, and was not made by this write.
        OSError
            Nothing can be written there.
        """
        if self.staging.is_prepared:
            return self
        if self.is_published():
            return replace(self, was_published=True)
        self._require_wanted()
        with self.reached():
            self.staging.check_target()
            self.staging.make_area()
        # also behind that: whichever comes first, no staging area stays
        self._require_wanted()
        return self

    def stage(self, write: Callable[[], ChunkRecords]) -> ChunkRecords:
        """Stage chunks; nothing where the frame was published while the task ran again.

        Where the write can be resumed, a manifest says what is staged.
        """
        try:
            records = write()
            if self.staging.resumable:
                # a power cut may lose it: then its chunks are computed again
                put_manifest(records, self.staging, fsync=False)
        except FileNotFoundError as error:
            problem = self.unreached(error)
            if not self.is_published():
                raise problem from error
        else:
            return records
        if not self.was_published:
            return ChunkRecords.of(self.plan.row, {}, {})
        self.staging.make_area()
        return write()

    def commit(self, records: ChunkRecords) -> str:
        """Make the staged chunks the frame: lock, join, build, publish, clean up.

        Parameters
        ----------
        records : ChunkRecords
            Of every chunk that is written.

        Returns
        -------
        str
            Path or URL of the frame.

        Raises
        ------
        B2ndError
            Chunks are missing: the target stays as it was.
        OSError
            The store raises it; the target stays as it was.
        """
        if self.was_published:
            # blocks that are all constant have staged nothing
            self.staging.make_area()
        with self.reached(), self.once(), self.staging.exclusive():
            self.publish(records)
        # not under the lock: NFS keeps a file that is open, and with it the directory
        clean_up(self.staging)
        return self.staging.label

    def publish(self, records: ChunkRecords) -> None:
        """Put the staged chunks into the frame, under the lock of `Staging.exclusive`."""
        plan, nchunks = self.plan, self.plan.grid.nchunks
        require_all(records, np.arange(nchunks), self.staging.label)
        table = np.zeros(nchunks, plan.row["entry"])
        publish_records(records, table, Envelope.planned(plan, self.write_key), self.staging)

    def is_published(self) -> bool:
        """Whether this very write made the frame that is there, or is one of its last updates.

        False too where no frame is there.
        """
        if self.plan.grid.nchunks:
            return has_published(self.staging, self.write_key)
        # a frame without chunks has no key: compared by all that it holds, its metadata
        whole = self.plan.empty_frame()
        return _of_target(self.staging, lambda reader: _begins_and_ends(reader, whole))

    @contextmanager
    def once(self) -> Iterator[None]:
        """Be content where the block fails since this write has published before."""
        try:
            yield
        except _DUPLICATE:
            if not self.is_published():
                raise

    @contextmanager
    def reached(self) -> Iterator[None]:
        """Let errors of a folder that is not there say in which process it is not."""
        try:
            yield
        except (FileNotFoundError, NotADirectoryError, PermissionError) as error:
            raise self.unreached(error) from error

    def unreached(self, error: OSError) -> OSError:
        """Say in which process the staging area is not there, or why."""
        return unseen(error, self.staging.label, _NOT_SHARED)

    def _require_wanted(self) -> None:
        if self.staging.key in _given_up:
            clean_up(self.staging)
            problem = "another task of this write failed"
            raise FileNotFoundError(errno.ENOENT, problem, self.staging.label)


def begin(transaction: Transaction) -> Transaction:
    """Task that begins a write."""
    return transaction.begin()


def commit(transaction: Transaction, records: ChunkRecords, *before: Any) -> str:
    """Task that commits a write; `before` are results of what must have succeeded."""
    return transaction.commit(records)


def has_published(staging: Staging, key: str) -> bool:
    """Whether the write of a key made the frame at the target, or is one of its last updates."""
    return _of_target(staging, lambda reader: key in keys_of(reader))


def _of_target(staging: Staging, says: Callable[[ByteReader], bool]) -> bool:
    """What is true of the frame at the target; False where none is there, or another file."""
    try:
        with closing(staging.reader()) as reader:
            return says(reader)
    except (OSError, B2ndError):
        return False


def clean_up(staging: Staging) -> None:
    """Remove what was staged; where that fails, say so and go on: the target is what it is."""
    try:
        staging.discard()
    except Exception as error:  # noqa: BLE001 - every store has a tree of errors of its own
        logger.warning(
            "%s: what was staged under the key %s could not be removed (%s); "
            "`remove_staging` removes it",
            staging.label,
            staging.key,
            error,
        )


def give_up(staging: Staging) -> None:
    """Remove what a write of this process has staged that failed, for good."""
    _given_up.add(staging.key)
    clean_up(staging)


def keys_of(reader: ByteReader) -> tuple[str, ...]:
    """The keys of the writes that made and changed a frame, as far as it knows them.

    Returns
    -------
    tuple of str
        The last one first. Empty where other software made the frame, or changed it since.

    Raises
    ------
    OSError
        It cannot be read.
    FrameFormatError
        It is no frame.
    """
    return steadily(reader, lambda identity: _keys_of(reader, identity))


def _keys_of(reader: ByteReader, identity: Identity) -> tuple[str, ...]:
    _, header = read_header(reader, identity.size)
    end = header.frame_len
    (tail,) = reader.read([Span(end - TAIL_LEN, end)])
    start = end - trailer_len_of(tail, end - header.header_len)
    first = max(start - MARKS_NBYTES, header.index_start)
    if first >= start:
        return ()
    (marks,) = reader.read([Span(first, start)])
    key, history = parse_marks(marks, None)
    if key is None:
        return ()
    return tuple(update.key for update in reversed(history.updates)) or (key,)


def _begins_and_ends(reader: ByteReader, whole: bytes) -> bool:
    return reader.read([Span(0, len(whole) + 1)]) == [whole]
