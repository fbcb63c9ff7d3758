"""What a chunk's header must say before anything of the chunk is decoded (REFERENCE 4)."""

from __future__ import annotations

from b2nd_dask.errors import CorruptChunkError, UnsupportedFrameError
from b2nd_dask.format.chunk.chunk_header import FIRST_USER_ID, HEADER_LEN, ChunkHeader, Special
from b2nd_dask.format.chunk.compression import DELTA_FILTER, SHAPED_CODECS

#: Format versions: Blosc1 up to 2, alpha of Blosc2, betas, stable, variable-length blocks.
_VERSIONS = range(1, 7)
#: An int32 less the header and a margin that C-Blosc2 keeps.
MAX_BLOCKSIZE = 536866816
#: Of the flags in byte 2.
_DELTA = 0x08
#: Of the flags in byte 31: those of chunks in memory alone.
_LAZY, _INSTRUMENTED = 0x08, 0x80
#: Chunk codes of blosclz, lz4, zlib, zstd.
_BUILTIN_CODECS = frozenset({0, 1, 3, 4})
#: None, shuffle, bitshuffle, delta, trunc_prec, the two above, bytedelta, int_trunc.
_KNOWN_FILTERS = frozenset({0, 1, 2, 3, 4, 32, 33, 35, 36})


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
            f"{header.nbytes} bytes in elements of {header.typesize} cannot be", offset=3
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
    # an element wider than 255 bytes is stored as 1; a chunk compressed with typesize 1 is legal in
    # any frame
    if header.typesize not in (1, typesize):
        raise CorruptChunkError(
            f"elements of {header.typesize} bytes, {typesize} are expected", offset=3
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
        # one element; typesize says 1 for elements wider than 255 bytes
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
    if code not in _BUILTIN_CODECS and not (plugin in SHAPED_CODECS or plugin >= FIRST_USER_ID):
        raise UnsupportedFrameError(
            f"codec {plugin if plugin >= 0 else code} is not available", offset=2
        )
    unknown = [f for f in header.filters if f not in _KNOWN_FILTERS and f < FIRST_USER_ID]
    if unknown:
        raise UnsupportedFrameError(f"filter {unknown[0]} is not available", offset=16)


def _check_pipeline(header: ChunkHeader) -> None:
    """What the header says twice, and what splitting blocks into streams needs."""
    if header.blocksize % header.typesize and header.nblocks > 1:
        raise CorruptChunkError(
            f"blocks of {header.blocksize} bytes hold no whole number of elements of "
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
