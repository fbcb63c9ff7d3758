"""Tasks ask statistics of chunks, and read no chunk whose elements cannot change their result."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Any

from dask.typing import Key

from b2nd_dask.frame.joined import Readable
from b2nd_dask.frame.reference import FrameReference
from b2nd_dask.graph._dask_compat import DataNode, GraphNode, Task, _execute_subgraph
from b2nd_dask.graph.optimize.calls.expression import Call, Node, NotUnderstoodError, Read, Scope
from b2nd_dask.graph.optimize.calls.settling import condition_of
from b2nd_dask.graph.optimize.rules.pushdown import kind_of, value_of
from b2nd_dask.graph.optimize.rules.rule import GraphRule, Tasks
from b2nd_dask.graph.read.blocks import FrameRegion


def unsettled_reads(tasks: Tasks, output_keys: set[Key]) -> dict[Key, Task]:
    """Find the tasks whose result not all elements that they read can change."""
    conditions = _Conditions()
    return {key: found for key, node in tasks.items() if (found := conditions.asking(node))}


class _Conditions:
    """What may settle the reads of fused tasks: found once for those of a layer."""

    def __init__(self) -> None:
        # with the task, since identities of its values are part of the key
        self._known: dict[Hashable, tuple[Task, dict[int, FrameRegion]]] = {}

    def asking(self, node: GraphNode) -> Task | None:
        """The same task with reads that ask; None where nothing is to be asked."""
        if type(node) is not Task or node.func is not _execute_subgraph:
            return None
        inner, out, names, *values = node.args
        layer = id(inner), out, names, *map(kind_of, values)
        if layer not in self._known:
            self._known[layer] = node, _asking_regions(node) if _may_ask(node) else {}
        _, found = self._known[layer]
        return _with_regions(node, found) if found else None


def _may_ask(node: Any) -> bool:
    """Whether a task, or one fused into it, reads a frame that may have statistics."""
    if type(node) is Task:
        inner = node.args[0].values() if node.func is _execute_subgraph else ()
        return any(map(_may_ask, (*inner, *node.args)))
    region = value_of(node)
    return isinstance(region, FrameRegion) and region.settles is None and _has(region.frame)


def _has(frame: Readable) -> bool:
    return isinstance(frame, FrameReference) and frame.has_statistics


def _with_regions(node: Task, regions: Mapping[int, FrameRegion]) -> Task:
    """Replace regions, by their identity, in a task and in those fused into it."""
    args = list(node.args)
    if node.func is _execute_subgraph:
        inner = {
            key: _with_regions(task, regions) if type(task) is Task else task
            for key, task in args[0].items()
        }
        # tasks of a layer share the graph inside them
        if any(inner[key] is not task for key, task in args[0].items()):
            args[0] = inner
    for at, value in enumerate(args):
        if (region := regions.get(id(value_of(value)))) is not None:
            args[at] = DataNode(None, region)
    if all(new is old for new, old in zip(args, node.args, strict=True)):
        return node
    return Task(node.key, node.func, *args, _data_producer=node.data_producer, **node.kwargs)


def _asking_regions(node: Task) -> dict[int, FrameRegion]:
    """For the regions that a task reads, by their identity, those that ask."""
    try:
        top = Scope.of(node).named(node.args[1])
        reads = list(_reads_in(top))
    except NotUnderstoodError:
        return {}
    asking = {}
    for read in reads:
        region = read.region
        alone = all(other == read for other in reads if other.region is region)
        if not alone or not isinstance(region, FrameRegion) or region.settles is not None:
            continue
        condition = condition_of(top, read) if _has(region.frame) else None
        if condition is not None:
            asking[id(region)] = FrameRegion(region.frame, views=region.views, settles=condition)
    return asking


def _reads_in(top: Node) -> list[Read]:
    """The reads of an expression, in which a node may be used several times."""
    found: list[Read] = []
    seen: set[int] = set()
    todo = [top]
    while todo:
        node = todo.pop()
        if id(node) in seen:
            continue
        seen.add(id(node))
        if isinstance(node, Read):
            found.append(node)
        elif isinstance(node, Call):
            todo += node.args
            todo += [value for value in node.kwargs.values() if isinstance(value, Read | Call)]
    return found


def asking_reads(tasks: Tasks, output_keys: set[Key], found: Mapping[Key, Task]) -> Tasks:
    """Let tasks ask whether what they read can change their result."""
    return {key: found.get(key, node) for key, node in tasks.items()}


ASKING_READS = GraphRule(
    "statistics_reads",
    "Chunks of which statistics tell that no element passes a comparison, or all do, are not read "
    "where nothing else depends on them.",
    unsettled_reads,
    asking_reads,
)
