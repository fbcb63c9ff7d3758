"""Some blocks of a chunk as a chunk of their own (REFERENCE 4.2).

The blocks of a chunk are independent streams, and its header is followed by the place of each. A
copy of the header, new places and the wanted streams make a smaller chunk that any decoder takes.
"""

from __future__ import annotations

import struct

import numpy as np
from numpy.typing import NDArray

from b2nd_dask.format.chunk.chunk_header import HEADER_LEN, Buffer, ChunkHeader
from b2nd_dask.format.chunk.compression import DELTA_FILTER

_PLACE = np.dtype("<i4")


def head_nbytes(nblocks: int) -> int:
    """Bytes to read before the blocks of a chunk can be found.

    Parameters
    ----------
    nblocks : int

    Returns
    -------
    int
    """
    return HEADER_LEN + _PLACE.itemsize * nblocks


def block_spans(
    head: Buffer, header: ChunkHeader, blocks: NDArray[np.int64]
) -> NDArray[np.int64] | None:
    """Where blocks lie in a chunk that `check_chunk` has passed.

    Parameters
    ----------
    head : bytes-like
        The first `head_nbytes` of the chunk; fewer where it is shorter.
    header : ChunkHeader
    blocks : ndarray of int64
        Numbers of blocks.

    Returns
    -------
    ndarray of int64, or None
        First byte and end of each, counted from the chunk's start. None for a chunk that has to be
        decoded as a whole.
    """
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
    places = np.frombuffer(head, _PLACE, header.nblocks, HEADER_LEN).astype(np.int64)
    edges = np.append(np.sort(places), header.cbytes)
    # streams begin behind the places, are not empty, and no two are one
    if edges[0] < head_nbytes(header.nblocks) or (np.diff(edges) < _PLACE.itemsize).any():
        return None
    starts = places[blocks]
    return np.stack([starts, edges[np.searchsorted(edges, starts, side="right")]], axis=1)


def head_of_blocks(head: Buffer, header: ChunkHeader, spans: NDArray[np.int64]) -> bytes:
    """Begin the chunk that consists of some blocks; their bytes follow, in order.

    Parameters
    ----------
    head : bytes-like
        Of the chunk that they come from.
    header : ChunkHeader
        Likewise.
    spans : ndarray of int64
        What `block_spans` gave.

    Returns
    -------
    bytes
    """
    lengths = spans[:, 1] - spans[:, 0]
    places, start = b"", HEADER_LEN
    if not header.memcpyed:
        start = head_nbytes(len(spans))
        places = (start + np.cumsum(lengths) - lengths).astype(_PLACE).tobytes()
    sizes = struct.pack(
        "<iii", len(spans) * header.blocksize, header.blocksize, start + int(lengths.sum())
    )
    return b"".join([head[:4], sizes, head[16:HEADER_LEN], places])
