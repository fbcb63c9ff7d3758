"""How much is decoded when an array is read in boxes, before anything is read.

Counted in blocks: those that a box touches are decoded for it, and one that several boxes touch is
decoded for each. That one task takes all blocks of a chunk where it touches nearly all of them
(`plan.NEARLY_ALL`) is left out: then hardly more is decoded.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import replace
from typing import Any

import numpy as np

from b2nd_dask.format.grid import Grid

#: Finding a chunk and its blocks takes as long as decoding so many bytes: 0.1 ms.
VISIT_NBYTES = 1 << 17

Sizes = tuple[tuple[int, ...], ...]


def decodes_per_block(grid: Grid, sizes: Sizes, corner: tuple[int, ...] | None = None) -> float:
    """How often each block is decoded, on average, when an array is read in boxes.

    Parameters
    ----------
    grid : Grid
        Of the frame that is read; not of an empty array.
    sizes : tuple of tuple of int
        Lengths of the boxes along each axis, which together cover the array, or a part of it.
    corner : tuple of int, optional
        Where the first box begins; by default at the first element.

    Returns
    -------
    float
        1.0 where every box ends at edges of blocks.

    Examples
    --------
    Maps as time series: boxes of whole blocks, and boxes that are smaller than a block.

    >>> maps = Grid((6, 100, 100), chunks=(1, 100, 100), blocks=(1, 50, 50), itemsize=4)
    >>> decodes_per_block(maps, ((6,), (50, 50), (50, 50)))
    1.0
    >>> decodes_per_block(maps, ((6,), (25,) * 4, (100,)))
    2.0
    """
    axes = zip(sizes, corner or (0,) * grid.ndim, grid.chunks, grid.blocks, strict=True)
    return math.prod(
        _touched(along, start, chunk, block) / _touched((sum(along),), start, chunk, block)
        for along, start, chunk, block in axes
    )


def relative_work(grid: Grid, sizes: Sizes, corner: tuple[int, ...] | None = None) -> float:
    """How much longer reading in boxes takes than decoding every touched block once.

    Parameters
    ----------
    grid, sizes, corner
        As for `decodes_per_block`.

    Examples
    --------
    Chunks of 40 kB that are found four times, and not decoded more often for that:

    >>> maps = Grid((6, 100, 100), chunks=(1, 100, 100), blocks=(1, 50, 50), itemsize=4)
    >>> round(relative_work(maps, ((6,), (50, 50), (50, 50))), 1)
    3.3
    """
    visits = decodes_per_block(replace(grid, blocks=grid.chunks), sizes, corner)
    decodes = decodes_per_block(grid, sizes, corner)
    once = VISIT_NBYTES + grid.chunk_nbytes
    return (visits * VISIT_NBYTES + decodes * grid.chunk_nbytes) / once


def _touched(sizes: tuple[int, ...], start: int, chunk: int, block: int) -> int:
    """Blocks along one axis that boxes touch, counted once for each box."""
    ends = np.fromiter(itertools.accumulate(sizes, initial=start), np.int64, len(sizes) + 1)
    starts, lasts = ends[:-1], ends[1:] - 1
    touched = block_number(lasts, chunk, block) - block_number(starts, chunk, block) + 1
    return int(touched[lasts >= starts].sum())


def block_number(position: Any, chunk: int, block: int) -> Any:
    """Numbers of the blocks that hold positions; blocks begin anew in each chunk."""
    cell, inner = position // chunk, position % chunk
    return cell * -(-chunk // block) + inner // block


def touched_blocks_along(positions: range, chunk: int, block: int) -> int:
    """Blocks along one axis that hold some of ascending positions, or a few more.

    Examples
    --------
    >>> touched_blocks_along(range(5, 25), 10, 4), touched_blocks_along(range(0, 100, 50), 10, 4)
    (7, 2)
    """
    if not positions:
        return 0
    span = block_number(positions[-1], chunk, block) - block_number(positions[0], chunk, block)
    return min(len(positions), int(span) + 1)
