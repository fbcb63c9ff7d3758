"""Push work into reads: reductions and indices act on a block of a frame while it is read.

dask calls `optimize` for every graph of arrays. In a fused task that reads a block of a frame,
works on it element by element and then reduces or indexes it, these steps become one call. Small
blocks that are reduced together are then merged.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any, TypeGuard

import dask.array as da
from dask._task_spec import GraphNode, Task, TaskRef, _execute_subgraph, cull
from dask.array import _shuffle
from dask.array.optimization import optimize as dask_optimize
from dask.base import dont_optimize
from dask.blockwise import Blockwise
from dask.context import globalmethod
from dask.core import flatten
from dask.highlevelgraph import HighLevelGraph
from dask.typing import Key

from b2nd_dask.graph.blocks import FrameBlocks
from b2nd_dask.graph.expression import NotUnderstoodError, Scope, expression_of
from b2nd_dask.graph.merge import merge_blocks
from b2nd_dask.graph.program import program_of
from b2nd_dask.graph.push_index import index_task
from b2nd_dask.graph.push_reduction import reduction_task


def install() -> None:
    """Make dask arrays use `optimize`, unless the user's setting ``array_optimize`` says otherwise.

    The setting itself is left alone: a function in dask's configuration could not be sent to the
    workers of a cluster, as dask does with it.
    """
    if da.array_expr_enabled():
        return  # then arrays have no graph of layers to optimize
    da.Array.__dask_optimize__ = globalmethod(optimize, key="array_optimize", falsey=dont_optimize)


def optimize(dsk: Any, keys: Any, **kwargs: Any) -> Any:
    """Optimize a graph of arrays as dask does, then push work into reads of frames.

    Parameters
    ----------
    dsk, keys, **kwargs
        As for `dask.array.optimization.optimize`.

    Returns
    -------
    Mapping
        The optimized graph.
    """
    ours = isinstance(dsk, HighLevelGraph) and any(map(_reads_frames, dsk.layers.values()))
    found = dask_optimize(dsk, keys, **kwargs)
    # with fusion turned off the graph keeps its layers
    if not ours or isinstance(found, HighLevelGraph):
        return found
    wanted = set(flatten(keys if isinstance(keys, list | set) else [keys]))
    pushed = {key: _pushed(node) for key, node in _with_takers(found, wanted).items()}
    return merge_blocks(pushed, wanted)


def _reads_frames(layer: Any) -> bool:
    return isinstance(layer, Blockwise) and any(
        isinstance(dep, FrameBlocks) for dep in layer.io_deps.values()
    )


def _with_takers(dsk: Mapping[Key, GraphNode], wanted: set[Key]) -> Mapping[Key, GraphNode]:
    """Fuse reads with the one task that takes items of them by a list.

    dask leaves these apart, because the list is a task, too.
    """
    takers = [node for node in dsk.values() if _takes(node)]
    if not takers:
        return dsk
    uses = Counter(name for node in dsk.values() for name in node.dependencies)
    fused = dict(dsk)
    for taker in takers:
        for name in taker.dependencies - wanted:
            # what is persisted has no task
            read = dsk.get(name)
            if uses[name] == 1 and isinstance(read, Task) and _reads(read):
                del fused[name]
                fused[taker.key] = taker = _joined(taker, read)
    return fused


def _reads(task: Task) -> bool:
    """Whether a task reads a block of a frame and works on it, with nothing else."""
    try:
        return not task.dependencies and program_of(expression_of(task)) is not None
    except NotUnderstoodError:
        return False


def _takes(node: Any) -> TypeGuard[Task]:
    """Whether a task, or one that is fused into it, takes items by a list."""
    if not isinstance(node, Task):
        return False
    inner = node.args[0].values() if node.func is _execute_subgraph else [node]
    return any(isinstance(n, Task) and n.func is _shuffle._getitem for n in inner)


def _joined(taker: Task, read: Task) -> Task:
    inner, out, names, values = {taker.key: taker}, taker.key, taker.dependencies, None
    if taker.func is _execute_subgraph:
        inner, out, names, *values = taker.args
    given = zip(names, values or map(TaskRef, names), strict=True)
    kept = {name: value for name, value in given if name != read.key}
    return Task(
        taker.key,
        _execute_subgraph,
        {**inner, read.key: read},
        out,
        tuple(kept),
        *kept.values(),
        _data_producer=taker.data_producer or read.data_producer,
    )


def _pushed(node: GraphNode) -> GraphNode:
    """The task with steps pushed into reads: the task itself, or tasks fused into it."""
    if not isinstance(node, Task) or node.func is not _execute_subgraph:
        return node
    try:
        scope = Scope.of(node)
    except NotUnderstoodError:
        return node
    inner, out, names, *values = node.args
    producer = node.data_producer
    if whole := _push(scope, out, node.key, producer):
        return whole
    known = {*inner, *names}
    pushed = {key: _pushed_in(scope, key, task, known) for key, task in inner.items()}
    if all(pushed[key] is inner[key] for key in inner):
        return node
    needed = cull(pushed, {out})
    return Task(node.key, _execute_subgraph, needed, out, names, *values, _data_producer=producer)


def _pushed_in(scope: Scope, key: Any, task: GraphNode, known: set[Any]) -> GraphNode:
    pushed = _push(scope, key, key, task.data_producer)
    # it refers to other tasks by their keys, and inside only those in `known` go by their keys
    return pushed if pushed and pushed.dependencies <= known else _pushed(task)


def _push(scope: Scope, name: Any, key: Key, data_producer: bool) -> Task | None:
    """Task `name` of a scope, pushed into the read that feeds it, as the task `key`."""
    try:
        top = scope.named(name)
    except NotUnderstoodError:
        return None
    return reduction_task(key, top, data_producer=data_producer) or index_task(
        key, top, data_producer=data_producer
    )
