"""A small contiguous frame in memory around one chunk."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from b2nd_dask.format.array_meta import build_array_meta
from b2nd_dask.format.chunk.chunk_header import Buffer
from b2nd_dask.format.chunk.compression import Compression
from b2nd_dask.format.grid import Grid
from b2nd_dask.format.header import FrameHeader, build_header
from b2nd_dask.format.index import build_index
from b2nd_dask.format.trailer import Trailer, build_trailer


def one_chunk_frame(chunk: Buffer, header: FrameHeader, grid: Grid) -> bytes:
    """Wrap one chunk of a frame into a frame of its own.

    For the codecs that look at the shapes of the array (ZFP, NDLZ, NDCELL, NDMEAN): C-Blosc2 takes
    these from the metalayer of the frame that the chunk is in.

    Parameters
    ----------
    chunk : bytes-like
        The chunk.
    header : FrameHeader
        Of the frame that it comes from.
    grid : Grid
        Likewise.

    Returns
    -------
    bytes
        A frame of shape `grid.chunks`, with elements of raw bytes.
    """
    alone = Grid(grid.chunks, grid.chunks, grid.blocks, grid.itemsize)
    meta = build_array_meta(alone, np.dtype(f"V{grid.itemsize}"))
    index, trailer = build_index(np.zeros(1, np.int64)), build_trailer(Trailer({}, b""))
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
