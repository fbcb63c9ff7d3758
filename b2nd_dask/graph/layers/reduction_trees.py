"""Layers that combine partial results of blocks, as dask builds its reductions: a tree of tasks."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from dask.highlevelgraph import HighLevelGraph
from dask.typing import Key

from b2nd_dask.graph._dask_compat import Task, TaskRef

Box = tuple[range, ...]
"""Neighbouring blocks: their positions along each axis."""


@dataclass(frozen=True)
class ReductionTree:
    """Layers of combining steps over the blocks of one layer."""

    top: str
    """Name of the last layer."""
    func: Callable[..., Any]
    """The function of that layer."""
    boxes: Mapping[Key, Box]
    """For each task of the last layer the blocks that it combines."""
    nesting: Mapping[Key, int]
    """Levels of lists in the argument of each of these tasks."""


def tree_over(
    graph: HighLevelGraph, blocks: str, combines: Callable[[Any], bool]
) -> ReductionTree | None:
    """Follow the combining steps over the blocks of a layer up to the last one.

    Parameters
    ----------
    combines : callable
        Whether a function is such a step.

    Returns
    -------
    ReductionTree or None
        None where something else uses the blocks, or they are not combined as boxes.
    """
    boxes: Mapping[Key, Box] | None = None
    nesting: dict[Key, int] = {}
    func: Any = None
    below = blocks
    while (above := _only_user(graph, below)) is not None:
        level = _level_of(graph.layers[above], above, below, boxes)
        if level is None or not combines(level[0]):
            break
        func, boxes, nesting = level
        below = above
    return None if boxes is None else ReductionTree(below, func, boxes, nesting)


def _only_user(graph: HighLevelGraph, name: str) -> str | None:
    users = [user for user, used in graph.dependencies.items() if name in used]
    return users[0] if len(users) == 1 and graph.dependencies[users[0]] == {name} else None


def _level_of(
    layer: Any, name: str, below: str, known: Mapping[Key, Box] | None
) -> tuple[Callable[..., Any], dict[Key, Box], dict[Key, int]] | None:
    """Parse a layer of tasks that all call one function on lists of keys of the layer below."""
    tasks = getattr(layer, "mapping", None)
    if not isinstance(tasks, Mapping) or not tasks:
        return None
    func, boxes, nesting = None, {}, {}
    for key, task in tasks.items():
        found = _combining(task)
        if found is None or not isinstance(key, tuple) or key[0] != name:
            return None
        if func is not None and found[0] is not func:
            return None
        func, depth, keys = found
        box = _box_of(keys, below, known)
        if box is None or depth == 0:
            return None
        boxes[key], nesting[key] = box, depth
    return func, boxes, nesting  # type: ignore[return-value]


def _combining(task: Any) -> tuple[Callable[..., Any], int, list[Any]] | None:
    """The function of a task, the levels of lists in its argument, and the keys in these."""
    if isinstance(task, Task) and len(task.args) == 1 and not task.kwargs:
        func, argument = task.func, task.args[0]
    elif isinstance(task, tuple) and len(task) == 2 and callable(task[0]):
        func, argument = task
    else:
        return None
    depth, nodes = 0, [argument]
    while nodes and all(_is_list(node) for node in nodes):
        depth, nodes = depth + 1, [inner for node in nodes for inner in _inner_nodes(node)]
    return func, depth, [node.key if isinstance(node, TaskRef) else node for node in nodes]


def _is_list(node: Any) -> bool:
    return isinstance(node, list) or (isinstance(node, Task) and node.kwargs.get("typ") is list)


def _inner_nodes(node: Any) -> Iterator[Any]:
    return iter(node if isinstance(node, list) else node.args)


def _box_of(keys: list[Any], below: str, known: Mapping[Key, Box] | None) -> Box | None:
    """The box that tasks of the layer below make; None where they make none."""
    boxes = []
    for key in keys:
        if not isinstance(key, tuple) or key[0] != below:
            return None
        box = tuple(range(at, at + 1) for at in key[1:]) if known is None else known.get(key)
        if box is None:
            return None
        boxes.append(box)
    if not boxes or len(set(keys)) < len(keys):
        return None
    whole = tuple(
        range(min(part.start for part in along), max(part.stop for part in along))
        for along in zip(*boxes, strict=True)
    )
    # boxes of one level are disjoint: a tree uses each task once
    filled = sum(math.prod(map(len, box)) for box in boxes)
    return whole if filled == math.prod(map(len, whole)) else None
