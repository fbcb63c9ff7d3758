"""Checksums of chunks (docs/integrity.md), statistics of chunks, and the validity of both.

The record, one entry of vlmeta, holds the digests of all stored chunks and of the metadata.
python-blosc2 lists it among the user's entries. A program that copies all entries into another
frame also copies the record; the stamp there does not match it, as after damage.

The stamp, six bytes of the index chunk, binds the record to the frame. It lies in bytes of the
index chunk's header that no decoder uses. When python-blosc2 changes chunks in place, it may keep
all metadata, but it always writes a new index chunk, with zeros in these bytes. So while the stamp
exists, no other software has changed a chunk.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from functools import cached_property, partial
from typing import Any, NamedTuple

import numpy as np
import xxhash
from numpy.typing import NDArray

from b2nd_dask.errors import B2ndError
from b2nd_dask.format.chunk.chunk_header import whole_chunk
from b2nd_dask.format.chunk.compression import Compression
from b2nd_dask.format.grid import Grid
from b2nd_dask.format.header import FrameHeader, odd_byte
from b2nd_dask.format.index import OffsetIndex, stored_chunks
from b2nd_dask.format.metalayers import (
    MAX_METALAYERS,
    OWN_VLMETA,
    RECORD_NAME,
    STATISTICS_NAME,
    array_meta_of,
    name_of_array,
    with_shape,
)
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
)
from b2nd_dask.format.values import (
    most_unpacked,
    pack_entry,
    pack_value,
    unpack_entry,
    unpack_value,
)

_VERSION = 1
_KEYS = OWN_VLMETA[RECORD_NAME]

#: Canonical XXH3 digests are big endian.
_DIGEST = np.dtype(">u8")
#: Most bytes of the columns: the entry is a compressed chunk, whose length is an int32.
_MAX_COLUMNS_NBYTES = 2**31 - (1 << 20)
#: Most bytes of a record beside the array metalayer and two digests per chunk.
_ROOM = 4096
#: Digests do not compress.
_STORED_PLAIN = Compression(codec=5, clevel=0, filters=(0,) * 6)

#: In the index chunk's header: codec meta and the metas of filter slots 0 to 4, all unused.
_STAMP = slice(23, 29)
_FIRST_BYTE = b"\xb2"
_OTHER_RECORD = (
    "its record of checksums is not the one that it was written with, and is ignored: the record "
    "was deleted, copied from another frame, or damaged (python-blosc2 copies it with other "
    "entries of vlmeta)"
)
#: Advice for a frame with stale checksums.
IF_RIGHT = "If the frame is right, write new checksums by b2nd_dask.seal"


class ChecksumState(Enum):
    """Validity of the checksums of a frame."""

    VALID = "valid"
    ABSENT = "absent"
    """The frame has none, or other software has changed chunks since."""
    STALE = "stale"
    """They do not fit the frame: other software changed it, or damage, which looks the same."""
    DAMAGED = "damaged"


class Verdict(NamedTuple):
    """Validity of the checksums of a frame, and the reason."""

    state: ChecksumState
    reason: str = ""
    """Why they are absent or stale, or what is damaged."""

    @property
    def is_valid(self) -> bool:
        """Whether they belong to the current state of the frame."""
        return self.state is ChecksumState.VALID


_VALID = Verdict(ChecksumState.VALID)
_absent = partial(Verdict, ChecksumState.ABSENT)
_damaged = partial(Verdict, ChecksumState.DAMAGED)


@dataclass(frozen=True, eq=False)
class ChunkColumns:
    """Columns with one row per chunk: offsets, checksums and statistics, with one verdict.

    Statistics are bound to the checksums, and are valid only with them.
    """

    checksums: Verdict
    index: OffsetIndex
    grid: Grid
    dtype: np.dtype[Any] | None
    """Dtype of the elements; None if the frame stores none."""
    stored: NDArray[np.uint64] | None = None
    """Digests of the stored chunks, in the order of the chunks; None if other software may have
    changed their bytes."""
    record_digest: bytes = b""
    """XXH3-64 of the record of checksums; statistics are bound to it."""
    entry: bytes | None = None
    """Stored entry of the statistics, unpacked on first access. None if the frame or the dtype has
    none, or the checksums are not valid."""

    @cached_property
    def digests(self) -> NDArray[np.uint64] | None:
        """Digest of each chunk, 0 for special ones; None if the chunks may have changed."""
        if self.stored is None:
            return None
        if len(self.stored) == len(self.index):
            return self.stored
        if not len(self.stored):
            # one stored value represents all chunks: use no memory per chunk
            return np.broadcast_to(np.uint64(0), self.index.offsets.shape)
        column = np.zeros(len(self.index), np.uint64)
        column[stored_chunks(self.index.offsets)] = self.stored
        return column

    @cached_property
    def _statistics(self) -> ChunkStatistics | str | None:
        if self.entry is None or self.dtype is None:
            return None
        return parse_statistics(self.entry, self.record_digest, self.dtype, self.grid, self.index)

    @property
    def statistics(self) -> ChunkStatistics | None:
        """Statistics of all chunks; None if absent, damaged or of another state."""
        return None if isinstance(self._statistics, str) else self._statistics

    @property
    def bad_statistics(self) -> str:
        """Damage in the statistics of the chunks, which are then ignored; usually empty."""
        return self._statistics if isinstance(self._statistics, str) else ""

    def table(self, statistics: NDArray[Any] | None = None) -> NDArray[Any]:
        """Build the table of all chunks, one row each, for the next state of the frame.

        Checksums and statistics get a column if they are valid; `statistics` (a `statistics_row`
        for each chunk) replaces those of the frame. If one stored value represents the offsets of
        all chunks, the table needs no memory per chunk.
        """
        if statistics is None and self.statistics is not None:
            statistics = self.statistics.rows()
        offsets, digests = self.index.offsets, self.digests if self.checksums.is_valid else None
        candidates = {"offset": offsets, "digest": digests, "statistics": statistics}
        columns = {name: column for name, column in candidates.items() if column is not None}
        length = min(1, len(offsets)) if offsets.strides == (0,) else len(offsets)
        table = np.empty(length, [(name, column.dtype) for name, column in columns.items()])
        for name, column in columns.items():
            table[name] = column[:length]
        return table if length == len(offsets) else np.broadcast_to(table, offsets.shape)


class Tail(NamedTuple):
    """Index and trailer of a frame."""

    offsets: OffsetIndex
    index_bytes: bytes
    """Bytes from the index chunk to the trailer."""
    vlmeta: dict[str, bytes]
    """All stored entries, those of the frame included."""
    trailer: bytes


def parse_columns(
    tail: Tail, head: bytes, header: FrameHeader, grid: Grid, dtype: np.dtype[Any] | None
) -> ChunkColumns:
    """Find a frame's checksums and statistics, and decide whether they are valid.

    `head` is the whole header.
    """
    index, record, verdict = tail.offsets, b"", _VALID
    stored: NDArray[np.uint64] | None = np.empty(0, np.uint64)
    # without chunks there is nothing to check
    if len(index):
        found = _record_in(tail, header)
        record, stored = found or b"", None
        verdict = _judge_stamp(tail, head, header, found)
        if verdict.is_valid:
            verdict, stored = _judge_record(record, tail, header.metalayers)
    has_any = verdict.is_valid and supports_statistics(dtype)
    entry = tail.vlmeta.get(STATISTICS_NAME) if has_any else None
    return ChunkColumns(verdict, index, grid, dtype, stored, _record_digest(record), entry)


def _judge_stamp(tail: Tail, head: bytes, header: FrameHeader, record: bytes | None) -> Verdict:
    """Judge by the stamp whether a record belongs to the current state of the frame."""
    stamp, trailer, vlmeta = tail.index_bytes[_STAMP], tail.trailer, tail.vlmeta
    stamped = stamp.startswith(_FIRST_BYTE)
    if RECORD_NAME not in vlmeta and not stamped:
        return _absent("it was written without checksums")
    if not (has_no_fingerprint(trailer) or fingerprint_matches(trailer)):
        return _damaged("its trailer does not match the fingerprint")
    if stamped and has_no_fingerprint(trailer) and trailer != build_trailer(vlmeta):
        return _damaged("its trailer has a form that no software writes")
    expected = b"" if record is None else _stamp_of(record)
    if record is not None and stamp == expected:
        odd = odd_byte(head, header, has_vlmeta=True)
        if odd is not None:
            return _damaged(f"byte {odd} of its header has a value that no software writes")
        return _VALID
    # a change by other software clears the whole stamp
    if stamped and has_no_fingerprint(trailer):
        # since then python-blosc2 has changed vlmeta, and perhaps the record itself
        return Verdict(ChecksumState.STALE, _OTHER_RECORD)
    if stamped or (RECORD_NAME in vlmeta and stamp[1:] == expected[1:]):
        return _damaged("the stamp of its offset index does not match its checksums")
    reason = "other software changed it after its checksums were written"
    if RECORD_NAME in vlmeta:
        reason += ", or copied their record from another frame"
    return _absent(reason)


def _record_in(tail: Tail, header: FrameHeader) -> bytes | None:
    """Unpack the record; None if there is none, or if it is too large for a record."""
    if (entry := tail.vlmeta.get(RECORD_NAME)) is None:
        return None
    most = len(header.array_meta) + _ROOM + 2 * _DIGEST.itemsize * tail.offsets.nstored
    try:
        # this runs at every open
        return unpack_entry(entry, min(most, most_unpacked(entry)))
    except B2ndError:
        return None


def _judge_record(
    record: bytes, tail: Tail, metalayers: Mapping[str, bytes]
) -> tuple[Verdict, NDArray[np.uint64] | None]:
    """Compare the frame with the record, which its stamp matches; also return the digests."""
    name, nstored = name_of_array(metalayers), tail.offsets.nstored
    try:
        value: Any = unpack_value(record)
        version = operator.index(value["version"])
        if version != _VERSION:
            return _absent(f"its checksums have version {version}, supported is {_VERSION}"), None
        array_meta, digest, chunks = (memoryview(value[key]).tobytes() for key in _KEYS[1:])
        stored = np.frombuffer(chunks, _DIGEST).astype(np.uint64)
        before, now = array_meta_of({name: array_meta}), array_meta_of(metalayers)
    # IndexError: an array in place of a map
    except (B2ndError, ValueError, TypeError, LookupError) as error:
        return _damaged(f"its record of checksums cannot be read ({error})"), None
    if digest != _index_digest(tail.index_bytes):
        return _damaged("its offset index does not match its checksum"), None
    if len(stored) != nstored:
        problem = f"it has {len(stored)} checksums for {nstored} stored chunks"
        return _damaged(problem), None
    if array_meta == metalayers[name]:
        return _VALID, stored
    resized = metalayers[name] == with_shape(array_meta, now.shape)
    counts = [Grid(meta.shape, meta.chunks, meta.blocks, 1).counts for meta in (before, now)]
    if not resized or counts[0] != counts[1]:
        problem = "its array metalayer is not the one that its checksums were written for"
        return _damaged(problem), None
    # a resize by python-blosc2 that keeps the number of chunks keeps index and trailer
    reason = (
        f"its shape is {now.shape}, and its checksums were written for shape {before.shape}: "
        "other software resized it, or its header is damaged"
    )
    return Verdict(ChecksumState.STALE, reason), stored


def _stamp_of(record: bytes) -> bytes:
    """Compute the stamp of a record."""
    return _FIRST_BYTE + _record_digest(record)[: _STAMP.stop - _STAMP.start - 1]


def _record_digest(record: bytes) -> bytes:
    """Compute the digest of a record, which stamp and statistics contain."""
    return xxhash.xxh3_64_digest(record)


def _index_digest(index_chunk: bytes) -> bytes:
    """Compute the digest of an index chunk without its stamp.

    It omits bytes behind the chunk, which python-blosc2 drops when it writes a trailer.
    """
    plain = bytearray(whole_chunk(index_chunk))
    plain[_STAMP] = bytes(_STAMP.stop - _STAMP.start)
    return xxhash.xxh3_64_digest(plain)


def has_room(vlmeta: Mapping[str, bytes], nstored: int, *, statistics: bool = False) -> bool:
    """Whether checksums of `nstored` chunks (and statistics) fit beside the user's vlmeta."""
    widest = MAX_ROW_NBYTES if statistics else _DIGEST.itemsize
    return (
        len(vlmeta) + 1 + statistics <= MAX_METALAYERS and nstored * widest <= _MAX_COLUMNS_NBYTES
    )


def build_tail(
    index: bytes, vlmeta: Mapping[str, bytes], array_meta: bytes, stored: NDArray[Any]
) -> tuple[bytes, bool]:
    """Build index and trailer, with checksums and statistics if there is room for them.

    `index` is the chunk from `build_index`, optionally with the write id behind it; empty for a
    frame without chunks, which is valid without checksums. `vlmeta` has the user's entries,
    `array_meta` is the content of the metalayer that gives the array's shape. `stored` is the table
    of the stored chunks in order, with the columns `digest` and `statistics`, if available. Returns
    the bytes, and whether the trailer has vlmeta.
    """
    columns, entries, record = stored.dtype.names or (), dict(vlmeta), b""
    if index:
        if "digest" not in columns or not has_room(vlmeta, len(stored)):
            return index + build_trailer(vlmeta), bool(vlmeta)
        digests = stored["digest"].astype(_DIGEST).tobytes()
        values = (_VERSION, array_meta, _index_digest(index), digests)
        record = pack_value(dict(zip(_KEYS, values, strict=True)))
        entries[RECORD_NAME] = pack_entry(record, _STORED_PLAIN)
        index = index[: _STAMP.start] + _stamp_of(record) + index[_STAMP.stop :]
    if "statistics" in columns and has_room(vlmeta, len(stored), statistics=True):
        entries[STATISTICS_NAME] = build_statistics(stored["statistics"], _record_digest(record))
    return index + build_trailer(entries, fingerprint=bool(record)), bool(entries)
