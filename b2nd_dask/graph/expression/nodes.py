"""Nodes of an expression: reads of frames, elementwise calls, values, moves, opaque nodes.

A node may absorb an operation above it: `accept_selection` (of a slice or a rechunk) and
`accept_transpose` return a node with the same result, or None if the node cannot absorb it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from b2nd_dask.frame.joined import Readable
from b2nd_dask.frame.read.reduce import Predicate
from b2nd_dask.graph.read.blocks import Chunks, ReadBlocks, finish_of
from b2nd_dask.graph.read.sizes import is_read_anew

#: Maximum number of nodes of a tree: nodes below become opaque.
MAX_NODES = 100


@dataclass(frozen=True)
class Selection:
    """A basic index of an array, and the blocks of the result; a rechunk selects all elements."""

    index: tuple[range | int | None, ...]
    """Per axis its positions, or the one position of a dropped axis; None for a new axis."""
    chunks: Chunks

    @classmethod
    def of_all(cls, before: Chunks, chunks: Chunks) -> Selection:
        """All elements of an array, in other blocks."""
        return cls(tuple(range(sum(along)) for along in before), chunks)


class Refusing:
    """Accepts no operation."""

    def accept_selection(self, selection: Selection, layer: str) -> Any:
        """Accept no slice and no rechunk."""
        return None

    def accept_transpose(self, axes: tuple[int, ...], layer: str) -> Any:
        """Accept no transpose."""
        return None


@dataclass(frozen=True, eq=False)
class Opaque(Refusing):
    """Blocks of a layer that is not understood."""

    name: str
    chunks: Chunks | None
    """None if lengths are unknown."""
    element: Literal | None = field(default=None, kw_only=True)
    """The constant element of an array of `dask.array.full` or the like; else None."""
    size = 1

    @property
    def layers(self) -> tuple[str, ...]:
        """The layer itself."""
        return (self.name,)


@dataclass(frozen=True, eq=False)
class Read:
    """Elements of a frame, or of joined frames."""

    source: Readable
    positions: tuple[range, ...]
    """The positions read along each axis of the source, in the order of the result."""
    axes: tuple[int | None, ...]
    """For each axis of the result the source's axis; None for a new axis of length 1."""
    chunks: Chunks
    layers: tuple[str, ...]
    """Its own layer, and the layers between that layer and the frame."""
    is_rechunked: bool = False
    """Whether the blocks differ from those of the first read."""
    size = 1
    filters = False

    @classmethod
    def of(cls, reads: ReadBlocks, layer: str) -> Read:
        """The read of a layer."""
        return cls(reads.source, reads.positions, reads.axes, reads.chunks, (layer,))

    @property
    def ascending(self) -> tuple[range, ...]:
        """The positions along each axis of the source, in ascending order."""
        return tuple(along if along.step > 0 else along[::-1] for along in self.positions)

    @property
    def is_box(self) -> bool:
        """Whether the read has all axes of the source in order, with ascending positions."""
        return finish_of(self.positions, self.axes) is None

    def blocks(self, predicate: Predicate | None = None) -> ReadBlocks:
        """The reads of its blocks."""
        return ReadBlocks(self.source, self.positions, self.axes, self.chunks, predicate)

    @property
    def nbytes(self) -> int:
        """Bytes of all its elements."""
        return math.prod(map(len, self.positions)) * self.source.dtype.itemsize

    def accept_selection(self, selection: Selection, layer: str) -> Read | None:
        """Read only the selected elements."""
        if selection.chunks != self.chunks and selection == Selection.of_all(
            self.chunks, selection.chunks
        ):
            return self._in_blocks(selection.chunks, layer)
        positions, kept = list(self.positions), list[int | None]()
        own = iter(self.axes)
        for entry in selection.index:
            axis = None if entry is None else next(own)
            if entry is None:
                kept.append(None)
            elif axis is None:
                if isinstance(entry, int):
                    continue
                if len(entry) != 1:
                    return None
                kept.append(None)
            elif isinstance(entry, int):
                positions[axis] = positions[axis][entry : entry + 1]
            else:
                positions[axis] = compose(positions[axis], entry)
                kept.append(axis)
        layers = (layer, *self.layers)
        return replace(
            self,
            positions=tuple(positions),
            axes=tuple(kept),
            chunks=selection.chunks,
            layers=layers,
        )

    def _in_blocks(self, chunks: Chunks, layer: str) -> Read | None:
        """Read in other blocks, if chunks are decoded about as often."""
        if any(along.step != 1 for along in self.positions) or not all(map(sum, chunks)):
            return None
        sizes: list[tuple[int, ...]] = [(1,)] * len(self.positions)
        for axis, along in zip(self.axes, chunks, strict=True):
            if axis is not None:
                sizes[axis] = along
            elif along != (1,):
                # each block has the new axis, so an empty block cannot be made
                return None
        corner = tuple(along.start for along in self.positions)
        if not is_read_anew(self.source, tuple(sizes), corner):
            return None
        return replace(self, chunks=chunks, layers=(layer, *self.layers), is_rechunked=True)

    def accept_transpose(self, axes: tuple[int, ...], layer: str) -> Read:
        """Read with the axes in another order."""
        return replace(
            self,
            axes=tuple(self.axes[axis] for axis in axes),
            chunks=tuple(self.chunks[axis] for axis in axes),
            layers=(layer, *self.layers),
        )


@dataclass(frozen=True, eq=False)
class Literal:
    """A value in the graph, or the element of a constant array such as `dask.array.full`."""

    value: Any
    size = 1

    def __eq__(self, other: object) -> bool:
        """Whether two values compute alike: 1, True and np.int64(1) differ, as do 0.0 and -0.0."""
        return isinstance(other, Literal) and self._identity() == other._identity()

    __hash__ = None  # type: ignore[assignment]

    def _identity(self) -> tuple[Any, ...]:
        if not isinstance(self.value, float | complex | np.generic | np.ndarray):
            return type(self.value), self.value
        array = np.asarray(self.value)
        return type(self.value), array.dtype, array.tobytes()


@dataclass(frozen=True, eq=False)
class Elemwise:
    """An elementwise function of arrays, which are broadcast as in NumPy; or a filter.

    The result of an elementwise function does not depend on the blocks.
    """

    func: Any
    args: tuple[Node | Literal, ...]
    kwargs: Mapping[str, Any]
    chunks: Chunks | None
    """None for a filter."""
    layers: tuple[str, ...]
    size: int = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "size", size_of(self.args))

    @property
    def filters(self) -> bool:
        """Whether the arguments are elements, and a mask that selects some of them."""
        return self.chunks is None

    def accept_selection(self, selection: Selection, layer: str) -> Elemwise | None:
        """Slice or rechunk the arguments."""

        def selected(arg: Node) -> Node | None:
            part = self._part_of(arg, selection)
            return arg if part is None else arg.accept_selection(part, layer)

        return self._moved(selected, selection.chunks, layer)

    def accept_transpose(self, axes: tuple[int, ...], layer: str) -> Elemwise | None:
        """Transpose the arguments; each must have all axes or none."""

        def transposed(arg: Node) -> Node | None:
            if not arg.chunks:
                return arg
            return arg.accept_transpose(axes, layer) if len(arg.chunks) == len(axes) else None

        chunks = self.chunks or ()
        return self._moved(transposed, tuple(chunks[axis] for axis in axes if chunks), layer)

    def _moved(
        self, move: Callable[[Node], Node | None], chunks: Chunks, layer: str
    ) -> Elemwise | None:
        """The same call with moved arguments; None if an argument does not accept the move."""
        if self.filters:
            return None
        # an argument that is used twice remains one node
        moved: dict[int, Node] = {}
        for arg in self.args:
            if id(arg) in moved or isinstance(arg, Literal):
                continue
            found = move(arg)
            if found is None:
                return None
            moved[id(arg)] = _in_layer(found, self.layers[0], layer) if found is arg else found
        args = tuple(moved.get(id(arg), arg) for arg in self.args)
        return replace(self, args=args, chunks=chunks, layers=(layer, *self.layers))

    def _part_of(self, arg: Node, selection: Selection) -> Selection | None:
        """The part of a selection for an argument, perhaps with fewer axes; None for the whole."""
        own = arg.chunks or ()
        if not own and self.chunks:
            return None
        missing = len(self.chunks or ()) - len(own)
        index: list[range | int | None] = []
        chunks: list[tuple[int, ...]] = []
        axis, along = -1, iter(selection.chunks)
        for entry in selection.index:
            sizes = () if isinstance(entry, int) else next(along)
            axis += entry is not None
            # a new axis belongs to the arguments that have the next axis
            if axis + (entry is None) < missing:
                continue
            # length 1 along an axis is broadcast to a longer result
            broadcasts = entry is not None and own[axis - missing] == (1,)
            if broadcasts and (self.chunks or ())[axis] != (1,):
                entry, sizes = (0 if isinstance(entry, int) else range(1)), (1,)
            index.append(entry)
            if not isinstance(entry, int):
                chunks.append(sizes)
        part = Selection(tuple(index), tuple(chunks))
        return None if part == Selection.of_all(own, own) else part


@dataclass(frozen=True, eq=False)
class Moved(Refusing):
    """A move of another node, which did not accept it."""

    child: Node
    move: Selection | tuple[int, ...] | None
    """A slice, or the axes of a transpose; None for a rechunk or a reshape."""
    chunks: Chunks
    layers: tuple[str, ...]
    is_reshape: bool = False
    size = 1


Node = Opaque | Read | Elemwise | Moved


def _in_layer(top: Node, old: str, new: str) -> Node:
    """Add the layer `new` to a subtree moved by `old`; `new` leaves its elements as they are."""

    def renamed(node: Node) -> Node:
        if isinstance(node, Opaque) or node.layers[0] != old:
            return node
        return replace(node, layers=(new, *node.layers))

    return with_nodes(top, renamed)


def repeated(node: Node) -> Literal | None:
    """The element of a constant node; None for other nodes."""
    while isinstance(node, Moved):
        node = node.child
    return node.element if isinstance(node, Opaque) else None


def size_of(args: Sequence[Node | Literal]) -> int:
    """The number of nodes of a call, itself included; a repeated argument counts once."""
    return 1 + sum({id(arg): arg.size for arg in args}.values())


def nodes_of(top: Node) -> Iterator[Node]:
    """The distinct nodes of a tree, from the top down."""
    seen: set[int] = set()
    todo: list[Node | Literal] = [top]
    while todo:
        node = todo.pop()
        if id(node) not in seen and not isinstance(node, Literal):
            seen.add(id(node))
            yield node
            todo += reversed(node.args) if isinstance(node, Elemwise) else ()


def with_nodes(top: Node, change: Callable[[Node], Node]) -> Node:
    """Replace the nodes of a tree, from the leaves up, by the results of a function."""
    done: dict[int, Node] = {}

    def changed(node: Node) -> Node:
        if id(node) not in done:
            found = node
            if isinstance(node, Elemwise):
                args = tuple(a if isinstance(a, Literal) else changed(a) for a in node.args)
                if any(one is not other for one, other in zip(args, node.args, strict=True)):
                    found = replace(node, args=args)
            done[id(node)] = change(found)
        return done[id(node)]

    return changed(top)


def compose(positions: range, along: range) -> range:
    """The positions that one range selects from another."""
    start, step = positions.start + along.start * positions.step, positions.step * along.step
    return range(start, start + len(along) * step, step)
