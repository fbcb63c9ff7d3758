"""Prefetch the chunks that tasks read from stores, for schedulers with threads of this process.

dask's local schedulers pass the ready tasks to callbacks, in their order of execution; on a
cluster no process knows this order. The functions that a task calls determine its reads; `plan`
uses them, too.

Needs private names of dask, so the rules of the optimizer import it.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import Any

from dask.callbacks import Callback

from b2nd_dask.frame.array import Frame, reference_of
from b2nd_dask.frame.rechunk.work import FlatSource, RegionSource, begin_intermediate, open_view
from b2nd_dask.frame.write.transaction import begin
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
    warn_once,
)
from b2nd_dask.graph.expression.elementwise import UNKNOWN, is_among
from b2nd_dask.graph.read.blocks import BlockRead
from b2nd_dask.graph.tasks import index_block, reduce_block
from b2nd_dask.storage import Item, Prefetch

#: If so many first tasks of a graph read nothing from a store, the search for reads ends.
_FIRST_TASKS = 1000
_GETTERS = (core.getter, core.getter_inline, core.getter_nofancy)
#: Tasks whose results determine the reads and writes of other tasks.
_MAKERS = (begin, begin_intermediate, open_view, FlatSource)


class _Prefetching(Callback):
    """Starts a prefetch for the graph that was announced, and ends it with the graph."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._of_thread = threading.local()
        self._running: dict[int, Prefetch] = {}

    def announce(self) -> None:
        """Announce that the next graph computed by this thread may read from stores.

        If that graph is never computed, the next graph is searched, to no effect.
        """
        self._of_thread.is_announced = True
        # repeated: dask loses callbacks if two threads compute concurrently
        self.register()

    def _start_state(self, dsk: Mapping[Any, Any], state: Mapping[str, Any]) -> None:
        is_announced = getattr(self._of_thread, "is_announced", False)
        self._of_thread.is_announced = False
        if not is_announced:
            return
        try:
            ready = [dsk[key] for key in reversed(state["ready"])]
        except Exception as error:  # noqa: BLE001 - another dask; reads work without prefetch
            warn_once("b2nd_dask reads from stores without prefetch", error)
            return
        self._running[id(state)] = prefetch = Prefetch(_items(dsk, ready))
        prefetch.begin()

    def _finish(self, dsk: Mapping[Any, Any], state: Mapping[str, Any], failed: bool) -> None:
        if prefetch := self._running.pop(id(state), None):
            prefetch.close()


prefetching = _Prefetching()


def _items(graph: Mapping[Any, Any], nodes: Iterable[Any]) -> Iterator[Item]:
    """The reads from stores that the ready tasks will certainly make."""
    calls, found = TaskCalls(graph), False
    for number, node in enumerate(nodes):
        if number == _FIRST_TASKS and not found:
            return
        for func, args in calls.of(node):
            if _may_read_less(func, args):
                continue
            for read in _reads_in(func, args):
                for item in read.source.expected_reads(read.axes, read.predicate):
                    found = True
                    yield item


def _may_read_less(func: Any, args: list[Any]) -> bool:
    """Whether a task may read less than its blocks: by positions or by statistics pruning."""
    return func is index_block or (
        func is reduce_block and args[1].prunes and args[0].source.has_statistics
    )


def _reads_in(func: Any, args: list[Any]) -> Iterator[BlockRead]:
    for each in args:
        if isinstance(each, list):
            yield from _reads_in(None, each)
        elif read := block_read(each, func, args):
            yield read


class TaskCalls:
    """The function calls of the tasks of a graph."""

    def __init__(self, graph: Mapping[Any, GraphNode]) -> None:
        self._graph = graph

    def of(
        self, node: Any, scope: Mapping[Any, Any] = MappingProxyType({})
    ) -> Iterator[tuple[Any, list[Any]]]:
        """The functions that a task calls, and their arguments or `UNKNOWN`."""
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
        """The value of an argument if the graph contains it, else `UNKNOWN`."""
        if isinstance(arg, DataNode):
            return arg.value
        if isinstance(arg, TaskRef | Alias):
            key = arg.key if isinstance(arg, TaskRef) else arg.target
            node = scope.get(key, self._graph.get(key, UNKNOWN))
            found = self._known(node, scope)
            # a block without axes is a number; any number stands for it
            return 1 if found is UNKNOWN and isinstance(key, tuple) and len(key) == 1 else found
        if not isinstance(arg, Task):
            return arg
        if _is_collection(arg):
            return [self._known(each, scope) for each in arg.args]
        return self._made(arg) if is_among(arg.func, _MAKERS) else UNKNOWN

    def _made(self, node: Task) -> Any:
        """The transaction that a task starts, or the source of a rechunk that it makes."""
        first, *others = (self._known(arg, {}) for arg in node.args)
        if node.func is FlatSource:
            return FlatSource(first, *others) if isinstance(first, RegionSource) else UNKNOWN
        return RegionSource(first, *others[:2]) if node.func is open_view else first


def _is_collection(node: Task) -> bool:
    """Whether a task collects results in a list or the like."""
    return isinstance(node, NestedContainer) or node.func is _identity_cast


def block_read(arg: Any, func: Any, args: list[Any]) -> BlockRead | None:
    """The read of an argument: a part of its block if dask has fused slices into its getter."""
    if not isinstance(arg, BlockRead | Frame):
        return None
    if not is_among(func, _GETTERS):
        return arg if isinstance(arg, BlockRead) else None
    # a frame is an argument of dask's `from_array`
    whole = (
        BlockRead(reference_of(arg), tuple(map(range, arg.shape)))
        if isinstance(arg, Frame)
        else arg
    )
    try:
        return whole.part(args[1])[0]
    except IndexError:
        # a list of positions
        return whole
