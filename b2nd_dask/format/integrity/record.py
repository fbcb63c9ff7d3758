"""The record of checksums: digests of all stored chunks and of the metadata, one entry of vlmeta.

docs/integrity.md, Record. python-blosc2 lists the record with the user's entries of vlmeta: whoever
copies these into another frame copies it, too, and there the stamp does not match it, just as after
damage.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import xxhash
from numpy.typing import NDArray

from b2nd_dask.errors import (
    B2ndError,
    ChecksumError,
    CorruptChunkError,
    FrameFormatError,
    UnsupportedFrameError,
)
from b2nd_dask.format.chunk.chunk_header import Buffer, chunk_length
from b2nd_dask.format.chunk.codec import encode_chunk
from b2nd_dask.format.chunk.compression import Compression
from b2nd_dask.format.index import stored_chunks
from b2nd_dask.format.metalayers import MAX_METALAYERS
from b2nd_dask.format.values import most_unpacked, pack_value, unpack_entry, unpack_value

_VERSION = 1
_KEYS = ["version", "array", "index", "chunks"]

#: Canonical XXH3 digests are big endian.
DIGEST = np.dtype(">u8")
#: The record is one chunk, whose length is an int32.
_MAX_DIGESTS = (2**31 - (1 << 20)) // DIGEST.itemsize
#: A record has at most so many bytes beside the array metalayer and two digests a chunk.
_ROOM = 4096
#: Digests do not shrink.
_STORED_PLAIN = Compression(codec=5, clevel=0, filters=(0,) * 6)


@dataclass(frozen=True, eq=False, slots=True)
class Record:
    """What a record says."""

    array_meta: bytes
    """Content of the array metalayer that the digests belong to."""
    index_digest: bytes
    digests: NDArray[np.uint64]
    """Digests of the stored chunks, in the order of the chunks."""


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


def digest_column(offsets: NDArray[np.int64], digests: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Give each chunk its digest.

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


def is_record(value: object) -> bool:
    """Whether a value of vlmeta is a record of checksums, as python-blosc2 lists it."""
    return isinstance(value, Mapping) and set(value) >= set(_KEYS)


def has_room(vlmeta: Mapping[str, bytes], ndigests: int) -> bool:
    """Whether a frame can hold so many digests beside the user's entries of vlmeta."""
    return len(vlmeta) < MAX_METALAYERS and ndigests <= _MAX_DIGESTS


def build_record(array_meta: bytes, index_digest: bytes, digests: NDArray[np.uint64]) -> bytes:
    """Write a record as a msgpack value; the arguments are the fields of `Record`."""
    chunks = digests.astype(DIGEST).tobytes()
    values = [_VERSION, array_meta, index_digest, chunks]
    return pack_value(dict(zip(_KEYS, values, strict=True)))


def record_entry(record: bytes) -> bytes:
    """Make the chunk that holds a record in vlmeta."""
    return encode_chunk(np.frombuffer(record, np.uint8), _STORED_PLAIN, typesize=1, blocksize=0)


def parse_record(record: bytes) -> Record:
    """Read a record.

    Parameters
    ----------
    record : bytes
        The msgpack value.

    Raises
    ------
    FrameFormatError
        It is no record.
    UnsupportedFrameError
        It is of another version.
    """
    try:
        value: Any = unpack_value(record)
        version = operator.index(value["version"])
        known = version == _VERSION and _parse_fields(value)
    # an array is no mapping: IndexError
    except (B2ndError, ValueError, TypeError, LookupError) as error:
        raise FrameFormatError(f"its record of checksums cannot be read ({error})") from error
    if not known:
        raise UnsupportedFrameError(f"its checksums are of version {version}, known is {_VERSION}")
    return known


def _parse_fields(value: Any) -> Record:
    array, index, chunks = (memoryview(value[key]).tobytes() for key in _KEYS[1:])
    return Record(array, index, np.frombuffer(chunks, DIGEST).astype(np.uint64))


def most_nbytes(array_meta: bytes, nstored: int) -> int:
    """Bound the bytes of the record of a frame with so many stored chunks."""
    return len(array_meta) + _ROOM + 2 * DIGEST.itemsize * nstored


def unpack_record(entry: bytes, most: int) -> bytes | None:
    """Unpack the entry of a record; None where it cannot be or has more than `most` bytes."""
    try:
        # it is unpacked at every open: no more than a record can need
        return unpack_entry(entry, min(most, most_unpacked(entry)))
    except B2ndError:
        return None
