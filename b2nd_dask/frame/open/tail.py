"""Index and trailer of a frame, read stepwise: each step is checked before the next, larger one."""

from __future__ import annotations

from typing import NamedTuple

from b2nd_dask.errors import FrameFormatError, locating
from b2nd_dask.format.chunk.chunk_header import HEADER_LEN
from b2nd_dask.format.header import FrameHeader
from b2nd_dask.format.index import OffsetIndex, index_len_of, parse_index
from b2nd_dask.format.statistics import MAX_ROW_NBYTES
from b2nd_dask.format.trailer import (
    TAIL_LEN,
    check_trailer_start,
    parse_trailer,
    trailer_len_of,
)
from b2nd_dask.storage import ByteReader, Span

#: Most bytes of trailer metadata beside the checksums; in practice 16 entries of vlmeta.
MAX_METADATA = 1 << 28
#: A longer tail is read stepwise, in parts of this size; a shorter one at once.
PART_NBYTES = 1 << 24
#: Most bytes between index chunk and trailer, where writers put the write id.
_MAX_GAP = 1 << 12
#: Bytes per chunk of a checksum in the trailer, with storage overhead, and of its statistics.
_RECORD_NBYTES = 16 + MAX_ROW_NBYTES
#: python-blosc2 may store an index chunk uncompressed.
_OFFSET_NBYTES = 16


class Tail(NamedTuple):
    """Index and trailer of a frame."""

    offsets: OffsetIndex
    index_bytes: bytes
    """From the index chunk to the trailer."""
    vlmeta: dict[str, bytes]
    """All entries, as stored."""
    trailer: bytes


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
