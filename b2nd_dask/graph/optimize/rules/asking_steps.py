"""Tasks that reduce blocks ask statistics of chunks, and read only those that are not told."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from dask.typing import Key

from b2nd_dask.graph._dask_compat import Task
from b2nd_dask.graph.optimize.rules.reduction_pushdown import BlockReduction, reduce_block
from b2nd_dask.graph.optimize.rules.rule import GraphRule, Tasks


def silent_steps(tasks: Tasks, output_keys: set[Key]) -> dict[Key, Task]:
    """Find the tasks that reduce blocks and do not ask for statistics yet."""
    return {
        key: node
        for key, node in tasks.items()
        if isinstance(node, Task) and node.func is reduce_block and not node.args[2].asks
    }


def asking_steps(tasks: Tasks, output_keys: set[Key], silent: Mapping[Key, Task]) -> Tasks:
    """Let tasks that reduce blocks ask for statistics."""
    # the tasks of a layer share one step, and are merged by that
    asking: dict[int, BlockReduction] = {}
    changed = dict(tasks)
    for key, node in silent.items():
        frame, index, step, results = node.args
        step = asking.setdefault(id(step), replace(step, asks=True))
        changed[key] = Task(
            key, reduce_block, frame, index, step, results, _data_producer=node.data_producer
        )
    return changed


ASKING_STEPS = GraphRule(
    "statistics_blocks",
    "Chunks of which the statistics tell what a reduction makes of them are not read.",
    silent_steps,
    asking_steps,
)
