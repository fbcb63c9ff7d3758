"""From a decoded chunk, which is a grid of blocks, to items in the caller's array."""

from __future__ import annotations

import itertools
from typing import Any, NamedTuple

from numpy.typing import NDArray

from b2nd_dask.format.grid import Grid, split_positions


class Tile(NamedTuple):
    """Neighbouring blocks along one axis of which the same items are selected."""

    blocks: slice
    """Numbers of the blocks along the axis."""
    inner: slice
    """Selected items of each block."""
    out: slice
    """Where they go in the result."""


def tiles(positions: range, block: int) -> list[Tile]:
    """Cut the selected positions of a chunk's axis into tiles: blocks taken whole share one.

    Parameters
    ----------
    positions : range
        Ascending positions in the chunk.
    block : int
        Items of a block along this axis.

    Returns
    -------
    list of Tile

    Examples
    --------
    >>> for tile in tiles(range(3, 14), 4):
    ...     print(tile)
    Tile(blocks=slice(0, 1, None), inner=slice(3, 4, 1), out=slice(0, 1, None))
    Tile(blocks=slice(1, 3, None), inner=slice(0, 4, 1), out=slice(1, 9, None))
    Tile(blocks=slice(3, 4, None), inner=slice(0, 2, 1), out=slice(9, 11, None))
    """
    merged: list[Tile] = []
    for cell, inner, out in split_positions(positions, block):
        tile = Tile(slice(cell, cell + 1), slice(inner.start, inner.stop, inner.step), out)
        whole = len(inner) == block
        if whole and merged and merged[-1].inner == tile.inner and merged[-1].blocks.stop == cell:
            last = merged.pop()
            tile = Tile(
                slice(last.blocks.start, cell + 1), tile.inner, slice(last.out.start, out.stop)
            )
        merged.append(tile)
    return merged


def scatter_chunk(
    raw: NDArray[Any], grid: Grid, inner: tuple[range, ...], out: NDArray[Any]
) -> None:
    """Copy the selected items of a decoded chunk to where they belong.

    Parameters
    ----------
    raw : ndarray
        All items of the chunk in stored order, 1-D.
    grid : Grid
    inner : tuple of range
        Selected positions in the chunk, along each axis.
    out : ndarray
        Of the selection's shape.
    """
    ndim = grid.ndim
    blocks = raw.reshape(grid.blocks_per_chunk + grid.blocks)
    # (block numbers ..., items ...) to (block number, items) axis by axis
    interleaved = tuple(itertools.chain.from_iterable((i, ndim + i) for i in range(ndim)))
    axes = [tiles(positions, b) for positions, b in zip(inner, grid.blocks, strict=True)]
    for combination in itertools.product(*axes):
        source = blocks[tuple(t.blocks for t in combination) + tuple(t.inner for t in combination)]
        source = source.transpose(interleaved)
        # the ellipsis keeps a 0-d result an array
        place: tuple[Any, ...] = (*(t.out for t in combination), ...)
        target = out[place]
        # splitting axes never needs a copy, and a copy here would lose the items
        target.reshape(source.shape, copy=False)[...] = source
