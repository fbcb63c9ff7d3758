"""Rewrite one task of a layer, and the others in its image.

The fused tasks of a layer share one inner graph and are given the same values, apart from the block
that each of them reads. A rule makes of all of them what it makes of one, so that a layer costs one
look into the inner graph, and not one for each of its thousands of blocks.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any

from b2nd_dask.graph._dask_compat import DataNode, GraphNode, Task, TaskRef, _execute_subgraph

Rewrite = Callable[[GraphNode], GraphNode]
#: Makes of a task what the rule has made of another one of its layer.
Copy = Callable[[Task], GraphNode]


class OncePerLayer:
    """A rule for single tasks, which looks at one fused task of each layer.

    The rule must not depend on the key of a task, nor on where the slices of a block lie.
    """

    def __init__(self, rule: Rewrite) -> None:
        self._rule = rule
        # with the first task, since identities of its values are part of the key
        self._known: dict[Hashable, tuple[GraphNode, Copy | None]] = {}

    def __call__(self, node: GraphNode) -> GraphNode:
        """Rewrite a task."""
        if type(node) is not Task or node.func is not _execute_subgraph:
            return self._rule(node)
        inner, out, names, *values = node.args
        layer = id(inner), out, names, node.data_producer, *map(_kind_of, values)
        if layer not in self._known:
            found = self._rule(node)
            self._known[layer] = node, _copy_of(node, found)
            return found
        _, copy = self._known[layer]
        return self._rule(node) if copy is None else copy(node)


def _kind_of(value: Any) -> Hashable:
    """Equal for arguments that the rule treats alike."""
    if type(value) is TaskRef:
        return TaskRef, value.key
    if type(value) is not DataNode:
        return id(value)
    return (slice, len(value.value)) if _is_block(value.value) else (DataNode, id(value.value))


def _is_block(value: Any) -> bool:
    """Whether a value is a slice with a positive step for each axis."""
    if type(value) is not tuple or not value:
        return False
    return all(type(part) is slice and (part.step is None or part.step > 0) for part in value)


def _copy_of(node: Task, found: GraphNode) -> Copy | None:
    """What makes the other tasks of the layer; None where each needs a look of its own."""
    if found is node:
        return lambda other: other
    blocks = [i for i, arg in enumerate(node.args) if _is_block(_value(arg))]
    if len(blocks) != 1 or type(found) is not Task or found.func is _execute_subgraph:
        return None
    (given,) = blocks
    taken = [i for i, arg in enumerate(found.args) if _value(arg) is _value(node.args[given])]
    if len(taken) != 1:
        return None
    (taker,) = taken
    before, after = found.args[:taker], found.args[taker + 1 :]
    wrapped = type(found.args[taker]) is DataNode

    def copy(other: Task) -> Task:
        block = other.args[given]
        return Task(
            other.key,
            found.func,
            *before,
            block if wrapped else block.value,
            *after,
            _data_producer=found.data_producer,
            **found.kwargs,
        )

    return copy


def _value(argument: Any) -> Any:
    return argument.value if type(argument) is DataNode else argument
