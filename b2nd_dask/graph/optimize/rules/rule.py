"""The kinds of rules: for graphs of layers, for graphs of tasks, for single tasks."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from dask.highlevelgraph import HighLevelGraph
from dask.typing import Key

from b2nd_dask.graph._dask_compat import GraphNode, Task
from b2nd_dask.graph.optimize.calls.expression import Node

Tasks = Mapping[Key, GraphNode]
"""An optimized graph: tasks by their keys. Rules never change one, nor a task in it."""


@dataclass(frozen=True)
class LayerAnswer:
    """A rule for a graph of layers, which dask has not optimized yet.

    Where it answers, neither dask's optimizer nor any other rule is called.
    """

    name: str
    """The name in ``b2nd_dask.optimize``."""
    reason: str
    """Why it pays."""
    tasks: Callable[[HighLevelGraph, set[Key]], Tasks | None]
    """Layers and output keys to all tasks that these need; None where the rule does not know every
    layer. Of ``x.compute()`` the one output key is that of dask's `finalize`, a layer of its own.
    The layers must not change. A distributed scheduler, which may see no files, calls it too."""


@dataclass(frozen=True)
class LayerRewrite:
    """A rule that replaces layers of a graph, before dask optimizes it."""

    name: str
    """The name in ``b2nd_dask.optimize``."""
    reason: str
    """Why it pays."""
    layers: Callable[[HighLevelGraph, set[Key]], HighLevelGraph | None]
    """Layers and output keys to others that compute the same; None where nothing is replaced."""


@dataclass(frozen=True)
class GraphRule:
    """A rule for a whole graph."""

    name: str
    """The name in ``b2nd_dask.optimize``."""
    reason: str
    """Why it pays."""
    condition: Callable[[Tasks, set[Key]], Any]
    """Graph and output keys to a description of what to replace; empty if there is nothing."""
    replacement: Callable[[Tasks, set[Key], Any], Tasks]
    """Graph, output keys and the result of `condition` to another graph."""

    def apply(self, tasks: Tasks, output_keys: set[Key]) -> Tasks:
        """Rewrite a graph; return it unchanged where the condition does not hold."""
        found = self.condition(tasks, output_keys)
        return self.replacement(tasks, output_keys, found) if found else tasks


@dataclass(frozen=True)
class TaskRule:
    """A rule for one task of a graph, or for one that is fused into it."""

    name: str
    """The name in ``b2nd_dask.optimize``."""
    reason: str
    """Why it pays."""
    condition: Callable[[Node], Any]
    """Expression of a task to a description of what to replace; None if there is nothing."""
    replacement: Callable[[Key, Any, bool], Task]
    """Key, the result of `condition` and dask's flag of data producers to a task."""


Rule = LayerRewrite | LayerAnswer | GraphRule | TaskRule
