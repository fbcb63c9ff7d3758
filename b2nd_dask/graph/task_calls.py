"""Which functions the tasks of an optimized graph call, and with which arguments.

Needs private names of dask, so it is imported when a graph is looked at.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Any

from b2nd_dask.frame.array import Frame, reference_of
from b2nd_dask.frame.joined import Readable
from b2nd_dask.frame.rechunk.intermediate_frame import begin_intermediate, open_view
from b2nd_dask.frame.rechunk.source import RegionSource, flat_source
from b2nd_dask.frame.write.transaction import Transaction, begin
from b2nd_dask.graph._dask_compat import (
    Alias,
    DataNode,
    GraphNode,
    NestedContainer,
    Task,
    TaskRef,
    _execute_subgraph,
    _identity_cast,
    core,
)
from b2nd_dask.graph.expression.elementwise import UNKNOWN, is_among
from b2nd_dask.graph.read.blocks import FrameRegion

_GETTERS = (core.getter, core.getter_inline, core.getter_nofancy)
#: Tasks whose results say what others read and write.
_MAKERS = (begin, begin_intermediate, open_view, flat_source)


class TaskCalls:
    """The calls of the tasks of a graph."""

    def __init__(self, graph: Mapping[Any, GraphNode]) -> None:
        self._graph = graph

    def of(
        self, node: Any, scope: Mapping[Any, Any] = MappingProxyType({})
    ) -> Iterator[tuple[Any, list[Any]]]:
        """The functions that a task calls, and their arguments as far as they are known."""
        if not isinstance(node, Task):
            return
        if node.func is _execute_subgraph:
            inner, _, names, *values = node.args
            known = (DataNode(None, self._known(value, scope)) for value in values)
            scope = {**inner, **dict(zip(names, known, strict=True))}
            for each in inner.values():
                yield from self.of(each, scope)
            return
        arguments = [*node.args, *node.kwargs.values()]
        for each in arguments:
            yield from self.of(each, scope)
        if not _is_collection(node):
            yield node.func, [self._known(each, scope) for each in arguments]

    def _known(self, arg: Any, scope: Mapping[Any, Any]) -> Any:
        """The value of an argument, where the graph tells it."""
        if isinstance(arg, DataNode):
            return arg.value
        if isinstance(arg, TaskRef | Alias):
            key = arg.key if isinstance(arg, TaskRef) else arg.target
            node = scope.get(key, self._graph.get(key, UNKNOWN))
            found = self._known(node, scope)
            # the only block of an array without axes is some number
            return 1 if found is UNKNOWN and isinstance(key, tuple) and len(key) == 1 else found
        if not isinstance(arg, Task):
            return arg
        if _is_collection(arg):
            return [self._known(each, scope) for each in arg.args]
        return self._made(arg) if is_among(arg.func, _MAKERS) else UNKNOWN

    def _made(self, node: Task) -> RegionSource | Transaction | None:
        """The write that a task begins, or the source of a rechunk that it makes."""
        first, *others = (self._known(arg, {}) for arg in node.args)
        if node.func is flat_source:
            return flat_source(first, *others)
        return RegionSource(first, *others[:2]) if node.func is open_view else first


def _is_collection(node: Task) -> bool:
    """Whether a task puts results into a list or the like."""
    return isinstance(node, NestedContainer) or node.func is _identity_cast


def region_of_getter(func: Any, args: list[Any]) -> tuple[Readable, Any] | None:
    """What a getter of dask reads of a frame; None for other functions."""
    source: Any = args[0] if args else None
    if not isinstance(source, FrameRegion | Readable | Frame) or not is_among(func, _GETTERS):
        return None
    index = args[1]
    frame = reference_of(source) if isinstance(source, Frame) else source
    region = frame if isinstance(frame, FrameRegion) else FrameRegion(frame)
    try:
        return region.frame, region.select(index).axes
    except IndexError:
        # lists of positions, of which dask leaves few here
        return region.frame, tuple(map(range, region.frame.shape))
