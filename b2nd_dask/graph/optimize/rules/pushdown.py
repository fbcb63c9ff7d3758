"""Apply the task rules to fused tasks, once for each layer of a graph.

The fused tasks of a layer share one inner graph and the same arguments, apart from the block that
each of them reads. The rules rewrite one task of a layer; the others are copies of the result with
blocks of their own. So a layer costs one analysis of its inner graph, not one for each block.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Any

from dask.typing import Key

from b2nd_dask.frame.joined import JoinedReference
from b2nd_dask.graph._dask_compat import (
    DataNode,
    GraphNode,
    Task,
    TaskRef,
    _execute_subgraph,
    cull,
    getter,
)
from b2nd_dask.graph.optimize.calls.expression import Node, NotUnderstoodError, Read, Scope
from b2nd_dask.graph.optimize.rules.rule import TaskRule, Tasks
from b2nd_dask.graph.read.blocks import ConstantRegion, FrameRegion

Rewrite = Callable[[GraphNode], GraphNode]
#: Rewrites a task like another one of its layer.
Copy = Callable[[Task], GraphNode]


def push_down(tasks: Tasks, rules: Sequence[TaskRule]) -> Tasks:
    """Apply task rules to each fused task and to those inside it; the first that matches wins."""
    rewritten = OncePerLayer(_TaskRewriter(rules).rewritten)
    return {key: rewritten(node) for key, node in tasks.items()}


class _TaskRewriter:
    def __init__(self, rules: Sequence[TaskRule]) -> None:
        self._rules = rules

    def rewritten(self, node: GraphNode) -> GraphNode:
        """Apply the rules to a task, or else to the tasks fused into it."""
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
        rewritten = {key: self._inside(scope, key, task, known) for key, task in inner.items()}
        if all(rewritten[key] is inner[key] for key in inner):
            return node
        needed, producer = cull(rewritten, {out}), node.data_producer
        return Task(
            node.key, _execute_subgraph, needed, out, names, *values, _data_producer=producer
        )

    def _inside(self, scope: Scope, key: Any, task: GraphNode, known: set[Any]) -> GraphNode:
        replaced = self._replaced(scope, key, key, task)
        # a replacement uses keys of the graph; inside only those in `known` have the same name
        return replaced if replaced and replaced.dependencies <= known else self.rewritten(task)

    def _replaced(self, scope: Scope, name: Any, key: Key, task: GraphNode) -> Task | None:
        """Replace task `name` of a scope by the first rule that matches, under the key `key`."""
        top = _named(scope, name)
        if top is None:
            return None
        for rule in self._rules:
            if (found := rule.condition(top)) is not None:
                return rule.replacement(key, found, task.data_producer)
        return None


def _read_alone(scope: Scope, node: Task) -> Task | None:
    """Unfuse a task that only reads: dask orders the tasks inside a fused one at every run."""
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


class OncePerLayer:
    """Rewrite one fused task of each layer, and the others like it.

    The rewrite must not depend on the key of a task, nor on where the slices of a block lie or in
    which of several joined frames.
    """

    def __init__(self, rewrite: Rewrite) -> None:
        self._rewrite = rewrite
        # with the first task, since identities of its values are part of the key
        self._known: dict[Hashable, tuple[GraphNode, Copy | None]] = {}

    def __call__(self, node: GraphNode) -> GraphNode:
        """Rewrite a task."""
        if type(node) is not Task or node.func is not _execute_subgraph:
            return self._rewrite(node)
        inner, out, names, *values = node.args
        layer = id(inner), out, names, node.data_producer, *map(kind_of, values)
        if layer not in self._known:
            found = self._rewrite(node)
            self._known[layer] = node, _copy_of(node, found)
            return found
        _, copy = self._known[layer]
        return self._rewrite(node) if copy is None else copy(node)


def kind_of(value: Any) -> Hashable:
    """Equal for arguments that the rules treat alike."""
    if type(value) is TaskRef:
        return TaskRef, value.key
    if type(value) is not DataNode:
        return id(value)
    if _is_block(value.value):
        return slice, len(value.value)
    if joined := _joined_of(value.value):
        return type(value.value), id(joined.whole)
    return DataNode, id(value.value)


def _is_block(value: Any) -> bool:
    """Whether a value is a slice with a positive step for each axis."""
    if type(value) is not tuple or not value:
        return False
    return all(type(part) is slice and (part.step is None or part.step > 0) for part in value)


def _joined_of(value: Any) -> JoinedReference | None:
    """The frames of a region of several; the regions of a layer are parts of one whole."""
    frame = value.frame if isinstance(value, FrameRegion | ConstantRegion) else None
    return frame if isinstance(frame, JoinedReference) else None


def _copy_of(node: Task, found: GraphNode) -> Copy | None:
    """Return what rewrites the other tasks of the layer; None where each must be analysed."""
    if found is node:
        return lambda other: other
    if type(found) is not Task or found.func is _execute_subgraph:
        return None
    values = [value_of(arg) for arg in node.args]
    own = [i for i, value in enumerate(values) if _is_block(value) or _joined_of(value)]
    # a rewritten task has the region, or the frames alone
    uses = [
        (target, source, value_of(arg) is not values[source])
        for target, arg in enumerate(found.args)
        for source in own
        if value_of(arg) is values[source]
        or (_joined_of(values[source]) and value_of(arg) is values[source].frame)
    ]
    if not any(map(_is_block, values)) or sorted(source for _, source, _ in uses) != own:
        return None

    def copy(other: Task) -> Task:
        args = list(found.args)
        for target, source, is_frame in uses:
            value = value_of(other.args[source])
            value = value.frame if is_frame else value
            args[target] = DataNode(None, value) if type(args[target]) is DataNode else value
        producer = found.data_producer
        return Task(other.key, found.func, *args, _data_producer=producer, **found.kwargs)

    return copy


def value_of(argument: Any) -> Any:
    """The value of an argument that may be wrapped in a node."""
    return argument.value if type(argument) is DataNode else argument
