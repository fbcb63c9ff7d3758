"""Which rules of the optimizer change the graph of a program: without each, it is another one."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import dask

from b2nd_dask.graph.optimize.optimizer import RULE_NAMES
from b2nd_dask.graph.optimize.rewrite import rewritten
from tests.graph.programs.program import Program, quiet
from tests.graph.programs.side import Side, written
from tests.graph.pushdown import computing_with


def rules_fired(program: Program, folder: Path) -> set[str]:
    """Names of the rules that change something when all outputs are computed together."""
    side = Side(written(program.sources, folder), in_memory=False)
    graphs: list[tuple[Any, Any]] = []

    def keep(graph: Any, keys: Any, **kwargs: Any) -> Any:
        graphs.append((graph, keys))
        return graph

    with quiet(), computing_with(threads=program.threads, held=program.held):
        for line in program.lines:
            side.execute(line)
        # `compute` adds the join of blocks to the graphs that the optimizer gets
        with dask.config.set(array_optimize=keep):
            dask.compute(*(side.names[name] for name in program.outputs), scheduler=_nothing)
        return {
            rule
            for graph, keys in graphs
            for rule in RULE_NAMES
            if _tasks(graph, keys, RULE_NAMES) != _tasks(graph, keys, set(RULE_NAMES) - {rule})
        }


def _nothing(graph: Any, keys: Any, **kwargs: Any) -> Any:
    """A scheduler that computes nothing."""
    graph.__dask_graph__()
    return [None] * len(keys)


def _tasks(graph: Any, keys: Any, rules: Any) -> dict[Any, str]:
    """A graph that some rules have rewritten, as texts: dask would fuse its tasks by chance."""
    tasks = dict(rewritten(_as_it_is, graph, keys, rules) or graph)
    return {key: re.sub("0x[0-9a-f]+", "", _text(node)) for key, node in tasks.items()}


def _as_it_is(graph: Any, keys: Any, **kwargs: Any) -> Any:
    return graph


def _text(node: Any) -> str:
    """A task with those inside it, and their arguments."""
    if isinstance(node, dict):
        return " ".join(f"{key}: {_text(value)}" for key, value in node.items())
    parts = [repr(node), *map(_text, getattr(node, "args", ()))]
    return " ".join([*parts, _text(getattr(node, "kwargs", None) or {})])
