"""Parse and check the header of a compressed chunk (docs/format.md, Chunk header); its checksum.

Only `parse_chunk_header` creates a `ChunkHeader`, so each one is checked. The check is necessary:
C-Blosc2 decodes as many bytes as the header says, whatever the size of the destination.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from enum import IntEnum
from typing import NamedTuple

import xxhash

from b2nd_dask.errors import ChecksumError, CorruptChunkError, UnsupportedFrameError
from b2nd_dask.format.chunk.compression import DELTA_FILTER, SHAPED_CODECS, SHAPED_FILTERS

Buffer = bytes | bytearray | memoryview

HEADER_LEN = 32
#: Header of Blosc1 chunks, without filter pipeline and special values.
SHORT_HEADER_LEN = 16
ALPHA_VERSION = 3
MAX_DICT_LEN = 32768
#: The largest int32 less the header and a margin of C-Blosc2.
MAX_BLOCKSIZE = 536866816
#: Format versions: Blosc1 up to 2, alpha of Blosc2, betas, stable, variable-length blocks.
_VERSIONS = range(1, 7)

#: Flags in byte 2: shuffle together with bitshuffle marks a header of 32 bytes.
EXTENDED = 0x05
_MEMCPYED, _DELTA, _ONE_STREAM = 0x02, 0x08, 0x10
#: Flags in byte 31; only chunks in memory have the last two.
HAS_DICT, _LAZY, _INSTRUMENTED = 0x01, 0x08, 0x80
#: Format codes of blosclz, lz4, zlib, zstd.
_BUILTIN_CODECS = frozenset({0, 1, 3, 4})
_PLUGIN_CODEC = 6
#: None, shuffle, bitshuffle, delta, trunc_prec, ndcell, ndmean, bytedelta, int_trunc.
_KNOWN_FILTERS = frozenset({0, 1, 2, 3, 4, 32, 33, 35, 36})
#: Least id of codecs and filters that users register, in each process.
FIRST_USER_ID = 160


class ChunkKind(IntEnum):
    """The kind of a chunk; the numbers are those of the format."""

    STORED = 0
    ZEROS = 1
    NAN = 2
    ONE_VALUE = 3
    """One value, stored behind the header, fills the chunk. The index lists the chunk as stored."""
    UNINIT = 4


class ChunkHeader(NamedTuple):
    """The first 32 (Blosc1: 16) bytes of a chunk, checked against the sizes in its frame."""

    header_len: int
    version: int
    flags: int
    typesize: int
    nbytes: int
    """Uncompressed bytes."""
    blocksize: int
    """Uncompressed bytes of a block."""
    cbytes: int
    """Bytes of the whole chunk, header included."""
    filters: tuple[int, ...]
    codec: int
    """Id of a plug-in codec; the code of a built-in codec is in `flags`."""
    flags2: int
    special_flags: int

    @property
    def special(self) -> int:
        """The `ChunkKind` that the header states."""
        return self.special_flags >> 4 & 0x07

    @property
    def memcpyed(self) -> bool:
        """Whether the blocks are stored uncompressed."""
        return bool(self.flags & _MEMCPYED)

    @property
    def has_one_stream(self) -> bool:
        """Whether a block is one stream rather than one stream per byte of an element."""
        return bool(self.flags & _ONE_STREAM)

    @property
    def has_dict(self) -> bool:
        """Whether a dictionary follows the block offsets."""
        return bool(self.special_flags & HAS_DICT)

    @property
    def codec_id(self) -> int:
        """Plug-in codec id, or -1 for a built-in codec."""
        return self.codec if self.flags >> 5 == _PLUGIN_CODEC else -1

    @property
    def nblocks(self) -> int:
        """Number of blocks."""
        return -(-self.nbytes // self.blocksize) if self.nbytes else 0

    @property
    def needs_shape(self) -> bool:
        """Whether decoding needs the array's shapes, or a user's codec or filter."""
        return not (self.special or self.memcpyed) and (
            self.codec_id in SHAPED_CODECS
            or self.codec_id >= FIRST_USER_ID
            or any(f in SHAPED_FILTERS or f >= FIRST_USER_ID for f in self.filters)
        )


def parse_chunk_header(
    data: Buffer,
    available: int | None = None,
    *,
    nbytes: int | None = None,
    blocksize: int | None = None,
    typesize: int | None = None,
) -> ChunkHeader:
    """Parse and check a chunk's header before any decoding.

    At most `available` bytes belong to the chunk, by default all of `data`. The sizes are those of
    the frame; None accepts any. Raises `CorruptChunkError` if `data` is shorter than the header, or
    the header contradicts the frame or itself, `UnsupportedFrameError` if the chunk needs a codec
    or filter that is not available.
    """
    cbytes = chunk_length(data, len(data) if available is None else available)
    header = _unpack_header(data, cbytes)
    _check_sizes(header, nbytes, blocksize, typesize)
    _check_flags(header)
    _check_body(header)
    if not (header.special or header.memcpyed):
        _check_codec(header)
        _check_pipeline(header)
    return header


def chunk_length(data: Buffer, available: int) -> int:
    """Read the length of a chunk from its header; `available` bytes may belong to the chunk.

    Raises `CorruptChunkError` if `data` is shorter than the header, or the length is less than that
    of the header or more than `available`.
    """
    header_len = _header_len(data)
    (cbytes,) = struct.unpack_from("<i", data, 12)
    if not header_len <= cbytes <= available:
        raise CorruptChunkError(
            f"the chunk's length is {cbytes} bytes, {available} are available", offset=12
        )
    return int(cbytes)


def longest_chunk(nbytes: int, blocksize: int) -> int:
    """Compute the largest length of a chunk: data that does not shrink is stored uncompressed.

    `nbytes` and `blocksize` are the uncompressed bytes of the chunk and of a block, 0 if the array
    is empty.
    """
    return HEADER_LEN + nbytes + 4 * (nbytes // max(1, blocksize)) + 4 + MAX_DICT_LEN


def head_nbytes(nblocks: int) -> int:
    """Compute the number of bytes before the first block: header and block offsets."""
    return HEADER_LEN + 4 * nblocks


def whole_chunk(data: Buffer) -> memoryview:
    """Cut bytes at the end of the chunk that they start with; CorruptChunkError if it is longer."""
    return memoryview(data)[: chunk_length(data, len(data))]


def chunk_digest(chunk: Buffer) -> int:
    """Compute the digest of a whole stored chunk: XXH3, 64 bits, seed 0."""
    return xxhash.xxh3_64_intdigest(chunk)


def require_digest(pieces: Iterable[Buffer], available: int, expected: int) -> None:
    """Verify a stored chunk, piece by piece if it is long.

    The pieces start with the chunk, and the first one has its header; `available` bytes may belong
    to the chunk. Raises `CorruptChunkError` if they are fewer than the length in the header,
    `ChecksumError` if the digest differs.
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


def _header_len(data: Buffer) -> int:
    header_len = SHORT_HEADER_LEN
    if len(data) >= SHORT_HEADER_LEN and data[2] & EXTENDED == EXTENDED:
        header_len = HEADER_LEN
    if len(data) < header_len:
        raise CorruptChunkError(
            f"{len(data)} bytes are left for a header of {header_len}", offset=0
        )
    return header_len


def _unpack_header(data: Buffer, cbytes: int) -> ChunkHeader:
    header_len = _header_len(data)
    version, _, flags, typesize, nbytes, blocksize = struct.unpack_from("<BBBBii", data)
    sizes = header_len, version, flags, typesize, nbytes, blocksize, cbytes
    if header_len == SHORT_HEADER_LEN:
        return ChunkHeader(*sizes, filters=(0,) * 6, codec=0, flags2=0, special_flags=0)
    # the alpha version left the last slot unset; C-Blosc2 treats it as empty
    filters = tuple(data[16:21]) + ((0,) if version == ALPHA_VERSION else (data[21],))
    return ChunkHeader(*sizes, filters, data[22], data[30], data[31])


def _check_sizes(
    header: ChunkHeader, nbytes: int | None, blocksize: int | None, typesize: int | None
) -> None:
    """Check the sizes against those of the frame; None accepts any."""
    if header.nbytes < 0 or header.typesize < 1:
        raise CorruptChunkError(
            f"impossible sizes: {header.nbytes} bytes in elements of {header.typesize}", offset=3
        )
    if nbytes not in (None, header.nbytes):
        raise CorruptChunkError(f"it holds {header.nbytes} bytes, {nbytes} are expected", offset=4)
    if not 0 < header.blocksize <= min(MAX_BLOCKSIZE, max(header.nbytes, 1)):
        raise CorruptChunkError(
            f"impossible sizes: {header.nbytes} bytes in blocks of {header.blocksize}", offset=8
        )
    if blocksize not in (None, header.blocksize):
        raise CorruptChunkError(
            f"blocks of {header.blocksize} bytes, {blocksize} are expected", offset=8
        )
    # elements wider than 255 bytes have typesize 1, and so may chunks of any frame
    if typesize is not None and header.typesize not in (1, typesize):
        raise CorruptChunkError(
            f"elements of {header.typesize} bytes, {typesize} are expected", offset=3
        )


def _check_flags(header: ChunkHeader) -> None:
    """Reject flags that chunks of arrays do not have, and unknown versions."""
    if (
        header.flags2
        or header.special_flags & (_LAZY | _INSTRUMENTED)
        or header.special > ChunkKind.UNINIT
    ):
        raise CorruptChunkError(
            f"flags {header.flags2:#x} {header.special_flags:#x} do not mark a chunk of an array",
            offset=30,
        )
    if header.version not in _VERSIONS:
        raise UnsupportedFrameError(
            f"chunk format version {header.version}, known are 1 to {_VERSIONS[-1]}", offset=0
        )


def _check_body(header: ChunkHeader) -> None:
    """Check the length of the bytes behind the header, for each layout."""
    body = header.cbytes - header.header_len
    if header.special == ChunkKind.ONE_VALUE:
        # one element; elements wider than 255 bytes have typesize 1
        fits = body == header.typesize or (header.typesize == 1 and 0 < body <= header.nbytes)
        fits = fits and header.nbytes % body == 0
    elif header.special:
        fits = body == 0
    elif header.memcpyed:
        fits = body == header.nbytes
    else:
        # a dictionary has at least its 4-byte length
        fits = body >= 4 * header.nblocks + 4 * header.has_dict
    if not fits:
        raise CorruptChunkError(
            f"{body} bytes after the header do not fit {header.nbytes} in {header.nblocks} blocks "
            f"(special value {header.special}, stored plain: {header.memcpyed})",
            offset=12,
        )


def _check_codec(header: ChunkHeader) -> None:
    code = header.flags >> 5
    plugin = header.codec_id
    if code not in _BUILTIN_CODECS and not (plugin in SHAPED_CODECS or plugin >= FIRST_USER_ID):
        raise UnsupportedFrameError(
            f"codec {plugin if plugin >= 0 else code} is not available", offset=2
        )
    unknown = [f for f in header.filters if f not in _KNOWN_FILTERS and f < FIRST_USER_ID]
    if unknown:
        raise UnsupportedFrameError(f"filter {unknown[0]} is not available", offset=16)


def _check_pipeline(header: ChunkHeader) -> None:
    """Check the redundant fields of the header, and the requirements of split blocks."""
    if header.blocksize % header.typesize and header.nblocks > 1:
        raise CorruptChunkError(
            f"blocks of {header.blocksize} bytes do not hold a whole number of elements of "
            f"{header.typesize}",
            offset=8,
        )
    if header.header_len == HEADER_LEN and bool(header.flags & _DELTA) != (
        DELTA_FILTER in header.filters
    ):
        raise CorruptChunkError(
            f"flags {header.flags:#04x} and filters {header.filters} disagree on the delta filter",
            offset=2,
        )
