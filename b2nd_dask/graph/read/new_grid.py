"""Whether a frame is read anew in other blocks, or its blocks are cut and joined by dask."""

from __future__ import annotations

import warnings

import numpy as np

from b2nd_dask.errors import level_of_caller
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

#: Whoever asks for blocks that take so much longer, for so many bytes, is told.
_MUCH_WORK, _MANY_NBYTES = 4.0, 1 << 30


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


def warn_of_work(frame: FrameReference, sizes: Chunks) -> None:
    """Warn where all of a frame takes much longer in these blocks than in its own."""
    kinds = frame.chunk_kinds()
    # special chunks have a kind other than 0, and are not decoded
    stored = kinds.size - np.count_nonzero(kinds)
    if not stored or 0 in frame.shape:
        return
    work = relative_work(frame.grid, sizes)
    if work > _MUCH_WORK and work * stored * frame.grid.chunk_nbytes > _MANY_NBYTES:
        warnings.warn(
            f"{frame.description}: to compute all of it in the blocks of chunks= takes about "
            f"{work:.0f} times as long as in its own, since each reads parts of many chunks. Give "
            "larger blocks, or multiples of its own; from_b2nd(path).rechunk(chunks) leaves it to "
            "dask, which may hold the whole array; b2nd_dask.rechunk writes a frame of such chunks "
            "in little memory",
            stacklevel=level_of_caller(),
        )
