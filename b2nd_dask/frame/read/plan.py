"""Read plans: which chunks a region touches, and which elements of each."""

from __future__ import annotations

import functools
import math
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from b2nd_dask.format.grid import AxisCells, Grid
from b2nd_dask.format.index import ChunkKind
from b2nd_dask.frame.open.opening import ParsedFrame
from b2nd_dask.frame.read.buffers import MAX_SCRATCH_NBYTES

#: If more than this fraction of a chunk's blocks is touched, all are read.
NEARLY_ALL = 0.9
#: If the best batch of a store is larger, its requests take longer than small buffers save.
MOST_BATCH = 1 << 20
#: Not a `ChunkKind`.
_LEFT_OUT = np.uint8(255)


class Part(NamedTuple):
    """The part of a region in one chunk."""

    chunk: int
    inner: tuple[range, ...]
    """Selected positions in the chunk."""
    out: tuple[slice, ...]
    """Position of these elements in the result."""

    def in_boxes(self, grid: Grid, nbytes: int) -> Iterator[Part]:
        """Divide the part into boxes of blocks of at most `nbytes` bytes each."""
        for box in grid.boxes_of_blocks(nbytes):
            axes = zip(self.inner, self.out, box, strict=True)
            cut = [_within(positions, out, along) for positions, out, along in axes]
            if all(len(positions) for positions, _ in cut):
                yield Part(self.chunk, tuple(p for p, _ in cut), tuple(out for _, out in cut))


@dataclass(frozen=True, eq=False)
class RegionPlan:
    """The touched chunks as columns: regions of a million chunks need no object per chunk."""

    cells: tuple[AxisCells, ...]
    """The touched cells of the chunk grid along each axis."""
    chunks: NDArray[np.int64]
    """Numbers of the touched chunks, in C order over the cells."""
    kinds: NDArray[np.uint8]
    """`ChunkKind` of each touched chunk."""

    @classmethod
    def of(cls, frame: ParsedFrame, axes: tuple[range, ...]) -> RegionPlan:
        """Plan a region of ascending positions along each axis, at least one each."""
        cells = tuple(AxisCells(a, c) for a, c in zip(axes, frame.grid.chunks, strict=True))
        chunks = frame.grid.chunk_numbers(axis.numbers for axis in cells)
        return cls(cells, chunks, frame.index.kinds[chunks])

    @property
    def counts(self) -> tuple[int, ...]:
        """Touched chunks along each axis."""
        return tuple(map(len, self.cells))

    @property
    def single_kind(self) -> int | None:
        """The special kind that all touched chunks share, else None."""
        kind = int(self.kinds[0])
        return kind if kind and (self.kinds == kind).all() else None

    def without(self, chosen: NDArray[np.bool_]) -> RegionPlan:
        """The plan without the chosen chunks."""
        if not chosen.any():
            return self
        return replace(self, kinds=np.where(chosen, _LEFT_OUT, self.kinds))

    def sizes(self, axes: Collection[int]) -> NDArray[np.int64]:
        """Number of selected elements of each touched chunk, along some axes."""
        return per_chunk(
            cells.lengths if axis in axes else np.ones(len(cells), np.int64)
            for axis, cells in enumerate(self.cells)
        )

    def parts(self, chosen: NDArray[np.bool_] | None = None) -> Iterator[Part]:
        """Iterate over the parts in the chosen chunks, by default the stored ones, in C order."""
        where = np.flatnonzero(self.kinds == ChunkKind.STORED if chosen is None else chosen)
        # 0-d arrays have one chunk and no axes
        numbers = np.unravel_index(where, self.counts) if self.counts else ()
        columns = [
            [axis[i] for i in along.tolist()]
            for axis, along in zip(self.cells, numbers, strict=True)
        ]
        rows = zip(*columns, strict=True) if columns else ((),) * len(where)
        for chunk, row in zip(self.chunks[where].tolist(), rows, strict=True):
            yield Part(chunk, tuple(p.inner for p in row), tuple(p.out for p in row))


def per_chunk(columns: Iterable[NDArray[Any]]) -> NDArray[np.int64]:
    """Multiply the numbers of the cells along each axis; one product per chunk in C order."""
    start: NDArray[Any] = np.ones(1, np.int64)
    return functools.reduce(np.multiply.outer, columns, start).reshape(-1)


def reads_in_boxes(frame: ParsedFrame, batch_nbytes: float) -> bool:
    """Whether chunks are decoded box by box, since no scratch buffer can hold a whole one.

    `batch_nbytes` is the best number of compressed bytes to read at once.
    """
    return (
        frame.grid.chunk_nbytes > MAX_SCRATCH_NBYTES
        and batch_nbytes <= MOST_BATCH
        and frame.header.compression.has_independent_blocks
    )


def _within(positions: range, out: slice, along: slice) -> tuple[range, slice]:
    """Restrict positions to a slice; also return their position in the result."""
    first, last = (
        min(len(positions), max(0, -(-(edge - positions.start) // positions.step)))
        for edge in (along.start, along.stop)
    )
    return positions[first:last], slice(out.start + first, out.start + last)


# most chunks of a region have equal selections
@lru_cache(maxsize=1024)
def touched_blocks(inner: tuple[range, ...], grid: Grid) -> NDArray[np.int64] | None:
    """Compute the numbers of the blocks of a chunk that contain selected elements.

    They ascend and must not be modified; None if reading all blocks is better. `inner` has
    ascending positions in the chunk.

    Examples
    --------
    >>> grid = Grid((64, 64), (32, 32), (4, 8), 8)
    >>> touched_blocks((range(5, 11), range(0, 32, 16)), grid)
    array([ 4,  6,  8, 10])
    """
    return blocks_at([touched_along(r, b) for r, b in zip(inner, grid.blocks, strict=True)], grid)


def blocks_at(touched: Sequence[Sequence[int]], grid: Grid) -> NDArray[np.int64] | None:
    """Like `touched_blocks`, from the numbers of the touched blocks along each axis."""
    if is_nearly_all(math.prod(map(len, touched)), grid):
        return None
    axes = np.ix_(*(np.array(t, np.int64) for t in touched))
    numbers: NDArray[np.int64] = np.ravel_multi_index(axes, grid.blocks_per_chunk).reshape(-1)
    return numbers


def is_nearly_all(count: int, grid: Grid) -> bool:
    """Whether reading all blocks of a chunk is better than reading `count` of them."""
    return count >= NEARLY_ALL * math.prod(grid.blocks_per_chunk)


def touched_along(positions: range, block: int) -> list[int]:
    """List the blocks along one axis that contain selected positions."""
    if positions.step <= block:
        return list(range(positions[0] // block, positions[-1] // block + 1))
    return [position // block for position in positions]
