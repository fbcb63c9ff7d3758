"""The stamp: six bytes of the index chunk that bind the record of checksums to it.

docs/integrity.md, Stamp. python-blosc2 changes chunks in place and may leave all metadata as it
was, but for the index chunk, which it compresses anew at every such change. The stamp lies in bytes
of the index chunk's header that no decoder uses and that are zero in a new one: while it is there,
no other software has changed a chunk.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import xxhash
from numpy.typing import NDArray

from b2nd_dask.format.chunk.chunk_header import whole_chunk
from b2nd_dask.format.integrity.record import RECORD_NAME, build_record, record_entry
from b2nd_dask.format.trailer import Trailer, with_fingerprint

#: In the index chunk's header: codec meta and the metas of filter slots 0 to 4, none of them used.
_STAMP = slice(23, 29)
_FIRST_BYTE = b"\xb2"


def stamp_in(index_chunk: bytes) -> bytes:
    """Read the bytes of the stamp: zeros if there is none, fewer if the chunk is shorter."""
    return index_chunk[_STAMP]


def begins_as_stamp(stamp: bytes) -> bool:
    """Whether the first byte is that of a stamp."""
    return stamp.startswith(_FIRST_BYTE)


def stamp_of(record: bytes) -> bytes:
    """Compute the stamp that matches a record."""
    return _FIRST_BYTE + xxhash.xxh3_64_digest(record)[: _STAMP.stop - _STAMP.start - 1]


def index_digest(index_chunk: bytes) -> bytes:
    """Digest an index chunk, whatever its stamp is.

    What lies behind the chunk does not count: it is lost when python-blosc2 writes a trailer.
    """
    plain = bytearray(whole_chunk(index_chunk))
    plain[_STAMP] = bytes(_STAMP.stop - _STAMP.start)
    return xxhash.xxh3_64_digest(plain)


def build_stamped_tail(
    index: bytes, vlmeta: Mapping[str, bytes], array_meta: bytes, digests: NDArray[np.uint64]
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
    """
    record = build_record(array_meta, index_digest(index), digests)
    stamped = bytearray(index)
    stamped[_STAMP] = stamp_of(record)
    entries = {**vlmeta, RECORD_NAME: record_entry(record)}
    return bytes(stamped) + with_fingerprint(Trailer(entries, b""))
