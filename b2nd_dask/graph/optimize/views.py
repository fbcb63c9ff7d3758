"""Where a block of one repeated element may be a view of it, since nothing writes into the block.

A function of the user may act in place, and would fail on such a view alone. So blocks are
writable, unless all that use them are known only to read.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from b2nd_dask.graph._dask_compat import (
    Alias,
    M,
    Task,
    _shuffle,
    block_function,
    core,
    held_tasks,
)
from b2nd_dask.graph.expression.elementwise import (
    FILTERS,
    UNKNOWN,
    is_among,
    is_elementwise,
    may_return_view,
)
from b2nd_dask.graph.layers.layers import Layers
from b2nd_dask.graph.layers.moves import as_task
from b2nd_dask.graph.write.write_tasks import write_task

#: Functions whose result may be a view of their argument.
_PASSING = FILTERS | {np.transpose, np.swapaxes, M.reshape}
#: Functions that put blocks together.
_COPYING = frozenset(
    {_shuffle.concatenate_arrays, core.concatenate3, core.concatenate_shaped, np.concatenate}
)


class Views:
    """Which layers may have views as blocks."""

    def __init__(self, layers: Layers, outputs: set[str]) -> None:
        self._layers = layers
        self._outputs = outputs
        self._known: dict[str, bool] = {}

    def are_enough(self, name: str) -> bool:
        """Whether nothing that uses the blocks of a layer may write into them."""
        # dependents come first, so that chains of layers take no recursion
        todo = [name]
        while todo:
            last = todo[-1]
            above = [] if last in self._outputs else self._layers.dependents[last]
            missing = [other for other in above if self._passes(other) and other not in self._known]
            if missing:
                todo += missing
            else:
                self._known[todo.pop()] = last not in self._outputs and all(
                    map(self._only_reads, above)
                )
        return self._known[name]

    def _only_reads(self, name: str) -> bool:
        if self._passes(name):
            return self._known[name]
        layer = self._layers.graph.layers[name]
        known = name in self._layers.folds or block_function(layer) is write_task
        return known or _makes_anew(layer) or _puts_together(layer)

    def _passes(self, name: str) -> bool:
        """Whether the blocks of a layer may be those below, or views of them."""
        layer: Any = self._layers.graph.layers[name]
        function = block_function(layer)
        if function is not None:
            return is_among(function, _PASSING) and not layer.task.kwargs.get("out")
        tasks = held_tasks(layer)
        return tasks is not None and all(
            _moves(as_task(key, value)) for key, value in tasks.items()
        )


def _makes_anew(layer: Any) -> bool:
    """Whether a layer is elementwise work whose results are arrays of their own."""
    if block_function(layer) is None:
        return False
    task = layer.task
    args = [UNKNOWN if labels is not None else value for value, labels in layer.indices]
    return is_elementwise(task.func, args, task.kwargs) and not may_return_view(
        task.func, task.kwargs
    )


def _moves(task: Any) -> bool:
    """Whether a task takes a part of a block, or puts blocks together."""
    known = isinstance(task, Task) and is_among(task.func, _PASSING | _COPYING)
    return known or isinstance(task, Alias)


def _puts_together(layer: Any) -> bool:
    """Whether a layer is what `compute()` adds for several blocks, which it copies."""
    tasks = held_tasks(layer)
    if tasks is None or len(tasks) != 1:
        return False
    (task,) = tasks.values()
    # of a single block some versions of dask return the block itself
    return isinstance(task, Task) and task.func is core.finalize and len(task.dependencies) > 1
