"""Encode and decode chunks and repeated elements. The only caller of python-blosc2's codecs.

`blosc2.decompress2` does not check the length of its destination (docs/format.md, What must be
checked). So decoding requires a `ChunkHeader`, which `parse_chunk_header` has checked against
the frame.
"""

from __future__ import annotations

import math
import struct
from typing import Any

import blosc2
import numpy as np
from numpy.typing import NDArray

from b2nd_dask.errors import CorruptChunkError, UnsupportedFrameError
from b2nd_dask.format.chunk.chunk_header import (
    EXTENDED,
    HAS_DICT,
    Buffer,
    ChunkHeader,
    Special,
    parse_chunk_header,
)
from b2nd_dask.format.chunk.compression import MAX_TYPESIZE, SHAPED_CODECS, Compression
from b2nd_dask.format.grid import Grid

# this package decodes in several threads; python-blosc2 holds the GIL by default
blosc2.set_releasegil(True)


#: Codecs that python-blosc2 contains. For other codecs C-Blosc2 starts a Python process to find
#: them; a file must not cause that.
_CODECS = frozenset(
    {codec.value for codec in blosc2.Codec if codec.value <= blosc2.Codec.ZSTD.value}
    | SHAPED_CODECS
)
_FILTERS = frozenset(f.value for f in blosc2.Filter)


def decode_chunk(data: Buffer, header: ChunkHeader, out: NDArray[Any]) -> None:
    """Decode a whole chunk into a contiguous array of exactly as many bytes.

    Raises `CorruptChunkError` if the compressed streams cannot be decoded.
    """
    target = out.reshape(-1).view(np.uint8)
    if header.memcpyed:
        # upstream cannot decode these if the dictionary that was requested did not help
        target[:] = np.frombuffer(data, np.uint8, header.nbytes, header.header_len)
        return
    try:
        blosc2.decompress2(memoryview(data)[: header.cbytes], dst=target, nthreads=1)
    except (RuntimeError, ValueError) as error:
        raise CorruptChunkError(
            "its compressed data cannot be decoded: the file is damaged"
        ) from error


def decode_shaped_chunk(data: Buffer, header: ChunkHeader, grid: Grid, out: NDArray[Any]) -> None:
    """Decode a chunk whose header says `needs_shape`, given the grid of its frame.

    C-Blosc2 takes the shapes for ZFP, NDLZ, NDCELL and NDMEAN from the array of the chunk. So the
    chunk becomes the only one of an array in memory, and is decoded there. `out` is contiguous and
    has exactly as many bytes as the decoded chunk. Raises `CorruptChunkError` if the compressed
    streams cannot be decoded, or a codec or filter is not registered.
    """
    try:
        # the chunk's own header has its compression; the array owns the memory of its SChunk
        alone = blosc2.empty(
            grid.chunks,
            np.dtype(f"V{grid.itemsize}"),
            chunks=grid.chunks,
            blocks=grid.blocks,
            # worker threads would not survive a fork
            dparams=blosc2.DParams(nthreads=1),
        )
        alone.schunk.update_chunk(0, _padded(memoryview(data)[: header.cbytes], grid.blocks))
        alone.schunk.decompress_chunk(0, dst=out.reshape(-1).view(np.uint8))
    except (RuntimeError, ValueError, struct.error) as error:
        raise CorruptChunkError(
            "its compressed data cannot be decoded: the file is damaged, or its codec or filter "
            "is not registered in this process"
        ) from error


def _padded(chunk: Buffer, blocks: tuple[int, ...]) -> bytes:
    """Append zeros to a chunk, for codecs that read past the end of damaged streams.

    ZFP always reads up to some bits per cell of 4 elements along each axis.
    """
    padding = math.prod(-(-n // 4) for n in blocks) // 8 + 4096
    out = bytearray(chunk) + bytes(padding)
    struct.pack_into("<i", out, 12, len(out))
    return bytes(out)


def encode_chunk(raw: NDArray[Any], how: Compression, *, typesize: int, blocksize: int) -> bytes:
    """Compress contiguous elements in stored order to a chunk with a 32-byte header.

    `typesize` and `blocksize` are the bytes of an element and of a block. Raises
    `UnsupportedFrameError` for a codec or filter that python-blosc2 lacks, or parameters that it
    rejects.
    """
    if how.codec not in _CODECS or not _FILTERS.issuperset(how.filters):
        raise UnsupportedFrameError(
            f"python-blosc2 does not have codec {how.codec}, or one of filters {how.filters}"
        )
    try:
        chunk = blosc2.compress2(
            raw.reshape(-1).view(np.uint8),
            codec=blosc2.Codec(how.codec),
            codec_meta=how.codec_meta,
            clevel=how.clevel,
            filters=[blosc2.Filter(f) for f in how.filters],
            # unsigned in the header, signed for python-blosc2
            filters_meta=[meta - 256 if meta > 127 else meta for meta in how.filters_meta],
            splitmode=blosc2.SplitMode(how.splitmode),
            use_dict=how.use_dict,
            typesize=typesize,
            blocksize=blocksize,
            nthreads=1,
        )
    except (RuntimeError, ValueError) as error:
        raise UnsupportedFrameError(
            f"python-blosc2 cannot compress elements of {typesize} bytes with {how}"
        ) from error
    return _without_absent_dict(bytes(chunk)) if how.use_dict else bytes(chunk)


def _without_absent_dict(chunk: bytes) -> bytes:
    """Clear the dictionary flag of a chunk whose blocks are stored uncompressed.

    C-Blosc2 3.3.5 sets the flag, and then cannot decode the chunk.
    """
    header = parse_chunk_header(chunk)
    if not (header.memcpyed and header.has_dict):
        return chunk
    return chunk[:31] + bytes([header.special_flags & ~HAS_DICT]) + chunk[32:]


def encode_repeated(value: bytes, *, nbytes: int, blocksize: int) -> bytes:
    """Build a chunk that repeats one element (docs/format.md, Special values): header and element.

    `nbytes` and `blocksize` are the uncompressed bytes of the chunk and of a block.
    """
    typesize = len(value) if len(value) <= MAX_TYPESIZE else 1
    head = struct.pack("<BBBBiii", 5, 1, EXTENDED, typesize, nbytes, blocksize, 32 + len(value))
    return head + bytes(15) + bytes([Special.REPEATED << 4]) + value


def constant_of(data: Buffer, header: ChunkHeader, dtype: np.dtype[Any]) -> NDArray[Any] | None:
    """Extract the one element that a chunk repeats, 0-d and read-only.

    None for a chunk that must be decoded or was never written.
    """
    if header.special == Special.ZEROS:
        return read_only(np.zeros((), dtype))
    if header.special == Special.NAN:
        return nan_element(dtype)
    width = header.cbytes - header.header_len
    if header.special == Special.REPEATED and dtype.itemsize % width == 0:
        value = bytes(data[header.header_len : header.cbytes]) * (dtype.itemsize // width)
        return np.frombuffer(value, dtype)[0:1].reshape(())
    return None


def nan_element(dtype: np.dtype[Any]) -> NDArray[Any]:
    """Build the element that a NaN chunk repeats, 0-d and read-only.

    The format fills such chunks with little-endian quiet NaNs as wide as the element, 4 or 8 bytes,
    for every dtype (docs/format.md, Offset index). Complex and raw elements keep these bytes.
    Big-endian floats would become a denormal number, which no writer means, so they get a NaN.
    Raises `CorruptChunkError` for a dtype without NaN.
    """
    if dtype.itemsize not in (4, 8) or dtype.kind not in "fcV" or dtype.fields is not None:
        raise CorruptChunkError(f"it is marked as NaN, but {dtype} has no NaN")
    if dtype.kind == "f":
        return read_only(np.array(np.nan, dtype))
    return read_only(np.array(np.nan, f"<f{dtype.itemsize}")).view(dtype)


def read_only(elements: NDArray[Any]) -> NDArray[Any]:
    """Make a shared array read-only, and return it; its earlier views stay writable."""
    elements.flags.writeable = False
    return elements
