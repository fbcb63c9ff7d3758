"""What a frame says of each chunk: checksums (docs/integrity.md), statistics, and their worth.

The record holds the digests of all stored chunks and of the metadata, in one entry of vlmeta.
python-blosc2 lists it with the user's entries: whoever copies these into another frame copies it,
too, and there the stamp does not match it, just as after damage.

The stamp binds the record to the frame: six bytes of the index chunk. python-blosc2 changes chunks
in place and may leave all metadata as it was, but for the index chunk, which it recompresses at
every such change. The stamp lies in bytes of the index chunk's header that no decoder uses and that
are zero in a new one: while it is there, no other software has changed a chunk.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import xxhash
from numpy.typing import NDArray

from b2nd_dask.errors import B2ndError, ChecksumError, CorruptChunkError
from b2nd_dask.format.array_meta import ArrayMeta, array_meta_of, name_of_array, with_shape
from b2nd_dask.format.chunk.chunk_header import Buffer, chunk_length, whole_chunk
from b2nd_dask.format.chunk.codec import encode_chunk
from b2nd_dask.format.chunk.compression import Compression
from b2nd_dask.format.grid import Grid
from b2nd_dask.format.header import FrameHeader, odd_byte
from b2nd_dask.format.index import OffsetIndex, stored_chunks
from b2nd_dask.format.metalayers import MAX_METALAYERS, OWN_VLMETA, RECORD_NAME, STATISTICS_NAME
from b2nd_dask.format.statistics import (
    MAX_ROW_NBYTES,
    ChunkStatistics,
    build_statistics,
    parse_statistics,
    supports_statistics,
)
from b2nd_dask.format.trailer import (
    build_trailer,
    fingerprint_matches,
    has_no_fingerprint,
    is_as_built,
)
from b2nd_dask.format.values import most_unpacked, pack_value, unpack_entry, unpack_value

_VERSION = 1
_KEYS = OWN_VLMETA[RECORD_NAME]

#: Canonical XXH3 digests are big endian.
_DIGEST = np.dtype(">u8")
#: An entry is one chunk, whose length is an int32; this is the room for its columns.
_MAX_COLUMNS_NBYTES = 2**31 - (1 << 20)
#: A record has at most so many bytes beside the array metalayer and two digests a chunk.
_ROOM = 4096
#: Digests do not shrink.
_STORED_PLAIN = Compression(codec=5, clevel=0, filters=(0,) * 6)

#: In the index chunk's header: codec meta and the metas of filter slots 0 to 4, none of them used.
_STAMP = slice(23, 29)
_FIRST_BYTE = b"\xb2"
_STALE = (
    "its record of checksums is not the one that it was written with: it was deleted or copied "
    "from another frame, or it is damaged (python-blosc2 copies it with other entries of vlmeta)"
)
_REMEDY = "The elements are read without checksums; b2nd_dask.seal writes new ones"


class ChecksumState(Enum):
    """What the checksums or the statistics of a frame are worth."""

    VALID = "valid"
    ABSENT = "absent"
    """None, or those of an older state of the frame."""
    DAMAGED = "damaged"


class Verdict(NamedTuple):
    """What the checksums or the statistics of a frame are worth, and why."""

    state: ChecksumState
    reason: str = ""
    """Why they are absent, or what is damaged."""
    remedy: str = ""
    """What to do where they are absent and a change by other software looks like damage: the user
    is warned of such a frame."""

    @property
    def is_valid(self) -> bool:
        """Whether they are those of the present state of the frame."""
        return self.state is ChecksumState.VALID

    @property
    def is_damaged(self) -> bool:
        """Whether the metadata is not as it was written."""
        return self.state is ChecksumState.DAMAGED


_VALID = Verdict(ChecksumState.VALID)


@dataclass(frozen=True, eq=False)
class ChunkColumns:
    """What a frame says of its chunks: offsets, checksums and statistics, with one verdict.

    Statistics count where the checksums do that they are bound to.
    """

    checksums: Verdict
    index: OffsetIndex
    grid: Grid
    dtype: np.dtype[Any] | None
    """Of the elements; None where the frame stores none."""
    stored: NDArray[np.uint64] | None = None
    """Digests of the stored chunks, in the order of the chunks; None where their bytes may have
    changed since."""
    record_digest: bytes = b""
    """XXH3-64 of the record of checksums, to which statistics are bound."""
    entry: bytes | None = None
    """Statistics as they are stored, unpacked when they are first asked for; None where there are
    none, or the checksums are not valid."""

    @cached_property
    def digests(self) -> NDArray[np.uint64] | None:
        """Digest of each chunk, 0 for special ones; None where the chunks may have changed."""
        if self.stored is None:
            return None
        if len(self.stored) == len(self.index):
            return self.stored
        if not len(self.stored):
            # of very many chunks that one value in the file stands for: no memory for each
            return np.broadcast_to(np.uint64(0), self.index.offsets.shape)
        column = np.zeros(len(self.index), np.uint64)
        column[stored_chunks(self.index.offsets)] = self.stored
        return column

    @cached_property
    def _statistics(self) -> tuple[Verdict, ChunkStatistics | None]:
        if self.entry is None or self.dtype is None or not supports_statistics(self.dtype):
            return Verdict(ChecksumState.ABSENT), None
        found = parse_statistics(self.entry, self.record_digest, self.dtype, self.grid, self.index)
        if isinstance(found, str):
            return Verdict(ChecksumState.DAMAGED, found), None
        state = ChecksumState.ABSENT if found is None else ChecksumState.VALID
        return Verdict(state), found

    @property
    def statistics(self) -> ChunkStatistics | None:
        """Statistics of all chunks; None where there are none, of another state, or damaged."""
        return self._statistics[1]

    @property
    def statistics_verdict(self) -> Verdict:
        """Of the statistics; absent where checksums are not valid."""
        return self._statistics[0]

    def table(self, statistics: NDArray[Any] | None = None) -> NDArray[Any]:
        """Make the table of all chunks, with an entry for each, for the next state of the frame.

        Without a column of what the frame does not have; checksums that are not valid are left out.
        Where one value in the file stands for the offsets of all chunks the table takes no memory
        for each, either.

        Parameters
        ----------
        statistics : ndarray of `statistics_row`, optional
            Of all chunks, instead of those that the frame has.
        """
        if statistics is None and self.statistics is not None:
            statistics = self.statistics.rows()
        offsets, digests = self.index.offsets, self.digests if self.checksums.is_valid else None
        given = {"offset": offsets, "digest": digests, "statistics": statistics}
        columns = {name: column for name, column in given.items() if column is not None}
        length = min(1, len(offsets)) if offsets.strides == (0,) else len(offsets)
        table = np.empty(length, [(name, column.dtype) for name, column in columns.items()])
        for name, column in columns.items():
            table[name] = column[:length]
        return table if length == len(offsets) else np.broadcast_to(table, offsets.shape)


def chunk_digest(chunk: Buffer) -> int:
    """Digest a whole chunk as it is stored: XXH3, 64 bits, seed 0."""
    return xxhash.xxh3_64_intdigest(chunk)


def require_digest(data: Buffer, expected: int) -> None:
    """Verify a stored chunk.

    Parameters
    ----------
    data : bytes-like
        The chunk from its first byte, and maybe more.
    expected : int
        Its digest.

    Raises
    ------
    CorruptChunkError
        The chunk's header says that it has more bytes than are there.
    ChecksumError
        The digest is another.
    """
    require_digest_of([data], len(data), expected)


def require_digest_of(pieces: Iterable[Buffer], available: int, expected: int) -> None:
    """Verify a stored chunk a piece at a time; `require_digest` says what is raised.

    Parameters
    ----------
    pieces : iterable of bytes-like
        What begins with the chunk; the first one has its header.
    available : int
        Bytes that may belong to the chunk.
    """
    digest, left = xxhash.xxh3_64(), -1
    for piece in pieces:
        if left < 0:
            left = chunk_length(piece, available)
        digest.update(memoryview(piece)[:left])
        left -= min(left, len(piece))
        if not left:
            break
    if left:
        raise CorruptChunkError(f"the file ends {left} bytes before the chunk does")
    if digest.intdigest() != expected:
        raise ChecksumError(
            "the chunk is not what was written: its bytes do not match their checksum", offset=0
        )


def parse_columns(
    index_chunk: bytes,
    trailer: bytes,
    vlmeta: Mapping[str, bytes],
    head: bytes,
    header: FrameHeader,
    index: OffsetIndex,
    grid: Grid,
    dtype: np.dtype[Any] | None,
) -> ChunkColumns:
    """Find a frame's checksums and statistics, and judge whether they are of its present state.

    Parameters
    ----------
    index_chunk : bytes
        From the index chunk's start to the trailer's.
    trailer : bytes
        The whole trailer.
    vlmeta : mapping of str to bytes
        As stored.
    head : bytes
        The whole header.
    header : FrameHeader
        What was read from it.
    index, grid, dtype : OffsetIndex, Grid, numpy.dtype
        As for `ChunkColumns`; the index is what `index_chunk` holds.
    """
    record, verdict = b"", _VALID
    stored: NDArray[np.uint64] | None = np.empty(0, np.uint64)
    # without chunks there is nothing to check
    if len(index):
        found = _record_in(vlmeta, header, index)
        record, stored = found or b"", None
        verdict = _judge_stamp(index_chunk, trailer, vlmeta, head, header, found)
        if verdict.is_valid:
            verdict, stored = _judge_record(record, index_chunk, header.metalayers, index)
    entry = vlmeta.get(STATISTICS_NAME) if verdict.is_valid else None
    return ChunkColumns(verdict, index, grid, dtype, stored, _record_digest(record), entry)


def _judge_stamp(
    index_chunk: bytes,
    trailer: bytes,
    vlmeta: Mapping[str, bytes],
    head: bytes,
    header: FrameHeader,
    record: bytes | None,
) -> Verdict:
    """Judge by the stamp whether a record is that of the frame as it is."""
    stamp = index_chunk[_STAMP]
    stamped = stamp.startswith(_FIRST_BYTE)
    if RECORD_NAME not in vlmeta and not stamped:
        return _absent("it was written without checksums")
    if not (has_no_fingerprint(trailer) or fingerprint_matches(trailer)):
        return _damaged("its trailer does not match the fingerprint")
    if stamped and has_no_fingerprint(trailer) and not is_as_built(trailer, vlmeta):
        return _damaged("its trailer is not what any software writes")
    expected = b"" if record is None else _stamp_of(record)
    if record is not None and stamp == expected:
        odd = odd_byte(head, header, has_vlmeta=True)
        if odd is not None:
            return _damaged(f"byte {odd} of its header is not what any software writes")
        return _VALID
    # a change by other software leaves neither the first byte nor the rest of the stamp
    if stamped and has_no_fingerprint(trailer):
        # python-blosc2 has set or deleted entries of vlmeta since: the record may be one of them
        return Verdict(ChecksumState.ABSENT, _STALE, _REMEDY)
    if stamped or (RECORD_NAME in vlmeta and stamp[1:] == expected[1:]):
        return _damaged("the stamp of its offset index does not match its checksums")
    reason = "other software changed it after its checksums were written"
    if RECORD_NAME in vlmeta:
        reason += ", or copied their record from another frame"
    return _absent(reason)


def _record_in(
    vlmeta: Mapping[str, bytes], header: FrameHeader, index: OffsetIndex
) -> bytes | None:
    """Unpack the record; None where there is none, or it has more bytes than a record can need."""
    if (entry := vlmeta.get(RECORD_NAME)) is None:
        return None
    most = len(header.array_meta) + _ROOM + 2 * _DIGEST.itemsize * index.nstored
    try:
        # at every open
        return unpack_entry(entry, min(most, most_unpacked(entry)))
    except B2ndError:
        return None


def _judge_record(
    record: bytes, index_chunk: bytes, metalayers: Mapping[str, bytes], index: OffsetIndex
) -> tuple[Verdict, NDArray[np.uint64] | None]:
    """Check the frame against a record that its stamp matches; gives the digests in it."""
    name = name_of_array(metalayers)
    try:
        value: Any = unpack_value(record)
        version = operator.index(value["version"])
        if version != _VERSION:
            return _absent(f"its checksums are of version {version}, known is {_VERSION}"), None
        array_meta, digest, chunks = (memoryview(value[key]).tobytes() for key in _KEYS[1:])
        stored = np.frombuffer(chunks, _DIGEST).astype(np.uint64)
        before, now = array_meta_of({name: array_meta}), array_meta_of(metalayers)
    # an array is no mapping: IndexError
    except (B2ndError, ValueError, TypeError, LookupError) as error:
        return _damaged(f"its record of checksums cannot be read ({error})"), None
    if digest != _index_digest(index_chunk):
        return _damaged("its offset index does not match its checksum"), None
    if len(stored) != index.nstored:
        problem = f"it has {len(stored)} checksums for {index.nstored} stored chunks"
        return _damaged(problem), None
    if array_meta == metalayers[name]:
        return _VALID, stored
    resized = metalayers[name] == with_shape(array_meta, now.shape)
    if not resized or _counts(before) != _counts(now):
        problem = "its array metalayer is not the one that its checksums were written for"
        return _damaged(problem), None
    # python-blosc2 leaves index and trailer as they are when no chunk comes or goes
    reason = (
        f"its shape is {now.shape}, and its checksums were written for shape {before.shape}: "
        "other software resized it, or its header is damaged"
    )
    remedy = "If the shape is right, b2nd_dask.seal makes the checksums valid again"
    return Verdict(ChecksumState.ABSENT, reason, remedy), stored


def _absent(reason: str) -> Verdict:
    return Verdict(ChecksumState.ABSENT, reason)


def _damaged(reason: str) -> Verdict:
    return Verdict(ChecksumState.DAMAGED, reason)


def _counts(meta: ArrayMeta) -> list[int]:
    """Count the chunks along each axis of an array that has some."""
    return [-(-n // c) for n, c in zip(meta.shape, meta.chunks, strict=True)]


def _stamp_of(record: bytes) -> bytes:
    """Compute the stamp that matches a record."""
    return _FIRST_BYTE + _record_digest(record)[: _STAMP.stop - _STAMP.start - 1]


def _record_digest(record: bytes) -> bytes:
    """Digest a record, for the stamp and for the statistics; no bytes where there are no chunks."""
    return xxhash.xxh3_64_digest(record)


def _index_digest(index_chunk: bytes) -> bytes:
    """Digest an index chunk, whatever its stamp is.

    What lies behind the chunk does not count: it is lost when python-blosc2 writes a trailer.
    """
    plain = bytearray(whole_chunk(index_chunk))
    plain[_STAMP] = bytes(_STAMP.stop - _STAMP.start)
    return xxhash.xxh3_64_digest(plain)


def has_room(vlmeta: Mapping[str, bytes], nstored: int, *, statistics: bool = False) -> bool:
    """Whether checksums of so many chunks, and statistics, fit beside the user's vlmeta."""
    widest = MAX_ROW_NBYTES if statistics else _DIGEST.itemsize
    return (
        len(vlmeta) + 1 + statistics <= MAX_METALAYERS and nstored * widest <= _MAX_COLUMNS_NBYTES
    )


def build_tail(
    index: bytes, vlmeta: Mapping[str, bytes], array_meta: bytes, stored: NDArray[Any]
) -> tuple[bytes, bool]:
    """Write index and trailer, with checksums and statistics as far as there is room for them.

    Parameters
    ----------
    index : bytes
        The index chunk, as `build_index` makes it; the write id may follow. Nothing in a frame
        without chunks, which has no checksums, and is valid.
    vlmeta : mapping of str to bytes
        The user's entries.
    array_meta : bytes
        Content of the metalayer that gives the array's shape.
    stored : ndarray
        The table of the stored chunks, in their order: `digest` and `statistics`, if it has them.

    Returns
    -------
    tail : bytes
    has_vlmeta : bool
        Whether the trailer has any.
    """
    columns, entries, record = stored.dtype.names or (), dict(vlmeta), b""
    if index:
        if "digest" not in columns or not has_room(vlmeta, len(stored)):
            return index + build_trailer(vlmeta), bool(vlmeta)
        digests = stored["digest"].astype(_DIGEST).tobytes()
        values = (_VERSION, array_meta, _index_digest(index), digests)
        record = pack_value(dict(zip(_KEYS, values, strict=True)))
        raw = np.frombuffer(record, np.uint8)
        entries[RECORD_NAME] = encode_chunk(raw, _STORED_PLAIN, typesize=1, blocksize=0)
        index = index[: _STAMP.start] + _stamp_of(record) + index[_STAMP.stop :]
    if "statistics" in columns and has_room(vlmeta, len(stored), statistics=True):
        entries[STATISTICS_NAME] = build_statistics(stored["statistics"], _record_digest(record))
    return index + build_trailer(entries, fingerprint=bool(record)), bool(entries)
