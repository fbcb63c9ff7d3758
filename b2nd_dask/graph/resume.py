"""Going on with a write that was interrupted: its key, and the blocks that it still lacks."""

from __future__ import annotations

import itertools
import logging

import dask.array as da
import numpy as np
from dask.base import tokenize
from numpy.typing import NDArray

from b2nd_dask.format.grid import Grid
from b2nd_dask.frame.records import ChunkRecords
from b2nd_dask.frame.writer import FramePlan

logger = logging.getLogger("b2nd_dask")

#: Changes with what is staged and how: what another version left is then no one's.
_LAYOUT = 1


def resume_key(
    items: da.Array, origin: tuple[int, ...], plan: FramePlan, label: str, state: str
) -> str:
    """What all runs of one write have in common, and no other write has.

    Parameters
    ----------
    items : dask.array.Array
        Its name stands for its data, as everywhere in dask.
    origin : tuple of int
    plan : FramePlan
    label : str
        Path or URL of the target; without secrets.
    state : str
        Of the frame that is changed, or how the target is treated.

    Returns
    -------
    str
        16 hexadecimal digits.
    """
    return tokenize(_LAYOUT, items, origin, plan, label, state)[:16]


def unstaged_blocks(
    chunks: tuple[tuple[int, ...], ...], origin: tuple[int, ...], grid: Grid, staged: ChunkRecords
) -> tuple[NDArray[np.bool_], ChunkRecords]:
    """Tell which blocks have to be computed.

    Parameters
    ----------
    chunks : tuple of tuple of int
        Of the dask array; each block is made of whole chunks of the frame.
    origin : tuple of int
        Where the array goes in the frame.
    grid : Grid
        Of the frame.
    staged : ChunkRecords
        Chunks that are staged already.

    Returns
    -------
    missing : ndarray of bool
        One for each block.
    reused : ChunkRecords
        Those of the other blocks.
    """
    there = np.zeros(grid.counts, bool)
    there.reshape(-1)[staged.rows["chunk"]] = True
    reused = np.zeros(grid.counts, bool)
    missing = np.ones(tuple(map(len, chunks)), bool)
    axes = [_chunk_ranges(*axis) for axis in zip(chunks, origin, grid.chunks, strict=True)]
    for block in np.ndindex(missing.shape):
        place = tuple(axis[i] for axis, i in zip(axes, block, strict=True))
        if there[place].all():
            missing[block], reused[place] = False, True
    rows = staged.rows[reused.reshape(-1)[staged.rows["chunk"]]]
    return missing, ChunkRecords(staged.parts, rows)


def say_reused(label: str, reused: int, nchunks: int) -> None:
    """Log how much of a write need not be done again."""
    logger.info("%s: %d of %d chunks are reused", label, reused, nchunks)


def _chunk_ranges(sizes: tuple[int, ...], start: int, chunk: int) -> list[slice]:
    edges = itertools.accumulate(sizes, initial=start)
    return [slice(a // chunk, -(-b // chunk)) for a, b in itertools.pairwise(edges)]
