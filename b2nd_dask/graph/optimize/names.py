"""Rename tasks: those that reduce what they read, so that a cluster's dashboard shows it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dask.typing import Key

from b2nd_dask.frame.joined import Readable
from b2nd_dask.graph._dask_compat import GraphNode, Task
from b2nd_dask.graph.optimize.rules.reduction_pushdown import reduce_block
from b2nd_dask.graph.optimize.rules.rule import Tasks
from b2nd_dask.graph.task_names import reading_name


def with_reading_names(tasks: Tasks, output_keys: set[Key]) -> Tasks:
    """Rename the tasks of pushed-down reductions; others keep the keys that dask gave to them.

    Output keys, by which dask finds results, stay.
    """
    names: dict[Key, Key] = {}
    for key, node in tasks.items():
        if key not in output_keys and (frame := _reduced_frame(node)) is not None:
            label = frame.label
            if isinstance(key, tuple):
                names[key] = (reading_name(str(key[0]), label), *key[1:])
            else:
                names[key] = reading_name(str(key), label)
    return renamed(tasks, names) if names else tasks


def renamed(tasks: Tasks, names: Mapping[Key, Key]) -> dict[Key, GraphNode]:
    """Give tasks other keys, in their dependents too."""
    found: dict[Key, GraphNode] = {}
    for key, node in tasks.items():
        own = names.get(key, key)
        used: dict[Key, Key | GraphNode] = {
            name: names[name] for name in node.dependencies if name in names
        }
        found[own] = node.substitute(used, key=own) if used or own != key else node
    return found


def _reduced_frame(node: Any) -> Readable | None:
    """Return what a task reduces a block of: alone, or as the argument of a combination.

    The first argument of `reduce_block` is the frame, or joined ones; merged blocks are one task
    inside lists.
    """
    while isinstance(node, Task):
        if node.func is reduce_block:
            frame: Readable = node.args[0]
            return frame
        if len(node.args) != 1:
            return None
        (node,) = node.args
    return None
