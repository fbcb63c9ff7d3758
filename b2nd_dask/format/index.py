"""The offset index: position or special value of each chunk (docs/format.md, Offset index)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from b2nd_dask.errors import CorruptChunkError, FrameFormatError
from b2nd_dask.format.chunk.chunk_header import (
    ALPHA_VERSION,
    HEADER_LEN,
    ChunkHeader,
    ChunkKind,
    parse_chunk_header,
)
from b2nd_dask.format.chunk.codec import constant_of, decode_chunk, encode_chunk, encode_repeated
from b2nd_dask.format.chunk.compression import Compression
from b2nd_dask.format.header import FrameHeader

#: The number of a chunk file has eight hexadecimal digits.
MAX_CHUNK_FILE = 2**32 - 1
#: An index may always unpack to this many bytes (8 million chunks) ...
FREE_NBYTES = 64 << 20
#: ... and more only up to this multiple of its compressed size. Blocks of 16 KiB, as upstream
#: writes them, shrink 220 times at most; a longer index of equal entries is one repeated value.
MAX_RATIO = 1024
#: Entries to compare at once, so that temporary columns stay small.
_SLICE = 1 << 16
#: Kinds of chunks without data.
INDEX_KINDS = (ChunkKind.ZEROS, ChunkKind.NAN, ChunkKind.UNINIT)
#: The top bit of an entry without data, in its high byte.
_TOP = 0x80

_OFFSET = np.dtype("<i8")

#: Upstream's compression for every change of the index (docs/format.md, Offset index): blosclz,
#: shuffle in the last slot, never split.
_INDEX_COMPRESSION = Compression(codec=0, clevel=5, filters=(0, 0, 0, 0, 0, 1), splitmode=2)
_INDEX_BLOCKSIZE = 1 << 14


@dataclass(frozen=True, eq=False)
class OffsetIndex:
    """Offsets of all chunks as one column."""

    offsets: NDArray[np.int64]
    """The stored entries: an offset in the data region, the number of a chunk file, or a negative
    special code. A zero-stride array if the index chunk repeats one value."""
    data_nbytes: int
    """Bytes of the data region."""

    def __len__(self) -> int:
        return len(self.offsets)

    @cached_property
    def single_kind(self) -> int:
        """The special kind of all chunks if the index chunk repeats one value, else 0."""
        return int(self.kinds[0]) if len(self) and self.kinds.strides == (0,) else 0

    @cached_property
    def kinds(self) -> NDArray[np.uint8]:
        """`ChunkKind` of every chunk; zero-stride like the offsets."""
        codes = _codes_of(_distinct(self.offsets))
        # stored chunks have codes below the top bit
        kinds = np.where(codes > _TOP, codes - np.uint8(_TOP), np.uint8(ChunkKind.STORED))
        return np.broadcast_to(kinds, self.offsets.shape)

    @cached_property
    def nstored(self) -> int:
        """Number of chunks with data."""
        stored = np.count_nonzero(_distinct(self.offsets) >= 0)
        return int(stored) * (len(self) if self.offsets.strides == (0,) else 1)

    @cached_property
    def _starts(self) -> NDArray[np.int64]:
        """Starts of all stored chunks in ascending order.

        If the offsets ascend, they are returned without a copy (800 MB for 100 million chunks).
        """
        offsets = _distinct(self.offsets)
        if _ascends(offsets):
            return offsets
        # not np.unique: it takes 80 times as long (NumPy 2.4), and equal starts do no harm
        return np.sort(offsets[offsets >= 0])

    def extents(self, chunks: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Bound stored chunks of a contiguous frame: start and stop, in bytes of the data region.

        A chunk's own length is only in its header. The stop here is the start of the next chunk, so
        it may be too large.
        """
        starts = self.offsets[chunks]
        following = np.searchsorted(self._starts, starts, side="right")
        stops = self._starts.take(following, mode="clip")
        stops[following == len(self._starts)] = self.data_nbytes
        return starts, stops


def parse_index(data: bytes, header: FrameHeader, nchunks: int) -> OffsetIndex:
    """Parse the index chunk of `nchunks` chunks and check every entry.

    `data` has the bytes from the index chunk to the trailer; empty for an array without chunks.
    Raises `FrameFormatError` if the index chunk is damaged, has the wrong number of entries, or an
    entry is out of bounds.
    """
    if not nchunks:
        return OffsetIndex(np.empty(0, np.int64), header.cbytes)
    with _damaged_index():
        offsets = _decode_offsets(data, nchunks)
    distinct, index = _distinct(offsets), OffsetIndex(offsets, header.cbytes)
    _check_entries(distinct, MAX_CHUNK_FILE if header.sparse else header.cbytes - HEADER_LEN)
    stored = index.nstored
    if stored and len(distinct) < nchunks:
        # a tiny file could otherwise claim 268 million stored chunks
        raise FrameFormatError(f"the offset index puts all {nchunks} chunks at one offset")
    at_start = np.count_nonzero(distinct == 0)
    if at_start > 1:
        # a part of an uncompressed index was overwritten by zeros
        raise FrameFormatError(f"the offset index puts {at_start} chunks at offset 0")
    if not header.sparse and stored * HEADER_LEN > header.cbytes:
        raise FrameFormatError(
            f"the data region of {header.cbytes} bytes is too short for the {stored} stored "
            "chunks of the offset index"
        )
    return index


def index_len_of(head: bytes, available: int, nchunks: int) -> int:
    """Read the length of the index chunk from its first 32 bytes.

    `available` is the number of bytes from its start to the trailer. Raises `FrameFormatError` if
    these bytes are not the header of an index of `nchunks` chunks.
    """
    with _damaged_index():
        return _index_header(head, available, nchunks).cbytes


def stored_chunks(offsets: NDArray[np.int64]) -> NDArray[np.int64]:
    """Find the numbers of the chunks with data, ascending.

    If one special code stands for all chunks, this needs no memory per chunk.
    """
    if not (_distinct(offsets) >= 0).any():
        return np.empty(0, np.int64)
    return np.flatnonzero(offsets >= 0)


def special_code(kind: ChunkKind) -> int:
    """Compute the index entry of a chunk without data: its high byte is the top bit and the kind.

    Examples
    --------
    >>> hex(special_code(ChunkKind.ZEROS) & (2**64 - 1))
    '0x8100000000000000'
    """
    return ((0x80 | kind) << 56) - (1 << 64)


def build_index(offsets: NDArray[np.int64]) -> bytes:
    """Build the index chunk from one entry per chunk; the bytes are those that upstream writes.

    There is at least one chunk.
    """
    if len(offsets) > 1 and (_distinct(offsets) == offsets[0]).all():
        # as in upstream's arrays of zeros: 40 bytes for any number of chunks
        value = offsets[:1].astype(_OFFSET).tobytes()
        return encode_repeated(
            value, nbytes=8 * len(offsets), blocksize=min(8 * len(offsets), _INDEX_BLOCKSIZE)
        )
    return encode_chunk(
        np.ascontiguousarray(offsets, _OFFSET),
        _INDEX_COMPRESSION,
        typesize=8,
        blocksize=_INDEX_BLOCKSIZE,
    )


@contextmanager
def _damaged_index() -> Iterator[None]:
    """Convert errors of the index chunk into errors of the frame."""
    try:
        yield
    except CorruptChunkError as error:
        raise FrameFormatError(
            f"the offset index is damaged: {error.problem}", offset=error.offset
        ) from error


def _index_header(head: bytes, available: int, nchunks: int) -> ChunkHeader:
    # typesize must be 8: upstream reads single entries (docs/format.md, Offset index)
    header = parse_chunk_header(head, available, nbytes=8 * nchunks, typesize=8)
    if (
        header.typesize != 8
        or header.special in (ChunkKind.NAN, ChunkKind.UNINIT)
        or header.needs_shape
    ):
        raise CorruptChunkError("it does not hold 64-bit offsets", offset=3)
    # upstream always shuffles the index. The alpha version did not set this byte; in later versions
    # a 0 means that zeros overwrote the header
    has_last = header.header_len == HEADER_LEN and header.version > ALPHA_VERSION
    if has_last and not (header.special or header.filters[-1]):
        raise CorruptChunkError("its last filter is none, but every index has shuffle", offset=21)
    return header


def _decode_offsets(data: bytes, nchunks: int) -> NDArray[np.int64]:
    header = _index_header(data, len(data), nchunks)
    value = constant_of(data, header, _OFFSET)
    if value is not None:
        # the repeated value has 8 bytes in the file, even for 100 million chunks: do not expand it
        return np.broadcast_to(value, (nchunks,))
    if header.nbytes > max(FREE_NBYTES, MAX_RATIO * header.cbytes):
        raise CorruptChunkError(
            f"{header.cbytes} bytes cannot hold the offsets of {nchunks} chunks"
        )
    offsets = np.empty(nchunks, _OFFSET)
    decode_chunk(data, header, offsets)
    return offsets


def _distinct(column: NDArray[Any]) -> NDArray[Any]:
    """Cut a zero-stride column to its one entry; return other columns unchanged."""
    return column[:1] if column.strides == (0,) else column


def _ascends(offsets: NDArray[np.int64]) -> bool:
    """Whether all entries are offsets in ascending order, equal ones allowed."""
    if not len(offsets) or offsets[0] < 0:
        return False
    # each part starts with the last entry of the previous one
    parts = (offsets[max(0, at - 1) : at + _SLICE] for at in range(0, len(offsets), _SLICE))
    return all(bool((part[:-1] <= part[1:]).all()) for part in parts)


def _codes_of(offsets: NDArray[np.int64]) -> NDArray[np.uint8]:
    """View the high bytes of contiguous entries.

    The high byte of a special code is the top bit and the kind. The low bytes are zeros, which
    upstream ignores.
    """
    return offsets.view(np.uint8)[7::8]


def _check_entries(offsets: NDArray[np.int64], last: int) -> None:
    """Check all entries; `last` is the largest valid offset."""
    codes = _codes_of(offsets)
    wrong = codes >= _TOP
    for kind in INDEX_KINDS:
        wrong &= codes != _TOP | kind
    wrong |= offsets > last
    if not wrong.any():
        return
    at = int(np.argmax(wrong))
    if offsets[at] < 0:
        raise FrameFormatError(
            f"the offset index has the special code {codes[at] - _TOP} for chunk {at}; known are "
            "1, 2 and 4"
        )
    raise FrameFormatError(
        f"the offset index puts chunk {at} at {offsets[at]}, the last offset is {last}"
    )
