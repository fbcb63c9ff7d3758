"""Layers and tasks of dask for nodes of an expression.

A task that is not dask's own gets a new key. Another graph may contain dask's original layer,
for instance one that a Delayed has already optimized; a scheduler would take two tasks of one
key for the same task.
"""

from __future__ import annotations

import copy
import itertools
import logging
import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Set
from functools import cache, partial
from typing import Any, NamedTuple

import numpy as np
from dask.base import tokenize
from dask.highlevelgraph import HighLevelGraph
from dask.typing import Key

from b2nd_dask.frame.read.reduce import Predicate
from b2nd_dask.graph._dask_compat import (
    Alias,
    GraphNode,
    List,
    Task,
    TaskRef,
    _shuffle,
    block_function,
    blockwise,
    core,
    task_dict,
)
from b2nd_dask.graph.expression.elementwise import is_among
from b2nd_dask.graph.expression.grouped import with_kernels
from b2nd_dask.graph.expression.nodes import MAX_NODES, Elemwise, Node, Read, computed_in
from b2nd_dask.graph.expression.program import ELEMENTS, Compiled, compile_tree
from b2nd_dask.graph.layers.layers import Layers, is_plain
from b2nd_dask.graph.layers.moves import as_task
from b2nd_dask.graph.optimize.sharing import Sharing
from b2nd_dask.graph.read.blocks import Chunks, ReadBlocks
from b2nd_dask.graph.tasks import compute_block, index_block, reduce_elements

logger = logging.getLogger("b2nd_dask")

#: A larger tree becomes one layer, even if it reads no frame.
MANY_NODES = MAX_NODES // 2
#: Elements of a block from which on kernels reduce it faster than dask's own step.
_MANY_ELEMENTS = 1 << 16
#: dask's functions that index their first argument by positions alone.
_POSITION_GETTERS = frozenset({core._vindex_slice_and_transpose, _shuffle._getitem})


class Lowered(NamedTuple):
    """Layers that compute a node; the first has the node's name."""

    layers: dict[str, Any]
    dependencies: dict[str, set[str]]


def own_block(chunks: Chunks, block: tuple[int, ...]) -> tuple[int, ...]:
    """Grid coordinates of the array's block that broadcasts to a block of the result."""
    own = block[len(block) - len(chunks) :]
    return tuple(0 if len(sizes) == 1 else at for sizes, at in zip(chunks, own, strict=True))


def block_of(node: Node, block: tuple[int, ...]) -> TaskRef:
    """Reference to the layer's block that broadcasts to a block of the result."""
    key: Any = (node.layers[0], *own_block(node.chunks or (), block))
    return TaskRef(key)


def input_of(node: Node, predicate: Predicate | None = None) -> Callable[[tuple[int, ...]], Any]:
    """Return a function that makes the argument of a block's task for an input."""
    if not isinstance(node, Read):
        return partial(block_of, node)
    reads = node.blocks(predicate)
    return lambda block: reads[own_block(reads.chunks, block)]


def compiled_layer(node: Read | Elemwise) -> Compiled | None:
    """The program of a layer that computes a tree; None if dask's own layers are as good."""
    # A layer pays off even without a read if it absorbs slices and rechunks, or many steps: the
    # time of dask's fusion grows with the square of the number of layers.
    return compile_tree(node, reading=len(node.layers) == 1 and node.size <= MANY_NODES)


def lowered_tree(
    name: str, node: Node, found: Compiled, predicate: Predicate | None, *, views: bool
) -> Lowered:
    """A layer that runs the program of a tree, block by block."""
    chunks = computed_in(node) or ()
    blocks = math.prod(map(len, chunks))
    labels = tuple(range(len(chunks)))
    pairs: list[Any] = []
    numblocks: dict[str, tuple[int, ...]] = {}
    broadcast_layers: dict[str, Any] = {}
    for each in (found.read, *found.inputs):
        own, source = labels[len(labels) - len(each.chunks or ()) :], each.layers[0]
        counts = tuple(map(len, each.chunks or ()))
        if isinstance(each, Read):
            reads = each.blocks(predicate if each is found.read else None)
            if math.prod(counts) == blocks:
                pairs += [reads, own]
                continue
            # broadcast to several blocks: read once for all of them
            source = own_name(name, "broadcast", reads)
            broadcast_layers[source] = _reading_tasks(source, reads)
        numblocks[source] = counts
        pairs += [source, own]
    compute = partial(compute_block, program=found.program, views=views)
    layer = blockwise(compute, name, labels, *pairs, numblocks=numblocks, _data_producer=True)
    below = {name: set(numblocks), **{source: set[str]() for source in broadcast_layers}}
    return Lowered({name: layer, **broadcast_layers}, below)


def _reading_tasks(name: str, reads: ReadBlocks) -> dict[Any, Task]:
    """A layer that reads blocks; dask does not fuse it into several dependents."""
    read = partial(compute_block, program=ELEMENTS, views=True)
    keys: list[Any] = [(name, *at) for at in np.ndindex(*map(len, reads.chunks))]
    return {key: Task(key, read, reads[key[1:]], _data_producer=True) for key in keys}


def lowered_step(layers: Layers, name: str) -> Lowered | None:
    """A layer of chunk steps, also of flox, with a faster function; None for other layers."""
    layer: Any = layers.graph.layers[name]
    keywords: dict[str, Any] = {}
    func: Any = None
    if name in layers.folds:
        fold, below = layers.folds[name]
        blocks = computed_in(layers.nodes[below])
        if blocks is None or math.prod(map(max, blocks)) >= _MANY_ELEMENTS:
            func = partial(reduce_elements, fold=fold)
    elif block_function(layer) is not None and is_plain(layer):
        func, keywords = with_kernels(block_function(layer)), layer.task.kwargs
    if func is None:
        return None
    made = copied(layer)
    made.task = Task(name, func, *layer.task.args, **keywords)
    return Lowered({name: made}, {name: layers.graph.dependencies[name]})


def lowered_positions(layers: Layers, sharing: Sharing, name: str) -> Lowered | None:
    """Tasks that read the blocks they index by lists or points; None for other layers.

    They read only the frame's blocks that the positions touch.
    """
    tasks = task_dict(layers.graph.layers[name])
    if tasks is None or not all(isinstance(task, GraphNode) for task in tasks.values()):
        return None
    indexed = {key: task.args[0].key for key, task in tasks.items() if _indexes_block(task)}
    if not indexed:
        return None
    used = Counter(itertools.chain.from_iterable(task.dependencies for task in tasks.values()))
    made: dict[Key, Any] = dict(tasks)
    below = set(layers.graph.dependencies[name])
    for source in layers.graph.dependencies[name]:
        compiled = _compiled(layers.nodes[source], sharing, name)
        # a block with several dependents is read once
        own = [key for key, block in indexed.items() if block[0] == source and used[block] == 1]
        if compiled is None or not own:
            continue
        reads = compiled.read.blocks()
        made |= {key: _reading_task(tasks[key], compiled, reads) for key in own}
        below |= {each.layers[0] for each in compiled.inputs}
        uses = sum(count for block, count in used.items() if block[:1] == (source,))
        if len(own) == uses:
            below.discard(source)
    unchanged = all(made[key] is tasks[key] for key in indexed)
    return None if unchanged else Lowered({name: made}, {name: below})


def _indexes_block(task: Any) -> bool:
    """Whether a task indexes one block by positions."""
    if not isinstance(task, Task) or task.kwargs or not is_among(task.func, _POSITION_GETTERS):
        return False
    return isinstance(task.args[0], TaskRef) and isinstance(task.args[0].key, tuple)


def _compiled(node: Node, sharing: Sharing, name: str) -> Compiled | None:
    """The program of the blocks that a layer indexes; None if they cannot be read in parts."""
    if not isinstance(node, Read | Elemwise) or node.filters:
        return None
    absorbed = sharing.absorbed(node, name)
    compiled = absorbed and compile_tree(absorbed)
    if not compiled or not compiled.read.is_box or compiled.read.chunks != node.chunks:
        return None
    return None if any(isinstance(each, Read) for each in compiled.inputs) else compiled


def _reading_task(task: Any, compiled: Compiled, reads: ReadBlocks) -> Task:
    """A task that reads the block it indexes, with the work on it."""
    first, *positions = task.args
    block = first.key[1:]
    inputs = List(*(block_of(each, block) for each in compiled.inputs))
    arguments = reads[block], task.func, compiled.program, inputs
    return Task(task.key, index_block, *arguments, *positions, _data_producer=True)


def with_own_names(
    graph: HighLevelGraph, lowered: Iterable[str], outputs: Set[str], masked: Mapping[str, str]
) -> HighLevelGraph:
    """Rename lowered layers, and layers above them up to the next `Blockwise`.

    These keep their names, as do layers that cannot be renamed. `masked` maps layers to the filter
    above that drops some of their elements: they get names that no other filter uses.
    """
    users = graph.dependents
    can_be_renamed = renamable_layers(graph)
    names: dict[str, str] = {}
    todo = sorted({*lowered, *masked.keys() & graph.layers.keys()} - outputs)
    changed: set[str] = set()
    while todo:
        name = todo.pop()
        if name in names or not all(map(can_be_renamed, (name, *users[name]))):
            continue
        uses, layer = sorted(graph.dependencies[name]), graph.layers[name]
        keys: Any = () if block_function(layer) is not None else layer
        # tasks of a layer may have other names
        for word in {name, *(key[0] for key in keys if isinstance(key, tuple))}:
            names[word] = own_name(word, *uses, masked.get(name))
        changed |= {name, *users[name]}
        todo += [
            other
            for other in users[name]
            if block_function(graph.layers[other]) is None and other not in outputs
        ]
    if not names:
        return graph
    for old, new in names.items():
        logger.debug("%s is renamed to %s", old, new)
    return HighLevelGraph(
        {
            names.get(name, name): renamed(layer, names) if name in changed else layer
            for name, layer in graph.layers.items()
        },
        {
            names.get(name, name): {names.get(used, used) for used in below}
            for name, below in graph.dependencies.items()
        },
    )


def own_name(name: str, *distinguished_by: object) -> str:
    """A new name for a layer with the same first word, which dashboards show."""
    word, _, token = name.rpartition("-")
    return f"{word or token}-{tokenize(name, *distinguished_by)}"


def renamable_layers(graph: HighLevelGraph) -> Callable[[str], bool]:
    """Cached `is_renamable` of a graph's layers, by name."""
    return cache(lambda name: is_renamable(graph.layers[name]))


def is_renamable(layer: Any) -> bool:
    """Whether names of layers can be replaced in a layer."""
    tasks = getattr(layer, "mapping", layer)
    if getattr(layer, "annotations", None):
        return False
    if not isinstance(tasks, dict):
        return block_function(layer) is not None
    return all(as_task(key, value) is not None for key, value in tasks.items())


def copied(layer: Any) -> Any:
    """A copy of a layer with one task per block, to be changed."""
    found = copy.copy(layer)
    found.__dict__.pop("_cached_dict", None)
    return found


def renamed(layer: Any, names: Mapping[str, str]) -> Any:
    """A copy of a layer with new names for itself and for its dependencies."""
    if block_function(layer) is None:
        tasks = (_renamed_task(as_task(key, value), names) for key, value in layer.items())
        return {task.key: task for task in tasks}
    found = copied(layer)
    found.output = names.get(layer.output, layer.output)
    found.task = layer.task.substitute({}, key=found.output)
    found.indices = tuple(
        (names.get(source, source) if labels is not None else source, labels)
        for source, labels in layer.indices
    )
    found.numblocks = {names.get(source, source): n for source, n in layer.numblocks.items()}
    return found


def _renamed_task(task: Any, names: Mapping[str, str]) -> Any:
    def new(key: Any) -> Any:
        return (names.get(key[0], key[0]), *key[1:]) if isinstance(key, tuple) else key

    if type(task) is Alias:
        return Alias(new(task.key), new(task.target))
    keys = {key: new(key) for key in task.dependencies}
    changed = {key: other for key, other in keys.items() if key != other}
    return task.substitute(changed, key=new(task.key))
