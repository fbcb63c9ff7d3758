"""Whether a frame is read anew in other blocks, or its blocks are cut and joined by dask."""

from __future__ import annotations

from b2nd_dask.frame.read.decode_cost import decodes_per_block, relative_work
from b2nd_dask.frame.reference import FrameReference
from b2nd_dask.graph.read.blocks import Chunks
from b2nd_dask.graph.resources import available

#: A frame of at most this share of the memory may be held whole, as dask's rechunk does.
HELD_SHARE = 1 / 8
#: How much longer reading in other blocks may take than reading each once: as long as dask's
#: rechunk takes, by tasks and copies.
MOST_WORK = 2.0
#: The same for a larger frame.
MOST_WORK_LARGE = 16.0


def is_read_anew(frame: FrameReference, sizes: Chunks, corner: tuple[int, ...]) -> bool:
    """Whether to read (a part of) a frame in other blocks.

    Parameters
    ----------
    sizes : tuple of tuple of int
        Lengths of the blocks along each axis.
    corner : tuple of int
        Where the first block begins.
    """
    if not all(map(sum, sizes)):
        return False
    if frame.parsed.index.single_kind:
        return True  # of chunks that repeat one element nothing is read
    if frame.is_remote:
        # each request costs more than what it brings: no chunk is asked for twice
        return visits_per_chunk(frame, sizes, corner) == 1.0
    is_large = frame.nbytes > available().memory * HELD_SHARE
    most = MOST_WORK_LARGE if is_large else MOST_WORK
    return relative_work(frame.grid, sizes, corner) <= most


def visits_per_chunk(
    frame: FrameReference, sizes: Chunks, corner: tuple[int, ...] | None = None
) -> float:
    """How many blocks of these lengths read from a chunk, on average."""
    grid = frame.grid
    whole = type(grid)(grid.shape, grid.chunks, grid.chunks, grid.itemsize)
    return decodes_per_block(whole, sizes, corner)
