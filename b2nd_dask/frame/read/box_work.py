"""Work to read an array in boxes, relative to reading each block once; from the grid alone."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace
from typing import Any

import numpy as np

from b2nd_dask.format.grid import Grid

#: Finding a chunk and its blocks takes 0.1 ms, as long as decoding this many bytes.
VISIT_NBYTES = 1 << 17
Sizes = tuple[tuple[int, ...], ...]


def decodes_per_block(grid: Grid, sizes: Sizes, corner: tuple[int, ...] | None = None) -> float:
    """Compute how often each block is decoded on average if an array is read in boxes.

    The array is not empty. Lengths of the boxes along each axis together cover it, or a part of it
    from a corner on, by default the first element. The result is 1.0 if every box ends at edges of
    blocks.

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


def visits_per_chunk(grid: Grid, sizes: Sizes, corner: tuple[int, ...] | None = None) -> float:
    """Compute how many boxes read from a chunk on average; arguments as `decodes_per_block`."""
    return decodes_per_block(replace(grid, blocks=grid.chunks), sizes, corner)


def relative_work(grid: Grid, sizes: Sizes, corner: tuple[int, ...] | None = None) -> float:
    """Compute the time of reading in boxes relative to decoding each touched block once.

    Arguments are those of `decodes_per_block`.

    Examples
    --------
    Chunks of 40 kB that are found four times, and not decoded more often for that:

    >>> maps = Grid((6, 100, 100), chunks=(1, 100, 100), blocks=(1, 50, 50), itemsize=4)
    >>> round(relative_work(maps, ((6,), (50, 50), (50, 50))), 1)
    3.3
    """
    visits = visits_per_chunk(grid, sizes, corner)
    decodes = decodes_per_block(grid, sizes, corner)
    once = VISIT_NBYTES + grid.chunk_nbytes
    return (visits * VISIT_NBYTES + decodes * grid.chunk_nbytes) / once


def _touched(sizes: tuple[int, ...], start: int, chunk: int, block: int) -> int:
    """Count the blocks along one axis that boxes touch, once per box."""
    ends = np.fromiter(itertools.accumulate(sizes, initial=start), np.int64, len(sizes) + 1)
    starts, lasts = ends[:-1], ends[1:] - 1
    touched = block_number(lasts, chunk, block) - block_number(starts, chunk, block) + 1
    return int(touched[lasts >= starts].sum())


def block_number(position: Any, chunk: int, block: int) -> Any:
    """Compute the numbers of the blocks with these positions; numbers restart in each chunk."""
    cell, inner = position // chunk, position % chunk
    return cell * -(-chunk // block) + inner // block


def touched_blocks_along(positions: range, chunk: int, block: int) -> int:
    """Count the blocks along one axis with some of ascending positions; may be slightly too large.

    Examples
    --------
    >>> touched_blocks_along(range(5, 25), 10, 4), touched_blocks_along(range(0, 100, 50), 10, 4)
    (7, 2)
    """
    if not positions:
        return 0
    span = block_number(positions[-1], chunk, block) - block_number(positions[0], chunk, block)
    return min(len(positions), int(span) + 1)
