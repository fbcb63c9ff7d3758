"""Indexing by arrays: lists of positions, points, and masks.

For lists and points, dask makes a task per block with its own positions. The rule lets the task
read its block itself, and only the frame's blocks that the positions touch.

For ``x[x > t]`` with several axes dask first flattens elements and mask; for this it cuts chunks
into rows and joins these. Chunks without a true mask element need not be read. So the rule copies
the layers of the elements, from the read up, under other names; other dependents of the read still
get all its elements.
"""

from __future__ import annotations

import itertools
from collections import Counter
from functools import partial
from typing import Any

from dask.base import tokenize
from dask.typing import Key

from b2nd_dask.frame.joined import JoinedReference
from b2nd_dask.frame.read.reduce import Predicate
from b2nd_dask.graph._dask_compat import (
    GraphNode,
    List,
    Task,
    TaskRef,
    _shuffle,
    block_function,
    blockwise,
    core,
    held_tasks,
)
from b2nd_dask.graph.expression.elementwise import FILTERS, is_among, unwrapped
from b2nd_dask.graph.expression.nodes import Elemwise, Moved, Node, Read
from b2nd_dask.graph.expression.program import Compiled, compile_tree
from b2nd_dask.graph.expression.pruning import is_false
from b2nd_dask.graph.layers.layers import Layers
from b2nd_dask.graph.optimize.lower import (
    Lowered,
    block_of,
    is_renamable,
    lowered_tree,
    new_names,
    own_name,
    renamed,
)
from b2nd_dask.graph.optimize.sharing import Sharing
from b2nd_dask.graph.read.blocks import ReadBlocks
from b2nd_dask.graph.tasks import index_block

#: dask's functions that index their first argument by positions alone.
_POSITION_GETTERS = frozenset({core._vindex_slice_and_transpose, _shuffle._getitem})
#: Minimum share of pruned chunks: the others are read twice, for the mask and for the elements.
_LEAST_PRUNED = 0.5


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


def lowered_filter(layers: Layers, name: str) -> Lowered | None:
    """Layers that read elements apart from their mask; None if a layer is no filter."""
    layer: Any = layers.graph.layers[name]
    func = block_function(layer)
    if func is None or not is_among(unwrapped(func, layer.task.kwargs)[0], FILTERS):
        return None
    if len(layer.indices) != 2 or any(labels is None for _, labels in layer.indices):
        return None
    moves, read = _moved(layers, layer.indices[0][0])
    _, mask = _moved(layers, layer.indices[1][0])
    if not moves or not isinstance(read, Read) or isinstance(read.source, JoinedReference):
        return None
    predicate = _predicate(mask, read)
    if not all(is_renamable(layers.graph.layers[each]) for each in moves):
        return None
    if predicate is None or read.source.pruned_share(predicate) < _LEAST_PRUNED:
        return None
    return _read_apart(layers, name, moves, read, predicate)


def _predicate(mask: Node, read: Read) -> Predicate | None:
    """The predicate under which a mask of the same frame selects nothing, in any blocks."""
    compiled = compile_tree(mask)
    if compiled is None:
        return None
    same = (
        compiled.read.source is read.source
        and compiled.read.positions == read.positions
        and compiled.read.axes == read.axes
    )
    return partial(is_false, compiled.program) if same else None


def _moved(layers: Layers, name: str) -> tuple[list[str], Node]:
    """Layers with the same elements in the same order, from the top, and the node below them."""
    names = []
    node = layers.nodes[name]
    while isinstance(node, Moved) and node.move is None:
        names.append(node.layers[0])
        node = node.child
    return names, node


def _read_apart(
    layers: Layers, name: str, moves: list[str], read: Read, predicate: Predicate
) -> Lowered:
    """Copy the layers of the elements, down to the read, and filter the copy by the mask."""
    source, token = read.layers[0], tokenize(name)
    names = {source: own_name(source, token)}
    made, below = lowered_tree(names[source], read, predicate, views=False) or Lowered({}, {})
    for old in reversed(moves):
        moving = layers.graph.layers[old]
        names |= new_names(old, moving, token)
        made[names[old]] = renamed(moving, names)
        below[names[old]] = {names[used] for used in layers.graph.dependencies[old]}
    layer: Any = layers.graph.layers[name]
    (elements, axes), (mask, of_mask) = layer.indices
    moved = names[elements]
    blocks = {moved: layer.numblocks[elements], mask: layer.numblocks[mask]}
    chosen = blockwise(
        layer.task.func, name, layer.output_indices, moved, axes, mask, of_mask,
        numblocks=blocks, **layer.task.kwargs,
    )  # fmt: skip
    return Lowered({name: chosen, **made}, {name: {moved, mask}, **below})
