"""Parse the layers of a graph into nodes of an expression.

Each layer is parsed once, dependencies first, by its kind and its function. A layer that reads no
frame or is not recognized is opaque: it stays as dask made it.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Container
from dataclasses import replace
from typing import Any

import dask.array as da
import numpy as np
from dask.highlevelgraph import HighLevelGraph

from b2nd_dask.graph import _dask_compat
from b2nd_dask.graph._dask_compat import Alias, TaskRef, collection_annotation, task_dict
from b2nd_dask.graph.expression.chunk_steps import Fold, fold_of
from b2nd_dask.graph.expression.elementwise import UNKNOWN, parse_call
from b2nd_dask.graph.expression.nodes import (
    MAX_NODES,
    Elemwise,
    Literal,
    Moved,
    Node,
    Opaque,
    Read,
    Selection,
    literal_of,
    nodes_of,
    size_of,
)
from b2nd_dask.graph.layers.moves import as_task, is_reshape, selection_of, transposed_axes
from b2nd_dask.graph.read.blocks import Chunks, broadcast_chunks, constant_of, reading_of

logger = logging.getLogger("b2nd_dask")


class Layers:
    """The layers of a graph and their nodes.

    With `of_opaque`, slices and rechunks of opaque layers are parsed, too.
    """

    def __init__(
        self, graph: HighLevelGraph, rules: Container[str], *, of_opaque: bool = False
    ) -> None:
        self.graph = graph
        self.dependents = graph.dependents
        self.order = _in_order(graph, self.dependents)
        self.nodes: dict[str, Node] = {}
        self.folds: dict[str, tuple[Fold, str]] = {}
        """For each layer of chunk steps: the step, and the layer below."""
        self.rechunks_of: Counter[str] = Counter()
        """Number of rechunks that read a layer's elements in other blocks."""
        self.rules = rules
        self._of_opaque = of_opaque
        for name in self.order:
            self.nodes[name] = self._node(name)

    def _node(self, name: str) -> Node:
        layer: Any = self.graph.layers[name]
        if layer.annotations:
            logger.debug("%s is opaque: it has annotations", name)
            return self._opaque(name)
        reading = reading_of(layer)
        if reading is not None:
            return Read.of(reading, name)
        below = self.graph.dependencies[name]
        found: Node | None = None
        arguments = map(self._argument, below)
        if self._of_opaque or not all(isinstance(each, Opaque) for each in arguments):
            if _dask_compat.block_function(layer) is not None:
                found = self._of_blocks(name)
            else:
                found = self._moved(name)
            if found is None and name not in self.folds:
                what = _dask_compat.block_function(layer) or type(layer).__name__
                logger.debug("%s is opaque, no rule reads through it: %s", name, what)
        return self._opaque(name) if found is None else found

    def _opaque(self, name: str) -> Opaque:
        layer, below = self.graph.layers[name], self.graph.dependencies[name]
        chunks = annotated_chunks(layer)
        known = chunks is not None and not below and not layer.annotations
        element = constant_of(layer, len(chunks or ())) if known else None
        return Opaque(name, chunks, element=None if element is None else Literal(element))

    def _of_blocks(self, name: str) -> Node | None:
        """The node of a layer with one task per block."""
        layer: Any = self.graph.layers[name]
        if not is_plain(layer):
            return None
        axes = transposed_axes(layer, self.graph.layers)
        if axes is not None:
            child = self.nodes[layer.indices[0][0]]
            if child.chunks is None:
                return None
            chunks = tuple(child.chunks[axis] for axis in axes)
            return self._selected(child, Selection.of_all(child.chunks, chunks, axes), name)
        self._note_fold(name, layer)
        return self._elemwise(name, layer)

    def _note_fold(self, name: str, layer: Any) -> None:
        arrays = [(source, labels) for source, labels in layer.indices if labels is not None]
        if len(layer.indices) == 1 and len(arrays) == 1 and arrays[0][1] == layer.output_indices:
            fold = fold_of(layer.task.func, layer.task.kwargs)
            if fold is not None:
                prunes = "statistics" in self.rules
                self.folds[name] = replace(fold, prunes=prunes), arrays[0][0]

    def _argument(self, name: str) -> Node | Literal:
        """The node of a layer; its element if it is constant."""
        return literal_of(self.nodes[name]) or self.nodes[name]

    def _elemwise(self, name: str, layer: Any) -> Elemwise | None:
        args = [
            Literal(source) if labels is None else self._argument(source)
            for source, labels in layer.indices
        ]
        known = [arg.value if isinstance(arg, Literal) else UNKNOWN for arg in args]
        call = parse_call(layer.task.func, known, layer.task.kwargs)
        if call is None:
            return None
        func, kwargs, filters = call
        chunks = self._broadcast_chunks(layer)
        # constant arrays became scalars, which cannot enlarge the result
        nodes = [arg.chunks or () for arg in args if not isinstance(arg, Literal)]
        if chunks is None or broadcast_chunks(nodes) != chunks:
            return None
        if filters:
            # other arrays are positions
            mask = self.graph.layers[layer.indices[1][0]]
            if len(chunks) != 1 or annotated_dtype(mask) != np.bool_:
                return None
            args = _unraveled(args)
        elif collection_annotation(layer, "chunks") not in (None, chunks):
            return None
        if not any(isinstance(arg, Read | Elemwise) for arg in args):
            return None
        if size_of(args) > MAX_NODES:
            # start a new tree, over the blocks of the first one
            args = [
                Opaque(arg.layers[0], arg.chunks) if isinstance(arg, Elemwise) else arg
                for arg in args
            ]
        return Elemwise(func, tuple(args), kwargs, None if filters else chunks, (name,))

    def _broadcast_chunks(self, layer: Any) -> Chunks | None:
        """Blocks of the broadcast arguments; None if they do not broadcast as in NumPy."""
        own = tuple(layer.output_indices)
        found: list[Chunks] = []
        for source, labels in layer.indices:
            if labels is None:
                continue
            chunks = self.nodes[source].chunks if labels else ()
            if chunks is None or len(chunks) != len(labels):
                return None
            if own[len(own) - len(labels) :] != tuple(labels):
                return None
            found.append(chunks)
        chunks = broadcast_chunks(found)
        return chunks if chunks is not None and len(chunks) == len(own) else None

    def _moved(self, name: str) -> Node | None:
        """The node of a layer that slices, rechunks or reshapes another layer."""
        below = self.graph.dependencies[name]
        if len(below) != 1:
            return None
        (source,) = below
        child, layer = self.nodes[source], self.graph.layers[name]
        if isinstance(child, Elemwise) and child.filters:
            renamed = _renames(layer, name, source, len(self.graph.layers[source]))
            return replace(child, layers=(name, *child.layers)) if renamed else None
        chunks, sizes = child.chunks, annotated_chunks(layer)
        if chunks is None:
            return None
        if sizes and type(layer).__name__ == "P2PRechunkLayer":
            return self._rechunked(child, Selection.of_all(chunks, sizes), name)
        tasks = task_dict(layer)
        if tasks is None:
            return None
        selection = selection_of(tasks, name, source, chunks)
        if selection is None or sizes not in (None, selection.chunks):
            if sizes is None or not is_reshape(tasks, name):
                return None
            return Moved(child, None, sizes, (name,), is_reshape=True)
        is_whole = selection == Selection.of_all(chunks, selection.chunks)
        if is_whole and selection.chunks != chunks:
            return self._rechunked(child, selection, name)
        return self._selected(child, selection, name)

    def _selected(self, child: Node, selection: Selection, name: str) -> Node:
        moved = child.accept(selection, name) if "slices" in self.rules else None
        if moved is None:
            logger.debug("%s stays dask's: %s is not read in part", name, child.layers[0])
        return moved or Moved(child, selection, selection.chunks, (name,))

    def _rechunked(self, child: Node, whole: Selection, name: str) -> Node:
        moved = child.accept(whole, name) if "new_blocks" in self.rules else None
        if moved is None:
            logger.debug("%s is dask's rechunk: in its blocks chunks are decoded too often", name)
            return Moved(child, None, whole.chunks, (name,))
        # dask may rechunk in several steps, one layer each
        reads = (node for node in nodes_of(child) if isinstance(node, Read))
        self.rechunks_of.update(read.layers[-1] for read in reads if not read.is_rechunked)
        return moved

    def inputs(self, name: str) -> list[str] | None:
        """The layers that a layer with one task per block reads; None for other layers."""
        layer: Any = self.graph.layers[name]
        if _dask_compat.block_function(layer) is None or layer.new_axes:
            return None
        arrays = [source for source, indices in layer.indices if indices is not None]
        return [source for source in arrays if isinstance(source, str) and source in self.nodes]

    def is_in_graph(self, name: str) -> bool:
        """Whether a layer's elements are values in the graph."""
        function = _dask_compat.block_function(self.graph.layers[name])
        return function is None and not self.graph.dependencies[name]


def accepts_blocks(array: da.Array, chunks: Chunks) -> bool:
    """Whether the rules turn a rechunk of an array to these blocks into reads of its frames."""
    graph = array.dask.cull_layers([array.name])
    node = Layers(graph, ("slices", "new_blocks")).nodes[array.name]
    return node.accept(Selection.of_all(array.chunks, chunks), array.name) is not None


def _unraveled(args: list[Any]) -> list[Any]:
    """Undo dask's raveling of elements and mask before a filter; return others unchanged."""
    elements, mask = map(_unmoved, args)
    # in arrays of the same shape, elements and mask remain aligned
    is_raveled = elements.chunks == mask.chunks and len(elements.chunks or ()) > 1
    fits = is_raveled and size_of([elements, mask]) <= MAX_NODES
    return [elements, mask] if fits else args


def _unmoved(node: Any) -> Any:
    """Skip the rechunks and reshapes above an array; their layers count as its own."""
    moves: tuple[str, ...] = ()
    while isinstance(node, Moved) and node.move is None:
        moves += node.layers
        node = node.child
    return (
        replace(node, layers=(*moves, *node.layers)) if isinstance(node, Read | Elemwise) else node
    )


def _renames(layer: Any, name: str, source: str, count: int) -> bool:
    """Whether a layer only renames the blocks of another one, as dask does for `x[mask]`."""
    tasks = task_dict(layer) or {}
    aliases = (task for each in tasks.items() if type(task := as_task(*each)) is Alias)
    blocks: dict[Any, Any] = {task.key: task.target for task in aliases}
    return len(tasks) == count and blocks == {(name, n): (source, n) for n in range(count)}


def annotated_dtype(layer: Any) -> np.dtype[Any] | None:
    """The dtype in dask's annotation of a layer's array; None without one."""
    found = collection_annotation(layer, "dtype")
    return found if isinstance(found, np.dtype) else None


def annotated_chunks(layer: Any) -> Chunks | None:
    """The blocks in dask's annotation of a layer's array; None without one or known lengths."""
    chunks = collection_annotation(layer, "chunks")
    if chunks is None:
        return None
    # unknown lengths are NaN
    total = sum(map(sum, chunks))
    if type(total) is int:
        return chunks  # type: ignore[no-any-return]
    return None if np.isnan(total) else tuple(tuple(map(int, along)) for along in chunks)


def _in_order(graph: HighLevelGraph, dependents: dict[str, set[str]]) -> list[str]:
    """Names of layers, dependencies first; without layers in cycles."""
    left = {name: len(below) for name, below in graph.dependencies.items()}
    order = [name for name, count in left.items() if not count]
    for name in order:
        for other in sorted(dependents[name]):
            left[other] -= 1
            if not left[other]:
                order.append(other)
    return order


def is_plain(layer: Any) -> bool:
    """Whether a layer only calls a function with one block of each argument."""
    task = layer.task
    return (
        not layer.io_deps
        and not layer.new_axes
        and not layer.concatenate
        and layer.output_blocks is None
        and len(task.args) == len(layer.indices)
        and all(isinstance(argument, TaskRef) for argument in task.args)
        and not any(
            isinstance(argument, TaskRef) for argument, labels in layer.indices if labels is None
        )
    )
