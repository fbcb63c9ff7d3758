"""Between a chunk as it is stored, which is a grid of blocks, and elements in an array."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from functools import lru_cache
from typing import Any, NamedTuple

from numpy.typing import NDArray

from b2nd_dask.format.grid import Grid, split_positions


class Tile(NamedTuple):
    """Neighbouring blocks along one axis of which the same elements are selected."""

    blocks: slice
    """Numbers of the blocks along the axis."""
    inner: slice
    """Selected elements of each block."""
    out: slice
    """Where they lie in the array."""


# most chunks of a region are cut alike
@lru_cache(maxsize=1024)
def tiles(positions: range, block: int, *, compact: bool = False) -> tuple[Tile, ...]:
    """Cut the selected positions of a chunk's axis into tiles.

    Parameters
    ----------
    positions : range
        Ascending positions in the chunk.
    block : int
        Elements of a block along this axis.
    compact : bool
        Whether only touched blocks are there, and counted.

    Examples
    --------
    >>> for tile in tiles(range(3, 14), 4):
    ...     print(tile)
    Tile(blocks=slice(0, 1, None), inner=slice(3, 4, 1), out=slice(0, 1, None))
    Tile(blocks=slice(1, 3, None), inner=slice(0, 4, 1), out=slice(1, 9, None))
    Tile(blocks=slice(3, 4, None), inner=slice(0, 2, 1), out=slice(9, 11, None))
    >>> tiles(range(0, 40, 20), 10, compact=True)
    (Tile(blocks=slice(0, 2, None), inner=slice(0, 1, 20), out=slice(0, 2, None)),)
    """
    merged: list[Tile] = []
    for number, (cell, inner, out) in enumerate(split_positions(positions, block)):
        at = number if compact else cell
        tile = Tile(slice(at, at + 1), slice(inner.start, inner.stop, inner.step), out)
        if merged and merged[-1].inner == tile.inner and merged[-1].blocks.stop == at:
            last = merged.pop()
            blocks = slice(last.blocks.start, at + 1)
            tile = Tile(blocks, tile.inner, slice(last.out.start, out.stop))
        merged.append(tile)
    return tuple(merged)


def scatter_chunk(
    raw: NDArray[Any],
    grid: Grid,
    inner: tuple[range, ...],
    out: NDArray[Any],
    *,
    some_blocks: bool = False,
) -> None:
    """Copy the selected elements of a decoded chunk to where they belong.

    Parameters
    ----------
    raw : ndarray
        The chunk's elements in stored order, 1-D.
    inner : tuple of range
        Selected positions in the chunk, along each axis.
    out : ndarray
        Of the selection's shape.
    some_blocks : bool
        Whether `raw` has the touched blocks alone.
    """
    axes = [tiles(r, b, compact=some_blocks) for r, b in zip(inner, grid.blocks, strict=True)]
    counts = grid.blocks_per_chunk
    if some_blocks:
        counts = tuple(axis[-1].blocks.stop for axis in axes)
    for stored, target in _paired_views(raw.reshape(counts + grid.blocks), axes, out):
        target[...] = stored


def gather_chunk(elements: NDArray[Any], grid: Grid, raw: NDArray[Any]) -> None:
    """Copy the elements of a chunk into stored order.

    Parameters
    ----------
    elements : ndarray
        The chunk's valid elements: of the shape of a chunk, or less at the array's edges.
    raw : ndarray
        1-D, for all elements of the chunk; padding is left as it is.
    """
    axes = [tiles(range(n), b) for n, b in zip(elements.shape, grid.blocks, strict=True)]
    blocks = raw.reshape(grid.blocks_per_chunk + grid.blocks)
    for stored, source in _paired_views(blocks, axes, elements):
        stored[...] = source


def _paired_views(
    blocks: NDArray[Any], axes: list[tuple[Tile, ...]], elements: NDArray[Any]
) -> Iterator[tuple[NDArray[Any], NDArray[Any]]]:
    """Views of the same elements in stored order and in the array, tile by tile."""
    ndim = elements.ndim
    # (block numbers ..., elements ...) to (block number, elements) axis by axis
    interleaved = tuple(itertools.chain.from_iterable((i, ndim + i) for i in range(ndim)))
    for combination in itertools.product(*axes):
        numbers, inside = (t.blocks for t in combination), (t.inner for t in combination)
        # the ellipsis keeps a 0-d result an array
        stored = blocks[(*numbers, *inside, ...)].transpose(interleaved)  # type: ignore[arg-type]
        part = elements[(*(t.out for t in combination), ...)]  # type: ignore[arg-type]
        # splitting axes never needs a copy, and a copy here would lose what is written
        yield stored, part.reshape(stored.shape, copy=False)
