"""Constant blocks as views of a single element, where nothing may write into them.

A block of one repeated value costs nothing as a read-only view. A function of the user may act in
place, though, and would fail on such a block alone. So reads return writable arrays, unless all
their dependents are known only to read: then `return_views` makes them return views.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable, Mapping
from enum import Enum, auto
from functools import partial
from typing import Any

import numpy as np
from dask.typing import Key

from b2nd_dask.graph._dask_compat import (
    Alias,
    DataNode,
    GraphNode,
    M,
    NestedContainer,
    Task,
    TaskRef,
    _execute_subgraph,
    _identity_cast,
    _shuffle,
    chunk,
    core,
)
from b2nd_dask.graph.optimize.calls.elementwise import UNKNOWN, is_elementwise, may_return_view
from b2nd_dask.graph.optimize.calls.expression import is_among
from b2nd_dask.graph.optimize.calls.reductions import is_chunk_step
from b2nd_dask.graph.optimize.rules.index_pushdown import index_block
from b2nd_dask.graph.optimize.rules.reduction_pushdown import reduce_block
from b2nd_dask.graph.optimize.rules.rule import GraphRule, Tasks
from b2nd_dask.graph.read.blocks import ConstantRegion, FrameRegion
from b2nd_dask.graph.write.checked_cast import checked_cast
from b2nd_dask.graph.write.write_tasks import write_task


class _Effect(Enum):
    """How a call treats its arguments."""

    READS = auto()
    """Its result shares no memory with them."""
    PASSES = auto()
    """Its result may be one of them, or a view."""
    UNKNOWN = auto()
    """Perhaps it writes into them."""


_READING = frozenset(
    {
        _shuffle.concatenate_arrays,
        core.concatenate3,
        core.concatenate_shaped,
        np.concatenate,
        reduce_block,
        write_task,
    }
)
#: Functions that read a block of a frame; the region is their first argument.
_READERS = frozenset({core.getter, core.getter_inline, core.getter_nofancy, index_block})
_PASSING = _READERS | {
    M.reshape,
    _identity_cast,
    _shuffle._getitem,
    chunk.getitem,
    core._concatenate2,
    core._vindex_slice_and_transpose,
    checked_cast,
    np.broadcast_to,
    np.expand_dims,
    np.squeeze,
    np.transpose,
    operator.getitem,
}


def reading_tasks(tasks: Tasks, output_keys: set[Key]) -> set[Key]:
    """Find the tasks that read blocks of frames, alone or fused."""
    return {key for key, node in tasks.items() if _reads(node)}


def return_views(tasks: Tasks, output_keys: set[Key], reading: set[Key]) -> Tasks:
    """Make reads return views of constants, where nothing may write into their results."""
    flow = _Flow()
    writable = flow.writable(tasks, output_keys)
    return {
        key: flow.returning_views(node, key in writable) if key in reading else node
        for key, node in tasks.items()
    }


def _reads(node: Any) -> bool:
    """Whether a task, or one that is fused into it, reads a block of a frame."""
    if not isinstance(node, Task):
        return False
    if node.func is _execute_subgraph:
        inner, _, _, *values = node.args
        return any(map(_is_region, values)) or any(map(_reads, inner.values()))
    return bool(node.args) and _is_region(node.args[0])


def _is_region(argument: Any) -> bool:
    value = argument.value if isinstance(argument, DataNode) else argument
    return isinstance(value, FrameRegion | ConstantRegion)


class _Flow:
    """Which results must be writable, of a graph that does not change meanwhile."""

    def __init__(self) -> None:
        # many fused tasks share one inner graph
        self._inside: dict[tuple[int, bool], set[Key]] = {}

    def writable(self, dsk: Mapping[Key, Any], output_keys: Iterable[Key]) -> set[Key]:
        """Find the tasks, and keys of other graphs, whose results must be writable."""
        found: set[Key] = set()
        todo = set(output_keys)
        for node in dsk.values():
            todo |= self._needed(node, result=False)
        while todo:
            key = todo.pop()
            if key not in found:
                found.add(key)
                todo |= self._needed(dsk.get(key), result=True)
        return found

    def _needed(self, node: Any, *, result: bool) -> set[Key]:
        """Find the dependencies of a task that must be writable; `result`: so must its own be."""
        found: set[Key] = set()
        if isinstance(node, TaskRef | Alias):
            if result:
                found.add(node.key if isinstance(node, TaskRef) else node.target)
        elif not isinstance(node, Task) or not node.dependencies:
            pass
        elif node.func is _execute_subgraph:
            inside = self._writable_inside(node, result=result)
            for name, value in zip(node.args[2], node.args[3:], strict=True):
                found |= self._needed(value, result=name in inside)
        else:
            effect = _effect_of(node)
            needed = effect is _Effect.UNKNOWN or (result and effect is _Effect.PASSES)
            for argument in (*node.args, *node.kwargs.values()):
                found |= self._needed(argument, result=needed)
        return found

    def _writable_inside(self, node: Task, *, result: bool) -> set[Key]:
        inner, out = node.args[:2]
        known = id(inner), result
        if known not in self._inside:
            self._inside[known] = self.writable(inner, {out} if result else ())
        return self._inside[known]

    def returning_views(self, node: Any, writable: bool) -> Any:
        """Make the reads of a task return views, except where results must be writable."""
        if not _reads(node):
            return node
        args: tuple[Any, ...]
        if node.func is _execute_subgraph:
            inner, out, names, *values = node.args
            inside = self._writable_inside(node, result=writable)
            if any(map(_reads, inner.values())):
                inner = {name: self.returning_views(t, name in inside) for name, t in inner.items()}
            arguments = zip(names, values, strict=True)
            args = (
                inner,
                out,
                names,
                *(v if n in inside else _with_views(v) for n, v in arguments),
            )
        elif writable or not is_among(node.func, _READERS):
            return node
        else:
            args = (_with_views(node.args[0]), *node.args[1:])
        return Task(node.key, node.func, *args, _data_producer=node.data_producer, **node.kwargs)


def _effect_of(task: Task) -> _Effect:
    if isinstance(task, NestedContainer):
        return _Effect.PASSES
    func: Any = task.func
    kwargs = task.kwargs
    while isinstance(func, partial) and not func.args:
        func, kwargs = func.func, {**func.keywords, **kwargs}
    if func is core.finalize:
        # of a single block some versions of dask return the block itself
        return _Effect.READS if len(task.dependencies) > 1 else _Effect.PASSES
    if is_among(func, _READING) and "out" not in kwargs:
        return _Effect.READS
    if is_among(func, _PASSING) and "out" not in kwargs:
        return _Effect.PASSES
    args = list(map(_known, task.args))
    if is_elementwise(func, args, kwargs):
        return _Effect.PASSES if may_return_view(func, kwargs) else _Effect.READS
    reduces = len(args) == 1 and task.kwargs.keys() <= {"axis", "keepdims"}
    return _Effect.READS if reduces and is_chunk_step(task.func) else _Effect.UNKNOWN


def _known(argument: Any) -> Any:
    if isinstance(argument, DataNode):
        return argument.value
    return UNKNOWN if isinstance(argument, GraphNode | TaskRef) else argument


def _with_views(argument: Any) -> Any:
    if not _is_region(argument):
        return argument
    if isinstance(argument, DataNode):
        return DataNode(argument.key, argument.value.giving_views())
    return argument.giving_views()


CONSTANT_VIEWS = GraphRule(
    "constant_views",
    "A block of one repeated value takes no time and no memory as a view of a single element.",
    reading_tasks,
    return_views,
)
