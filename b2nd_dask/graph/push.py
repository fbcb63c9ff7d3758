"""Push the chunk steps of reductions into the reads that feed them.

dask calls `optimize` for every graph of arrays (its setting ``array_optimize``); a fused task that
reads a block of a frame, works on it element by element and reduces it becomes one call that
streams the block's frame chunks.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import dask
import numpy as np
from dask._task_spec import GraphNode, List, Task, TaskRef, _execute_subgraph, cull
from dask.array.optimization import optimize as dask_optimize
from dask.blockwise import Blockwise
from dask.highlevelgraph import HighLevelGraph
from dask.typing import Key
from numpy.typing import NDArray

from b2nd_dask.format.grid import parse_selection
from b2nd_dask.frame.source import Frame
from b2nd_dask.graph.blocks import FrameBlocks
from b2nd_dask.graph.expression import (
    Call,
    Leaves,
    Node,
    NotUnderstoodError,
    Read,
    Scope,
    evaluate,
    is_scalar,
)
from b2nd_dask.graph.reductions import ChunkStep, Rule, rule_of

#: Booleans, numbers: what the rules are made for.
_KINDS = "biufc"


def install() -> None:
    """Make dask use `optimize`, unless the user has set something else."""
    dask.config.update_defaults({"array_optimize": optimize})


def optimize(dsk: Any, keys: Any, **kwargs: Any) -> Any:
    """Optimize a graph of arrays as dask does, then push reductions into reads of frames.

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
    return {key: _pushed(node) for key, node in found.items()}


def _reads_frames(layer: Any) -> bool:
    return isinstance(layer, Blockwise) and any(
        isinstance(dep, FrameBlocks) for dep in layer.io_deps.values()
    )


def _pushed(node: GraphNode) -> GraphNode:
    """The task with its reductions of reads replaced: the task itself, or tasks fused into it."""
    if not isinstance(node, Task) or node.func is not _execute_subgraph:
        return node
    inner, out, names, *values = node.args
    scope = Scope.of(node)
    pushed = {key: _reduction_in(scope, key) for key in inner}
    if found := pushed.get(out):
        return _task(node.key, found)
    changed = {
        key: _task(key, found) if (found := pushed.get(key)) else _pushed(task)
        for key, task in inner.items()
    }
    if all(changed[key] is inner[key] for key in inner):
        return node
    needed = cull(changed, {out})
    return Task(node.key, _execute_subgraph, needed, out, names, *values)


def _reduction_in(scope: Scope, key: Any) -> tuple[Read, PushedStep] | None:
    try:
        return _reduction_of(scope.named(key))
    except NotUnderstoodError:
        return None


def _task(key: Key, found: tuple[Read, PushedStep]) -> Task:
    read, step = found
    outer = List(*(TaskRef(name) for name in step.outer))
    return Task(key, reduce_block, read.region.frame, read.index, step, outer)


@dataclass(frozen=True)
class PushedStep:
    """The chunk step of a reduction, and the elementwise work before it."""

    func: Any
    axis: tuple[int, ...]
    rule: Rule
    work: Node
    outer: tuple[Key, ...]
    """Tasks whose results the work needs."""

    def on(self, items: NDArray[Any], outer: Mapping[Key, Any]) -> Any:
        """What dask would compute of these items."""
        return self.func(evaluate(self.work, items, outer), axis=self.axis, keepdims=True)


def reduce_block(frame: Frame, index: Any, step: PushedStep, outer: list[Any]) -> Any:
    """Compute the chunk step of a reduction for one block of a frame.

    Parameters
    ----------
    frame : Frame
    index : tuple of slice
        The block.
    step : PushedStep
    outer : list
        Results of other tasks.

    Returns
    -------
    ndarray or dict of ndarray
        What dask's own chunk step gives for the block.
    """
    values = dict(zip(step.outer, outer, strict=True))
    if not all(map(is_scalar, outer)) or 0 in parse_selection(index, frame.shape).shape:
        return step.on(np.asarray(frame[index]), values)
    chunk_step = ChunkStep(partial(step.on, outer=values), step.axis, step.rule)
    fields = frame.reduce(index, chunk_step)
    return fields[""] if "" in fields else dict(fields)


def _reduction_of(top: Node) -> tuple[Read, PushedStep] | None:
    """The reduction that a task computes, if it can be pushed."""
    if not isinstance(top, Call) or len(top.args) != 1 or set(top.kwargs) != {"axis", "keepdims"}:
        return None
    rule, axis, work = rule_of(top.func), top.kwargs["axis"], top.args[0]
    if rule is None or not isinstance(axis, tuple) or top.kwargs["keepdims"] is not True:
        return None
    leaves = Leaves.of(work)
    if leaves is None or len(leaves.reads) != 1:
        return None
    (read,) = leaves.reads
    if read.region.frame.dtype.kind not in _KINDS or not _selects_slices(read):
        return None
    return read, PushedStep(top.func, axis, rule, work, tuple(leaves.outer))


def _selects_slices(read: Read) -> bool:
    index = read.index
    return (
        isinstance(index, tuple)
        and 0 < len(index) == read.region.frame.ndim
        and all(isinstance(s, slice) and (s.step is None or s.step > 0) for s in index)
    )
