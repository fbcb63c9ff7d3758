"""Geometry of an array in a frame: shape, chunks and blocks; conversion of selections to chunks.

Chunks are numbered in C order over the chunk grid, blocks in C order over the blocks of a chunk,
elements in C order inside a block. Every chunk is stored at full size: edge chunks and edge blocks
are padded.
"""

from __future__ import annotations

import functools
import itertools
import math
import operator
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from types import EllipsisType
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

#: NumPy counts bytes with 63 bits.
MAX_NBYTES = 2**63 - 1


@dataclass(frozen=True)
class Grid:
    """Shape, chunks and blocks of an array, and its itemsize.

    Examples
    --------
    >>> grid = Grid(shape=(100, 60), chunks=(24, 17), blocks=(10, 5), itemsize=8)
    >>> grid.counts, grid.nchunks, grid.blocks_per_chunk, grid.padded_chunk
    ((5, 4), 20, (3, 4), (30, 20))
    >>> grid.cell(7), grid.extent(7)
    ((1, 3), (range(24, 48), range(51, 60)))
    >>> grid.chunk_nbytes, grid.block_nbytes
    (4800, 400)
    """

    shape: tuple[int, ...]
    """Elements along each axis."""
    chunks: tuple[int, ...]
    """Elements of a chunk along each axis; may exceed the shape."""
    blocks: tuple[int, ...]
    """Elements of a block along each axis; never exceeds the chunk."""
    itemsize: int
    """Bytes of an element."""

    @property
    def ndim(self) -> int:
        """Number of axes."""
        return len(self.shape)

    def with_axis(self, axis: int) -> Grid:
        """Insert an axis of length 1; the order of the stored elements stays the same."""
        shape, chunks, blocks = (
            (*lengths[:axis], 1, *lengths[axis:])
            for lengths in (self.shape, self.chunks, self.blocks)
        )
        return Grid(shape, chunks, blocks, self.itemsize)

    @cached_property
    def counts(self) -> tuple[int, ...]:
        """Chunks along each axis; 0 along every axis of an empty array."""
        if 0 in self.shape:
            return (0,) * self.ndim
        return tuple(-(-n // c) for n, c in zip(self.shape, self.chunks, strict=True))

    @cached_property
    def nchunks(self) -> int:
        """Number of chunks: 1 for a 0-d array, 0 for an empty one."""
        return math.prod(self.counts)

    def cell(self, chunk: int) -> tuple[int, ...]:
        """Coordinates of a chunk in the chunk grid; ValueError if no chunk has this number."""
        if not 0 <= chunk < self.nchunks:
            raise ValueError(f"chunk {chunk} does not exist; number of chunks: {self.nchunks}")
        return tuple(map(int, np.unravel_index(chunk, self.counts)))

    def chunk_numbers(self, along: Iterable[NDArray[np.int64]]) -> NDArray[np.int64]:
        """Number the chunks of a box in C order, from its coordinates along each axis."""
        numbers = np.zeros(1, np.int64)
        for cells, count in zip(along, self.counts, strict=True):
            numbers = (numbers[:, None] * count + cells).reshape(-1)
        return numbers

    def lengths(self, along: Iterable[NDArray[np.int64]]) -> list[NDArray[np.int64]]:
        """Lengths, without padding, of the chunks with these coordinates along each axis."""
        axes = zip(along, self.chunks, self.shape, strict=True)
        return [np.minimum(chunk, size - cells * chunk) for cells, chunk, size in axes]

    def extent(self, chunk: int) -> tuple[range, ...]:
        """Positions of a chunk's elements along each axis, without padding."""
        axes = zip(self.cell(chunk), self.chunks, self.shape, strict=True)
        return tuple(range(at * c, min((at + 1) * c, n)) for at, c, n in axes)

    @cached_property
    def blocks_per_chunk(self) -> tuple[int, ...]:
        """Blocks of a chunk along each axis."""
        return tuple(-(-c // b) if b else 0 for c, b in zip(self.chunks, self.blocks, strict=True))

    @cached_property
    def padded_chunk(self) -> tuple[int, ...]:
        """Shape of a stored chunk: a whole number of blocks along each axis."""
        return tuple(n * b for n, b in zip(self.blocks_per_chunk, self.blocks, strict=True))

    @cached_property
    def chunk_nbytes(self) -> int:
        """Uncompressed bytes of every stored chunk, padding included."""
        return math.prod(self.padded_chunk) * self.itemsize

    @cached_property
    def block_nbytes(self) -> int:
        """Uncompressed bytes of every block, padding included."""
        return math.prod(self.blocks) * self.itemsize

    def boxes_of_blocks(self, nbytes: int) -> Iterator[tuple[slice, ...]]:
        """Divide a padded chunk into boxes of blocks that are contiguous in the stored order.

        A box has at most `nbytes` bytes, padding included; a single block may have more.

        Examples
        --------
        >>> grid = Grid(shape=(4, 9), chunks=(4, 9), blocks=(2, 3), itemsize=1)
        >>> list(grid.boxes_of_blocks(12))[:2]
        [(slice(0, 2, None), slice(0, 6, None)), (slice(0, 2, None), slice(6, 9, None))]
        >>> list(grid.boxes_of_blocks(36))
        [(slice(0, 4, None), slice(0, 9, None))]
        """
        counts = self.blocks_per_chunk
        box = contiguous_box(counts, nbytes // self.block_nbytes)
        edges = (
            [*range(0, count * block, step * block), count * block]
            for count, step, block in zip(counts, box, self.blocks, strict=True)
        )
        return boxes_between(edges)

    @cached_property
    def chunk_is_c_order(self) -> bool:
        """Whether a stored chunk, padding included, has its elements in C order.

        Let d be the last axis along which a chunk has several blocks. The order is C order if a
        block has one element along each axis before d, or if there is no such axis.
        """
        split = [axis for axis, n in enumerate(self.blocks_per_chunk) if n > 1]
        return not split or all(b == 1 for b in self.blocks[: split[-1]])


class AxisSlice(NamedTuple):
    """The part of a 1-D selection in one cell (chunk or block) of an axis."""

    cell: int
    """Number of the cell along the axis."""
    inner: range
    """Selected positions, counted from the cell's first element."""
    out: slice
    """Position of these elements in the result."""


def per_chunk(columns: Iterable[NDArray[Any]]) -> NDArray[np.int64]:
    """Multiply values per cell of each axis; one product per chunk, in C order."""
    start: NDArray[Any] = np.ones(1, np.int64)
    return functools.reduce(np.multiply.outer, columns, start).reshape(-1)


def contiguous_box(shape: tuple[int, ...], room: int) -> tuple[int, ...]:
    """Compute the shape of the largest C-contiguous box of at most `room` elements (at least 1).

    Examples
    --------
    >>> contiguous_box((4, 5, 6), 14), contiguous_box((4, 5, 6), 4)
    ((1, 2, 6), (1, 1, 4))
    """
    sizes = [1] * len(shape)
    for axis in reversed(range(len(shape))):
        sizes[axis] = min(shape[axis], max(1, room))
        room //= sizes[axis]
        if sizes[axis] < shape[axis]:
            break
    return tuple(sizes)


def boxes_between(edges: Iterable[Sequence[int]]) -> Iterator[tuple[slice, ...]]:
    """Iterate in C order over the boxes between given edges along each axis.

    Examples
    --------
    >>> list(boxes_between([[0, 2, 3], [0, 5]]))
    [(slice(0, 2, None), slice(0, 5, None)), (slice(2, 3, None), slice(0, 5, None))]
    """
    return itertools.product(*(itertools.starmap(slice, itertools.pairwise(e)) for e in edges))


def steps(total: int, step: int) -> tuple[int, ...]:
    """Compute the lengths of the cells of an axis; the last one may be shorter.

    Examples
    --------
    >>> steps(10, 4)
    (4, 4, 2)
    """
    whole, rest = divmod(total, step)
    return (step,) * whole + ((rest,) if rest else ())


class AxisCells:
    """The cells of one axis that contain positions of an ascending range, in ascending order.

    Cells without a selected position are omitted. The properties are columns of all cells, and an
    `AxisSlice` is created on access, so millions of cells need no object each. `size` is the number
    of elements of a cell.

    Examples
    --------
    >>> for part in AxisCells(range(3, 12, 4), 5):
    ...     print(part)
    AxisSlice(cell=0, inner=range(3, 4, 4), out=slice(0, 1, None))
    AxisSlice(cell=1, inner=range(2, 3, 4), out=slice(1, 2, None))
    AxisSlice(cell=2, inner=range(1, 2, 4), out=slice(2, 3, None))
    >>> AxisCells(range(7), 5).numbers, AxisCells(range(7), 5).lengths
    (array([0, 1]), array([5, 2]))
    """

    def __init__(self, positions: range, size: int) -> None:
        self._positions = positions
        self._size = size
        # else the step exceeds the cell: each position has its own cell, and some cells have none
        self._is_dense = bool(positions) and positions.step <= size
        self._count = len(positions)
        if self._is_dense:
            self._count = positions[-1] // size - positions.start // size + 1

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[AxisSlice]:
        return map(self.__getitem__, range(self._count))

    def __getitem__(self, index: int) -> AxisSlice:
        index = range(self._count)[index]
        start, stop = self.bounds[index : index + 2].tolist()
        cell, first = divmod(self._positions[start], self._size)
        step = self._positions.step
        inner = range(first, first + (stop - start - 1) * step + 1, step)
        return AxisSlice(cell, inner, slice(start, stop))

    @cached_property
    def numbers(self) -> NDArray[np.int64]:
        """Number of each cell along the axis."""
        at, start = np.arange(self._count, dtype=np.int64), self._positions.start
        if self._is_dense:
            return at + start // self._size
        return (at * self._positions.step + start) // self._size

    @cached_property
    def bounds(self) -> NDArray[np.int64]:
        """Start of each cell's positions in the result, and the end of the last cell."""
        bounds = np.empty(self._count + 1, np.int64)
        before = self._positions.start - self.numbers * self._size
        bounds[:-1] = -(before // self._positions.step)
        # the first position may lie inside its cell
        bounds[0], bounds[-1] = 0, len(self._positions)
        return bounds

    @property
    def lengths(self) -> NDArray[np.int64]:
        """Number of selected positions in each cell."""
        return np.diff(self.bounds)


class Selection(NamedTuple):
    """A parsed basic index: the positions to read, and the index to apply to the result."""

    axes: tuple[range, ...]
    """Ascending positions to read along each axis of the array."""
    finish: tuple[int | slice | EllipsisType | None, ...]
    """Index into the read elements: drops integer axes, reverses negative steps, adds new axes."""


def parse_selection(index: object, shape: tuple[int, ...]) -> Selection:
    """Parse a basic index of an array of this shape; slices may go past the end or backwards.

    Raises `IndexError` for an integer out of bounds, too many indices, or an index that is not
    basic.

    Examples
    --------
    >>> parse_selection((slice(None, None, -2), 3, None), (5, 4))
    Selection(axes=(range(0, 6, 2), range(3, 4)), finish=(slice(None, None, -1), 0, None))
    """
    axes: list[range] = []
    finish: list[int | slice | EllipsisType | None] = []
    entries = list(index) if isinstance(index, tuple) else [index]
    for entry in expand_ellipsis(entries, len(shape)):
        if entry is None:
            finish.append(None)
            continue
        axis, size = len(axes), shape[len(axes)]
        if isinstance(entry, slice):
            positions = range(size)[entry]
            backwards = positions.step < 0
            axes.append(positions[::-1] if backwards else positions)
            finish.append(slice(None, None, -1) if backwards else slice(None))
        else:
            axes.append(_single_position(entry, axis, size))
            finish.append(0)
    if _ellipses(entries):
        # with an ellipsis NumPy returns a 0-d array instead of a scalar
        finish.append(Ellipsis)
    return Selection(tuple(axes), tuple(finish))


def _ellipses(entries: list[object]) -> list[int]:
    # `in` would compare arrays element by element
    return [i for i, entry in enumerate(entries) if entry is Ellipsis]


def expand_ellipsis(entries: list[object], ndim: int) -> list[object]:
    """Expand the ellipsis of a basic index: an entry for each of `ndim` axes, and the Nones.

    Raises `IndexError` for too many indices, or more than one ellipsis.
    """
    dots = _ellipses(entries)
    if len(dots) > 1:
        raise IndexError("an index can have only one ellipsis (...)")
    named = sum(entry is not None and entry is not Ellipsis for entry in entries)
    if named > ndim:
        raise IndexError(f"too many indices: the array has {ndim} axes, {named} were indexed")
    at = dots[0] if dots else len(entries)
    return entries[:at] + [slice(None)] * (ndim - named) + entries[at + 1 :]


def _single_position(entry: object, axis: int, size: int) -> range:
    try:
        # True would count as 1
        position = operator.index(None if isinstance(entry, bool) else entry)  # type: ignore[arg-type]
    except TypeError:
        raise IndexError(
            "only integers, slices, ellipsis and None select from a frame, "
            f"not {type(entry).__name__}; for arrays of indices use from_b2nd(...)[...] or .vindex"
        ) from None
    if not -size <= position < size:
        raise IndexError(f"index {position} is out of bounds for axis {axis} with size {size}")
    position %= size
    return range(position, position + 1)
