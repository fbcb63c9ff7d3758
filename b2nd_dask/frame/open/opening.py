"""Parse a frame from byte ranges: header, geometry, dtype, offset index, trailer."""

from __future__ import annotations

import hashlib
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar

import numpy as np
import xxhash
from numpy.typing import NDArray

from b2nd_dask.errors import (
    B2ndError,
    ChecksumError,
    FrameFormatError,
    StaleFrameError,
    level_of_caller,
    locating,
)
from b2nd_dask.format.grid import Grid
from b2nd_dask.format.header import FrameHeader, geometry_of, header_len_of, parse_header
from b2nd_dask.format.index import OffsetIndex
from b2nd_dask.format.integrity import IF_RIGHT, ChecksumState, ChunkColumns, parse_columns
from b2nd_dask.format.metalayers import users_vlmeta
from b2nd_dask.format.statistics import ChunkStatistics
from b2nd_dask.format.trailer import (
    MARKS_NBYTES,
    TOKEN_NBYTES,
    History,
    PastUpdate,
    metadata_digest,
    parse_marks,
)
from b2nd_dask.frame.open.tail import read_tail
from b2nd_dask.processes import unseen
from b2nd_dask.storage import HEAD_NBYTES, ByteReader, Identity, Span, changes_show, chunk_member

#: Text of StaleFrameError for a frame that changed since it was opened.
OUTDATED = (
    "the frame changed after it was opened or after the graph was built: open it again by "
    "from_b2nd or open_b2nd, and build the graph again"
)
#: Text of FileNotFoundError for a frame that existed when it was opened.
NOT_SHARED = (
    "the frame existed when it was opened; if it was not removed since then, this process needs "
    "it under the same path (a shared file system, a mounted volume), or open it by a URL"
)

#: Attempts to read metadata under concurrent changes.
_TRIES = 20

_Result = TypeVar("_Result")

#: Which chunks are verified: with "auto" those that are read whole or by their witness
#: (`frame.read.chunk_requests`), with True every chunk that is read, with False none.
Verify = bool | Literal["auto"]


@dataclass(frozen=True, eq=False, slots=True)
class ParsedFrame:
    """All metadata of one frame."""

    header: FrameHeader
    grid: Grid
    stored_dtype: np.dtype[Any] | None
    """None if the frame's metalayer has no dtype."""
    index: OffsetIndex
    vlmeta: Mapping[str, bytes]
    """The user's entries, without those of the frame."""
    columns: ChunkColumns
    """Offsets, checksums and statistics of the chunks."""
    identity: Identity
    """Identity of the parsed object."""
    digest: str
    """XXH3 of header, index and trailer, in hexadecimal."""
    history: History
    """Updates since the last change by other software."""
    changes_show: bool
    """Whether the identity reveals any change after the parse; that of an object in a store may
    not."""

    @property
    def statistics(self) -> ChunkStatistics | None:
        """Statistics of the current chunks; None if absent or of another state."""
        return self.columns.statistics

    @property
    def version(self) -> str:
        """Text that changes with the frame: the object's identity and the metadata's digest.

        With checksums, a change of chunks changes the digest. Without them, only the ctime reveals
        a change in place whose mtime was set back; a rename or new permissions change it, too.
        """
        version = f"{self.identity.size}-{self.identity.token}-{self.digest}"
        if self.columns.checksums.is_valid or not self.identity.changed:
            return version
        return f"{version}-{self.identity.changed}"

    @property
    def token(self) -> bytes:
        """Token of the state; any change of the frame by any software changes it.

        It contains time and size of the file only if nothing better exists: a writer that is killed
        after writing behind the frame's end changes both.
        """
        if self.history.updates:
            return bytes.fromhex(self.history.updates[-1].key)
        if self.columns.checksums.is_valid and len(self.index):
            # the metadata contains all chunk checksums, and other software clears their stamp
            return bytes.fromhex(self.digest)
        return hashlib.blake2b(self.version.encode(), digest_size=TOKEN_NBYTES).digest()

    def updates_since(self, token: bytes) -> tuple[PastUpdate, ...] | None:
        """Find the updates from another state to this one; None if unknown."""
        if token == self.token:
            return ()
        base, updates = self.history
        states = [base, *(bytes.fromhex(update.key) for update in updates)]
        return updates[states.index(token) :] if updates and token in states else None


@dataclass(frozen=True, eq=False, slots=True, weakref_slot=True)
class OpenedFrame:
    """A reader and the metadata that was parsed with it."""

    reader: ByteReader
    parsed: ParsedFrame
    verify: Verify = "auto"
    """Which chunks to verify by their checksums before decoding."""
    _same_at: set[int] = field(default_factory=set)
    """Later ctimes at which the file was parsed again with the same version."""

    @property
    def digests(self) -> NDArray[np.uint64] | None:
        """Digests for chunks that are read whole; None if nothing is to be verified."""
        return self.parsed.columns.digests if self.verify else None

    def is_current(self) -> bool:
        """Whether the location still holds the parsed frame, and the reader can read it.

        Raises `FileNotFoundError` or `PermissionError` if a local frame's path does not exist or is
        inaccessible in this process.
        """
        try:
            now, parsed = self.reader.identity(), self.parsed.identity
        except (FileNotFoundError, NotADirectoryError, PermissionError) as error:
            if not self.reader.identity_is_cheap:
                raise
            raise unseen(error, self.reader.label, NOT_SHARED) from None
        if now != parsed or not self.is_held():
            return False
        if not now.is_untouched(parsed) and now.changed not in self._same_at:
            if parse_frame(self.reader).version != self.parsed.version:
                return False
            self._same_at.add(now.changed)
        return True

    def is_held(self) -> bool:
        """Whether the open frame still has its files; checks only local directories.

        An open directory does not keep its files. After its removal, a copy in its place may get
        the same inodes and, with the same times, the same identity. To keep a file open as well is
        no solution on NFS, where the directory could then not be removed.
        """
        if not (self.reader.is_directory and self.reader.identity_is_cheap):
            return True
        try:
            self.reader.opened_identity()
        except OSError:  # also ESTALE, for files that another host has removed
            return False
        return True

    def require_current(self) -> None:
        """Raise StaleFrameError unless the location holds this frame; errors as of `is_current`."""
        if not self.is_current():
            raise StaleFrameError(OUTDATED, path=self.reader.label)

    def require_descendant(self, token: bytes) -> None:
        """Raise StaleFrameError unless only updates by this package led from another state to this.

        Otherwise it was replaced or changed by other software, or the history is too short.
        """
        if self.parsed.updates_since(token) is None:
            raise StaleFrameError(OUTDATED, path=self.reader.label)

    def require_checksums(self) -> None:
        """Check that the state of the checksums fits the user's `verify`.

        Raises `ChecksumError` if the metadata is damaged, or required checksums are absent.
        """
        checksums, label = self.parsed.columns.checksums, self.reader.label
        if checksums.state is ChecksumState.DAMAGED and self.verify:
            raise ChecksumError(
                f"the frame is damaged: {checksums.reason}; Python reads it by verify=False",
                path=label,
            )
        if not checksums.is_valid and self.verify is True:
            raise ChecksumError(
                f"the frame has no valid checksums: {checksums.reason}; add them by "
                'b2nd_dask.seal (reads by verify="auto" do without)',
                path=label,
            )

    def warn_if_stale(self) -> None:
        """Warn if a change by other software and damage look the same; not with verify=False."""
        checksums = self.parsed.columns.checksums
        if checksums.state is not ChecksumState.STALE or not self.verify:
            return
        warnings.warn(
            f"{self.reader.label}: {checksums.reason}. {IF_RIGHT}; verify=True rejects "
            "such a frame, verify=False omits this warning",
            UserWarning,
            stacklevel=level_of_caller(),
        )


def parse_frame(reader: ByteReader) -> ParsedFrame:
    """Read and check all metadata of a frame, in two reads (one for a small frame).

    Raises `FileNotFoundError` for no such file, `FrameFormatError` if the path is not a frame, or
    the frame is damaged, `UnsupportedFrameError` if the frame is not an array.
    """
    with locating(path=reader.label):
        return steadily(reader, lambda identity: _parse(reader, identity))


def steadily(reader: ByteReader, read: Callable[[Identity], _Result]) -> _Result:
    """Read metadata by several calls, given the object's identity.

    All are repeated if a concurrent update made them inconsistent.
    """
    for _ in range(_TRIES):
        identity = reader.opened_identity()
        try:
            return read(identity)
        except B2ndError:
            if reader.opened_identity() == identity:
                raise
    return read(reader.opened_identity())


def _parse(reader: ByteReader, identity: Identity) -> ParsedFrame:
    moment_ns = time.time_ns()
    head, header = read_header(reader, identity.size)
    if header.sparse != reader.is_directory:
        found = "contiguous, but it is a directory"
        if header.sparse:
            found = "sparse, but it is a single file"
        raise FrameFormatError(f"the header says that the frame is {found}", offset=26)
    grid, dtype = geometry_of(header)
    index, index_bytes, vlmeta, trailer = read_tail(reader, head, header, grid.nchunks)
    whole_head = head[: header.header_len]
    parts = index_bytes, trailer, vlmeta, whole_head
    columns = parse_columns(*parts, header, index, grid, dtype)
    vlmeta = users_vlmeta(vlmeta)
    digest = xxhash.xxh3_64(whole_head)
    digest.update(index_bytes)
    digest.update(trailer)
    metadata = metadata_digest(header.array_meta, vlmeta)
    _, history = parse_marks(index_bytes[-MARKS_NBYTES:], metadata)
    return ParsedFrame(
        header,
        grid,
        dtype,
        index,
        vlmeta,
        columns,
        identity,
        digest.hexdigest(),
        history,
        reader.identity_is_cheap and changes_show(identity, moment_ns),
    )


def read_header(reader: ByteReader, size: int) -> tuple[bytes, FrameHeader]:
    """Read, parse and check the header of a frame in a file of `size` bytes.

    Also returns the first bytes of the frame, including the whole header. Raises `FrameFormatError`
    if it is not a frame, or it is damaged, `UnsupportedFrameError` for a kind of frame that holds
    no array.
    """
    (head,) = reader.read([Span(0, HEAD_NBYTES)])
    header_len = header_len_of(head)
    if header_len > len(head):
        (head,) = reader.read([Span(0, header_len)])
    return head, parse_header(head, size)


@contextmanager
def located(opened: OpenedFrame, chunk: int) -> Iterator[None]:
    """Add a stored chunk, its file and its position to errors."""
    try:
        yield
    except B2ndError as error:
        frame, label = opened.parsed, opened.reader.label
        offset = int(frame.index.offsets[chunk])
        if frame.header.sparse:
            error.located(chunk=chunk, path=f"{label}/{chunk_member(offset)}")
        else:
            error.located(chunk=chunk, path=label, shift=frame.header.header_len + offset)
        raise
