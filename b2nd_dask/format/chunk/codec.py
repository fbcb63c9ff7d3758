"""Encode and decode chunks, or some blocks of them. Only this module calls python-blosc2's codecs.

`blosc2.decompress2` does not check the length of its destination (docs/format.md, What must be
checked). So decoding requires a `ChunkHeader`, which `parse_chunk_header` has checked against
the frame.

A chunk consists of a header, which describes the compression, the offset of each block, and the
blocks as independent streams. So the header, new offsets and some of the streams are a smaller
chunk, which any decoder reads. In the same way smaller chunks can be joined, and a large chunk can
be compressed piece by piece in a small buffer (docs/format.md, Some blocks alone).
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterable
from typing import Any, NamedTuple

import blosc2
import numpy as np
from numpy.typing import NDArray

from b2nd_dask.errors import CorruptChunkError, UnsupportedFrameError
from b2nd_dask.format.chunk.chunk_header import (
    EXTENDED,
    HAS_DICT,
    HEADER_LEN,
    Buffer,
    ChunkHeader,
    ChunkKind,
    head_nbytes,
    parse_chunk_header,
)
from b2nd_dask.format.chunk.compression import (
    DELTA_FILTER,
    MAX_TYPESIZE,
    SHAPED_CODECS,
    Compression,
)
from b2nd_dask.format.grid import Grid

# this package decodes in several threads; python-blosc2 holds the GIL by default
blosc2.set_releasegil(True)

_OFFSET = np.dtype("<i4")
#: Word positions in the header: uncompressed and compressed bytes of the chunk.
_NBYTES, _CBYTES = 1, 3
_HEADER_WORDS = HEADER_LEN // _OFFSET.itemsize
#: A stream of zeros has no bytes (docs/format.md, Chunk body).
_ZEROS = bytes(_OFFSET.itemsize)


def decode_chunk(data: Buffer, header: ChunkHeader, out: NDArray[Any]) -> None:
    """Decode a whole chunk into a contiguous array of exactly as many bytes.

    Raises `CorruptChunkError` if the compressed streams cannot be decoded.
    """
    target = out.reshape(-1).view(np.uint8)
    if header.memcpyed:
        # upstream cannot decode uncompressed blocks of a chunk with the dictionary flag
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

    For ZFP, NDLZ, NDCELL and NDMEAN, C-Blosc2 needs the array of the chunk. So the chunk is decoded
    as the only chunk of an array in memory. `out` is contiguous and has exactly as many bytes as
    the decoded chunk. Raises `CorruptChunkError` if the compressed streams cannot be decoded, or a
    codec or filter is not registered.
    """
    try:
        # no cparams: the chunk's header has them; `alone` must outlive the use of its SChunk
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

    ZFP reads up to some bits for each cell of 4 elements along each axis.
    """
    padding = math.prod(-(-n // 4) for n in blocks) // 8 + 4096
    out = bytearray(chunk) + bytes(padding)
    struct.pack_into("<i", out, 12, len(out))
    return bytes(out)


def encode_chunk(
    raw: NDArray[Any], compression: Compression, *, typesize: int, blocksize: int
) -> bytes:
    """Compress contiguous elements in stored order to a chunk with a 32-byte header.

    `typesize` and `blocksize` are the bytes of an element and of a block. Raises
    `UnsupportedFrameError` for a codec or filter that python-blosc2 lacks, or parameters that it
    rejects.
    """
    if compression.codec > blosc2.Codec.ZSTD.value and compression.codec not in SHAPED_CODECS:
        # C-Blosc2 starts a Python process to find other codecs; a file must not cause that
        raise UnsupportedFrameError(f"python-blosc2 does not contain codec {compression.codec}")
    try:
        chunk = blosc2.compress2(
            raw.reshape(-1).view(np.uint8),
            codec=blosc2.Codec(compression.codec),
            codec_meta=compression.codec_meta,
            clevel=compression.clevel,
            filters=[blosc2.Filter(f) for f in compression.filters],
            # unsigned in the header, signed for python-blosc2
            filters_meta=[meta - 256 if meta > 127 else meta for meta in compression.filters_meta],
            splitmode=blosc2.SplitMode(compression.splitmode),
            use_dict=compression.use_dict,
            typesize=typesize,
            blocksize=blocksize,
            nthreads=1,
        )
    except (RuntimeError, ValueError) as error:
        raise UnsupportedFrameError(
            f"python-blosc2 cannot compress elements of {typesize} bytes with {compression}"
        ) from error
    return _clear_unused_dict_flag(bytes(chunk)) if compression.use_dict else bytes(chunk)


def _clear_unused_dict_flag(chunk: bytes) -> bytes:
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
    return head + bytes(15) + bytes([ChunkKind.ONE_VALUE << 4]) + value


def constant_of(data: Buffer, header: ChunkHeader, dtype: np.dtype[Any]) -> NDArray[Any] | None:
    """Extract the one element that a chunk repeats, 0-d and read-only; None if it must be decoded.

    Not for NaN chunks and chunks that were never written: the caller chooses their element.
    """
    if header.special == ChunkKind.ZEROS:
        return read_only(np.zeros((), dtype))
    width = header.cbytes - header.header_len
    if header.special == ChunkKind.ONE_VALUE and dtype.itemsize % width == 0:
        value = bytes(data[header.header_len : header.cbytes]) * (dtype.itemsize // width)
        return np.frombuffer(value, dtype)[0:1].reshape(())
    return None


def nan_element(dtype: np.dtype[Any]) -> NDArray[Any]:
    """Build the element that a NaN chunk repeats, 0-d and read-only.

    The format defines the bytes for every dtype: a little-endian quiet NaN as wide as the element,
    4 or 8 bytes (docs/format.md, Offset index). Complex and raw elements have these bytes.
    Big-endian floats would have a denormal number, which no writer means, so they get a NaN. Raises
    `CorruptChunkError` for a dtype without NaN.
    """
    if dtype.itemsize not in (4, 8) or dtype.kind not in "fcV" or dtype.fields is not None:
        raise CorruptChunkError(f"it is marked as NaN, but {dtype} has no NaN")
    if dtype.kind == "f":
        return read_only(np.array(np.nan, dtype))
    return read_only(np.array(np.nan, f"<f{dtype.itemsize}")).view(dtype)


def read_only(elements: NDArray[Any]) -> NDArray[Any]:
    """Make an array read-only and return it; earlier views of it stay writable."""
    elements.flags.writeable = False
    return elements


class BlockSubsets(NamedTuple):
    """The same blocks of several chunks, each as a smaller chunk: a head, then the blocks."""

    heads: list[bytes]
    """Header and block offsets of each smaller chunk."""
    headers: list[ChunkHeader]
    """Header of each smaller chunk, derived from a checked header."""
    whole_cbytes: list[int]
    """Bytes of each original chunk."""
    spans: NDArray[np.int64]
    """Start and stop of each block (second axis) of each original chunk (first axis), in bytes."""


def subsets_of(
    heads: list[Buffer], available: list[int], header: ChunkHeader, blocks: NDArray[np.int64]
) -> BlockSubsets | None:
    """Make smaller chunks of the same blocks of several chunks, in one vectorized step.

    `heads` are the first `head_nbytes` of each chunk, fewer if the chunk is shorter; `available`
    bytes may belong to each; `header` is the checked header of the first chunk.

    Returns None if a chunk must be decoded as a whole, or if the headers of several chunks differ
    in more than the length: then the caller must check each chunk separately.
    """
    count = _first_block(header, header.nblocks)
    if _decodes_whole(header) or min(map(len, heads)) < count:
        return None
    joined = np.frombuffer(b"".join([head[:count] for head in heads]), _OFFSET)
    words = joined.reshape(len(heads), -1)
    fixed, offsets = words[:, :_HEADER_WORDS].copy(), words[:, _HEADER_WORDS:].astype(np.int64)
    cbytes = fixed[:, _CBYTES].astype(np.int64)
    fixed[:, _CBYTES] = 0
    spans = _block_spans(offsets, cbytes, header, blocks)
    if spans is None or (fixed != fixed[0]).any() or (cbytes > available).any():
        return None
    lengths = spans[..., 1] - spans[..., 0]
    stops = _first_block(header, len(blocks)) + np.cumsum(lengths, axis=1)
    nbytes = len(blocks) * header.blocksize
    fixed[:, _NBYTES], fixed[:, _CBYTES] = nbytes, stops[:, -1]
    if not header.memcpyed:
        fixed = np.concatenate([fixed, (stops - lengths).astype(_OFFSET)], axis=1)
    headers = [header._replace(nbytes=nbytes, cbytes=length) for length in stops[:, -1].tolist()]
    return BlockSubsets([row.tobytes() for row in fixed], headers, cbytes.tolist(), spans)


def _first_block(header: ChunkHeader, nblocks: int) -> int:
    """Compute the offset of the first block; uncompressed blocks have no offsets before it."""
    return HEADER_LEN if header.memcpyed else head_nbytes(nblocks)


def _block_spans(
    offsets: NDArray[np.int64],
    cbytes: NDArray[np.int64],
    header: ChunkHeader,
    blocks: NDArray[np.int64],
) -> NDArray[np.int64] | None:
    """Find start and stop of blocks, a row per chunk; None if a length or an offset is invalid."""
    spans = np.empty((len(cbytes), len(blocks), 2), np.int64)
    if header.memcpyed:
        # uncompressed blocks are equally long, and have no offsets
        spans[..., 0] = HEADER_LEN + blocks * header.blocksize
        spans[..., 1] = spans[..., 0] + header.blocksize
        return spans if (cbytes == header.cbytes).all() else None
    rows, order = np.arange(len(offsets))[:, None], np.argsort(offsets, axis=1)
    edges = np.empty((len(offsets), offsets.shape[1] + 1), np.int64)
    edges[:, :-1] = offsets[rows, order]
    edges[:, -1] = cbytes
    # streams start behind the offsets, are not empty, and do not overlap
    is_behind = edges[:, 0] >= head_nbytes(header.nblocks)
    if not is_behind.all() or (edges[:, 1:] - edges[:, :-1] < _OFFSET.itemsize).any():
        return None
    ends = np.empty_like(offsets)
    ends[rows, order] = edges[:, 1:]
    spans[..., 0], spans[..., 1] = offsets[:, blocks], ends[:, blocks]
    return spans


def _decodes_whole(header: ChunkHeader) -> bool:
    """Whether the chunk must be decoded as a whole."""
    return bool(
        header.header_len != HEADER_LEN
        or header.special
        or header.has_dict
        or header.needs_shape
        or DELTA_FILTER in header.filters
        or header.nbytes % header.blocksize
    )


def join_chunks(pieces: Iterable[bytes]) -> bytes | None:
    """Join chunks of consecutive whole blocks, all made by `encode_chunk` with independent blocks.

    None if a piece did not shrink: then it is stored uncompressed, which the format allows for
    whole chunks only.
    """
    chunks: list[bytes] = []
    headers: list[ChunkHeader] = []
    for piece in pieces:
        headers.append(parse_chunk_header(piece))
        chunks.append(piece)
        if headers[-1].memcpyed:
            return None
    at = next((i for i, header in enumerate(headers) if not header.special), None)
    if at is None:
        return None
    first, like = headers[at], chunks[at]
    zeros = _ZEROS * (1 if first.has_one_stream else first.typesize)
    lengths, bodies = [], []
    for header, piece in zip(headers, chunks, strict=True):
        if header.special:
            lengths.append(np.full(header.nblocks, len(zeros)))
            bodies.append(memoryview(zeros * header.nblocks))
        else:
            offsets = np.frombuffer(piece, _OFFSET, header.nblocks, HEADER_LEN)
            lengths.append(np.diff(offsets, append=len(piece)))
            bodies.append(memoryview(piece)[head_nbytes(header.nblocks) :])
    start = head_nbytes(sum(header.nblocks for header in headers))
    stops = start + np.cumsum(np.concatenate(lengths))
    offsets = np.concatenate([[start], stops[:-1]]).astype(_OFFSET)
    nbytes = sum(header.nbytes for header in headers)
    sizes = struct.pack("<iii", nbytes, first.blocksize, int(stops[-1]))
    return b"".join([like[:4], sizes, like[16:HEADER_LEN], offsets.tobytes(), *bodies])
