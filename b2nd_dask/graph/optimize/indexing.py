"""Indexing by arrays: lists of positions, points, and masks.

For lists and points, dask makes a task per block with its own positions. The rule lets the task
read its block itself, and only the frame's blocks that the positions touch.

For ``x[x > t]`` with several axes dask first flattens elements and mask. Chunks without a true mask
element need not be read, unless something else needs their elements.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Set
from typing import Any

from dask.typing import Key

from b2nd_dask.frame.read.reduce import Predicate
from b2nd_dask.graph._dask_compat import (
    GraphNode,
    List,
    Task,
    TaskRef,
    _shuffle,
    core,
    held_tasks,
)
from b2nd_dask.graph.expression.elementwise import is_among
from b2nd_dask.graph.expression.nodes import Elemwise, Node, Read, nodes_of
from b2nd_dask.graph.expression.program import Compiled, compile_tree
from b2nd_dask.graph.expression.pruning import predicate_of
from b2nd_dask.graph.layers.layers import Layers
from b2nd_dask.graph.optimize.lower import Lowered, block_of, is_renamable
from b2nd_dask.graph.optimize.sharing import Sharing
from b2nd_dask.graph.read.blocks import ReadBlocks
from b2nd_dask.graph.tasks import index_block

#: dask's functions that index their first argument by positions alone.
_POSITION_GETTERS = frozenset({core._vindex_slice_and_transpose, _shuffle._getitem})


def lowered_positions(layers: Layers, sharing: Sharing, name: str) -> Lowered | None:
    """Tasks that read the blocks they index; None for a layer without such tasks."""
    tasks = held_tasks(layers.graph.layers[name])
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


def masked_reads(layers: Layers, outputs: Set[str]) -> tuple[dict[str, Predicate], dict[str, str]]:
    """The reads of several axes whose elements only `x[mask]` needs, with their predicates.

    Also returns the filter above each layer whose blocks are then not those that dask expects.
    """
    predicates, above = dict[str, Predicate](), dict[str, str]()
    for name, node in layers.nodes.items():
        is_filter = isinstance(node, Elemwise) and node.is_raveled and len(node.layers) == 1
        if is_filter and "masks" in layers.rules:
            below, compiled = _layers_below(layers, node), compile_tree(node)
            predicate = predicate_of(compiled)
            if compiled and predicate and below and outputs.isdisjoint(below):
                # the first may read in new blocks; if it stays dask's rechunk, the next one reads
                names = compiled.read.layers
                reads = (each for each in names if isinstance(layers.nodes[each], Read))
                predicates |= dict.fromkeys(reads, predicate)
                above |= dict.fromkeys(below, name)
    return predicates, above


def _layers_below(layers: Layers, top: Node) -> set[str]:
    """The layers below the top of a tree; none if one is needed elsewhere, or cannot be renamed."""
    nodes = list(nodes_of(top))
    tree = {name for node in nodes if isinstance(node, Read | Elemwise) for name in node.layers}
    # the inputs of its program: opaque parts, and moves that need other elements of their arrays
    leaves = {node.layers[0] for node in nodes if not isinstance(node, Read | Elemwise)}
    below = tree - {*top.layers}
    is_closed = leaves.isdisjoint(tree) and all(
        tree.issuperset(layers.dependents[each]) and is_renamable(layers.graph.layers[each])
        for each in below
    )
    return below if is_closed else set()
