"""Read plans: the chunks that a region touches, and the touched elements and blocks of each.

A checksum covers a whole chunk, but a read of a few elements must not fetch all of it. So the
checksum also selects one element of its chunk, the witness. A read of the witness fetches the whole
chunk and verifies it. If all elements of a chunk are read, in any number of parts, tasks and
processes, one of the reads contains the witness and detects damage. A read of a small part rarely
contains it: on average the verified fraction of chunks equals the fraction of their elements read.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from b2nd_dask.format.chunk.chunk_header import ChunkKind, longest_chunk
from b2nd_dask.format.grid import AxisCells, Grid, per_chunk
from b2nd_dask.frame.open.opening import ParsedFrame
from b2nd_dask.frame.read.buffers import MAX_SCRATCH_NBYTES
from b2nd_dask.storage import ByteReader

#: If more than this fraction of a chunk's blocks is touched, all are read.
NEARLY_ALL = 0.9
#: Readers with larger batches, as in stores, lose more by many requests than small buffers save.
MOST_BATCH = 1 << 20
#: Code of chunks that are not read; not a `ChunkKind`.
_SKIPPED = np.uint8(255)
#: To read blocks of a chunk, a first read locates them, a second one reads them. If the whole chunk
#: has at most this many other bytes, it is read at once, which costs less than a second read.
SMALL_WASTE = 1 << 14
#: The limit for all chunks of a read from a store, to which each chunk adds `max_gap`. These bytes
#: take about as long as a second round of requests: 20 ms at 100 MB/s.
SECOND_ROUND = 2 << 20
#: Positions along each axis of an array.
Axes = tuple[range, ...]


class Part(NamedTuple):
    """The part of a region in one chunk."""

    chunk: int
    inner: Axes
    """Selected positions in the chunk."""
    out: tuple[slice, ...]
    """Position of these elements in the result."""

    def in_boxes(self, grid: Grid, nbytes: int) -> Iterator[Part]:
        """Divide the part into boxes of blocks of at most `nbytes` bytes each."""
        for box in grid.boxes_of_blocks(nbytes):
            axes = zip(self.inner, self.out, box, strict=True)
            cut = [within(positions, out, along) for positions, out, along in axes]
            if all(len(positions) for positions, _ in cut):
                yield Part(self.chunk, tuple(p for p, _ in cut), tuple(out for _, out in cut))


@dataclass(frozen=True, eq=False)
class RegionPlan:
    """The touched chunks as columns, so that a million chunks need no object each."""

    cells: tuple[AxisCells, ...]
    """The touched cells of the chunk grid along each axis."""
    chunks: NDArray[np.int64]
    """Numbers of the touched chunks, in C order over the cells."""
    kinds: NDArray[np.uint8]
    """`ChunkKind` of each touched chunk."""
    claims: Axes
    """Positions along each axis: the read verifies the touched chunks with a witness among them."""

    @classmethod
    def of(cls, frame: ParsedFrame, axes: Axes, claims: Axes | None = None) -> RegionPlan:
        """Plan a region of ascending positions along each axis, at least one each.

        `claims` are its own positions by default.
        """
        cells = tuple(AxisCells(a, c) for a, c in zip(axes, frame.grid.chunks, strict=True))
        chunks = frame.grid.chunk_numbers(axis.numbers for axis in cells)
        return cls(cells, chunks, frame.index.kinds[chunks], claims or axes)

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
        """Omit the chosen chunks from the plan."""
        if not chosen.any():
            return self
        return replace(self, kinds=np.where(chosen, _SKIPPED, self.kinds))

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


def reads_in_boxes(frame: ParsedFrame, batch_nbytes: float) -> bool:
    """Whether chunks are decoded in boxes of blocks, since they are too large for a scratch buffer.

    `batch_nbytes` is the best number of compressed bytes to read at once.
    """
    return (
        frame.grid.chunk_nbytes > MAX_SCRATCH_NBYTES
        and batch_nbytes <= MOST_BATCH
        and frame.header.compression.has_independent_blocks
    )


def within(positions: range, out: slice, along: slice) -> tuple[range, slice]:
    """Restrict positions to a slice; also return their position in the result."""
    first, last = (
        min(len(positions), max(0, -(-(edge - positions.start) // positions.step)))
        for edge in (along.start, along.stop)
    )
    return positions[first:last], slice(out.start + first, out.start + last)


# most chunks of a region have equal selections
@functools.lru_cache(maxsize=1024)
def touched_blocks(inner: Axes, grid: Grid) -> NDArray[np.int64] | None:
    """Compute the numbers of the blocks of a chunk that contain selected elements.

    The numbers ascend and must not be modified; None if reading all blocks is better. `inner` are
    ascending positions in the chunk.

    Examples
    --------
    >>> grid = Grid((64, 64), (32, 32), (4, 8), 8)
    >>> touched_blocks((range(5, 11), range(0, 32, 16)), grid)
    array([ 4,  6,  8, 10])
    """
    axes = zip(inner, grid.blocks, strict=True)
    return blocks_at([AxisCells(along, block).numbers for along, block in axes], grid)


def blocks_at(touched: Sequence[NDArray[np.int64]], grid: Grid) -> NDArray[np.int64] | None:
    """Like `touched_blocks`, from the numbers of the touched blocks along each axis."""
    if is_nearly_all(math.prod(map(len, touched)), grid):
        return None
    numbers: NDArray[np.int64] = np.ravel_multi_index(np.ix_(*touched), grid.blocks_per_chunk)
    return numbers.reshape(-1)


def is_nearly_all(count: int, grid: Grid) -> bool:
    """Whether reading all blocks of a chunk is better than reading `count` of them."""
    return count >= NEARLY_ALL * math.prod(grid.blocks_per_chunk)


def block_number(position: Any, chunk: int, block: int) -> Any:
    """Compute the numbers of the blocks with these positions; numbers restart in each chunk."""
    cell, inner = position // chunk, position % chunk
    return cell * -(-chunk // block) + inner // block


def max_waste(reader: ByteReader | type[ByteReader], nchunks: Any) -> Any:
    """Compute the most needless bytes of a chunk to read, to avoid a second read.

    `nchunks` (int or array of int) is the number of chunks that are read in part.
    """
    if reader.identity_is_cheap:
        return SMALL_WASTE
    # in a store
    return reader.max_gap + SECOND_ROUND / np.maximum(1, nchunks)


def is_in_one_round(length: Any, portion: Any, waste: Any) -> Any:
    """Whether a chunk is read whole although a portion of it suffices; also for arrays.

    `waste` is the result of `max_waste`.
    """
    return length * (1 - portion) <= waste


def located_chunks(
    frame: ParsedFrame, chunks: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Compute starts of stored chunks in their objects, and the bytes that may belong to each."""
    longest = longest_chunk(frame.grid.chunk_nbytes, frame.grid.block_nbytes)
    if frame.header.sparse:
        return np.zeros_like(chunks), np.full_like(chunks, longest)
    starts, stops = frame.index.extents(chunks)
    return starts + frame.header.header_len, np.minimum(stops - starts, longest)


def witnesses(
    chunks: NDArray[np.int64], digests: NDArray[np.uint64], grid: Grid
) -> tuple[NDArray[np.int64], ...]:
    """Choose the witness of each chunk by its checksum: positions in the array, along each axis.

    Examples
    --------
    >>> grid = Grid(shape=(10, 10), chunks=(5, 8), blocks=(5, 4), itemsize=8)
    >>> witnesses(np.array([0, 3]), np.array([13, 13], "u8"), grid)
    (array([1, 6]), array([5, 9]))
    """
    if not grid.ndim:
        return ()
    cells = np.unravel_index(chunks, grid.counts)
    rest, found = digests, []
    axes = list(zip(cells, grid.chunks, grid.lengths(cells), strict=True))
    for cell, chunk, length in reversed(axes):
        rest, position = np.divmod(rest, length.astype(np.uint64))
        found.append(cell * chunk + position.astype(np.int64))
    return tuple(reversed(found))


def claimed(
    chunks: NDArray[np.int64], digests: NDArray[np.uint64], grid: Grid, claims: Iterable[Any]
) -> NDArray[np.bool_]:
    """Whether a read claims the witness of each chunk, and so verifies the chunk.

    `claims` has start, stop and step of positions along each axis: scalars, or a column per chunk.
    """
    found = np.ones(chunks.shape, np.bool_)
    for at, (start, stop, step) in zip(witnesses(chunks, digests, grid), claims, strict=True):
        found &= (start <= at) & (at < stop) & ((at - start) % step == 0)
    return found
