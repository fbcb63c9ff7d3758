"""Reads of blocks, layers of these reads, and recognition of such layers and of constants."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import dask.array as da
import numpy as np
from dask.base import normalize_token
from dask.highlevelgraph import HighLevelGraph
from numpy.typing import NDArray

from b2nd_dask.format.grid import boxes_between, parse_selection
from b2nd_dask.frame.joined import JoinedReference, Readable
from b2nd_dask.frame.read.buffers import writable
from b2nd_dask.frame.read.reduce import Predicate
from b2nd_dask.frame.reference import FrameReference
from b2nd_dask.graph import _dask_compat
from b2nd_dask.processes import reduced

Chunks = tuple[tuple[int, ...], ...]

#: Kinds of dtypes whose scalars lose the element length of the dtype.
_OF_LENGTH = "SUV"


def regions_of(chunks: Chunks) -> Iterator[tuple[slice, ...]]:
    """Slices of the blocks of an array, in C order."""
    return boxes_between(tuple(itertools.accumulate(along, initial=0)) for along in chunks)


def cut(positions: range, sizes: tuple[int, ...]) -> list[range]:
    """The positions of each block along an axis."""
    ends = itertools.accumulate(sizes, initial=0)
    return [positions[start:stop] for start, stop in itertools.pairwise(ends)]


def broadcast_chunks(each: Iterable[Chunks]) -> Chunks | None:
    """Blocks of arrays that NumPy broadcasts to each other; None if their blocks do not align.

    A single block longer than 1 does not align with several blocks. A single element does not align
    with blocks of 1 and 0 elements, as after a slice: dask may choose the blocks of either.

    Examples
    --------
    >>> broadcast_chunks([((1,), (5, 5)), ((2, 2), (1,))])
    ((2, 2), (5, 5))
    """
    found: list[tuple[int, ...]] = []
    for blocks in itertools.zip_longest(*(own[::-1] for own in each), fillvalue=(1,)):
        distinct = set(blocks)
        if any(sum(along) != 1 for along in distinct):
            distinct.discard((1,))
        if len(distinct) > 1:
            return None
        found += distinct
    return tuple(found[::-1])


@dataclass(frozen=True)
class Finish:
    """Conversion of elements to an array with axes dropped, reversed, permuted or new."""

    index: tuple[int | slice, ...]
    """The entry for each axis of the elements."""
    axes: tuple[int | None, ...]
    """For each axis of the result the axis of the elements; None for a new axis."""

    def of(self, elements: Any) -> Any:
        """Return the result, a view of the elements if these are in memory."""
        # the ellipsis keeps a single element an array: a string scalar would lose its length
        found: Any = elements[(*self.index, ...)]
        kept = [axis for axis, part in enumerate(self.index) if isinstance(part, slice)]
        if len(kept) > 1:
            found = found.transpose([kept.index(axis) for axis in self.axes if axis is not None])
        if None in self.axes:
            found = found[tuple(None if axis is None else slice(None) for axis in self.axes)]
        # a single element becomes a scalar as in NumPy, except for dtypes with an element length
        return found[()] if not found.ndim and found.dtype.kind not in _OF_LENGTH else found


@dataclass(frozen=True, eq=False)
class BlockRead:
    """The read of a block of a frame."""

    source: Readable
    axes: tuple[range, ...]
    """Ascending positions along each axis."""
    finish: Finish | None = None
    """None if the elements are the block already."""
    predicate: Predicate | None = None
    """Prunes chunks that cannot change the result; only for a single frame."""

    @classmethod
    def of(cls, source: Readable, axes: tuple[range, ...], *more: Any) -> BlockRead:
        """Make the read; of joined frames refer only to those in the region."""
        if isinstance(source, JoinedReference) and all(axes):
            source, axes = source.part_of_axes(axes)
        return cls(source, axes, *more)

    @property
    def is_reversed(self) -> bool:
        """Whether the elements are in reverse memory order along an axis."""
        index = () if self.finish is None else self.finish.index
        return any(isinstance(part, slice) and part.step == -1 for part in index)

    def elements(self, threads: int = 1) -> Any:
        """Read the block; a constant block is read-only with zero strides."""
        if self.predicate is not None and isinstance(self.source, FrameReference):
            elements = self.source.read_pruned(self.axes, self.predicate)
        else:
            elements = self.source.read_axes(self.axes, threads)
        return elements if self.finish is None else self.finish.of(elements)

    def part(self, index: Any) -> tuple[BlockRead, Any]:
        """Slice a block without `finish`; return the read, and the index to apply to its result."""
        axes, finish = parse_selection(index, tuple(map(len, self.axes)))
        inner = (own[p.start : p.stop : p.step] for own, p in zip(self.axes, axes, strict=True))
        return replace(self, axes=tuple(inner)), finish

    def __getitem__(self, index: Any) -> Any:
        """Read a part of the block; writable, as user functions may expect.

        Only dask's getter calls this. Without the optimizer dask fuses slices into its index.
        """
        part, finish = self.part(index)
        elements = part.elements()
        return writable(elements[finish] if finish else elements)


#: The base class; a plain object if dask lacks it, since there are no graphs of layers then.
BlockArgument: Any = _dask_compat.optional("ArrayBlockwiseDep") or object


class ReadBlocks(BlockArgument):  # type: ignore[misc]
    """The argument of each block's task: the region of a frame, or of joined frames, to read."""

    def __init__(
        self,
        source: Readable,
        positions: tuple[range, ...],
        axes: tuple[int | None, ...],
        chunks: Chunks,
        predicate: Predicate | None = None,
    ) -> None:
        super().__init__(chunks)
        self.source = source
        self.positions = positions
        """The positions read along each axis of the source, in the order of the result."""
        self.axes = axes
        """For each axis of the blocks the source's axis; None for a new axis."""
        self._predicate = predicate
        self._finish = finish_of(positions, axes)

    @classmethod
    def whole(cls, source: Readable, chunks: Chunks) -> ReadBlocks:
        """Read all elements."""
        return cls(source, tuple(map(range, source.shape)), tuple(range(source.ndim)), chunks)

    @property
    def _fields(self) -> tuple[Any, ...]:
        return self.source, self.positions, self.axes, self.chunks, self._predicate

    def __dask_tokenize__(self) -> Any:
        # dask distinguishes a layer's arguments by their tokens
        return "b2nd_dask.ReadBlocks", *map(normalize_token, self._fields)

    def __reduce__(self) -> tuple[Any, ...]:
        return reduced(type(self), *self._fields)

    @cached_property
    def _along(self) -> list[tuple[int | None, list[range]]]:
        """For each source axis: the axis of the blocks, None if dropped, and their positions."""
        found = []
        for axis, along in enumerate(self.positions):
            own = self.axes.index(axis) if axis in self.axes else None
            found.append((own, _pieces(along, (1,) if own is None else self.chunks[own])))
        return found

    def __getitem__(self, block: tuple[int, ...]) -> BlockRead:
        axes = tuple(pieces[0 if own is None else block[own]] for own, pieces in self._along)
        return BlockRead.of(self.source, axes, self._finish, self._predicate)


def _pieces(positions: range, sizes: tuple[int, ...]) -> list[range]:
    """The positions of each block, ascending."""
    pieces = cut(positions, sizes)
    return pieces if positions.step > 0 else [piece[::-1] for piece in pieces]


def finish_of(positions: tuple[range, ...], axes: tuple[int | None, ...]) -> Finish | None:
    """The conversion of read elements to a block; None if there is nothing to do."""
    if axes == tuple(range(len(positions))) and all(along.step > 0 for along in positions):
        return None
    index = tuple(
        slice(None, None, -1 if along.step < 0 else None) if axis in axes else 0
        for axis, along in enumerate(positions)
    )
    return Finish(index, axes)


def constant_of(layer: Any, ndim: int) -> NDArray[Any] | None:
    """The 0-d element of a layer made by `dask.array.full` or the like; None for other layers."""
    shapes = _dask_compat.optional("ArrayChunkShapeDep")
    maker = _dask_compat.optional("_broadcast_trick_inner")
    if shapes is None or maker is None:
        return None
    func, deps = _dask_compat.block_function(layer), _dask_compat.block_arguments(layer)
    if not all(isinstance(dep, shapes) for dep in deps) or _innermost(func) is not _innermost(
        maker
    ):
        return None
    element: NDArray[Any] = np.asarray(func((1,) * ndim)).reshape(())
    return element


def _innermost(func: Any) -> Any:
    """The function inside partials and curried functions."""
    while hasattr(func, "func"):
        func = func.func
    return func


def reading_of(layer: Any) -> ReadBlocks | None:
    """The read of a layer that only reads; None for other layers."""
    func = _dask_compat.block_function(layer)
    if func is None or func is not _dask_compat.optional("getter"):
        return None
    return next(_readings_in(layer), None)


def readings(graph: Any) -> Iterator[ReadBlocks]:
    """Iterate over the reads in the layers of a graph, including reads that dask has fused."""
    for layer in getattr(graph, "layers", {}).values():
        yield from _readings_in(layer)


def _readings_in(layer: Any) -> Iterator[ReadBlocks]:
    return (dep for dep in _dask_compat.block_arguments(layer) if isinstance(dep, ReadBlocks))


def blockwise_array(
    source: Any, sizes: Chunks, name: str, layer: Callable[[], tuple[Any, ...]]
) -> da.Array:
    """Make a dask array of one layer, whose function makes each block from an argument.

    `layer` returns the function, the argument with a value for each block (`ArrayBlockwiseDep`),
    and further arguments. If dask has no layers, `from_array` cuts the `source`.
    """
    if not _dask_compat.has_query_planning():
        try:
            _dask_compat.require_layers()
            read, argument, *others = layer()
            indices = tuple(range(len(sizes)))
            more = itertools.chain.from_iterable((other, None) for other in others)
            made = _dask_compat.blockwise(
                read, name, indices, argument, indices, *more, numblocks={}, _data_producer=True
            )
            graph = HighLevelGraph.from_collections(name, made)
            return da.Array(graph, name, sizes, dtype=source.dtype)
        except Exception as error:  # noqa: BLE001 - in any case dask can read the source
            without = "b2nd_dask leaves the reading of a frame to dask.array.from_array"
            _dask_compat.warn_once(without, error)
    plain: da.Array = da.from_array(source, chunks=sizes, name=name)
    return plain
