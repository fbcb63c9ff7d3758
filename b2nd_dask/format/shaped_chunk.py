"""Decoding of chunks whose codec or filters look at the shapes of the array.

C-Blosc2 takes the shapes for ZFP, NDLZ, NDCELL and NDMEAN from the metalayer of the frame that the
chunk is in: such a chunk is decoded in a small frame of its own, in memory.
"""

from __future__ import annotations

import math
import struct
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from b2nd_dask.format.array_meta import build_array_meta
from b2nd_dask.format.chunk.chunk_header import Buffer, ChunkHeader
from b2nd_dask.format.chunk.codec import decode_in_frame
from b2nd_dask.format.chunk.compression import Compression
from b2nd_dask.format.grid import Grid
from b2nd_dask.format.header import FrameHeader, build_header
from b2nd_dask.format.index import build_index
from b2nd_dask.format.trailer import build_trailer


def decode_shaped_chunk(
    data: Buffer, header: ChunkHeader, frame: FrameHeader, grid: Grid, out: NDArray[Any]
) -> None:
    """Decode a chunk whose header says `needs_shape`.

    Parameters
    ----------
    data : bytes-like
        The chunk.
    header : ChunkHeader
        Its header.
    frame, grid : FrameHeader, Grid
        Of the frame that it comes from.
    out : ndarray
        Contiguous; exactly as many bytes as the chunk holds.

    Raises
    ------
    CorruptChunkError
        The compressed streams cannot be decoded, or a codec or filter is not registered.
    """
    chunk = _padded_chunk(memoryview(data)[: header.cbytes], grid.blocks)
    decode_in_frame(_one_chunk_frame(chunk, frame, grid), out)


def _padded_chunk(chunk: Buffer, blocks: tuple[int, ...]) -> bytes:
    """Add zeros behind a chunk, for codecs that read past the end of damaged streams.

    ZFP reads up to some bits for each cell of 4 elements an axis, whatever is there.
    """
    padding = math.prod(-(-n // 4) for n in blocks) // 8 + 4096
    out = bytearray(chunk) + bytes(padding)
    struct.pack_into("<i", out, 12, len(out))
    return bytes(out)


def _one_chunk_frame(chunk: bytes, header: FrameHeader, grid: Grid) -> bytes:
    """Wrap one chunk into a frame of shape `grid.chunks`, with elements of raw bytes."""
    alone = Grid(grid.chunks, grid.chunks, grid.blocks, grid.itemsize)
    meta = build_array_meta(alone, np.dtype(f"V{grid.itemsize}"))
    index, trailer = build_index(np.zeros(1, np.int64)), build_trailer({})
    fields = replace(
        header,
        sparse=False,
        nbytes=grid.chunk_nbytes,
        cbytes=len(chunk),
        typesize=grid.itemsize,
        metalayers={"b2nd": meta},
        # the chunk says itself how it was compressed; upstream looks for the frame's codec, even in
        # other programs
        compression=Compression(codec=0, clevel=1, filters=(0,) * 6),
    )
    # the header's own length does not depend on its values
    start = len(build_header(fields, has_vlmeta=False))
    frame_len = start + len(chunk) + len(index) + len(trailer)
    head = build_header(replace(fields, frame_len=frame_len), has_vlmeta=False)
    return b"".join([head, chunk, index, trailer])
