"""One pass over fused tasks, in each of which the task rules look for work to push into a read."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dask.typing import Key

from b2nd_dask.graph._dask_compat import DataNode, GraphNode, Task, _execute_subgraph, cull, getter
from b2nd_dask.graph.optimize.calls.expression import Node, NotUnderstoodError, Read, Scope
from b2nd_dask.graph.optimize.rules.once_per_layer import OncePerLayer
from b2nd_dask.graph.optimize.rules.rule import TaskRule, Tasks


def push_down(tasks: Tasks, rules: Sequence[TaskRule]) -> Tasks:
    """Apply task rules to each fused task, and to those fused into it; the first that fits wins."""
    rewritten = OncePerLayer(_Pushdown(rules).rewritten)
    return {key: rewritten(node) for key, node in tasks.items()}


class _Pushdown:
    def __init__(self, rules: Sequence[TaskRule]) -> None:
        self._rules = rules

    def rewritten(self, node: GraphNode) -> GraphNode:
        """A task with work pushed into reads: the task itself, or tasks fused into it."""
        if not isinstance(node, Task) or node.func is not _execute_subgraph:
            return node
        try:
            scope = Scope.of(node)
        except NotUnderstoodError:
            return node
        inner, out, names, *values = node.args
        if whole := _read_alone(scope, node) or self._replaced(scope, out, node.key, node):
            return whole
        known = {*inner, *names}
        pushed = {key: self._inside(scope, key, task, known) for key, task in inner.items()}
        if all(pushed[key] is inner[key] for key in inner):
            return node
        needed, producer = cull(pushed, {out}), node.data_producer
        return Task(
            node.key, _execute_subgraph, needed, out, names, *values, _data_producer=producer
        )

    def _inside(self, scope: Scope, key: Any, task: GraphNode, known: set[Any]) -> GraphNode:
        pushed = self._replaced(scope, key, key, task)
        # it refers to other tasks by their keys, and inside only those in `known` go by their keys
        return pushed if pushed and pushed.dependencies <= known else self.rewritten(task)

    def _replaced(self, scope: Scope, name: Any, key: Key, task: GraphNode) -> Task | None:
        """What the first rule that fits makes of task `name` of a scope, with the key `key`."""
        top = _named(scope, name)
        if top is None:
            return None
        for rule in self._rules:
            if (found := rule.condition(top)) is not None:
                return rule.replacement(key, found, task.data_producer)
        return None


def _read_alone(scope: Scope, node: Task) -> Task | None:
    """A fused task that only reads as a plain one: dask orders what it fused at every run."""
    top = _named(scope, node.args[1])
    if not isinstance(top, Read):
        return None
    region, index = DataNode(None, top.region), DataNode(None, top.index)
    return Task(node.key, getter, region, index, _data_producer=node.data_producer)


def _named(scope: Scope, name: Any) -> Node | None:
    try:
        return scope.named(name)
    except NotUnderstoodError:
        return None
