"""Parse a frame from byte ranges: header, geometry, dtype, offset index, trailer.

Index and trailer may be long. They are read in steps: each is checked before the next, larger one.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import xxhash

from b2nd_dask.errors import B2ndError, FrameFormatError, locating
from b2nd_dask.format.chunk.chunk_header import HEADER_LEN
from b2nd_dask.format.grid import Grid
from b2nd_dask.format.header import FrameHeader, geometry_of, header_len_of, parse_header
from b2nd_dask.format.index import OffsetIndex, index_len_of, parse_index
from b2nd_dask.format.integrity import ChunkColumns, Tail, parse_columns
from b2nd_dask.format.metalayers import users_vlmeta
from b2nd_dask.format.statistics import MAX_ROW_NBYTES, ChunkStatistics
from b2nd_dask.format.trailer import (
    MARKS_NBYTES,
    TAIL_LEN,
    TOKEN_NBYTES,
    UNKNOWN,
    History,
    PastUpdate,
    check_trailer_start,
    metadata_digest,
    parse_marks,
    parse_trailer,
    trailer_len_of,
)
from b2nd_dask.storage import HEAD_NBYTES, ByteReader, Identity, Span, changes_show

#: Attempts to read metadata under concurrent changes.
_TRIES = 20
#: Most bytes of trailer metadata beside the checksums; in practice 16 entries of vlmeta.
MAX_METADATA = 1 << 28
#: A longer tail is read in steps and in parts of this size, a shorter one at once.
PART_NBYTES = 1 << 24
#: Most bytes between index chunk and trailer, where writers put the write id.
_MAX_GAP = 1 << 12
#: Bytes per chunk of a checksum in the trailer, with storage overhead, and of its statistics.
_RECORD_NBYTES = 16 + MAX_ROW_NBYTES
#: python-blosc2 may store an index chunk uncompressed.
_OFFSET_NBYTES = 16


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
    keys: tuple[str, ...]
    """Keys of the writes that made and changed the frame, as far as it records them, latest first.
    Other software may have changed its metadata since."""
    changes_show: bool
    """Whether any change after the parse changes the identity; False for an object in a store."""

    @property
    def statistics(self) -> ChunkStatistics | None:
        """Statistics of the current chunks, in C order of the chunk grid; None if absent."""
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

        It depends on time and size of the file only without history and checksums: a writer that is
        killed after writing behind the frame's end changes both.
        """
        if self.history.updates:
            return bytes.fromhex(self.history.updates[-1].key)
        if self.columns.checksums.is_valid and len(self.index):
            # the metadata contains all chunk checksums, and other software clears their stamp
            return bytes.fromhex(self.digest)
        return hashlib.blake2b(self.version.encode(), digest_size=TOKEN_NBYTES).digest()

    def updates_since(self, token: bytes) -> tuple[PastUpdate, ...] | None:
        """Find the updates of chunks from another state to this one; None if unknown."""
        if token == self.token:
            return ()
        base, updates = self.history
        if base == UNKNOWN:
            # the updates after the first are missing
            updates = updates[1:]
        states = [base, *(bytes.fromhex(update.key) for update in updates)]
        if not updates or token not in states:
            return None
        return tuple(each for each in updates[states.index(token) :] if each.first <= each.last)


def parse_frame(reader: ByteReader) -> ParsedFrame:
    """Read and check all metadata of a frame, in two reads (one for a small frame).

    Raises `FileNotFoundError` for no such file, `FrameFormatError` if the path is not a frame, or
    the frame is damaged, `UnsupportedFrameError` if the frame is not an array.
    """
    with locating(path=reader.label):
        for _ in range(_TRIES):
            identity = reader.opened_identity()
            try:
                return _parse(reader, identity)
            except B2ndError:
                # else a concurrent update made the bytes of several reads inconsistent: retry
                if reader.opened_identity() == identity:
                    raise
        return _parse(reader, reader.opened_identity())


def _parse(reader: ByteReader, identity: Identity) -> ParsedFrame:
    moment_ns = time.time_ns()
    head, header = read_header(reader, identity.size)
    if header.sparse != reader.is_directory:
        found = "contiguous, but it is a directory"
        if header.sparse:
            found = "sparse, but it is a single file"
        raise FrameFormatError(f"the header says that the frame is {found}", offset=26)
    grid, dtype = geometry_of(header)
    tail, head = read_tail(reader, head, header, grid.nchunks), head[: header.header_len]
    vlmeta = users_vlmeta(tail.vlmeta)
    digest = xxhash.xxh3_64(head)
    digest.update(tail.index_bytes)
    digest.update(tail.trailer)
    key, past, metadata = parse_marks(tail.index_bytes[-MARKS_NBYTES:])
    is_ours = metadata == metadata_digest(header.array_meta, vlmeta)
    keys = tuple(update.key for update in reversed(past.updates)) or (key,)
    return ParsedFrame(
        header,
        grid,
        dtype,
        tail.offsets,
        vlmeta,
        parse_columns(tail, head, header, grid, dtype),
        identity,
        digest.hexdigest(),
        past if is_ours else History(),
        tuple(filter(None, keys)),
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


def read_tail(reader: ByteReader, head: bytes, header: FrameHeader, nchunks: int) -> Tail:
    """Read and parse index and trailer of a frame, given its first bytes, `head`.

    Raises `FrameFormatError` if the bytes are not an index of `nchunks` chunks and a trailer, or
    are more than possible.
    """
    start, stop = header.index_start, header.frame_len
    if start > stop:
        raise FrameFormatError(
            f"the data region of {header.cbytes} bytes extends past the frame's end at {stop}",
            offset=39,
        )
    if stop - start > (_OFFSET_NBYTES + _RECORD_NBYTES) * nchunks + MAX_METADATA:
        raise FrameFormatError(
            f"{stop - start} bytes after the data are too many for the index of {nchunks} "
            "chunks and metadata",
            offset=start,
        )
    # the last bytes give the length of the trailer
    first = start if stop - start <= PART_NBYTES else stop - TAIL_LEN
    held = head[first:stop] if stop <= len(head) else _read(reader, first, stop)
    with locating(shift=start):
        index_len = stop - start - trailer_len_of(held, stop - header.header_len)
        if index_len < 0 or (index_len > 0) != (nchunks > 0):
            raise FrameFormatError(
                f"{index_len} bytes are left for the offsets of {nchunks} chunks", offset=0
            )
        is_long = first > start
        index_bytes = held[:index_len]
        if is_long and index_len:
            index_bytes = _read_index(reader, start, index_len, nchunks)
        index = parse_index(index_bytes, header, nchunks)
    start += index_len
    with locating(shift=start):
        trailer = held[index_len:]
        if is_long:
            trailer = _read_trailer(reader, start, stop, index.nstored)
        return Tail(index, index_bytes, parse_trailer(trailer), trailer)


def _read_index(reader: ByteReader, start: int, nbytes: int, nchunks: int) -> bytes:
    """Read the index chunk of `nchunks` chunks, and the bytes between it and the trailer.

    Raises `FrameFormatError` if the chunk's header contradicts the frame, or there are zeros in
    place of offsets.
    """
    length = index_len_of(_read(reader, start, start + HEADER_LEN, start), nbytes, nchunks)
    if nbytes - length > _MAX_GAP:
        raise FrameFormatError(
            f"between the offset index of {length} bytes and the trailer there are "
            f"{nbytes - length} unknown bytes",
            offset=0,
        )
    parts = bytearray()
    for at in range(0, nbytes, PART_NBYTES):
        part = _read(reader, start + at, start + min(at + PART_NBYTES, nbytes), start)
        # compressed bytes or different offsets are not all zeros, but holes of a file are
        if len(part) == PART_NBYTES and part.count(0) == len(part):
            raise FrameFormatError(f"the offset index has {PART_NBYTES} zeros in a row", offset=at)
        parts += part
    return bytes(parts)


def _read_trailer(reader: ByteReader, start: int, stop: int, nstored: int) -> bytes:
    """Read the trailer, with checksums and statistics of `nstored` chunks.

    Raises `FrameFormatError` if it does not start like a trailer, or it is longer than possible.
    """
    if stop - start > _RECORD_NBYTES * nstored + MAX_METADATA:
        raise FrameFormatError(
            f"a trailer of {stop - start} bytes is too long for metadata, checksums and statistics "
            f"of {nstored} chunks",
            offset=0,
        )
    check_trailer_start(_read(reader, start, min(start + HEADER_LEN, stop), start))
    return _read(reader, start, stop, start)


def _read(reader: ByteReader, start: int, stop: int, counted_from: int = 0) -> bytes:
    (data,) = reader.read([Span(start, stop)])
    if len(data) < stop - start:
        raise FrameFormatError("the frame is cut off", offset=start + len(data) - counted_from)
    return data
