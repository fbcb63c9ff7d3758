"""Layers and tasks of dask for nodes of an expression."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from dask.base import normalize_token

from b2nd_dask.frame.read.answers import Predicate
from b2nd_dask.graph._dask_compat import Task, TaskRef, blockwise
from b2nd_dask.graph.expression.nodes import MAX_NODES, Elemwise, Node, Read
from b2nd_dask.graph.expression.program import ELEMENTS, compile_tree
from b2nd_dask.graph.optimize.names import own_name
from b2nd_dask.graph.read.blocks import BlockArgument, Chunks
from b2nd_dask.graph.tasks.block_read import BlockRead, Finish, compute_block

#: A tree of more nodes is one layer whatever it reads.
MANY_NODES = MAX_NODES // 2


class Lowered(NamedTuple):
    """Layers that compute a node; the first has its name."""

    layers: dict[str, Any]
    dependencies: dict[str, set[str]]


class ReadBlocks(BlockArgument):  # type: ignore[misc]
    """The argument of each block's task: which part of the frame to read."""

    def __init__(self, read: Read, predicate: Predicate | None = None) -> None:
        super().__init__(read.chunks)
        self.read = read
        self._predicate = predicate
        self._finish = finish_of(read)
        # the axis of the blocks that each axis of the source is; None for one that is dropped
        self._own = [
            read.axes.index(axis) if axis in read.axes else None
            for axis in range(len(read.positions))
        ]
        self._along = [
            _pieces(along, (1,) if own is None else read.chunks[own])
            for along, own in zip(read.positions, self._own, strict=True)
        ]

    def __dask_tokenize__(self) -> Any:
        read = self.read
        parts = read.source, read.positions, read.axes, read.chunks, self._predicate
        # a layer tells its arguments apart by their tokens
        return "b2nd_dask.ReadBlocks", *map(normalize_token, parts)

    def __getitem__(self, block: tuple[int, ...]) -> BlockRead:
        axes = tuple(
            pieces[0 if own is None else block[own]]
            for pieces, own in zip(self._along, self._own, strict=True)
        )
        return BlockRead.of(self.read.source, axes, self._finish, self._predicate)


def _pieces(positions: range, sizes: tuple[int, ...]) -> list[range]:
    """The positions of each block, ascending."""
    ends = itertools.accumulate(sizes, initial=0)
    pieces = [positions[start:stop] for start, stop in itertools.pairwise(ends)]
    return pieces if positions.step > 0 else [piece[::-1] for piece in pieces]


def own_block(chunks: Chunks, block: tuple[int, ...]) -> tuple[int, ...]:
    """The block of an array that is broadcast to a block."""
    own = block[len(block) - len(chunks) :]
    return tuple(0 if len(sizes) == 1 else at for sizes, at in zip(chunks, own, strict=True))


def block_of(node: Node, block: tuple[int, ...]) -> TaskRef:
    """The block of a layer that is broadcast to a block."""
    key: Any = (node.layers[0], *own_block(node.chunks or (), block))
    return TaskRef(key)


def input_of(node: Node, predicate: Predicate | None = None) -> Callable[[tuple[int, ...]], Any]:
    """Give the function from a block to what its task takes of an input."""
    if not isinstance(node, Read):
        return partial(block_of, node)
    reads = ReadBlocks(node, predicate)
    return lambda block: reads[own_block(reads.chunks, block)]


def finish_of(read: Read) -> Finish | None:
    """What is to be done with the elements that are read; None where it is nothing."""
    if read.is_box:
        return None
    kept = [axis for axis in range(len(read.positions)) if axis in read.axes]
    index = tuple(
        0 if axis not in kept else slice(None, None, -1 if along.step < 0 else None)
        for axis, along in enumerate(read.positions)
    )
    order = tuple(kept.index(axis) for axis in read.axes if axis is not None)
    expand = tuple(None if axis is None else slice(None) for axis in read.axes)
    return Finish(index, order, expand)


def lowered_tree(
    name: str, node: Read | Elemwise, predicate: Predicate | None, *, views: bool
) -> Lowered | None:
    """A layer that computes a tree, block by block; None where that reads no frame."""
    # slices and rechunks that work has taken along are worth a layer, even if no frame is read; so
    # are many steps, since dask's fusion of layers takes time with the square of their number
    found = compile_tree(node, reading=len(node.layers) == 1 and node.size <= MANY_NODES)
    if found is None:
        return None
    # a filter has the blocks of the elements that it chooses from
    blocked: Any = node.args[0] if isinstance(node, Elemwise) and node.filters else node
    chunks: Chunks = blocked.chunks
    blocks = math.prod(map(len, chunks))
    labels = tuple(range(len(chunks)))
    pairs: list[Any] = []
    numblocks: dict[str, tuple[int, ...]] = {}
    apart: dict[str, Any] = {}
    for each in (found.read, *found.inputs):
        own, source = labels[len(labels) - len(each.chunks or ()) :], each.layers[0]
        counts = tuple(map(len, each.chunks or ()))
        if isinstance(each, Read):
            reads = ReadBlocks(each, predicate if each is found.read else None)
            if math.prod(counts) == blocks:
                pairs += [reads, own]
                continue
            # it is broadcast to several blocks, and read once for all of them
            source = own_name(name, "broadcast", reads)
            apart[source] = _reading_tasks(source, reads)
        numblocks[source] = counts
        pairs += [source, own]
    compute = partial(compute_block, program=found.program, views=views)
    layer = blockwise(compute, name, labels, *pairs, numblocks=numblocks, _data_producer=True)
    below = {name: set(numblocks), **{source: set[str]() for source in apart}}
    return Lowered({name: layer, **apart}, below)


def _reading_tasks(name: str, reads: ReadBlocks) -> dict[Any, Task]:
    """A layer that reads blocks, and that dask does not fuse with several others."""
    read = partial(compute_block, program=ELEMENTS, views=True)
    keys: list[Any] = [(name, *at) for at in np.ndindex(*map(len, reads.read.chunks))]
    return {key: Task(key, read, reads[key[1:]], _data_producer=True) for key in keys}
