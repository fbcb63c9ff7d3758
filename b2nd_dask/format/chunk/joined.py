"""Chunks of consecutive blocks joined to one (docs/format.md, Some blocks alone).

The reverse of a subset: blocks are independent streams, and how they are compressed is said once,
in the header. So a large chunk can be compressed in pieces that fit a small buffer.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable

import numpy as np

from b2nd_dask.format.chunk.chunk_header import HEADER_LEN, ChunkHeader, parse_chunk_header
from b2nd_dask.format.chunk.subset import head_nbytes

_OFFSET = np.dtype("<i4")
#: A stream of zeros has no bytes (docs/format.md, Chunk body).
_ZEROS = bytes(_OFFSET.itemsize)


def join_chunks(pieces: Iterable[bytes]) -> bytes | None:
    """Join chunks whose blocks follow one another.

    Parameters
    ----------
    pieces : iterable of bytes
        Of whole blocks, made by `encode_chunk` with one compression that has independent blocks.

    Returns
    -------
    bytes or None
        None where a piece did not shrink: it is stored plain then, which only whole chunks can be.
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
