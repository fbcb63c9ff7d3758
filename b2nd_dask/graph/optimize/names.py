"""Names of lowered layers: a task that is not dask's own gets a key of its own.

The same layer may stand in another graph as dask has made it, such as one that a Delayed in between
has optimized already. Two tasks of one key would be one to a scheduler.
"""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

from dask.base import tokenize
from dask.highlevelgraph import HighLevelGraph

from b2nd_dask.graph._dask_compat import Alias, block_function
from b2nd_dask.graph.layers.layers import dependents_of
from b2nd_dask.graph.layers.moves import as_task

logger = logging.getLogger("b2nd_dask")


def with_own_names(graph: HighLevelGraph, lowered: set[str], outputs: set[str]) -> HighLevelGraph:
    """Rename lowered layers, and layers of single tasks that use them, up to layers of blocks.

    Of the latter, and where a layer cannot be renamed, the name stays, as it does of layers that
    dask fuses with those below.
    """
    users = dependents_of(graph)
    can_be_renamed = renamable_layers(graph)
    names: dict[str, str] = {}
    todo = sorted(lowered - outputs)
    changed: set[str] = set()
    while todo:
        name = todo.pop()
        others = [graph.layers[other] for other in users[name]]
        if name in names or not all(map(can_be_renamed, (name, *users[name]))):
            continue
        names |= _names_in(name, graph.layers[name], sorted(graph.dependencies[name]))
        changed |= {name, *users[name]}
        todo += [
            other
            for other, layer in zip(users[name], others, strict=True)
            if block_function(layer) is None and other not in outputs
        ]
    if not names:
        return graph
    for old, new in names.items():
        logger.debug("%s is called %s", old, new)
    return HighLevelGraph(
        {
            names.get(name, name): _renamed(layer, names) if name in changed else layer
            for name, layer in graph.layers.items()
        },
        {
            names.get(name, name): {names.get(used, used) for used in below}
            for name, below in graph.dependencies.items()
        },
    )


def _names_in(name: str, layer: Any, below: list[str]) -> dict[str, str]:
    """Other names for a layer, and for its tasks that have yet other names."""
    words = {name}
    if block_function(layer) is None:
        words |= {key[0] for key in layer if isinstance(key, tuple)}
    return {word: own_name(word, *below) for word in words}


def own_name(name: str, *distinguished_by: object) -> str:
    """Another name for a layer, which begins alike: the first word is what dashboards show."""
    word, _, token = name.rpartition("-")
    return f"{word or token}-{tokenize(name, *distinguished_by)}"


def renamable_layers(graph: HighLevelGraph) -> Callable[[str], bool]:
    """Whether a layer of a graph is renamable; each is looked at once, when it is asked for."""
    return cache(lambda name: is_renamable(graph.layers[name]))


def is_renamable(layer: Any) -> bool:
    """Whether other names of layers can be put into a layer."""
    tasks = getattr(layer, "mapping", layer)
    if getattr(layer, "annotations", None):
        return False
    if not isinstance(tasks, dict):
        return block_function(layer) is not None
    return all(as_task(key, value) is not None for key, value in tasks.items())


def _renamed(layer: Any, names: Mapping[str, str]) -> Any:
    """A layer with other names for itself and for what it reads."""
    if block_function(layer) is None:
        return {
            _key(key, names): with_names(as_task(key, value), names) for key, value in layer.items()
        }
    found = copy.copy(layer)
    found.__dict__.pop("_cached_dict", None)
    found.output = names.get(layer.output, layer.output)
    found.task = layer.task.substitute({}, key=found.output)
    found.indices = tuple(
        (names.get(source, source) if labels is not None else source, labels)
        for source, labels in layer.indices
    )
    found.numblocks = {names.get(source, source): n for source, n in layer.numblocks.items()}
    return found


def with_names(task: Any, names: Mapping[str, str]) -> Any:
    """A task with other names of layers in its key and in those that it uses."""
    if type(task) is Alias:
        return Alias(_key(task.key, names), _key(task.target, names))
    keys: dict[Any, Any] = {
        key: _key(key, names) for key in task.dependencies if _key(key, names) != key
    }
    return task.substitute(keys, key=_key(task.key, names))


def _key(key: Any, names: Mapping[str, str]) -> Any:
    return (names.get(key[0], key[0]), *key[1:]) if isinstance(key, tuple) else key
