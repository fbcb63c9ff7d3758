"""One compressed chunk as bytes, and what its header says (REFERENCE 4)."""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass
from enum import IntEnum

from b2nd_dask.errors import CorruptChunkError
from b2nd_dask.format.chunk.compression import SHAPED_CODECS, SHAPED_FILTERS

Buffer = bytes | bytearray | memoryview

HEADER_LEN = 32
#: Blosc1 chunks, without the filter pipeline and the special values.
SHORT_HEADER_LEN = 16
_ALPHA_VERSION = 3
MAX_DICT_LEN = 32768
#: Wider elements are stored with a typesize of 1.
MAX_TYPESIZE = 255

#: Of the flags in byte 2: shuffle and bitshuffle at once mark a header of 32 bytes.
EXTENDED = 0x05
_MEMCPYED = 0x02
#: Of the flags in byte 31.
HAS_DICT = 0x01
_PLUGIN_CODEC = 6
#: Codecs and filters from here on are registered by the user, in this process.
FIRST_USER_ID = 160


class Special(IntEnum):
    """What a chunk without compressed data stands for."""

    NONE = 0
    ZEROS = 1
    NAN = 2
    REPEATED = 3
    """One value, stored behind the header, over and over."""
    UNINIT = 4


@dataclass(frozen=True, slots=True)
class ChunkHeader:
    """The first 32 (Blosc1: 16) bytes of a chunk."""

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
    """Id of a plug-in codec; built-in codecs stand in `flags`."""
    flags2: int
    special_flags: int

    @property
    def special(self) -> int:
        """Special value code, see `Special`; may be out of its range before `check_chunk`."""
        return self.special_flags >> 4 & 0x07

    @property
    def memcpyed(self) -> bool:
        """Whether the blocks are stored as they are."""
        return bool(self.flags & _MEMCPYED)

    @property
    def has_dict(self) -> bool:
        """Whether a dictionary stands behind the block offsets."""
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
        """Whether decoding needs the shapes of the array, or a codec or filter of the user's."""
        return not (self.special or self.memcpyed) and (
            self.codec_id in SHAPED_CODECS
            or self.codec_id >= FIRST_USER_ID
            or any(f in SHAPED_FILTERS or f >= FIRST_USER_ID for f in self.filters)
        )


def parse_chunk_header(data: Buffer) -> ChunkHeader:
    """Read a chunk's header.

    Parameters
    ----------
    data : bytes-like
        The chunk, from its first byte.

    Returns
    -------
    ChunkHeader

    Raises
    ------
    CorruptChunkError
        The data ends before the header does.
    """
    header_len = SHORT_HEADER_LEN
    if len(data) >= SHORT_HEADER_LEN and data[2] & EXTENDED == EXTENDED:
        header_len = HEADER_LEN
    if len(data) < header_len:
        raise CorruptChunkError(
            f"{len(data)} bytes are left for a header of {header_len}", offset=0
        )
    version, _, flags, typesize, nbytes, blocksize, cbytes = struct.unpack_from("<BBBBiii", data)
    if header_len == SHORT_HEADER_LEN:
        return ChunkHeader(
            header_len, version, flags, typesize, nbytes, blocksize, cbytes, (0,) * 6, 0, 0, 0
        )
    # the alpha version left the last slot unset, and C-Blosc2 takes it for empty
    filters = tuple(data[16:21]) + ((0,) if version == _ALPHA_VERSION else (data[21],))
    return ChunkHeader(
        header_len,
        version,
        flags,
        typesize,
        nbytes,
        blocksize,
        cbytes,
        filters,
        data[22],
        data[30],
        data[31],
    )


def whole_chunk(data: Buffer) -> memoryview:
    """Cut a chunk off from what lies behind it.

    Parameters
    ----------
    data : bytes-like
        The chunk from its first byte, and maybe more.

    Returns
    -------
    memoryview
        As many bytes as the chunk's header says.

    Raises
    ------
    CorruptChunkError
        Fewer are there.
    """
    header = parse_chunk_header(data)
    if not header.header_len <= header.cbytes <= len(data):
        raise CorruptChunkError(
            f"the chunk says that it has {header.cbytes} bytes, {len(data)} are there", offset=12
        )
    return memoryview(data)[: header.cbytes]


def padded_chunk(chunk: Buffer, blocks: tuple[int, ...]) -> bytes:
    """Add zeros behind a chunk, for codecs that read past the end of damaged streams.

    ZFP reads up to some bits for each cell of 4 elements an axis, whatever is there.

    Parameters
    ----------
    chunk : bytes-like
        The whole chunk.
    blocks : tuple of int
        Elements of a block along each axis.

    Returns
    -------
    bytes
        The chunk with a larger length in its header.
    """
    padding = math.prod(-(-n // 4) for n in blocks) // 8 + 4096
    out = bytearray(chunk) + bytes(padding)
    struct.pack_into("<i", out, 12, len(out))
    return bytes(out)
