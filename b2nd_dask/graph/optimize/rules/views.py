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

from b2nd_dask.frame.compressed import compress
from b2nd_dask.frame.write.casts import checked_cast
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
from b2nd_dask.graph.optimize.names import renamed
from b2nd_dask.graph.optimize.rules.index_pushdown import index_block
from b2nd_dask.graph.optimize.rules.reduction_pushdown import reduce_block
from b2nd_dask.graph.optimize.rules.rule import GraphRule, Tasks
from b2nd_dask.graph.read.blocks import ConstantRegion, FrameRegion
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
        compress,
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


_REGIONS = (FrameRegion, ConstantRegion)
_REFERENCES = (TaskRef, Alias)
#: Arguments of which a graph does not tell the value.
_RESULTS = (Task, *_REFERENCES)


def reading_tasks(tasks: Tasks, output_keys: set[Key]) -> tuple[_Flow, set[Key]] | None:
    """Find the tasks that read blocks of frames, alone or fused."""
    flow = _Flow()
    reading = {key for key, node in tasks.items() if flow.reads(node)}
    return (flow, reading) if reading else None


def return_views(tasks: Tasks, output_keys: set[Key], found: tuple[_Flow, set[Key]]) -> Tasks:
    """Make reads return views of constants, where nothing may write into their results."""
    flow, reading = found
    writable = flow.writable(tasks, output_keys)
    changed = {key: flow.returning_views(tasks[key], key in writable) for key in reading}
    # The old key is that of the read as it was, in graphs that this one may be merged with. Fused
    # tasks keep theirs, as dask's own do.
    names = {
        key: _name_of_views(key)
        for key, node in changed.items()
        if node is not tasks[key] and key not in output_keys and node.func is not _execute_subgraph
    }
    return renamed({**tasks, **changed}, names)


def _name_of_views(key: Key) -> Key:
    """Key of a read that returns views; its first word stays, which dashboards show."""
    return (_name_of_views(key[0]), *key[1:]) if isinstance(key, tuple) else f"{key}-views"


def _is_region(argument: Any) -> bool:
    value = argument.value if type(argument) is DataNode else argument
    return type(value) in _REGIONS


class _Flow:
    """Which results must be writable, of a graph that does not change meanwhile."""

    def __init__(self) -> None:
        # by identity: the tasks of a layer share inner graphs, functions and regions
        self._inside: dict[tuple[int, bool], set[Key]] = {}
        self._reading_inside: dict[int, bool] = {}
        self._effects: dict[tuple[int, int, int], _Effect] = {}
        self._with_views: dict[int, FrameRegion | ConstantRegion] = {}

    def reads(self, node: Any) -> bool:
        """Whether a task, or one that is fused into it, reads a block of a frame."""
        if not isinstance(node, Task):
            return False
        if node.func is not _execute_subgraph:
            return bool(node.args) and _is_region(node.args[0])
        return any(map(_is_region, node.args[3:])) or self._reads_inside(node.args[0])

    def _reads_inside(self, inner: Mapping[Key, Any]) -> bool:
        known = id(inner)
        if known not in self._reading_inside:
            self._reading_inside[known] = any(map(self.reads, inner.values()))
        return self._reading_inside[known]

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
        if isinstance(node, _REFERENCES):
            if result:
                found.add(node.key if isinstance(node, TaskRef) else node.target)
        elif not isinstance(node, Task) or not node.dependencies:
            pass
        elif node.func is _execute_subgraph:
            inside = self._writable_inside(node, result=result)
            for name, value in zip(node.args[2], node.args[3:], strict=True):
                found |= self._needed(value, result=name in inside)
        else:
            effect = self._effect_of(node)
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

    def _effect_of(self, node: Task) -> _Effect:
        if node.kwargs or not all(isinstance(arg, _RESULTS) for arg in node.args):
            return _effect_of(node)
        # then it depends on the function alone, and on how many results are given to it
        known = id(node.func), len(node.args), len(node.dependencies)
        if known not in self._effects:
            self._effects[known] = _effect_of(node)
        return self._effects[known]

    def returning_views(self, node: Any, writable: bool) -> Any:
        """Make the reads of a task return views, except where results must be writable."""
        args: tuple[Any, ...]
        if node.func is _execute_subgraph:
            inner, out, names, *values = node.args
            inside = self._writable_inside(node, result=writable)
            if self._reads_inside(inner):
                inner = {
                    name: self.returning_views(task, name in inside) if self.reads(task) else task
                    for name, task in inner.items()
                }
            arguments = zip(names, values, strict=True)
            args = (inner, out, names, *(v if n in inside else self._view(v) for n, v in arguments))
        elif writable or not is_among(node.func, _READERS):
            return node
        else:
            args = (self._view(node.args[0]), *node.args[1:])
        return Task(node.key, node.func, *args, _data_producer=node.data_producer, **node.kwargs)

    def _view(self, argument: Any) -> Any:
        if not _is_region(argument):
            return argument
        wrapped = isinstance(argument, DataNode)
        region = argument.value if wrapped else argument
        known = id(region)
        if known not in self._with_views:
            self._with_views[known] = region.giving_views()
        views = self._with_views[known]
        return DataNode(argument.key, views) if wrapped else views


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


CONSTANT_VIEWS = GraphRule(
    "constant_views",
    "A block of one repeated value takes no time and no memory as a view of a single element.",
    reading_tasks,
    return_views,
)
