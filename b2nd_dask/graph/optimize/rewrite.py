"""Rewrite the layers of a graph: lower each needed layer, from the results down.

A layer is lowered if its node reads frames better than dask's own tasks would; the layers that it
absorbs are no longer needed. All other layers stay unchanged. The result is verified, so that no
graph damaged by a rule reaches a scheduler.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Container, Iterator, Mapping, Set
from graphlib import CycleError, TopologicalSorter
from typing import Any

from dask.highlevelgraph import HighLevelGraph
from dask.typing import Key

from b2nd_dask.frame.read.reduce import Predicate
from b2nd_dask.graph._dask_compat import GraphNode, TaskRef, block_function, flatten, task_dict
from b2nd_dask.graph.expression.nodes import Elemwise, Node, Read, nodes_of
from b2nd_dask.graph.expression.program import compile_tree
from b2nd_dask.graph.expression.pruning import predicate_of
from b2nd_dask.graph.layers.layers import Layers
from b2nd_dask.graph.optimize.at_once import tasks_at_once
from b2nd_dask.graph.optimize.lower import (
    Lowered,
    compiled_layer,
    is_renamable,
    lowered_positions,
    lowered_step,
    lowered_tree,
    renamable_layers,
    with_own_names,
)
from b2nd_dask.graph.optimize.reductions import Reductions
from b2nd_dask.graph.optimize.sharing import Sharing
from b2nd_dask.graph.prefetch import prefetching
from b2nd_dask.graph.read.blocks import readings

logger = logging.getLogger("b2nd_dask")


class UnsoundGraphError(Exception):
    """A rewritten graph cannot be computed."""


def rewritten(
    own: Callable[..., Any], graph: HighLevelGraph, keys: Any, rules: Container[str], **kwargs: Any
) -> Any:
    """Apply rules to the layers of a graph, which does not change; return its tasks.

    The result is None if no rule applies. `own`, dask's optimizer of arrays, continues with the
    rewritten layers; `keys` (nested lists of output keys) and `kwargs` are its other arguments.
    Raises any error of a rule, or `UnsoundGraphError`.
    """
    if any(read.source.is_remote for read in readings(graph)):
        prefetching.announce()
    output_keys = set(flatten(keys if isinstance(keys, list | set) else [keys]))
    layers = Layers(graph, rules)
    if "read_at_once" in rules:
        tasks = tasks_at_once(layers, output_keys)
        if tasks is not None:
            _check_tasks(tasks)
            _check_outputs(tasks, output_keys)
            logger.debug("read_at_once reads %s by one task each", ", ".join(map(str, output_keys)))
            return tasks
    changed = _Rewriting(layers, output_keys).graph()
    if changed is None:
        return None
    _check_layers(changed, graph)
    made = own(changed, keys, **kwargs)
    _check_outputs(made, output_keys, changed)
    return made


class _Rewriting:
    """The needed layers of a graph, unchanged or lowered."""

    def __init__(self, layers: Layers, output_keys: set[Key]) -> None:
        self._layers = layers
        self._rules = layers.rules
        self._outputs = set(map(_layer_of, output_keys)) & layers.nodes.keys()
        self._masked, self._above = masked_reads(layers, self._outputs)
        self._can_be_renamed = renamable_layers(layers.graph)
        self._reductions = Reductions(layers)
        self._sharing = Sharing(layers, self._outputs, self._reductions.answered.keys())

    def graph(self) -> HighLevelGraph | None:
        """The layers that compute the results; None if all stay unchanged."""
        old = self._layers.graph
        new: dict[str, Any] = {}
        below: dict[str, set[str]] = {}
        changed: list[str] = []
        for name in reversed(self._layers.order):
            if not self._sharing.is_needed(name):
                continue
            lowered = self._lowered(name)
            if lowered is None:
                lowered = Lowered({name: old.layers[name]}, {name: old.dependencies[name]})
            else:
                changed.append(name)
            new |= lowered.layers
            below |= lowered.dependencies
            self._sharing.note_lowered(name, set().union(*lowered.dependencies.values()))
        if not changed:
            return None
        return with_own_names(HighLevelGraph(new, below), changed, self._outputs, self._above)

    def _lowered(self, name: str) -> Lowered | None:
        """The layers that replace a layer; None if it stays unchanged."""
        if self._layers.graph.layers[name].annotations:
            return None
        for rule, found in self._attempts(name):
            if found is not None:
                logger.debug("%s: lowered by %s to %s", name, rule, ", ".join(found.layers))
                return found
        return None

    def _attempts(self, name: str) -> Iterator[tuple[str, Lowered | None]]:
        """The result of each rule for a layer, in order; a new rule gets a line here."""
        node = self._layers.nodes[name]
        if "reductions" in self._rules:
            yield "reductions", self._reductions.lowered(name, self._sharing)
            yield "reductions, of blocks in memory,", lowered_step(self._layers, name)
        if isinstance(node, Read | Elemwise) and not node.is_raveled:
            rule = "masks" if name in self._masked else _rule_of(node)
            yield rule, self._tree(name, node)
        if "positions" in self._rules:
            yield "positions", lowered_positions(self._layers, self._sharing, name)

    def _tree(self, name: str, node: Read | Elemwise) -> Lowered | None:
        """A layer that reads blocks and computes elementwise work on them."""
        if (
            isinstance(node, Elemwise)
            and len(node.layers) == 1
            and "elementwise" not in self._rules
        ):
            return None
        views = "views" in self._rules and name in self._sharing.only_read
        predicate = self._masked.get(name)
        is_whole = isinstance(node, Read) and len(node.layers) == 1 and predicate is None
        above = self._layers.dependents[name]
        if is_whole and not (views and all(map(self._can_be_renamed, above))):
            return None
        tree = self._sharing.absorbed(node)
        if not isinstance(tree, Read | Elemwise) or (compiled := compiled_layer(tree)) is None:
            return None
        if predicate is None and "statistics" in self._rules:
            predicate = predicate_of(compiled)
        return lowered_tree(name, tree, compiled, predicate, views=views)


def masked_reads(layers: Layers, outputs: Set[str]) -> tuple[dict[str, Predicate], dict[str, str]]:
    """The reads of several axes whose elements only `x[mask]` needs, with their predicates.

    dask flattens elements and mask first. Chunks in which no element of the mask is true are not
    read. Also returns the filter above each layer whose blocks lack such elements.
    """
    predicates, above = dict[str, Predicate](), dict[str, str]()
    for name, node in layers.nodes.items():
        is_filter = isinstance(node, Elemwise) and node.is_raveled and len(node.layers) == 1
        if is_filter and "masks" in layers.rules:
            below, compiled = _layers_below(layers, node), compile_tree(node)
            predicate = predicate_of(compiled)
            if compiled and predicate and below and outputs.isdisjoint(below):
                # the first may read in new blocks; if it stays dask's rechunk, the next one reads
                names = compiled.read.layers
                reads = (each for each in names if isinstance(layers.nodes[each], Read))
                predicates |= dict.fromkeys(reads, predicate)
                above |= dict.fromkeys(below, name)
    return predicates, above


def _layers_below(layers: Layers, top: Node) -> set[str]:
    """The layers below the top of a tree; none if one is needed elsewhere, or cannot be renamed."""
    nodes = list(nodes_of(top))
    tree = {name for node in nodes if isinstance(node, Read | Elemwise) for name in node.layers}
    # inputs of the program: opaque nodes, and moves that need other elements of their arrays
    leaves = {node.layers[0] for node in nodes if not isinstance(node, Read | Elemwise)}
    below = tree - {*top.layers}
    is_closed = leaves.isdisjoint(tree) and all(
        tree.issuperset(layers.dependents[each]) and is_renamable(layers.graph.layers[each])
        for each in below
    )
    return below if is_closed else set()


def _rule_of(node: Read | Elemwise) -> str:
    """The rule that lowers a layer to a tree."""
    if node.is_rechunked:
        return "new_blocks"
    if len(node.layers) > 1:
        return "slices"
    return "elementwise" if isinstance(node, Elemwise) else "views"


def _check_layers(graph: HighLevelGraph, before: HighLevelGraph) -> None:
    """Verify that the layers are complete, and verify the tasks of new layers."""
    _check_order({name: graph.dependencies[name] for name in graph.layers})
    for name, layer in graph.layers.items():
        if layer is before.layers.get(name) or block_function(layer) is not None:
            continue
        if not layer:
            raise UnsoundGraphError(f"no tasks in layer {name}")
        _check_tasks(dict(layer), graph.dependencies[name])


def _check_tasks(tasks: Mapping[Any, Any], below: Set[Any] = frozenset()) -> None:
    """Verify that tasks depend only on each other and on tasks of the layers below."""
    for key, node in tasks.items():
        if not isinstance(node, GraphNode) or node.key != key:
            raise UnsoundGraphError(f"{key!r} is not the key of its task: {node!r:.200}")
    _check_order(
        {
            key: {other for other in node.dependencies if _layer_of(other) not in below}
            for key, node in tasks.items()
        }
    )


def _check_outputs(
    tasks: Mapping[Any, Any], output_keys: Set[Key], graph: HighLevelGraph | None = None
) -> None:
    """Verify that there is a task for each result and each dependency.

    If an axis has an empty block and dask fuses a layer below, its `blockwise` may depend on blocks
    without tasks. Results that a cluster holds have no task.
    """
    below = (node.dependencies for node in tasks.values() if isinstance(node, GraphNode))
    lost = set(output_keys).union(*below) - tasks.keys()
    if lost and graph is not None:
        lost -= _persisted(graph)
    if lost:
        raise UnsoundGraphError(f"no task for {_some(lost)}")


def _persisted(graph: HighLevelGraph) -> set[Any]:
    """Keys of results that a cluster holds: references to themselves."""
    held = (task_dict(layer) or {} for layer in graph.layers.values())
    return {
        key
        for tasks in held
        for key, value in tasks.items()
        if isinstance(value, TaskRef) and value.key == key
    }


def _check_order(below: Mapping[Any, Set[Any]]) -> None:
    """Verify that all dependencies of layers or tasks exist and form no cycle."""
    if lost := set().union(*below.values()) - below.keys():
        raise UnsoundGraphError(f"nothing makes {_some(lost)}")
    try:
        TopologicalSorter(below).prepare()
    except CycleError as error:
        raise UnsoundGraphError(f"a cycle of dependencies: {_some(set(error.args[1]))}") from None


def _layer_of(key: Any) -> Any:
    """The name of the layer of a task's key."""
    return key[0] if isinstance(key, tuple) else key


def _some(names: Any) -> str:
    return ", ".join(sorted(map(repr, names))[:5])
