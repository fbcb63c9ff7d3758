"""Nodes of an expression: reads of frames, elementwise calls, values, moves, opaque nodes.

A node may absorb a selection above it, which is a slice, a rechunk or a transpose: `accept` returns
a node with the same result, or None if the node cannot absorb it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from b2nd_dask.frame.joined import Readable
from b2nd_dask.frame.read.reduce import Predicate
from b2nd_dask.graph.read.blocks import Chunks, ReadBlocks, finish_of
from b2nd_dask.graph.read.sizes import is_cheap_in_blocks

#: Maximum number of nodes of a tree: nodes below become opaque.
MAX_NODES = 100


@dataclass(frozen=True)
class Selection:
    """A slice, a rechunk or a transpose of an array."""

    positions: tuple[range, ...]
    """The positions along each axis of the array."""
    axes: tuple[int | None, ...]
    """For each axis of the result the array's axis; None for a new axis of length 1. An axis of the
    array that is not among them has one position, and is dropped."""
    chunks: Chunks
    """The blocks of the result."""

    @classmethod
    def of_index(cls, index: Iterable[range | int | None], chunks: Chunks) -> Selection:
        """A basic index: positions of an axis, that of a dropped axis, or None for a new axis."""
        positions, axes = list[range](), list[int | None]()
        for entry in index:
            if not isinstance(entry, int):
                axes.append(None if entry is None else len(positions))
            if entry is not None:
                positions.append(range(entry, entry + 1) if isinstance(entry, int) else entry)
        return cls(tuple(positions), tuple(axes), chunks)

    @classmethod
    def of_all(
        cls, before: Chunks, chunks: Chunks, axes: tuple[int | None, ...] | None = None
    ) -> Selection:
        """All elements of an array, in other blocks, with other or new axes."""
        positions = tuple(range(sum(along)) for along in before)
        return cls(positions, tuple(range(len(before))) if axes is None else axes, chunks)


class NoPushdown:
    """Base of nodes that absorb no selection."""

    is_rechunked = False

    def accept(self, selection: Selection, layer: str) -> Any:
        """Accept no slice, rechunk or transpose."""
        return None


@dataclass(frozen=True, eq=False)
class Opaque(NoPushdown):
    """Blocks of a layer that is not parsed."""

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
    filters = is_raveled = False

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

    def accept(self, selection: Selection, layer: str) -> Read | None:
        """Read only the selected elements."""
        if selection.chunks != self.chunks and selection == Selection.of_all(
            self.chunks, selection.chunks
        ):
            return self._in_blocks(selection.chunks, layer)
        positions = list(self.positions)
        for axis, along in zip(self.axes, selection.positions, strict=True):
            if axis is not None:
                positions[axis] = compose(positions[axis], along)
            elif len(along) != 1:
                return None
        return replace(
            self,
            positions=tuple(positions),
            axes=tuple(None if axis is None else self.axes[axis] for axis in selection.axes),
            chunks=selection.chunks,
            layers=(layer, *self.layers),
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
        if not is_cheap_in_blocks(self.source, tuple(sizes), corner):
            return None
        return replace(self, chunks=chunks, layers=(layer, *self.layers), is_rechunked=True)


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

    @property
    def is_rechunked(self) -> bool:
        """Whether it reads elements in other blocks."""
        return any(isinstance(each, Read) and each.is_rechunked for each in nodes_of(self))

    @property
    def is_raveled(self) -> bool:
        """Whether it filters an array of several axes; the result has one axis and other blocks."""
        return self.filters and len(computed_in(self) or ()) > 1

    def accept(self, selection: Selection, layer: str) -> Elemwise | None:
        """Select from the arguments; None if one of them does not accept its part."""
        if self.filters:
            return None
        # an argument that is used twice remains one node
        moved: dict[int, Node] = {}
        for arg in self.args:
            if id(arg) in moved or isinstance(arg, Literal):
                continue
            part = self._part_of(arg, selection)
            found = arg if part is None else arg.accept(part, layer)
            if found is None:
                return None
            moved[id(arg)] = _in_layer(found, self.layers[0], layer) if found is arg else found
        args = tuple(moved.get(id(arg), arg) for arg in self.args)
        return replace(self, args=args, chunks=selection.chunks, layers=(layer, *self.layers))

    def _part_of(self, arg: Node, selection: Selection) -> Selection | None:
        """The part of a selection for an argument, perhaps with fewer axes; None for the whole."""
        own, whole = arg.chunks or (), self.chunks or ()
        if not own and whole:
            return None
        missing = len(whole) - len(own)
        # length 1 along an axis is broadcast to a longer result
        is_single = [a == (1,) != b for a, b in zip(own, whole[missing:], strict=True)]
        pairs = zip(is_single, selection.positions[missing:], strict=True)
        positions = tuple(range(1) if single else along for single, along in pairs)
        axes, chunks = list[int | None](), list[tuple[int, ...]]()
        for axis, sizes in zip(selection.axes, selection.chunks, strict=True):
            at = None if axis is None or axis < missing else axis - missing
            # leading axes that the argument does not have are broadcast, others become new axes
            if axes or at is not None or not missing:
                axes.append(at)
                chunks.append((1,) if at is None or is_single[at] else sizes)
        part = Selection(positions, tuple(axes), tuple(chunks))
        return None if part == Selection.of_all(own, own) else part


@dataclass(frozen=True, eq=False)
class Moved(NoPushdown):
    """A move of another node, which did not accept it."""

    child: Node
    move: Selection | None
    """None for a rechunk or a reshape."""
    chunks: Chunks
    layers: tuple[str, ...]
    is_reshape: bool = False
    size = 1


Node = Opaque | Read | Elemwise | Moved


def _in_layer(top: Node, old: str, new: str) -> Node:
    """Add the layer `new` to the nodes of layer `old` in a subtree that `new` does not change."""

    def renamed(node: Node) -> Node:
        if isinstance(node, Opaque) or node.layers[0] != old:
            return node
        return replace(node, layers=(new, *node.layers))

    return with_nodes(top, renamed)


def computed_in(node: Node) -> Chunks | None:
    """The blocks in which a program computes a node: for a filter, those of its elements."""
    blocked: Any = node.args[0] if isinstance(node, Elemwise) and node.filters else node
    return blocked.chunks  # type: ignore[no-any-return]


def literal_of(node: Node) -> Literal | None:
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
