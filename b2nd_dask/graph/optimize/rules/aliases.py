"""Tasks under one name each: dask's fusion leaves many of them with a second one.

A second name is a task of its own to a scheduler, which costs it as much as one that works.
"""

from __future__ import annotations

from collections.abc import Mapping

from dask._task_spec import Alias, GraphNode
from dask.typing import Key

from b2nd_dask.graph.optimize.rules.inline import dependents_of


def without_aliases(dsk: Mapping[Key, GraphNode], output_keys: set[Key]) -> Mapping[Key, GraphNode]:
    """Give tasks the second name under which alone their results are taken.

    Parameters
    ----------
    dsk : mapping
        A graph that dask has optimized.
    output_keys : set of Key
        Tasks whose results are asked for.

    Returns
    -------
    mapping
    """
    aliases = {key: node.target for key, node in dsk.items() if isinstance(node, Alias)}
    if not aliases:
        return dsk
    dependents = dependents_of(dsk)
    fit = dsk.keys() - aliases.keys() - output_keys
    names = {
        target: key
        for key, target in aliases.items()
        if target in fit and len(dependents[target]) == 1
    }
    gone = set(names.values())
    return {
        names.get(key, key): node.substitute({}, key=names[key]) if key in names else node
        for key, node in dsk.items()
        if key not in gone
    }
