"""Tasks that index single blocks by positions: lists of them, and points.

dask makes such a task for each block that it needs, with positions of its own. It reads itself
then, and only the blocks of a chunk that the positions touch.
"""

from __future__ import annotations

import itertools
from collections import Counter
from typing import Any

from dask.typing import Key

from b2nd_dask.graph._dask_compat import GraphNode, List, Task, TaskRef, _shuffle, core, held_tasks
from b2nd_dask.graph.expression.elementwise import is_among
from b2nd_dask.graph.expression.nodes import Elemwise, Node, Read
from b2nd_dask.graph.expression.program import Compiled, compile_tree
from b2nd_dask.graph.layers.layers import Layers
from b2nd_dask.graph.optimize.lower import Lowered, ReadBlocks, block_of
from b2nd_dask.graph.optimize.sharing import Sharing
from b2nd_dask.graph.tasks.block_index import index_block

#: dask's functions that index their first argument by positions alone.
_POSITION_GETTERS = frozenset({core._vindex_slice_and_transpose, _shuffle._getitem})


def lowered_positions(layers: Layers, sharing: Sharing, name: str) -> Lowered | None:
    """Tasks that read their blocks themselves; None where a layer has none."""
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
        # a block that several tasks use is read once
        own = [key for key, block in indexed.items() if block[0] == source and used[block] == 1]
        if compiled is None or not own:
            continue
        reads = ReadBlocks(compiled.read)
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
    """The program of blocks that a layer indexes; None where they are not read in parts."""
    if not isinstance(node, Read | Elemwise) or node.filters:
        return None
    absorbed = sharing.absorbed(node, name)
    compiled = absorbed and compile_tree(absorbed)
    if not compiled or not compiled.read.is_box or compiled.read.chunks != node.chunks:
        return None
    return None if any(isinstance(each, Read) for each in compiled.inputs) else compiled


def _reading_task(task: Any, compiled: Compiled, reads: ReadBlocks) -> Task:
    """A task that reads the block that it indexes, with the work on it."""
    first, *positions = task.args
    block = first.key[1:]
    inputs = List(*(block_of(each, block) for each in compiled.inputs))
    arguments = reads[block], task.func, compiled.program, inputs
    return Task(task.key, index_block, *arguments, *positions, _data_producer=True)
