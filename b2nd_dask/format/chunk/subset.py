"""Some blocks of a chunk as a chunk of their own (docs/format.md, Some blocks alone).

The blocks of a chunk are independent streams, and its header is followed by the offset of each. A
copy of the header, new offsets and the wanted streams make a smaller chunk that any decoder takes.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from b2nd_dask.format.chunk.chunk_header import HEADER_LEN, Buffer, ChunkHeader
from b2nd_dask.format.chunk.compression import DELTA_FILTER

_OFFSET = np.dtype("<i4")


class BlockSubset(NamedTuple):
    """A chunk of some blocks of another: `head`, then the bytes of the blocks in order."""

    header: ChunkHeader
    """What `head` says: of a checked chunk, and so checked, too."""
    head: bytes
    """The header and the offsets of the blocks."""
    spans: NDArray[np.int64]
    """First byte and end of each block, counted from the start of the chunk that it comes from."""


def head_nbytes(nblocks: int) -> int:
    """Count the bytes to read before the blocks of a chunk can be found."""
    return HEADER_LEN + _OFFSET.itemsize * nblocks


def subset_of(head: Buffer, header: ChunkHeader, blocks: NDArray[np.int64]) -> BlockSubset | None:
    """Begin the chunk that consists of some blocks of another.

    Parameters
    ----------
    head : bytes-like
        The first `head_nbytes` of the chunk; fewer where it is shorter.
    header : ChunkHeader
        Of the chunk.
    blocks : ndarray of int64
        Numbers of blocks.

    Returns
    -------
    BlockSubset or None
        None for a chunk that has to be decoded as a whole.
    """
    spans = _block_spans(head, header, blocks)
    if spans is None:
        return None
    lengths = spans[:, 1] - spans[:, 0]
    offsets, start = b"", HEADER_LEN
    if not header.memcpyed:
        start = head_nbytes(len(spans))
        offsets = (start + np.cumsum(lengths) - lengths).astype(_OFFSET).tobytes()
    smaller = header._replace(
        nbytes=len(spans) * header.blocksize, cbytes=start + int(lengths.sum())
    )
    sizes = struct.pack("<iii", smaller.nbytes, smaller.blocksize, smaller.cbytes)
    return BlockSubset(smaller, b"".join([head[:4], sizes, head[16:HEADER_LEN], offsets]), spans)


def _block_spans(
    head: Buffer, header: ChunkHeader, blocks: NDArray[np.int64]
) -> NDArray[np.int64] | None:
    """Find first byte and end of blocks; None where they cannot be decoded alone."""
    if (
        header.header_len != HEADER_LEN
        or header.special
        or header.has_dict
        or header.needs_shape
        or DELTA_FILTER in header.filters
        or header.nbytes % header.blocksize
    ):
        return None
    if header.memcpyed:
        starts = HEADER_LEN + blocks * header.blocksize
        return np.stack([starts, starts + header.blocksize], axis=1)
    if len(head) < head_nbytes(header.nblocks):
        return None
    offsets = np.frombuffer(head, _OFFSET, header.nblocks, HEADER_LEN).astype(np.int64)
    edges = np.append(np.sort(offsets), header.cbytes)
    # streams begin behind the offsets, are not empty, and no two are one
    if edges[0] < head_nbytes(header.nblocks) or (np.diff(edges) < _OFFSET.itemsize).any():
        return None
    starts = offsets[blocks]
    return np.stack([starts, edges[np.searchsorted(edges, starts, side="right")]], axis=1)
