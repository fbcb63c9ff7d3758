"""Which rules of the optimizer have changed the graph of a program."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import dask.array as da
from dask._task_spec import Alias
from dask.core import flatten
from dask.highlevelgraph import HighLevelGraph

from b2nd_dask.graph.optimize.optimizer import optimize
from b2nd_dask.graph.optimize.rules.index_pushdown import index_block
from b2nd_dask.graph.optimize.rules.reduction_pushdown import reduce_block
from tests.graph.programs.program import Program, Side, _quiet, written
from tests.graph.pushing import computing_with

RULES = (
    "aliases",
    "inline_reads",
    "reduction_pushdown",
    "index_pushdown",
    "merge_blocks",
    "constant_views",
)


def rules_fired(program: Program, folder: Path) -> set[str]:
    """Names of the rules that change something when all outputs are computed together."""
    side = Side(written(program.sources, folder), in_memory=False)
    with _quiet(), computing_with(threads=program.threads, held=program.held):
        for line in program.lines:
            side.execute(line)
        arrays = [side.names[name] for name in program.outputs]
        graph = HighLevelGraph.merge(*(a.dask for a in arrays))
        keys = list(flatten([a.__dask_keys__() for a in arrays]))
        return _differences(da.optimize(graph, keys), optimize(graph, keys))


def _differences(plain: Any, ours: Any) -> set[str]:
    found = set()
    for node in _nodes(ours):
        func = getattr(node, "func", None)
        found |= {"reduction_pushdown"} if func is reduce_block else set()
        found |= {"index_pushdown"} if func is index_block else set()
        found |= {"merge_blocks"} if func is reduce_block and node.key is None else set()
        found |= {"constant_views"} if getattr(node, "views", False) else set()
    aliases = {key for key, node in plain.items() if isinstance(node, Alias)}
    found |= {"aliases"} if any(not isinstance(ours.get(k), Alias) for k in aliases) else set()
    reads = {key for key in plain.keys() - aliases if str(key[0]).startswith("read(")}
    targets = {plain[alias].target for alias in aliases}
    return found | ({"inline_reads"} if reads - targets - ours.keys() else set())


def _nodes(graph: Any) -> list[Any]:
    """All tasks of a graph, those inside others, and their arguments."""
    todo, found = list(graph.values()), []
    while todo:
        node = todo.pop()
        found.append(getattr(node, "value", node))
        for argument in getattr(node, "args", ()):
            todo += argument.values() if isinstance(argument, dict) else [argument]
    return found
