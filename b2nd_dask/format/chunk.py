"""One compressed chunk as bytes: its header, its checks, its constant value (REFERENCE 4)."""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from b2nd_dask.errors import CorruptChunkError, UnsupportedFrameError
from b2nd_dask.format.compression import DELTA_FILTER, SHAPED_CODECS, SHAPED_FILTERS

Buffer = bytes | bytearray | memoryview

HEADER_LEN = 32
#: Blosc1 chunks, without the filter pipeline and the special values.
SHORT_HEADER_LEN = 16
#: Format versions: Blosc1 up to 2, alpha of Blosc2, betas, stable, variable-length blocks.
_VERSIONS = range(1, 7)
_ALPHA_VERSION = 3
#: An int32 less the header and a margin that C-Blosc2 keeps.
MAX_BLOCKSIZE = 536866816
MAX_DICT_LEN = 32768
#: Wider items are stored with a typesize of 1.
MAX_TYPESIZE = 255

#: Of the flags in byte 31.
HAS_DICT = 0x01
_SHUFFLE, _MEMCPYED, _BITSHUFFLE, _DELTA, _NOT_SPLIT = 0x01, 0x02, 0x04, 0x08, 0x10
_EXTENDED = _SHUFFLE | _BITSHUFFLE
_LAZY, _INSTRUMENTED = 0x08, 0x80
_PLUGIN_CODEC = 6
#: Chunk codes of blosclz, lz4, zlib, zstd.
_BUILTIN_CODECS = frozenset({0, 1, 3, 4})
#: None, shuffle, bitshuffle, delta, trunc_prec, the two above, bytedelta, int_trunc.
_KNOWN_FILTERS = frozenset({0, 1, 2, 3, 4, 32, 33, 35, 36})
#: Codecs and filters from here on are registered by the user, in this process.
_FIRST_USER_ID = 160


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
            or self.codec_id >= _FIRST_USER_ID
            or any(f in SHAPED_FILTERS or f >= _FIRST_USER_ID for f in self.filters)
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
    if len(data) >= SHORT_HEADER_LEN and data[2] & _EXTENDED == _EXTENDED:
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


def check_chunk(
    header: ChunkHeader, available: int, *, nbytes: int, blocksize: int, typesize: int
) -> None:
    """Hold a chunk's header against what its frame promises, before anything is decoded.

    Parameters
    ----------
    header : ChunkHeader
    available : int
        Bytes from the chunk's start that may belong to it.
    nbytes, blocksize, typesize : int
        What the frame says; a blocksize of 0 means any.

    Raises
    ------
    CorruptChunkError
        The header contradicts the frame or itself.
    UnsupportedFrameError
        The chunk needs a codec or filter that does not exist here.
    """
    if not header.header_len <= header.cbytes <= available:
        raise CorruptChunkError(
            f"the chunk says that it has {header.cbytes} bytes, {available} are there", offset=12
        )
    if header.nbytes < 0 or header.typesize < 1:
        raise CorruptChunkError(
            f"{header.nbytes} bytes in items of {header.typesize} cannot be", offset=3
        )
    if header.nbytes != nbytes:
        raise CorruptChunkError(f"it holds {header.nbytes} bytes, {nbytes} are expected", offset=4)
    if not 0 < header.blocksize <= min(MAX_BLOCKSIZE, max(header.nbytes, 1)):
        raise CorruptChunkError(
            f"{header.nbytes} bytes in blocks of {header.blocksize} cannot be", offset=8
        )
    if blocksize not in (0, header.blocksize):
        raise CorruptChunkError(
            f"blocks of {header.blocksize} bytes, {blocksize} are expected", offset=8
        )
    # an item wider than 255 bytes is stored as 1; a chunk compressed with typesize 1 is legal in
    # any frame
    if header.typesize not in (1, typesize):
        raise CorruptChunkError(
            f"items of {header.typesize} bytes, {typesize} are expected", offset=3
        )
    _check_flags(header)
    _check_body(header)
    if not (header.special or header.memcpyed):
        _check_codec(header)
        _check_pipeline(header)


def _check_flags(header: ChunkHeader) -> None:
    """Flags that chunks of arrays do not have, and versions that are not known."""
    if (
        header.flags2
        or header.special_flags & (_LAZY | _INSTRUMENTED)
        or header.special > Special.UNINIT
    ):
        raise CorruptChunkError(
            f"flags {header.flags2:#x} {header.special_flags:#x} mark no chunk of an array",
            offset=30,
        )
    if header.version not in _VERSIONS:
        raise UnsupportedFrameError(
            f"chunk format version {header.version}, known are 1 to {_VERSIONS[-1]}", offset=0
        )


def _check_body(header: ChunkHeader) -> None:
    """Length of the part behind the header, for each of the layouts."""
    body = header.cbytes - header.header_len
    if header.special == Special.REPEATED:
        # one item; typesize says 1 for items wider than 255 bytes
        fits = body == header.typesize or (header.typesize == 1 and 0 < body <= header.nbytes)
        fits = fits and header.nbytes % body == 0
    elif header.special:
        fits = body == 0
    elif header.memcpyed:
        fits = body == header.nbytes
    else:
        # a dictionary is at least its length
        fits = body >= 4 * header.nblocks + 4 * header.has_dict
    if not fits:
        raise CorruptChunkError(
            f"{body} bytes behind the header do not fit {header.nbytes} in {header.nblocks} blocks "
            f"(special value {header.special}, stored plain: {header.memcpyed})",
            offset=12,
        )


def _check_codec(header: ChunkHeader) -> None:
    code = header.flags >> 5
    plugin = header.codec_id
    if code not in _BUILTIN_CODECS and not (plugin in SHAPED_CODECS or plugin >= _FIRST_USER_ID):
        raise UnsupportedFrameError(
            f"codec {plugin if plugin >= 0 else code} is not available", offset=2
        )
    unknown = [f for f in header.filters if f not in _KNOWN_FILTERS and f < _FIRST_USER_ID]
    if unknown:
        raise UnsupportedFrameError(f"filter {unknown[0]} is not available", offset=16)


def _check_pipeline(header: ChunkHeader) -> None:
    """What the header says twice, and what splitting blocks into streams needs."""
    if header.blocksize % header.typesize and header.nblocks > 1:
        raise CorruptChunkError(
            f"blocks of {header.blocksize} bytes hold no whole number of items of "
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


def encode_repeated(value: bytes, *, nbytes: int, blocksize: int) -> bytes:
    """Make the chunk that repeats one item (REFERENCE 6, step 3).

    Parameters
    ----------
    value : bytes
        The item.
    nbytes, blocksize : int
        Uncompressed bytes of the chunk and of a block.

    Returns
    -------
    bytes
        Header and item.
    """
    typesize = len(value) if len(value) <= MAX_TYPESIZE else 1
    head = struct.pack("<BBBBiii", 5, 1, _EXTENDED, typesize, nbytes, blocksize, 32 + len(value))
    return head + bytes(15) + bytes([Special.REPEATED << 4]) + value


def padded_chunk(chunk: Buffer, blocks: tuple[int, ...]) -> bytes:
    """Add zeros behind a chunk, for codecs that read past the end of damaged streams.

    ZFP reads up to some bits for each cell of 4 items an axis, whatever is there.

    Parameters
    ----------
    chunk : bytes-like
        The whole chunk.
    blocks : tuple of int
        Items of a block along each axis.

    Returns
    -------
    bytes
        The chunk with a larger length in its header.
    """
    padding = math.prod(-(-n // 4) for n in blocks) // 8 + 4096
    out = bytearray(chunk) + bytes(padding)
    struct.pack_into("<i", out, 12, len(out))
    return bytes(out)


def constant_of(data: Buffer, header: ChunkHeader, dtype: np.dtype[Any]) -> NDArray[Any] | None:
    """The one item that a checked chunk repeats.

    Parameters
    ----------
    data : bytes-like
        The chunk.
    header : ChunkHeader
        Its header, checked.
    dtype : numpy.dtype
        Of the array.

    Returns
    -------
    ndarray or None
        0-d; None for a chunk that has to be decoded, and for one that was never written.
    """
    if header.special == Special.ZEROS:
        return np.zeros((), dtype)
    if header.special == Special.NAN:
        return nan_item(dtype)
    width = header.cbytes - header.header_len
    if header.special == Special.REPEATED and dtype.itemsize % width == 0:
        value = bytes(data[header.header_len : header.cbytes]) * (dtype.itemsize // width)
        return np.frombuffer(value, dtype)[0:1].reshape(())
    return None


def nan_item(dtype: np.dtype[Any]) -> NDArray[Any]:
    """What a NaN chunk holds, item by item.

    The format fills such chunks with little-endian quiet NaNs as wide as the item, whatever its
    type (REFERENCE 3): that is kept for complex and raw items. For big-endian floats it would be a
    denormal number, which no writer means, so they get a NaN.

    Parameters
    ----------
    dtype : numpy.dtype
        Of the array; 4 or 8 bytes.

    Returns
    -------
    ndarray
        0-d.

    Raises
    ------
    CorruptChunkError
        A type that has no NaN.

    Examples
    --------
    >>> nan_item(np.dtype(">f8"))
    array(nan, dtype='>f8')
    """
    if dtype.itemsize not in (4, 8) or dtype.kind not in "fcV" or dtype.fields is not None:
        raise CorruptChunkError(f"it is marked as NaN, which {dtype} does not have")
    if dtype.kind == "f":
        return np.array(np.nan, dtype)
    return np.array(np.nan, f"<f{dtype.itemsize}").view(dtype)
