"""Push work into reads: reductions and indices act on a block of a frame while it is read.

dask calls `optimize` for every graph of arrays. In a fused task that reads a block of a frame,
works on it element by element and then reduces or indexes it, these steps become one call. Small
blocks that are reduced together are then merged.
"""

from __future__ import annotations

from typing import Any

import dask.array as da
from dask._task_spec import DataNode, GraphNode, Task, _execute_subgraph, cull
from dask.array.core import getter
from dask.array.optimization import optimize as dask_optimize
from dask.base import dont_optimize
from dask.blockwise import Blockwise
from dask.context import globalmethod
from dask.core import flatten
from dask.highlevelgraph import HighLevelGraph
from dask.typing import Key

from b2nd_dask.graph.optimize.calls.expression import Node, NotUnderstoodError, Read, Scope
from b2nd_dask.graph.optimize.rules.aliases import without_aliases
from b2nd_dask.graph.optimize.rules.index_pushdown import index_task
from b2nd_dask.graph.optimize.rules.inline import inline_reads
from b2nd_dask.graph.optimize.rules.merge import merge_blocks
from b2nd_dask.graph.optimize.rules.once_per_layer import OncePerLayer
from b2nd_dask.graph.optimize.rules.reduction_pushdown import reduction_task
from b2nd_dask.graph.optimize.rules.views import give_views
from b2nd_dask.graph.read.blocks import FrameBlocks


def install() -> None:
    """Make dask arrays use `optimize`, unless the user's setting ``array_optimize`` says otherwise.

    The setting itself is left alone: a function in dask's configuration could not be sent to the
    workers of a cluster, as dask does with it.
    """
    if da.array_expr_enabled():
        return  # then arrays have no graph of layers to optimize
    da.Array.__dask_optimize__ = globalmethod(
        _ArrayOptimizer(), key="array_optimize", falsey=dont_optimize
    )


class _ArrayOptimizer:
    """`optimize`, as dask keeps it with every array and sends it to a scheduler.

    It pickles as "the way that arrays are optimized in your process": a scheduler without this
    package takes dask's own. It is equal to dask's own, which collections of other packages hold:
    dask computes collections with unequal ones apart, and then gives their results in another
    order (dask 2026.8.0).
    """

    def __call__(self, dsk: Any, keys: Any, **kwargs: Any) -> Any:
        return optimize(dsk, keys, **kwargs)

    def __reduce__(self) -> tuple[Any, ...]:
        return getattr, (da.Array, "__dask_optimize__")

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _ArrayOptimizer) or other is dask_optimize

    def __hash__(self) -> int:
        return hash(dask_optimize)


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
    output_keys = set(flatten(keys if isinstance(keys, list | set) else [keys]))
    named = without_aliases(found, output_keys)
    push = OncePerLayer(_pushed)
    pushed = {key: push(node) for key, node in inline_reads(named, output_keys).items()}
    return give_views(merge_blocks(pushed, output_keys), output_keys)


def _reads_frames(layer: Any) -> bool:
    return isinstance(layer, Blockwise) and any(
        isinstance(dep, FrameBlocks) for dep in layer.io_deps.values()
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
    if whole := _read_alone(scope, node) or _push(scope, out, node.key, producer):
        return whole
    known = {*inner, *names}
    pushed = {key: _pushed_in(scope, key, task, known) for key, task in inner.items()}
    if all(pushed[key] is inner[key] for key in inner):
        return node
    needed = cull(pushed, {out})
    return Task(node.key, _execute_subgraph, needed, out, names, *values, _data_producer=producer)


def _read_alone(scope: Scope, node: Task) -> Task | None:
    """A fused task that only reads as a plain one: dask orders what it fused at every run."""
    top = _named(scope, node.args[1])
    if not isinstance(top, Read):
        return None
    region, index = DataNode(None, top.region), DataNode(None, top.index)
    return Task(node.key, getter, region, index, _data_producer=node.data_producer)


def _pushed_in(scope: Scope, key: Any, task: GraphNode, known: set[Any]) -> GraphNode:
    pushed = _push(scope, key, key, task.data_producer)
    # it refers to other tasks by their keys, and inside only those in `known` go by their keys
    return pushed if pushed and pushed.dependencies <= known else _pushed(task)


def _push(scope: Scope, name: Any, key: Key, data_producer: bool) -> Task | None:
    """Task `name` of a scope, pushed into the read that feeds it, as the task `key`."""
    top = _named(scope, name)
    if top is None:
        return None
    return reduction_task(key, top, data_producer=data_producer) or index_task(
        key, top, data_producer=data_producer
    )


def _named(scope: Scope, name: Any) -> Node | None:
    try:
        return scope.named(name)
    except NotUnderstoodError:
        return None
