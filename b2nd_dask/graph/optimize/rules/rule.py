"""What a rewrite rule is."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from dask.typing import Key

from b2nd_dask.graph._dask_compat import GraphNode, Task
from b2nd_dask.graph.optimize.calls.expression import Node

Tasks = Mapping[Key, GraphNode]
"""An optimized graph: tasks by their keys. Rules never change one, nor a task in it."""


@dataclass(frozen=True)
class GraphRule:
    """A rule that looks at a graph as a whole."""

    name: str
    """In ``b2nd_dask.optimize``."""
    reason: str
    """Why it pays."""
    condition: Callable[[Tasks, set[Key]], Any]
    """Find what is to be replaced in a graph with some output keys; empty where there is none."""
    replacement: Callable[[Tasks, set[Key], Any], Tasks]
    """The graph, the output keys and what `condition` has found, to another graph."""

    def apply(self, tasks: Tasks, output_keys: set[Key]) -> Tasks:
        """Rewrite a graph; give it back as it is where the condition does not hold."""
        found = self.condition(tasks, output_keys)
        return self.replacement(tasks, output_keys, found) if found else tasks


@dataclass(frozen=True)
class TaskRule:
    """A rule that looks at one task of a graph, or at one of those that are fused into it."""

    name: str
    """In ``b2nd_dask.optimize``."""
    reason: str
    """Why it pays."""
    condition: Callable[[Node], Any]
    """Find what is to be replaced in the expression that a task computes; None if there is none."""
    replacement: Callable[[Key, Any, bool], Task]
    """The task's key, what `condition` has found and dask's mark of data producers, to a task."""


Rule = GraphRule | TaskRule
