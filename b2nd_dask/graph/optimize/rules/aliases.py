"""Remove alias tasks: rename a task to the only key that its dependents use.

dask's fusion leaves many tasks with a second key.
"""

from __future__ import annotations

from collections.abc import Mapping

from dask.typing import Key

from b2nd_dask.graph._dask_compat import Alias
from b2nd_dask.graph.optimize.rules.inline import dependents_of
from b2nd_dask.graph.optimize.rules.rule import GraphRule, Tasks


def aliased_tasks(tasks: Tasks, output_keys: set[Key]) -> dict[Key, Key]:
    """Map tasks whose only dependent is an alias to the key of that alias."""
    aliases = {key: node.target for key, node in tasks.items() if isinstance(node, Alias)}
    if not aliases:
        return {}
    dependents = dependents_of(tasks)
    fit = tasks.keys() - aliases.keys() - output_keys
    return {
        target: key
        for key, target in aliases.items()
        if target in fit and len(dependents[target]) == 1
    }


def rename_tasks(tasks: Tasks, output_keys: set[Key], names: Mapping[Key, Key]) -> Tasks:
    """Rename tasks to their aliases, and drop these."""
    dropped = set(names.values())
    return {
        names.get(key, key): node.substitute({}, key=names[key]) if key in names else node
        for key, node in tasks.items()
        if key not in dropped
    }


ALIASES = GraphRule(
    "aliases",
    "An alias is a task of its own to a scheduler, which costs it as much as one that works.",
    aliased_tasks,
    rename_tasks,
)
