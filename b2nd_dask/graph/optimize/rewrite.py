"""Apply the rewrite rules to a graph that dask has optimized."""

from __future__ import annotations

import itertools
from collections.abc import Container

from dask.typing import Key

from b2nd_dask.graph.optimize.rules.pushdown import push_down
from b2nd_dask.graph.optimize.rules.registry import RULES
from b2nd_dask.graph.optimize.rules.rule import GraphRule, Rule, TaskRule, Tasks


def rewrite(tasks: Tasks, output_keys: set[Key], names: Container[str]) -> Tasks:
    """Apply the rules of some names, neighbouring task rules in one pass."""
    chosen = [rule for rule in RULES if rule.name in names]
    for kind, group in itertools.groupby(chosen, type):
        if kind is TaskRule:
            tasks = push_down(tasks, [rule for rule in group if isinstance(rule, TaskRule)])
            continue
        for rule in group:
            tasks = _apply(rule, tasks, output_keys)
    return tasks


def _apply(rule: Rule, tasks: Tasks, output_keys: set[Key]) -> Tasks:
    return rule.apply(tasks, output_keys) if isinstance(rule, GraphRule) else tasks
