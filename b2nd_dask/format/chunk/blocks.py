"""Make a chunk of some blocks of another chunk, and join chunks of blocks into one chunk.

The blocks of a chunk are independent streams. The header, which describes their compression, is
followed by the offset of each block. A copy of the header, new offsets and the selected streams
make a smaller chunk that any decoder reads. The reverse joins chunks: a large chunk can be
compressed piece by piece in a small buffer (docs/format.md, Some blocks alone).
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from b2nd_dask.format.chunk.chunk_header import HEADER_LEN, Buffer, ChunkHeader, parse_chunk_header
from b2nd_dask.format.chunk.compression import DELTA_FILTER

_OFFSET = np.dtype("<i4")
#: Word positions in the header: uncompressed and compressed bytes of the chunk.
_NBYTES, _CBYTES = 1, 3
_HEADER_WORDS = HEADER_LEN // _OFFSET.itemsize
#: A stream of zeros has no bytes (docs/format.md, Chunk body).
_ZEROS = bytes(_OFFSET.itemsize)


def head_nbytes(nblocks: int) -> int:
    """Compute the number of bytes in front of the first block: header and block offsets."""
    return HEADER_LEN + _OFFSET.itemsize * nblocks


class BlockSubsets(NamedTuple):
    """The same blocks of several chunks, as chunks: each is a head, then the bytes of its blocks.

    Their headers come from a checked header.
    """

    heads: list[bytes]
    """Header and block offsets of each smaller chunk."""
    nbytes: int
    """Uncompressed bytes of each smaller chunk."""
    cbytes: list[int]
    """Bytes of each smaller chunk."""
    whole_cbytes: list[int]
    """Bytes of each original chunk."""
    spans: NDArray[np.int64]
    """Start and stop of each block (second axis) of each original chunk (first axis), in bytes."""


def subsets_of(
    heads: list[Buffer], available: list[int], header: ChunkHeader, blocks: NDArray[np.int64]
) -> BlockSubsets | None:
    """Make a chunk of the same blocks of each of several chunks, in one vectorized step.

    Heads are the first `head_nbytes` of each chunk, fewer if the chunk is shorter; `available`
    bytes may belong to each; `header` is the checked one of the first chunk.

    Returns None for a single chunk that must be decoded as a whole. None for several if one must
    be, or if their headers differ in more than the length: then each must be checked separately.
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
    return BlockSubsets(
        [row.tobytes() for row in fixed], nbytes, stops[:, -1].tolist(), cbytes.tolist(), spans
    )


def _first_block(header: ChunkHeader, nblocks: int) -> int:
    """Compute the start of the blocks: those of a plain chunk have no offsets."""
    return HEADER_LEN if header.memcpyed else head_nbytes(nblocks)


def _block_spans(
    offsets: NDArray[np.int64],
    cbytes: NDArray[np.int64],
    header: ChunkHeader,
    blocks: NDArray[np.int64],
) -> NDArray[np.int64] | None:
    """Find start and stop of blocks, a row per chunk; None if a length or an offset is invalid."""
    if header.memcpyed:
        if (cbytes != header.cbytes).any():
            return None
        starts = HEADER_LEN + blocks * header.blocksize
        stops = starts + header.blocksize
    else:
        ends = _ends_of_blocks(offsets, cbytes)
        if ends is None:
            return None
        starts, stops = offsets[:, blocks], ends[:, blocks]
    spans = np.empty((len(cbytes), len(blocks), 2), np.int64)
    spans[..., 0], spans[..., 1] = starts, stops
    return spans


def _ends_of_blocks(
    offsets: NDArray[np.int64], cbytes: NDArray[np.int64]
) -> NDArray[np.int64] | None:
    """Compute the ends of the blocks' streams, a row per chunk; None if an offset is invalid."""
    rows, order = np.arange(len(offsets))[:, None], np.argsort(offsets, axis=1)
    edges = np.empty((len(offsets), offsets.shape[1] + 1), np.int64)
    edges[:, :-1] = offsets[rows, order]
    edges[:, -1] = cbytes
    # streams start behind the offsets, are not empty, and do not overlap
    is_behind = edges[:, 0] >= head_nbytes(offsets.shape[1])
    if not is_behind.all() or (edges[:, 1:] - edges[:, :-1] < _OFFSET.itemsize).any():
        return None
    ends = np.empty_like(offsets)
    ends[rows, order] = edges[:, 1:]
    return ends


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
    """Join chunks of consecutive whole blocks, all from `encode_chunk` with independent blocks.

    None if a piece did not shrink: it is then stored plain, which only whole chunks can be.
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
