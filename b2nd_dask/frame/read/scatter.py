"""Copy elements between a stored chunk, which is a grid of blocks, and an array."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from functools import lru_cache
from typing import Any, NamedTuple

from numpy.typing import NDArray

from b2nd_dask.format.grid import AxisCells, Grid

#: Keep the moves of a layout for the next chunk if there are at most this many.
_FEW_MOVES = 8


class Tile(NamedTuple):
    """Neighbouring blocks along one axis with the same selection in each."""

    blocks: slice
    """Numbers of the blocks along the axis."""
    inner: slice
    """Selected elements of each block."""
    out: slice
    """Position of these elements in the array."""


# most chunks of a region have equal selections
@lru_cache(maxsize=1024)
def tiles(positions: range, block: int, *, compact: bool = False) -> tuple[Tile, ...]:
    """Divide the selected positions along a chunk's axis into tiles of equal blocks.

    `block` counts the elements of a block along this axis; `compact` says whether only touched
    blocks are present and counted.

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
    for number, (cell, inner, out) in enumerate(AxisCells(positions, block)):
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
    """Copy the selected elements of a decoded chunk, 1-D in stored order, into an array.

    `some_blocks` says whether `raw` has only the touched blocks.
    """
    for stored, target in _paired_views(_layout(grid, inner, some_blocks), raw, out):
        target[...] = stored


def gather_chunk(elements: NDArray[Any], grid: Grid, raw: NDArray[Any]) -> None:
    """Copy the valid elements of a chunk, fewer at the array's edges, into stored order.

    `raw` is 1-D, for all elements of the chunk; padding is unchanged.
    """
    layout = _layout(grid, tuple(map(range, elements.shape)), False)
    for stored, source in _paired_views(layout, raw, elements):
        stored[...] = source


class _Move(NamedTuple):
    """Positions of the elements of one tile along each axis."""

    stored: tuple[Any, ...]
    out: tuple[Any, ...]
    shape: tuple[int, ...]
    """Shape of the elements: (block number, elements) axis by axis."""


class _Layout(NamedTuple):
    """Layout of the selected elements of a chunk, in stored order and in an array."""

    shape: tuple[int, ...]
    """Shape of the stored elements: (block numbers ..., elements ...)."""
    axes: tuple[tuple[Tile, ...], ...]
    moves: tuple[_Move, ...] | None
    """None if they are too many to keep."""


# most chunks of a region have equal selections
@lru_cache(maxsize=256)
def _layout(grid: Grid, inner: tuple[range, ...], some_blocks: bool) -> _Layout:
    axes = tuple(tiles(r, b, compact=some_blocks) for r, b in zip(inner, grid.blocks, strict=True))
    counts = grid.blocks_per_chunk
    if some_blocks:
        counts = tuple(axis[-1].blocks.stop for axis in axes)
    few = math.prod(map(len, axes)) <= _FEW_MOVES
    return _Layout(counts + grid.blocks, axes, tuple(_moves(axes)) if few else None)


def _moves(axes: tuple[tuple[Tile, ...], ...]) -> Iterator[_Move]:
    for combination in itertools.product(*axes):
        numbers, inside = (t.blocks for t in combination), (t.inner for t in combination)
        sizes = ((_length(t.blocks), _length(t.inner)) for t in combination)
        yield _Move(
            # the ellipsis makes a 0-d result an array
            (*numbers, *inside, ...),
            (*(t.out for t in combination), ...),
            tuple(itertools.chain.from_iterable(sizes)),
        )


def _length(along: slice) -> int:
    return len(range(along.start, along.stop, along.step or 1))


def _paired_views(
    layout: _Layout, raw: NDArray[Any], elements: NDArray[Any]
) -> Iterator[tuple[NDArray[Any], NDArray[Any]]]:
    """Yield views of the same elements in stored order and in the array, tile by tile."""
    ndim = elements.ndim
    # from (block numbers ..., elements ...) to (block number, elements) axis by axis
    interleaved = tuple(itertools.chain.from_iterable((i, ndim + i) for i in range(ndim)))
    blocks = raw.reshape(layout.shape)
    for stored, out, shape in layout.moves or _moves(layout.axes):
        # splitting axes never needs a copy; a copy here would lose the written elements
        part = elements[out].reshape(shape, copy=False)
        yield blocks[stored].transpose(interleaved), part
