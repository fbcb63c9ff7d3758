"""Constant blocks as views of a single element, where nothing may write into them.

A block of one repeated value costs nothing as a read-only view. A function of the user may act in
place, though, and would fail on such a block alone. So reads give writable arrays, unless all that
depends on them is known only to read: then `give_views` turns them into reads that give views.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable, Mapping
from enum import Enum, auto
from functools import partial
from typing import Any

import numpy as np
from dask._task_spec import (
    Alias,
    DataNode,
    GraphNode,
    NestedContainer,
    Task,
    TaskRef,
    _execute_subgraph,
    _identity_cast,
)
from dask.array import _shuffle, chunk, core
from dask.typing import Key
from dask.utils import M

from b2nd_dask.graph.blocks import ConstantRegion, FrameRegion
from b2nd_dask.graph.elementwise import UNKNOWN, gives_view, is_elementwise
from b2nd_dask.graph.expression import is_among
from b2nd_dask.graph.narrow import narrowed
from b2nd_dask.graph.push_index import index_block
from b2nd_dask.graph.push_reduction import reduce_block
from b2nd_dask.graph.reductions import is_chunk_step
from b2nd_dask.graph.write_tasks import write_task


class _Effect(Enum):
    """What a call does with its arguments."""

    READS = auto()
    """It makes its result of them, which shares no memory with them."""
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
#: Those that read a block of a frame take the region as their first argument.
_READERS = frozenset({core.getter, core.getter_inline, core.getter_nofancy, index_block})
_PASSING = _READERS | {
    M.reshape,
    _identity_cast,
    _shuffle._getitem,
    chunk.getitem,
    core._concatenate2,
    core._vindex_slice_and_transpose,
    narrowed,
    np.broadcast_to,
    np.expand_dims,
    np.squeeze,
    np.transpose,
    operator.getitem,
}


def give_views(dsk: Mapping[Key, GraphNode], outputs: set[Key]) -> Mapping[Key, GraphNode]:
    """Make reads give views of constants, where nothing may write into their results.

    Parameters
    ----------
    dsk : mapping
        An optimized graph.
    outputs : set of Key
        Tasks whose results are asked for: they are writable.

    Returns
    -------
    mapping
    """
    reading = {key for key, node in dsk.items() if _reads(node)}
    if not reading:
        return dsk
    writable = _writable(dsk, outputs)
    return {
        key: _giving_views(node, key in writable) if key in reading else node
        for key, node in dsk.items()
    }


def _reads(node: Any) -> bool:
    """Whether a task, or one that is fused into it, reads a block of a frame."""
    if not isinstance(node, Task):
        return False
    if node.func is _execute_subgraph:
        inner, _, _, *values = node.args
        return any(map(_reads, inner.values())) or any(map(_is_region, values))
    return bool(node.args) and _is_region(node.args[0])


def _is_region(argument: Any) -> bool:
    value = argument.value if isinstance(argument, DataNode) else argument
    return isinstance(value, FrameRegion | ConstantRegion)


def _writable(dsk: Mapping[Key, Any], wanted: Iterable[Key]) -> set[Key]:
    """Tasks of a graph whose results must be writable, and names from outside of which it holds."""
    found: set[Key] = set()
    todo = set(wanted)
    for node in dsk.values():
        todo |= _needed_writable(node, result=False)
    while todo:
        key = todo.pop()
        if key not in found:
            found.add(key)
            todo |= _needed_writable(dsk.get(key), result=True)
    return found


def _needed_writable(node: Any, *, result: bool) -> set[Key]:
    """Dependencies of a task that must be writable, if its result must be or need not be."""
    if isinstance(node, TaskRef):
        return {node.key} if result else set()
    if isinstance(node, Alias):
        return {node.target} if result else set()
    if not isinstance(node, Task) or not node.dependencies:
        return set()
    if node.func is _execute_subgraph:
        inner, out, names, *values = node.args
        inside = _writable(inner, {out} if result else ())
        given = zip(names, values, strict=True)
        return set().union(*(_needed_writable(v, result=name in inside) for name, v in given))
    effect = _effect_of(node)
    needed = effect is _Effect.UNKNOWN or (result and effect is _Effect.PASSES)
    arguments = (*node.args, *node.kwargs.values())
    return set().union(*(_needed_writable(a, result=needed) for a in arguments))


def _effect_of(task: Task) -> _Effect:
    if isinstance(task, NestedContainer):
        return _Effect.PASSES
    args, kwargs = [_known(arg) for arg in task.args], task.kwargs
    if is_chunk_step(task.func) and len(args) == 1 and kwargs.keys() <= {"axis", "keepdims"}:
        return _Effect.READS
    func: Any = task.func
    while isinstance(func, partial) and not func.args:
        func, kwargs = func.func, {**func.keywords, **kwargs}
    if is_elementwise(func, args, kwargs):
        return _Effect.PASSES if gives_view(func, kwargs) else _Effect.READS
    if "out" in kwargs:
        return _Effect.UNKNOWN
    if func is core.finalize:
        # of a single block some versions of dask give the block itself
        return _Effect.READS if len(task.dependencies) > 1 else _Effect.PASSES
    if is_among(func, _READING):
        return _Effect.READS
    return _Effect.PASSES if is_among(func, _PASSING) else _Effect.UNKNOWN


def _known(argument: Any) -> Any:
    if isinstance(argument, DataNode):
        return argument.value
    return UNKNOWN if isinstance(argument, GraphNode | TaskRef) else argument


def _giving_views(node: Any, writable: bool) -> Any:
    """A task with reads that give views, apart from those whose results must be writable."""
    if not _reads(node):
        return node
    if node.func is _execute_subgraph:
        inner, out, names, *values = node.args
        kept = _writable(inner, {out} if writable else ())
        changed = {name: _giving_views(task, name in kept) for name, task in inner.items()}
        given = zip(names, values, strict=True)
        values = [v if name in kept else _region_giving_views(v) for name, v in given]
        args = (changed, out, names, *values)
    elif writable or not is_among(node.func, _READERS):
        return node
    else:
        args = (_region_giving_views(node.args[0]), *node.args[1:])
    return Task(node.key, node.func, *args, _data_producer=node.data_producer, **node.kwargs)


def _region_giving_views(argument: Any) -> Any:
    if not _is_region(argument):
        return argument
    if isinstance(argument, DataNode):
        return DataNode(argument.key, argument.value.giving_views())
    return argument.giving_views()
