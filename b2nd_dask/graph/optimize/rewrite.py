"""Apply the rules to a graph, before or after dask has optimized it, and check the result."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Container, Mapping, Set
from typing import Any

from dask.highlevelgraph import HighLevelGraph
from dask.typing import Key

from b2nd_dask.graph._dask_compat import GraphNode, Task, _execute_subgraph, flatten
from b2nd_dask.graph.optimize.names import with_reading_names
from b2nd_dask.graph.optimize.rules.aliases import ALIASES
from b2nd_dask.graph.optimize.rules.asking_reads import ASKING_READS
from b2nd_dask.graph.optimize.rules.asking_steps import ASKING_STEPS
from b2nd_dask.graph.optimize.rules.index_pushdown import INDEX_PUSHDOWN
from b2nd_dask.graph.optimize.rules.inline import INLINE_READS
from b2nd_dask.graph.optimize.rules.masked_layers import MASKED_LAYERS
from b2nd_dask.graph.optimize.rules.merge import MERGE_BLOCKS
from b2nd_dask.graph.optimize.rules.pushdown import push_down
from b2nd_dask.graph.optimize.rules.read_at_once import READ_AT_ONCE
from b2nd_dask.graph.optimize.rules.reduction_pushdown import REDUCTION_PUSHDOWN
from b2nd_dask.graph.optimize.rules.rule import (
    GraphRule,
    LayerAnswer,
    LayerRewrite,
    Rule,
    TaskRule,
    Tasks,
)
from b2nd_dask.graph.optimize.rules.told_layers import TOLD_LAYERS
from b2nd_dask.graph.optimize.rules.views import CONSTANT_VIEWS
from b2nd_dask.graph.resources import on_cluster

#: In the order in which they are applied; those for layers stand in front.
RULES: tuple[Rule, ...] = (
    TOLD_LAYERS,
    MASKED_LAYERS,
    READ_AT_ONCE,
    ALIASES,
    INLINE_READS,
    REDUCTION_PUSHDOWN,
    INDEX_PUSHDOWN,
    ASKING_STEPS,
    ASKING_READS,
    MERGE_BLOCKS,
    CONSTANT_VIEWS,
)


class UnsoundGraphError(Exception):
    """A rewritten graph that cannot be computed."""


def replace_layers(
    layers: HighLevelGraph, keys: Any, names: Container[str]
) -> HighLevelGraph | None:
    """Apply the named rules that replace layers; None where they replace none.

    Parameters
    ----------
    layers, keys, names
        As for `answer`.
    """
    output_keys = _flat(keys)
    found = layers
    for rule in RULES:
        if isinstance(rule, LayerRewrite) and rule.name in names:
            changed = rule.layers(found, output_keys)
            found = found if changed is None else changed
    if found is layers:
        return None
    check_layers(found, layers, output_keys)
    return _without_idle(found, layers, output_keys)


def _without_idle(
    changed: HighLevelGraph, before: HighLevelGraph, output_keys: set[Key]
) -> HighLevelGraph:
    """Drop layers that had dependents before and have none now: dask may keep their tasks."""
    below = dict(changed.dependencies)
    had_users = set().union(*before.dependencies.values()) - set(map(_layer_of, output_keys))
    while idle := (had_users & below.keys()) - set().union(*below.values()):
        for name in idle:
            del below[name]
    return HighLevelGraph({name: changed.layers[name] for name in below}, below)


def _layer_of(key: Key) -> Any:
    return key[0] if isinstance(key, tuple) else key


def answer(layers: HighLevelGraph, keys: Any, names: Container[str]) -> Tasks | None:
    """Apply the named rules for graphs of layers until one knows all of the graph.

    Parameters
    ----------
    layers : HighLevelGraph
        As users have built it; it does not change.
    keys, names
        As for `rewrite`.

    Returns
    -------
    mapping or None
        A sound graph that computes the output keys; None where no rule knows the graph.

    Raises
    ------
    Exception
        An error of any rule, or `UnsoundGraphError`.
    """
    output_keys = _flat(keys)
    for rule in RULES:
        if isinstance(rule, LayerAnswer) and rule.name in names:
            tasks = rule.tasks(layers, output_keys)
            if tasks is not None:
                check_complete(tasks, output_keys)
                return tasks
    return None


def rewrite(optimized: Mapping[Any, Any], keys: Any, names: Container[str]) -> Tasks:
    """Apply the named rules for tasks in order, neighbouring task rules in one pass.

    Parameters
    ----------
    optimized : mapping
        The graph that dask has optimized; it does not change.
    keys : Key, list or set
        The output keys, in nested lists.
    names : container of str
        Names of the rules to apply.

    Returns
    -------
    mapping
        A sound graph that computes the same.

    Raises
    ------
    Exception
        An error of any rule, or `UnsoundGraphError`.
    """
    output_keys = _flat(keys)
    # a copy: no rule can change dask's own graph
    tasks: Tasks = dict(optimized)
    for kind, group in itertools.groupby((r for r in RULES if r.name in names), type):
        if kind is TaskRule:
            tasks = push_down(tasks, [rule for rule in group if isinstance(rule, TaskRule)])
            continue
        for rule in group:
            if isinstance(rule, GraphRule):
                tasks = rule.apply(tasks, output_keys)
    check_sound(tasks, optimized, output_keys)
    # nobody sees the names of tasks in threads
    return with_reading_names(tasks, output_keys) if on_cluster() else tasks


def _flat(keys: Any) -> set[Key]:
    return set(flatten(keys if isinstance(keys, list | set) else [keys]))


def check_layers(found: Any, before: HighLevelGraph, output_keys: set[Key]) -> None:
    """Verify that dask can optimize layers that replace others, and make the output keys of them.

    Raises
    ------
    UnsoundGraphError
        They are no graph of layers, or one is missing, or a task for an output key.
    """
    if not isinstance(found, HighLevelGraph) or found.layers.keys() != found.dependencies.keys():
        raise UnsoundGraphError(f"a rule made a {type(found).__name__} of layers")
    of_outputs = set(map(_layer_of, output_keys)) & before.layers.keys()
    if lost := of_outputs.union(*found.dependencies.values()) - found.layers.keys():
        raise UnsoundGraphError(f"no layer {', '.join(sorted(map(repr, lost))[:5])}")
    new = {name for name in of_outputs if found.layers[name] is not before.layers[name]}
    wanted = {key for key in output_keys if _layer_of(key) in new}
    if missing := wanted.difference(*(found.layers[name].get_output_keys() for name in new)):
        raise UnsoundGraphError(f"no task for {', '.join(sorted(map(repr, missing))[:5])}")


def check_complete(tasks: Any, output_keys: set[Key]) -> None:
    """Verify that a graph can be computed which replaces another one as a whole.

    Raises
    ------
    UnsoundGraphError
        It is no graph of tasks, an output key or a dependency has no task, or tasks depend on each
        other.
    """
    if not isinstance(tasks, Mapping):
        raise UnsoundGraphError(f"a rule made a {type(tasks).__name__} of layers")
    for key, node in tasks.items():
        if not isinstance(node, GraphNode) or node.key != key:
            raise UnsoundGraphError(f"{key!r} is no task of that key: {node!r:.200}")
        _check_fused(node, set())
    lost = output_keys.union(*(node.dependencies for node in tasks.values())) - tasks.keys()
    if lost:
        raise UnsoundGraphError(f"no task for {', '.join(sorted(map(repr, lost))[:5])}")
    if left := _in_cycles(tasks):
        raise UnsoundGraphError(f"tasks wait for each other: {', '.join(map(repr, left[:5]))}")


def check_sound(tasks: Any, before: Mapping[Any, Any], output_keys: set[Key]) -> None:
    """Verify that a rewritten graph can be computed, given the graph from before.

    Raises
    ------
    UnsoundGraphError
        It is no graph of tasks, an output key is missing, a dependency has no task and had one
        before or is new, or tasks depend on each other.
    """
    if not isinstance(tasks, Mapping):
        raise UnsoundGraphError(f"a rule made a {type(tasks).__name__} of a graph")
    dropped = before.keys() - tasks.keys()
    lost = {key for key in output_keys if key in dropped}
    strange: list[Key] = []
    seen: set[Any] = set()
    for key, node in tasks.items():
        old = before.get(key)
        if node is not old:
            # dask's own tasks need no check
            if not isinstance(node, GraphNode) or node.key != key:
                raise UnsoundGraphError(f"{key!r} is no task of that key: {node!r:.200}")
            _check_fused(node, seen)
            if node.dependencies and not node.dependencies <= _reachable(old, before):
                strange.append(key)
        if dropped and not dropped.isdisjoint(node.dependencies):
            lost |= node.dependencies & dropped
    if strange:
        # new dependencies may close cycles, or have no task
        used = set().union(*(tasks[key].dependencies for key in strange)) - tasks.keys()
        lost |= used and used - set().union(*(node.dependencies for node in before.values()))
    if lost:
        raise UnsoundGraphError(f"no task for {', '.join(sorted(map(repr, lost))[:5])}")
    if strange and (left := _in_cycles(tasks)):
        raise UnsoundGraphError(f"tasks wait for each other: {', '.join(map(repr, left[:5]))}")


def _check_fused(node: Any, seen: set[Any]) -> None:
    """Check that the tasks fused into a task can be computed; those of a layer share one graph."""
    if not isinstance(node, Task) or node.func is not _execute_subgraph:
        return
    inner, out, names, *values = node.args
    if len(names) != len(values):
        raise UnsoundGraphError(f"{node.key!r} has {len(values)} arguments for {len(names)} names")
    if (alike := (id(inner), out, names)) in seen:
        return
    seen.add(alike)
    known = {*inner, *names}
    lost = {out, *itertools.chain.from_iterable(t.dependencies for t in inner.values())} - known
    if lost or _in_cycles(inner):
        raise UnsoundGraphError(f"the tasks fused into {node.key!r} cannot be computed: {lost}")
    for task in inner.values():
        _check_fused(task, seen)


def _reachable(node: Any, before: Mapping[Any, Any]) -> Set[Key]:
    """Return the dependencies of a task and theirs, in the graph from before.

    Tasks that depend on these alone form no cycle: it would have been one before.
    """
    if node is None:
        return frozenset()
    direct: frozenset[Key] = node.dependencies
    return direct.union(*(before[name].dependencies for name in direct if name in before))


def _in_cycles(tasks: Tasks) -> list[Key]:
    """Return the tasks in cycles, and those that depend on them."""
    left: dict[Key, int] = {}
    dependents: defaultdict[Key, list[Key]] = defaultdict(list)
    for key, node in tasks.items():
        names = node.dependencies & tasks.keys()
        left[key] = len(names)
        for name in names:
            dependents[name].append(key)
    ready = [key for key, count in left.items() if not count]
    while ready:
        done = ready.pop()
        del left[done]
        for key in dependents.pop(done, ()):
            left[key] -= 1
            if not left[key]:
                ready.append(key)
    return list(left)
