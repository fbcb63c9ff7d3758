"""Verify rewritten graphs: what a rule has spoilt must not reach a scheduler."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Set
from graphlib import CycleError, TopologicalSorter
from typing import Any

from dask.highlevelgraph import HighLevelGraph
from dask.typing import Key

from b2nd_dask.graph._dask_compat import GraphNode, block_function


class UnsoundGraphError(Exception):
    """A rewritten graph that cannot be computed."""


def check_layers(graph: HighLevelGraph, before: HighLevelGraph) -> None:
    """Verify layers that are not those from before.

    Raises
    ------
    UnsoundGraphError
        A layer is missing, or a task in one, or some depend on each other.
    """
    below = graph.dependencies
    if missing := set().union(*below.values()) - graph.layers.keys():
        raise UnsoundGraphError(f"no layer {_some(missing)}")
    _check_order(below)
    for name, layer in graph.layers.items():
        if not len(layer):
            raise UnsoundGraphError(f"no tasks in layer {name}")
        if layer is not before.layers.get(name) and block_function(layer) is None:
            check_tasks(dict(layer), below[name])


def check_tasks(tasks: Any, below: Set[Any] = frozenset()) -> None:
    """Verify tasks, which depend on each other and on those of other layers.

    Raises
    ------
    UnsoundGraphError
        They are no tasks of their keys, one is missing, or some depend on each other.
    """
    if not isinstance(tasks, Mapping):
        raise UnsoundGraphError(f"a rule made a {type(tasks).__name__} of a graph")
    inside: dict[Any, set[Key]] = {}
    for key, node in tasks.items():
        if not isinstance(node, GraphNode) or node.key != key:
            raise UnsoundGraphError(f"{key!r} is no task of that key: {node!r:.200}")
        inside[key] = set(node.dependencies & tasks.keys())
        outside = node.dependencies - inside[key]
        if lost := {each for each in outside if layer_of(each) not in below}:
            raise UnsoundGraphError(f"no task for {_some(lost)}")
    _check_order(inside)


def check_outputs(tasks: Mapping[Any, Any], output_keys: Set[Key]) -> None:
    """Raise UnsoundGraphError where a result has no task."""
    if lost := output_keys - tasks.keys():
        raise UnsoundGraphError(f"no task for {_some(lost)}")


def _check_order(below: Mapping[Any, Iterable[Any]]) -> None:
    """Raise UnsoundGraphError where names depend on each other."""
    try:
        TopologicalSorter(below).prepare()
    except CycleError as error:
        raise UnsoundGraphError(f"they wait for each other: {_some(set(error.args[1]))}") from None


def layer_of(key: Any) -> Any:
    """The name of the layer that a task of a key belongs to."""
    return key[0] if isinstance(key, tuple) else key


def _some(names: Any) -> str:
    return ", ".join(sorted(map(repr, names))[:5])
