"""Index and trailer of a frame, read stepwise: each step is checked before the next, larger one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

from b2nd_dask.errors import FrameFormatError, locating
from b2nd_dask.format.chunk.chunk_header import HEADER_LEN
from b2nd_dask.format.header import FrameHeader
from b2nd_dask.format.index import index_len_of
from b2nd_dask.format.statistics import MAX_ROW_NBYTES
from b2nd_dask.format.trailer import TAIL_LEN, check_trailer_start, trailer_len_of
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


@dataclass(frozen=True, slots=True)
class Tail:
    """Index chunk and trailer of a frame; some of their bytes may be unread."""

    reader: ByteReader
    start: int
    """Start of the index chunk in the frame."""
    index_len: int
    """Bytes from there to the trailer."""
    stop: int
    """End of the frame."""
    held: bytes
    """All bytes if the tail is short, else none."""

    @classmethod
    def of(cls, reader: ByteReader, head: bytes, header: FrameHeader, nchunks: int) -> Self:
        """Locate the parts of a tail, given the first bytes of the frame, `head`.

        Raises `FrameFormatError` if the bytes are not an index of `nchunks` chunks and a trailer.
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
        held, end = b"", b""
        if stop <= len(head):
            held = head[start:stop]
        elif stop - start <= PART_NBYTES:
            (held,) = reader.read([Span(start, stop)])
            _require_whole(held, Span(start, stop), 0)
        else:
            (end,) = reader.read([Span(stop - TAIL_LEN, stop)])
        with locating(shift=start):
            trailer_len = trailer_len_of(held or end, stop - header.header_len)
            index_len = stop - start - trailer_len
            if index_len < 0 or (index_len > 0) != (nchunks > 0):
                raise FrameFormatError(
                    f"{index_len} bytes are left for the offsets of {nchunks} chunks", offset=0
                )
        return cls(reader, start, index_len, stop, held)

    def read_index(self, nchunks: int) -> bytes:
        """Read the index chunk of `nchunks` chunks, and the bytes between it and the trailer.

        Raises `FrameFormatError` if the chunk's header contradicts the frame, or there are zeros in
        place of offsets.
        """
        if self.held or not self.index_len:
            return self.held[: self.index_len]
        start, stop = self.start, self.start + self.index_len
        (head,) = self.reader.read([Span(start, start + HEADER_LEN)])
        length = index_len_of(head, self.index_len, nchunks)
        if self.index_len - length > _MAX_GAP:
            raise FrameFormatError(
                f"between the offset index of {length} bytes and the trailer there are "
                f"{self.index_len - length} unknown bytes",
                offset=0,
            )
        parts = bytearray()
        for at in range(start, stop, PART_NBYTES):
            span = Span(at, min(at + PART_NBYTES, stop))
            (part,) = self.reader.read([span])
            _require_whole(part, span, start)
            # compressed bytes or different offsets are not all zeros, but holes of a file are
            if len(part) == PART_NBYTES and part.count(0) == len(part):
                raise FrameFormatError(
                    f"the offset index has {PART_NBYTES} zeros in a row", offset=at - start
                )
            parts += part
        return bytes(parts)

    def read_trailer(self, nstored: int) -> bytes:
        """Read the trailer, with checksums and statistics of `nstored` chunks.

        Raises `FrameFormatError` if it does not start like a trailer, or it is longer than
        possible.
        """
        if self.held:
            return self.held[self.index_len :]
        start = self.start + self.index_len
        length = self.stop - start
        if length > _RECORD_NBYTES * nstored + MAX_METADATA:
            raise FrameFormatError(
                f"a trailer of {length} bytes is too long for metadata, checksums and statistics "
                f"of {nstored} chunks",
                offset=0,
            )
        (head,) = self.reader.read([Span(start, min(start + HEADER_LEN, self.stop))])
        check_trailer_start(head)
        (trailer,) = self.reader.read([Span(start, self.stop)])
        _require_whole(trailer, Span(start, self.stop), start)
        return trailer


def _require_whole(data: bytes, span: Span, counted_from: int) -> None:
    if len(data) < span.stop - span.start:
        raise FrameFormatError("the frame is cut off", offset=span.start + len(data) - counted_from)
