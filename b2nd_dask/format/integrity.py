"""Checksums of a frame: the record of digests, the seal that vouches for it, the fingerprint.

The bytes are described in docs/integrity.md. python-blosc2 changes chunks in place and may leave
all metadata as it was, but for the index chunk, which it compresses anew at every such change. The
seal lies in bytes of the index chunk's header that no decoder uses and that are zero in a new one
(REFERENCE 8, form A): while it is there, no other software has touched a chunk.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from functools import cached_property
from typing import Any

import numpy as np
import xxhash
from numpy.typing import NDArray

from b2nd_dask.errors import B2ndError, ChecksumError
from b2nd_dask.format.array_meta import ArrayMeta, array_meta_of, name_of_array, with_shape
from b2nd_dask.format.chunk.chunk_header import Buffer, parse_chunk_header, whole_chunk
from b2nd_dask.format.chunk.codec import encode_chunk
from b2nd_dask.format.chunk.compression import Compression
from b2nd_dask.format.copied_record import may_be_copied, most_nbytes
from b2nd_dask.format.header import FrameHeader, odd_byte
from b2nd_dask.format.index import OffsetIndex, stored_chunks
from b2nd_dask.format.metalayers import MAX_METALAYERS
from b2nd_dask.format.trailer import Trailer, build_trailer
from b2nd_dask.format.values import MetaView, pack_value, unpack_value

#: The vlmeta entry that holds the record.
RECORD_NAME = "b2nd.xxh3"
_VERSION = 1
_RECORD_KEYS = {"version", "array", "index", "chunks"}

#: In the index chunk's header: codec meta and the metas of filter slots 0 to 4, none of them used.
_SEAL = slice(23, 29)
_SEAL_BYTE = 0xB2

_FINGERPRINT_TYPE = 3
_FINGERPRINT_LEN = 16
_NO_FINGERPRINT = bytes(1 + _FINGERPRINT_LEN)

#: Canonical XXH3 digests are big endian.
_DIGEST = np.dtype(">u8")
#: The record is one chunk, whose length is an int32.
_MAX_DIGESTS = (2**31 - (1 << 20)) // _DIGEST.itemsize
#: A record has at most so many bytes beside the array metalayer and two digests a chunk.
_ROOM = 4096
#: Digests do not shrink.
_STORED_PLAIN = Compression(codec=5, clevel=0, filters=(0,) * 6)


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
    remedy: str = ""
    """What to do where they are absent and nothing tells a change by other software from damage:
    of such a frame the user is warned."""

    @cached_property
    def by_chunk(self) -> NDArray[np.uint64] | None:
        """Digest of each chunk, 0 for special ones; None where the chunks may have changed."""
        if self.stored is None:
            return None
        if len(self.stored) == len(self.index):
            return self.stored
        return digest_column(self.index.offsets, self.stored)

    @property
    def lasting(self) -> NDArray[np.uint64] | None:
        """As `by_chunk`, for a changed frame whose checksums are to be valid; None unless valid."""
        return self.by_chunk if self.checksum_state is ChecksumState.VALID else None


def chunk_digest(chunk: Buffer) -> int:
    """Digest of a whole chunk as it is stored.

    Parameters
    ----------
    chunk : bytes-like

    Returns
    -------
    int
        XXH3, 64 bits, seed 0.
    """
    return xxhash.xxh3_64_intdigest(chunk)


def digest_column(offsets: NDArray[np.int64], digests: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Put the digests of stored chunks where these stand among all chunks.

    Parameters
    ----------
    offsets : ndarray of int64
        The offset index.
    digests : ndarray of uint64
        Of the stored chunks, in the order of the chunks.

    Returns
    -------
    ndarray of uint64
        One for each chunk, 0 for special ones; a zero-stride array where nothing is stored, since
        there may be very many chunks that one value in the file stands for.
    """
    if not len(digests):
        return np.broadcast_to(np.uint64(0), offsets.shape)
    column = np.zeros(len(offsets), np.uint64)
    column[stored_chunks(offsets)] = digests
    return column


def require_digest(data: Buffer, expected: int) -> None:
    """Hold a stored chunk against its digest.

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
    if chunk_digest(whole_chunk(data)) != expected:
        raise ChecksumError(
            "the chunk is not what was written: its bytes do not match their checksum", offset=0
        )


def users_vlmeta(vlmeta: Mapping[str, Any]) -> dict[str, Any]:
    """Entries of vlmeta without the record.

    Parameters
    ----------
    vlmeta : mapping

    Returns
    -------
    dict
    """
    return {name: value for name, value in vlmeta.items() if name != RECORD_NAME}


def is_record(value: object) -> bool:
    """Whether a value of vlmeta is a record of checksums, as python-blosc2 lists it."""
    return isinstance(value, Mapping) and set(value) >= _RECORD_KEYS


def has_room(vlmeta: Mapping[str, bytes], ndigests: int) -> bool:
    """Whether a frame can hold checksums beside the user's metadata.

    Parameters
    ----------
    vlmeta : mapping
        The user's entries.
    ndigests : int
        Stored chunks.

    Returns
    -------
    bool
    """
    return len(vlmeta) < MAX_METALAYERS and ndigests <= _MAX_DIGESTS


def build_sealed_tail(
    index: bytes, vlmeta: Mapping[str, bytes], array_meta: bytes, digests: NDArray[np.uint64]
) -> bytes:
    """Write the sealed index chunk and the trailer with the record and the fingerprint.

    Parameters
    ----------
    index : bytes
        The index chunk, as `build_index` makes it.
    vlmeta : mapping of str to bytes
        The user's entries.
    array_meta : bytes
        Content of the metalayer that gives the array's shape.
    digests : ndarray of uint64
        Of the stored chunks, in the order of the chunks.

    Returns
    -------
    bytes
    """
    record = pack_value(
        {
            "version": _VERSION,
            "array": array_meta,
            "index": _index_digest(index),
            "chunks": digests.astype(_DIGEST).tobytes(),
        }
    )
    sealed = bytearray(index)
    sealed[_SEAL] = _seal_of(record)
    plain = encode_chunk(np.frombuffer(record, np.uint8), _STORED_PLAIN, typesize=1, blocksize=0)
    entries = {**vlmeta, RECORD_NAME: plain}
    covered = build_trailer(Trailer(entries, bytes(_FINGERPRINT_LEN)))[:-_FINGERPRINT_LEN]
    return bytes(sealed) + covered + xxhash.xxh3_128_digest(covered)


def parse_integrity(
    index_chunk: bytes,
    trailer: bytes,
    vlmeta: Mapping[str, bytes],
    head: bytes,
    header: FrameHeader,
    index: OffsetIndex,
) -> Integrity:
    """Find a frame's checksums and tell whether they are those of its present state.

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

    Returns
    -------
    Integrity
    """
    if not len(index):
        # no chunk, nothing to check
        return Integrity(ChecksumState.VALID, "", index, np.empty(0, np.uint64))
    seal = index_chunk[_SEAL]
    marked = seal[:1] == bytes([_SEAL_BYTE])
    if RECORD_NAME not in vlmeta and not marked:
        return _absent(index, "it was written without checksums")
    if _fingerprint_is_broken(trailer):
        return _damaged(index, "its trailer does not match the fingerprint")
    if marked and not _is_usual(trailer, vlmeta):
        return _damaged(index, "its trailer is not what any software writes")
    array_meta = header.metalayers[name_of_array(header.metalayers)]
    room = len(array_meta) + _ROOM + 2 * _DIGEST.itemsize * index.nstored
    record = _record_bytes(vlmeta, RECORD_NAME, room)
    expected = b"" if record is None else _seal_of(record)
    if record is not None and seal == expected:
        odd = odd_byte(head, header, has_vlmeta=True)
        if odd is not None:
            return _damaged(index, f"byte {odd} of its header is not what any software writes")
        return _judge_record(record, index_chunk, header.metalayers, index)
    # a change by other software leaves neither the mark nor the rest of the seal
    if RECORD_NAME in vlmeta and (marked or seal[1:] == expected[1:]):
        return _judge_misfit(vlmeta[RECORD_NAME], seal, index_chunk, trailer, index)
    if marked and any(seal == _seal_of(_record_bytes(vlmeta, n, room) or b"") for n in vlmeta):
        return _damaged(index, f"its record of checksums is not named {RECORD_NAME!r}")
    reason = "other software changed it after its checksums were written"
    if RECORD_NAME in vlmeta:
        reason += ", or copied their record from another frame"
    return _absent(index, reason)


def _judge_misfit(
    entry: bytes, seal: bytes, index_chunk: bytes, trailer: bytes, index: OffsetIndex
) -> Integrity:
    """Tell a record that was copied from another frame from damage of the record or the seal."""
    # python-blosc2 leaves no fingerprint when it sets an entry
    if seal[0] == _SEAL_BYTE and _has_no_fingerprint(trailer):
        record = _record_bytes({RECORD_NAME: entry}, RECORD_NAME, most_nbytes(entry))
        if record is not None and may_be_copied(
            record, _index_digest(index_chunk), seal, _seal_of(record)
        ):
            reason = (
                "its record of checksums is not the one that it was sealed with: it was copied "
                "from another frame, or it is damaged (python-blosc2 copies it with other entries "
                "of vlmeta)"
            )
            remedy = "The elements are read without checksums; b2nd_dask.seal writes new ones"
            return Integrity(ChecksumState.ABSENT, reason, index, remedy=remedy)
    return _damaged(
        index,
        "the seal of its offset index does not fit its record of checksums (if you set the entry "
        f"of vlmeta {RECORD_NAME!r} yourself, delete it with python-blosc2, then b2nd_dask.seal)",
    )


def _judge_record(
    record: bytes, index_chunk: bytes, metalayers: Mapping[str, bytes], index: OffsetIndex
) -> Integrity:
    """Hold what a sealed record binds against the frame."""
    try:
        value: Any = unpack_value(record)
        version = operator.index(value["version"])
        if version != _VERSION:
            return _absent(index, f"its checksums are of version {version}, known is {_VERSION}")
        bound = memoryview(value["array"]).tobytes()
        if value["index"] != _index_digest(index_chunk):
            return _damaged(index, "its offset index does not match its checksum")
        stored = np.frombuffer(value["chunks"], _DIGEST).astype(np.uint64)
        name = name_of_array(metalayers)
        before, now = array_meta_of({name: bound}), array_meta_of(metalayers)
    # an array is no mapping: IndexError
    except (B2ndError, ValueError, TypeError, LookupError) as error:
        return _damaged(index, f"its record of checksums cannot be read ({error})")
    if len(stored) != index.nstored:
        return _damaged(index, f"it has {len(stored)} checksums for {index.nstored} stored chunks")
    if bound == metalayers[name]:
        return Integrity(ChecksumState.VALID, "", index, stored)
    if metalayers[name] == with_shape(bound, now.shape) and _counts(before) == _counts(now):
        # python-blosc2 leaves index and trailer as they are when no chunk comes or goes
        reason = (
            f"its shape is {now.shape}, and its checksums were written for shape {before.shape}: "
            "other software resized it, or its header is damaged"
        )
        remedy = "If the shape is right, b2nd_dask.seal makes the checksums valid again"
        return Integrity(ChecksumState.ABSENT, reason, index, stored, remedy)
    return _damaged(index, "its array metalayer is not the one that its checksums were written for")


def _absent(index: OffsetIndex, reason: str) -> Integrity:
    return Integrity(ChecksumState.ABSENT, reason, index)


def _damaged(index: OffsetIndex, reason: str) -> Integrity:
    return Integrity(ChecksumState.DAMAGED, reason, index)


def _counts(meta: ArrayMeta) -> list[int]:
    """Chunks along each axis of an array that has some."""
    return [-(-n // c) for n, c in zip(meta.shape, meta.chunks, strict=True)]


def _record_bytes(vlmeta: Mapping[str, bytes], name: str, room: int) -> bytes | None:
    """The record, or None where it is missing, too long or cannot be unpacked."""
    try:
        # it is unpacked at every open: no more than a record can need
        if parse_chunk_header(vlmeta[name]).nbytes > room:
            return None
        return MetaView(vlmeta, "", compressed=True).raw(name)
    except (B2ndError, KeyError):
        return None


def _seal_of(record: bytes) -> bytes:
    return bytes([_SEAL_BYTE]) + xxhash.xxh3_64_digest(record)[:5]


def _index_digest(index_chunk: bytes) -> bytes:
    # what lies behind the chunk is lost when python-blosc2 writes a trailer
    plain = bytearray(whole_chunk(index_chunk))
    plain[_SEAL] = bytes(_SEAL.stop - _SEAL.start)
    return xxhash.xxh3_64_digest(plain)


def _is_usual(trailer: bytes, vlmeta: Mapping[str, bytes]) -> bool:
    """Whether a trailer is as it is always written, where no fingerprint says so."""
    if not _has_no_fingerprint(trailer):
        return True
    usual = build_trailer(Trailer(vlmeta, bytes(_FINGERPRINT_LEN)))
    return usual[: -_FINGERPRINT_LEN - 1] == trailer[: -_FINGERPRINT_LEN - 1]


def _has_no_fingerprint(trailer: bytes) -> bool:
    # python-blosc2 writes none, whenever it writes a trailer
    return trailer[-1 - _FINGERPRINT_LEN :] == _NO_FINGERPRINT


def _fingerprint_is_broken(trailer: bytes) -> bool:
    if _has_no_fingerprint(trailer):
        return False
    digest = xxhash.xxh3_128_digest(trailer[:-_FINGERPRINT_LEN])
    return not trailer.endswith(bytes([_FINGERPRINT_TYPE]) + digest)
