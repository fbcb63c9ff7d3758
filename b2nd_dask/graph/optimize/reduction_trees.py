"""Layers that combine partial results of blocks, as dask builds its reductions: a tree of tasks."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from dask.typing import Key

from b2nd_dask.graph._dask_compat import Task, TaskRef, held_tasks
from b2nd_dask.graph.layers.layers import Layers

Box = tuple[range, ...]
"""Neighbouring blocks: their grid coordinates along each axis."""


class Level(NamedTuple):
    """A layer of combining steps."""

    name: str
    func: Callable[..., Any]
    boxes: Mapping[Key, Box]
    """For each task the blocks that it combines."""
    arguments: Mapping[Key, Any]
    """For each task the keys that it combines, in nested lists."""


def combining_layers(layers: Layers, name: str, combines: Callable[[Any], bool]) -> list[str]:
    """The layers that combine results of a layer, from the lowest to the last.

    Each is used by the next alone. Of each one task is looked at: whether it calls a function that
    `combines`.
    """
    found: list[str] = []
    while len(layers.dependents[name]) == 1:
        below, (name,) = name, layers.dependents[name]
        layer = layers.graph.layers[name]
        tasks = held_tasks(layer)
        if not tasks or layer.annotations or layers.graph.dependencies[name] != {below}:
            break
        called = _called(next(iter(tasks.values())))
        if called is None or not combines(called[0]):
            break
        found.append(name)
    return found


def levels_over(layers: Layers, blocks: str, combining: Iterable[str]) -> list[Level]:
    """Parse the tasks of layers that combine results of the blocks of a layer.

    Returns
    -------
    list of Level
        From the blocks up, as far as results are combined as boxes by one function a layer.
    """
    levels: list[Level] = []
    below = blocks
    for name in combining:
        known = levels[-1].boxes if levels else None
        level = _level_of(held_tasks(layers.graph.layers[name]) or {}, name, below, known)
        if level is None:
            break
        levels.append(level)
        below = name
    return levels


def _level_of(
    tasks: Mapping[Key, Any], name: str, below: str, known: Mapping[Key, Box] | None
) -> Level | None:
    """Parse a layer of tasks that all call one function on lists of keys of the layer below."""
    func: Any = None
    boxes: dict[Key, Box] = {}
    arguments: dict[Key, Any] = {}
    for key, task in tasks.items():
        found = _called(task)
        if found is None or not isinstance(key, tuple) or key[0] != name:
            return None
        if func is not None and found[0] is not func:
            return None
        func, argument = found
        if not isinstance(argument, list):
            return None
        box = _box_of(list(keys_in(argument)), below, known)
        if box is None:
            return None
        boxes[key], arguments[key] = box, argument
    return Level(name, func, boxes, arguments)


def _called(task: Any) -> tuple[Callable[..., Any], Any] | None:
    """The function of a task, and its only argument as nested lists of keys."""
    if isinstance(task, Task) and len(task.args) == 1 and not task.kwargs:
        return task.func, _nested(task.args[0])
    if isinstance(task, tuple) and len(task) == 2 and callable(task[0]):
        return task[0], _nested(task[1])
    return None


def _nested(node: Any) -> Any:
    if isinstance(node, list):
        return [_nested(inner) for inner in node]
    if isinstance(node, Task) and node.kwargs.get("typ") is list:
        return [_nested(inner) for inner in node.args]
    return node.key if isinstance(node, TaskRef) else node


def keys_in(nested: Any) -> Iterator[Key]:
    """The keys in nested lists."""
    if isinstance(nested, list):
        for inner in nested:
            yield from keys_in(inner)
    else:
        yield nested


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
