"""How much is decoded when an array is read in boxes, before anything is read.

Counted in blocks: those that a box touches are decoded for it, and one that several boxes touch is
decoded for each. That one task takes all blocks of a chunk where it touches nearly all of them
(`plan.NEARLY_ALL`) is left out: then hardly more is decoded.
"""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np

from b2nd_dask.format.grid import Grid


def decodes_per_block(grid: Grid, sizes: tuple[tuple[int, ...], ...]) -> float:
    """How often each block is decoded, on average, when an array is read in boxes.

    Parameters
    ----------
    grid : Grid
        Of the frame that is read; not of an empty array.
    sizes : tuple of tuple of int
        Lengths of the boxes along each axis, which together cover the array.

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
    axes = zip(sizes, grid.shape, grid.chunks, grid.blocks, strict=True)
    return float(
        math.prod(
            _touched(along, chunk, block) / (_number(size - 1, chunk, block) + 1)
            for along, size, chunk, block in axes
        )
    )


def _touched(sizes: tuple[int, ...], chunk: int, block: int) -> int:
    """Blocks along one axis that boxes touch, counted once for each box."""
    ends = np.fromiter(itertools.accumulate(sizes, initial=0), np.int64, len(sizes) + 1)
    starts, lasts = ends[:-1], ends[1:] - 1
    touched = _number(lasts, chunk, block) - _number(starts, chunk, block) + 1
    return int(touched[lasts >= starts].sum())


def _number(position: Any, chunk: int, block: int) -> Any:
    """Numbers of the blocks that hold positions; blocks begin anew in each chunk."""
    cell, inner = position // chunk, position % chunk
    return cell * -(-chunk // block) + inner // block
