"""The offset index: where each chunk lies, or what it stands for (docs/format.md, Offset index)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import IntEnum
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from b2nd_dask.errors import CorruptChunkError, FrameFormatError
from b2nd_dask.format.chunk.chunk_header import (
    ALPHA_VERSION,
    HEADER_LEN,
    ChunkHeader,
    Special,
    parse_chunk_header,
)
from b2nd_dask.format.chunk.codec import constant_of, decode_chunk, encode_chunk, encode_repeated
from b2nd_dask.format.chunk.compression import Compression
from b2nd_dask.format.header import FrameHeader

#: A chunk file's number has eight hexadecimal digits.
MAX_CHUNK_FILE = 2**32 - 1
#: Shortest chunk: a header.
_MIN_CHUNK = 32
#: An index may always unpack to this many bytes (8 million chunks) ...
FREE_NBYTES = 64 << 20
#: ... and beyond that to so many times its compressed size. In upstream's blocks of 16 KiB even
#: equal codes pack 220 times at most; many more of them are written as one repeated value.
MAX_RATIO = 1024
#: Entries that are looked at together, so that the columns in between stay small.
_SLICE = 1 << 16

_OFFSET = np.dtype("<i8")

#: What upstream uses on every change of the index (docs/format.md, Offset index): blosclz, shuffle
#: in the last slot, never split.
_INDEX_COMPRESSION = Compression(codec=0, clevel=5, filters=(0, 0, 0, 0, 0, 1), splitmode=2)
_INDEX_BLOCKSIZE = 1 << 14


class ChunkKind(IntEnum):
    """What the index says of a chunk; the special codes are those of the format."""

    STORED = 0
    ZEROS = 1
    NAN = 2
    UNINIT = 4


@dataclass(frozen=True, eq=False)
class OffsetIndex:
    """Offsets of all chunks, as one column."""

    offsets: NDArray[np.int64]
    """As in the file: a position behind the header, a chunk file's number, or a negative special
    code.
    A zero-stride array where the index chunk repeats one value."""
    data_nbytes: int
    """Bytes of the data region."""
    sparse: bool

    def __len__(self) -> int:
        return len(self.offsets)

    @cached_property
    def single_kind(self) -> int:
        """The special kind that all chunks share, where the index says so by one value, else 0."""
        return int(self.kinds[0]) if len(self) and self.kinds.strides == (0,) else 0

    @cached_property
    def kinds(self) -> NDArray[np.uint8]:
        """`ChunkKind` of every chunk; zero-stride like the offsets."""
        offsets = _distinct(self.offsets)
        kinds = np.empty(len(offsets), np.uint8)
        for part in _slices(len(offsets)):
            kinds[part] = _kinds_of(offsets[part])
        return np.broadcast_to(kinds, self.offsets.shape)

    @cached_property
    def nstored(self) -> int:
        """Number of chunks that have data."""
        stored = np.count_nonzero(_distinct(self.offsets) >= 0)
        return int(stored) * (len(self) if self.offsets.strides == (0,) else 1)

    @cached_property
    def _starts(self) -> NDArray[np.int64]:
        """Starts of all stored chunks in ascending order.

        The offsets themselves where they ascend: for 100 million chunks a column less in each
        process.
        """
        offsets = _distinct(self.offsets)
        if _ascends(offsets):
            return offsets
        # not np.unique: it takes 80 times as long (NumPy 2.4), and equal starts do no harm
        return np.sort(offsets[offsets >= 0])

    def extents(self, chunks: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Where stored chunks of a contiguous frame lie in the data region.

        A chunk's own length stands in its header only; here it ends at the latest where the next
        one starts.

        Parameters
        ----------
        chunks : ndarray of int64
            Numbers of stored chunks.

        Returns
        -------
        starts, stops : ndarray of int64
            Counted from the data region's start.
        """
        starts = self.offsets[chunks]
        following = np.searchsorted(self._starts, starts, side="right")
        stops = self._starts.take(following, mode="clip")
        stops[following == len(self._starts)] = self.data_nbytes
        return starts, stops


def parse_index(data: bytes, header: FrameHeader, nchunks: int) -> OffsetIndex:
    """Read the index chunk and check every entry.

    Parameters
    ----------
    data : bytes
        From the index chunk's start to the trailer's; an array without chunks has none.
    nchunks : int
        Chunks of the array.

    Raises
    ------
    FrameFormatError
        The index chunk is damaged, has another number of entries, or an entry points nowhere.
    """
    if not nchunks:
        return OffsetIndex(np.empty(0, np.int64), header.cbytes, header.sparse)
    with _damaged_index():
        offsets = _decode_offsets(data, nchunks)
    distinct = _distinct(offsets)
    last = MAX_CHUNK_FILE if header.sparse else header.cbytes - _MIN_CHUNK
    stored = at_start = 0
    for part in _slices(len(distinct)):
        _check_entries(distinct[part], part.start, last)
        stored += int(np.count_nonzero(distinct[part] >= 0))
        at_start += int(np.count_nonzero(distinct[part] == 0))
    if stored and len(distinct) < nchunks:
        # the fewest bytes that could make a frame seem to hold 268 million stored chunks
        raise FrameFormatError(f"the offset index puts all {nchunks} chunks at one offset")
    if at_start > 1:
        # zeros over a part of an uncompressed index
        raise FrameFormatError(f"the offset index puts {at_start} chunks at offset 0")
    if not header.sparse and stored * _MIN_CHUNK > header.cbytes:
        raise FrameFormatError(
            f"the offset index has {stored} stored chunks, for which the data region of "
            f"{header.cbytes} bytes is too short"
        )
    return OffsetIndex(offsets, header.cbytes, header.sparse)


def index_len_of(head: bytes, available: int, nchunks: int) -> int:
    """Read the length of the index chunk from its first bytes.

    Parameters
    ----------
    head : bytes
        The first 32 bytes.
    available : int
        Bytes from the index chunk's start to the trailer's.
    nchunks : int
        Chunks of the array.

    Raises
    ------
    FrameFormatError
        A header that no index of so many chunks has.
    """
    with _damaged_index():
        return _index_header(head, available, nchunks).cbytes


def stored_chunks(offsets: NDArray[np.int64]) -> NDArray[np.int64]:
    """Find the numbers of the chunks that have data.

    Parameters
    ----------
    offsets : ndarray of int64
        The offset index. One that repeats a special code takes no memory for each chunk.

    Returns
    -------
    ndarray of int64
        Ascending.
    """
    if not (_distinct(offsets) >= 0).any():
        return np.empty(0, np.int64)
    return np.flatnonzero(offsets >= 0)


def special_code(kind: ChunkKind) -> int:
    """Compute the entry of a chunk without data: the top bit and the kind, in the high byte.

    Examples
    --------
    >>> hex(special_code(ChunkKind.ZEROS) & (2**64 - 1))
    '0x8100000000000000'
    """
    return ((0x80 | kind) << 56) - (1 << 64)


def build_index(offsets: NDArray[np.int64]) -> bytes:
    """Write the index chunk, byte for byte as upstream writes it when it changes an index.

    Parameters
    ----------
    offsets : ndarray of int64
        One entry for each chunk, special codes included; at least one.
    """
    if len(offsets) > 1 and (_distinct(offsets) == offsets[0]).all():
        # as upstream creates arrays of zeros: 40 bytes for any number of chunks
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
    """Turn errors of the index chunk into errors of the frame."""
    try:
        yield
    except CorruptChunkError as error:
        raise FrameFormatError(
            f"the offset index is damaged: {error.problem}", offset=error.offset
        ) from error


def _index_header(head: bytes, available: int, nchunks: int) -> ChunkHeader:
    # typesize is not free here: upstream reads single entries (docs/format.md, Offset index)
    header = parse_chunk_header(head, available, nbytes=8 * nchunks, typesize=8)
    if (
        header.typesize != 8
        or header.special in (Special.NAN, Special.UNINIT)
        or header.needs_shape
    ):
        raise CorruptChunkError("it does not hold 64-bit offsets", offset=3)
    # upstream has always written indexes with shuffle, but the alpha version did not set this byte:
    # a 0 of later versions comes from zeros over the header
    has_last = header.header_len == HEADER_LEN and header.version > ALPHA_VERSION
    if has_last and not (header.special or header.filters[-1]):
        raise CorruptChunkError("its last filter is none, where every index has shuffle", offset=21)
    return header


def _decode_offsets(data: bytes, nchunks: int) -> NDArray[np.int64]:
    header = _index_header(data, len(data), nchunks)
    value = constant_of(data, header, _OFFSET)
    if value is not None:
        # one value for 100 million chunks is 8 bytes of file: do not expand it
        return np.broadcast_to(value, (nchunks,))
    if header.nbytes > max(FREE_NBYTES, MAX_RATIO * header.cbytes):
        raise CorruptChunkError(
            f"{header.cbytes} bytes cannot hold the offsets of {nchunks} chunks"
        )
    offsets = np.empty(nchunks, _OFFSET)
    decode_chunk(data, header, offsets)
    return offsets


def _distinct(column: NDArray[Any]) -> NDArray[Any]:
    """The entries worth looking at: one of a zero-stride column."""
    return column[:1] if column.strides == (0,) else column


def _ascends(offsets: NDArray[np.int64]) -> bool:
    """Whether all entries are offsets, none of them below the one before."""
    if not len(offsets) or offsets[0] < 0:
        return False
    # each slice begins with the last entry of the one before
    parts = (offsets[max(0, part.start - 1) : part.stop] for part in _slices(len(offsets)))
    return all(bool((part[:-1] <= part[1:]).all()) for part in parts)


def _kinds_of(offsets: NDArray[np.int64]) -> NDArray[np.uint8]:
    # the special code is the high byte less its top bit; the low bytes are 0, but upstream ignores
    # them
    return np.where(offsets < 0, offsets >> 56 & 0x7F, ChunkKind.STORED).astype(np.uint8)


def _slices(length: int) -> Iterator[slice]:
    for start in range(0, length, _SLICE):
        yield slice(start, min(start + _SLICE, length))


def _check_entries(offsets: NDArray[np.int64], first: int, last: int) -> None:
    """Check the entries from chunk `first` on; no chunk begins behind `last`."""
    special = offsets < 0
    if special.any():
        _check_kinds(_kinds_of(offsets), special, first)
    outside = offsets > last
    if outside.any():
        at = int(np.argmax(outside))
        raise FrameFormatError(
            f"the offset index puts chunk {first + at} at {offsets[at]}, the last offset is {last}"
        )


def _check_kinds(kinds: NDArray[np.uint8], special: NDArray[np.bool_], first: int) -> None:
    wrong = special & ~np.isin(kinds, [ChunkKind.ZEROS, ChunkKind.NAN, ChunkKind.UNINIT])
    if wrong.any():
        at = int(np.argmax(wrong))
        raise FrameFormatError(
            f"the offset index has the special code {kinds[at]} for chunk {first + at}; "
            "known are 1, 2 and 4"
        )
