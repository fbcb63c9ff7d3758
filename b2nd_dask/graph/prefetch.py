"""Prefetch what the tasks of a graph read from stores, where threads of this process run them.

dask's local schedulers tell callbacks which tasks are ready, in the order in which they will run.
On a cluster no process knows what it will run next.

Needs private names of dask, so it is imported with the rules of the optimizer.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from dask.callbacks import Callback

from b2nd_dask.frame.joined import Readable
from b2nd_dask.graph._dask_compat import warn_once
from b2nd_dask.graph.task_calls import TaskCalls, region_of_getter
from b2nd_dask.graph.tasks import BlockRead, index_block, read_at_once, reduce_block
from b2nd_dask.storage import Item, Prefetch

#: A graph whose first tasks read nothing from a store is not looked at further.
_FIRST_TASKS = 1000
#: Compressed bytes of a task that has enough under way by itself. (`read_at_once` reads in pieces.)
_MOST_OF_TASK = 16 << 20


class _Prefetching(Callback):
    """Begins a prefetch with a graph that was announced, and ends it with the graph."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._of_thread = threading.local()
        self._running: dict[int, Prefetch] = {}

    def announce(self) -> None:
        """Say that the next graph that this thread computes may read from stores.

        It may be another one, where nobody computes the announced one: nothing is found in it.
        """
        self._of_thread.is_announced = True
        # each time: dask loses callbacks where two threads compute at once
        self.register()

    def _start_state(self, dsk: Mapping[Any, Any], state: Mapping[str, Any]) -> None:
        is_announced = getattr(self._of_thread, "is_announced", False)
        self._of_thread.is_announced = False
        if not is_announced:
            return
        try:
            ready = [dsk[key] for key in reversed(state["ready"])]
        except Exception as error:  # noqa: BLE001 - another dask; the same is read without it
            warn_once("b2nd_dask reads from stores without prefetch", error)
            return
        self._running[id(state)] = prefetch = Prefetch(_items(dsk, ready))
        prefetch.begin()

    def _finish(self, dsk: Mapping[Any, Any], state: Mapping[str, Any], failed: bool) -> None:
        if prefetch := self._running.pop(id(state), None):
            prefetch.close()


prefetching = _Prefetching()


def _items(graph: Mapping[Any, Any], nodes: Iterable[Any]) -> Iterator[Item]:
    """What tasks that are ready read from stores, as far as that is certain."""
    calls, found = TaskCalls(graph), False
    for number, node in enumerate(nodes):
        if number == _FIRST_TASKS and not found:
            return
        for func, args in calls.of(node):
            if _may_read_less(func, args):
                continue
            items = [
                item
                for source, axes in _regions_in(func, args)
                for item in source.expected_reads(axes)
            ]
            found |= bool(items)
            nbytes = sum(item.span.stop - item.span.start for item in items)
            if func is read_at_once or nbytes <= _MOST_OF_TASK:
                yield from items


def _may_read_less(func: Any, args: list[Any]) -> bool:
    """Whether it reads less than its blocks: positions, or what statistics do not tell."""
    return func is index_block or (
        func is reduce_block and args[1].asks and args[0].source.has_statistics
    )


def _regions_in(func: Any, args: list[Any]) -> Iterator[tuple[Readable, tuple[range, ...]]]:
    if region := region_of_getter(func, args):
        yield region
    for each in args:
        if isinstance(each, list):
            yield from _regions_in(None, each)
        elif isinstance(each, BlockRead) and each.predicate is None:
            yield each.source, each.axes
