"""What a frame's checksums are worth: valid, absent, or damaged (docs/integrity.md, To read).

The stamp binds the record of checksums to the frame: six bytes of the index chunk. python-blosc2
changes chunks in place and may leave all metadata as it was, but for the index chunk, which it
compresses anew at every such change. The stamp lies in bytes of the index chunk's header that no
decoder uses and that are zero in a new one: while it is there, no other software has changed a
chunk.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from functools import cached_property

import numpy as np
import xxhash
from numpy.typing import NDArray

from b2nd_dask.errors import B2ndError, FrameFormatError, UnsupportedFrameError
from b2nd_dask.format.array_meta import ArrayMeta, array_meta_of, name_of_array, with_shape
from b2nd_dask.format.chunk.chunk_header import whole_chunk
from b2nd_dask.format.header import FrameHeader, odd_byte
from b2nd_dask.format.index import OffsetIndex
from b2nd_dask.format.integrity.record import (
    build_record,
    digest_column,
    most_nbytes,
    parse_record,
    record_entry,
    unpack_record,
)
from b2nd_dask.format.metalayers import RECORD_NAME
from b2nd_dask.format.trailer import (
    Trailer,
    fingerprint_matches,
    has_no_fingerprint,
    is_as_built,
    with_fingerprint,
)

#: In the index chunk's header: codec meta and the metas of filter slots 0 to 4, none of them used.
_STAMP = slice(23, 29)
_FIRST_BYTE = b"\xb2"
_STALE = (
    "its record of checksums is not the one that it was written with: it was deleted or copied "
    "from another frame, or it is damaged (python-blosc2 copies it with other entries of vlmeta)"
)
_REMEDY = "The elements are read without checksums; b2nd_dask.seal writes new ones"


class ChecksumState(Enum):
    """What a frame's checksums are worth."""

    VALID = "valid"
    ABSENT = "absent"
    """None, or those of an older state of the frame."""
    DAMAGED = "damaged"


@dataclass(frozen=True, eq=False)
class Integrity:
    """Checksums of a frame."""

    checksum_state: ChecksumState
    reason: str
    """Why they are absent, or what is damaged."""
    index: OffsetIndex
    stored: NDArray[np.uint64] | None = None
    """Digests of the stored chunks, in the order of the chunks; None where their bytes may have
    changed since."""
    record_digest: bytes | None = None
    """XXH3-64 of the record of checksums; None unless they are valid."""
    remedy: str = ""
    """What to do where they are absent and a change by other software looks like damage: the user
    is warned of such a frame."""

    @cached_property
    def by_chunk(self) -> NDArray[np.uint64] | None:
        """Digest of each chunk, 0 for special ones; None where the chunks may have changed."""
        if self.stored is None:
            return None
        if len(self.stored) == len(self.index):
            return self.stored
        return digest_column(self.index.offsets, self.stored)

    @property
    def valid_by_chunk(self) -> NDArray[np.uint64] | None:
        """As `by_chunk`, for a changed frame whose checksums are to be valid; None unless valid."""
        return self.by_chunk if self.checksum_state is ChecksumState.VALID else None


def parse_integrity(
    index_chunk: bytes,
    trailer: bytes,
    vlmeta: Mapping[str, bytes],
    head: bytes,
    header: FrameHeader,
    index: OffsetIndex,
) -> Integrity:
    """Find a frame's checksums and judge whether they are those of its present state.

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
    index : OffsetIndex
        What `index_chunk` holds.
    """
    if not len(index):
        # no chunk, nothing to check
        nothing = np.empty(0, np.uint64)
        return Integrity(ChecksumState.VALID, "", index, nothing, record_digest(b""))
    stamp = stamp_in(index_chunk)
    stamped = begins_as_stamp(stamp)
    if RECORD_NAME not in vlmeta and not stamped:
        return _absent(index, "it was written without checksums")
    if not (has_no_fingerprint(trailer) or fingerprint_matches(trailer)):
        return _damaged(index, "its trailer does not match the fingerprint")
    if stamped and has_no_fingerprint(trailer) and not is_as_built(trailer, vlmeta):
        return _damaged(index, "its trailer is not what any software writes")
    most = most_nbytes(header.metalayers[name_of_array(header.metalayers)], index.nstored)
    record = unpack_record(vlmeta[RECORD_NAME], most) if RECORD_NAME in vlmeta else None
    expected = b"" if record is None else stamp_of(record)
    if record is not None and stamp == expected:
        odd = odd_byte(head, header, has_vlmeta=True)
        if odd is not None:
            return _damaged(index, f"byte {odd} of its header is not what any software writes")
        return _judge_record(record, index_chunk, header.metalayers, index)
    # a change by other software leaves neither the first byte nor the rest of the stamp
    if stamped and has_no_fingerprint(trailer):
        # python-blosc2 has set or deleted entries of vlmeta since: the record may be one of them
        return Integrity(ChecksumState.ABSENT, _STALE, index, remedy=_REMEDY)
    if stamped or (RECORD_NAME in vlmeta and stamp[1:] == expected[1:]):
        return _damaged(index, "the stamp of its offset index does not match its checksums")
    reason = "other software changed it after its checksums were written"
    if RECORD_NAME in vlmeta:
        reason += ", or copied their record from another frame"
    return _absent(index, reason)


def _judge_record(
    record: bytes, index_chunk: bytes, metalayers: Mapping[str, bytes], index: OffsetIndex
) -> Integrity:
    """Check the frame against a record that its stamp matches."""
    try:
        found = parse_record(record)
    except UnsupportedFrameError as error:
        return _absent(index, error.problem)
    except FrameFormatError as error:
        return _damaged(index, error.problem)
    name, stored, array_meta = name_of_array(metalayers), found.digests, found.array_meta
    if found.index_digest != index_digest(index_chunk):
        return _damaged(index, "its offset index does not match its checksum")
    try:
        before, now = array_meta_of({name: array_meta}), array_meta_of(metalayers)
    except B2ndError as error:
        return _damaged(index, f"its record of checksums cannot be read ({error})")
    if len(stored) != index.nstored:
        return _damaged(index, f"it has {len(stored)} checksums for {index.nstored} stored chunks")
    if array_meta == metalayers[name]:
        return Integrity(ChecksumState.VALID, "", index, stored, record_digest(record))
    resized = metalayers[name] == with_shape(array_meta, now.shape)
    if resized and _counts(before) == _counts(now):
        # python-blosc2 leaves index and trailer as they are when no chunk comes or goes
        reason = (
            f"its shape is {now.shape}, and its checksums were written for shape {before.shape}: "
            "other software resized it, or its header is damaged"
        )
        remedy = "If the shape is right, b2nd_dask.seal makes the checksums valid again"
        return Integrity(ChecksumState.ABSENT, reason, index, stored, remedy=remedy)
    return _damaged(index, "its array metalayer is not the one that its checksums were written for")


def _absent(index: OffsetIndex, reason: str) -> Integrity:
    return Integrity(ChecksumState.ABSENT, reason, index)


def _damaged(index: OffsetIndex, reason: str) -> Integrity:
    return Integrity(ChecksumState.DAMAGED, reason, index)


def _counts(meta: ArrayMeta) -> list[int]:
    """Count the chunks along each axis of an array that has some."""
    return [-(-n // c) for n, c in zip(meta.shape, meta.chunks, strict=True)]


def stamp_in(index_chunk: bytes) -> bytes:
    """Read the bytes of the stamp: zeros if there is none, fewer if the chunk is shorter."""
    return index_chunk[_STAMP]


def begins_as_stamp(stamp: bytes) -> bool:
    """Whether the first byte is that of a stamp."""
    return stamp.startswith(_FIRST_BYTE)


def stamp_of(record: bytes) -> bytes:
    """Compute the stamp that matches a record."""
    return _FIRST_BYTE + record_digest(record)[: _STAMP.stop - _STAMP.start - 1]


def record_digest(record: bytes) -> bytes:
    """Digest a record, for the stamp and for what is bound to the record."""
    return xxhash.xxh3_64_digest(record)


def index_digest(index_chunk: bytes) -> bytes:
    """Digest an index chunk, whatever its stamp is.

    What lies behind the chunk does not count: it is lost when python-blosc2 writes a trailer.
    """
    plain = bytearray(whole_chunk(index_chunk))
    plain[_STAMP] = bytes(_STAMP.stop - _STAMP.start)
    return xxhash.xxh3_64_digest(plain)


def build_stamped_tail(
    index: bytes,
    vlmeta: Mapping[str, bytes],
    array_meta: bytes,
    digests: NDArray[np.uint64],
    bound: Callable[[bytes], Mapping[str, bytes]] = lambda _: {},
) -> bytes:
    """Write the stamped index chunk and the trailer with the record and the fingerprint.

    Parameters
    ----------
    index : bytes
        The index chunk, as `build_index` makes it; the write id may follow.
    vlmeta : mapping of str to bytes
        The user's entries.
    array_meta : bytes
        Content of the metalayer that gives the array's shape.
    digests : ndarray of uint64
        Of the stored chunks, in the order of the chunks.
    bound : callable
        Gets XXH3-64 of the record, and returns the other entries that belong to it.
    """
    record = build_record(array_meta, index_digest(index), digests)
    stamped = bytearray(index)
    stamped[_STAMP] = stamp_of(record)
    entries = {**vlmeta, RECORD_NAME: record_entry(record), **bound(record_digest(record))}
    return bytes(stamped) + with_fingerprint(Trailer(entries, b""))
