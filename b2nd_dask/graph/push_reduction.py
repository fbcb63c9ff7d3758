"""Push the chunk step of a reduction into the read that feeds it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from dask._task_spec import List, Task, TaskRef
from dask.typing import Key
from numpy.typing import NDArray

from b2nd_dask.format.grid import parse_selection
from b2nd_dask.frame.source import Frame
from b2nd_dask.graph.expression import Call, Node, Read, is_scalar
from b2nd_dask.graph.program import Program, program_of
from b2nd_dask.graph.reductions import ChunkStep, Rule, rule_of

#: Booleans, numbers: what the rules are made for.
_KINDS = "biufc"


def reduction_task(key: Key, top: Node, *, data_producer: bool) -> Task | None:
    """A task that reduces a block while it reads it.

    Parameters
    ----------
    key : Key
        Of the task.
    top : Node
        What it computes.
    data_producer : bool
        What dask says of the task.

    Returns
    -------
    dask Task or None
        None where the task is no reduction of a block, or one that takes the plain way.
    """
    found = _reduction_of(top)
    if found is None:
        return None
    read, step = found
    outer = List(*(TaskRef(name) for name in step.work.outer))
    return Task(
        key,
        reduce_block,
        read.region.frame,
        read.index,
        step,
        outer,
        _data_producer=data_producer,
    )


@dataclass(frozen=True)
class PushedStep:
    """The chunk step of a reduction, and the elementwise work before it."""

    func: Any
    axis: tuple[int, ...]
    rule: Rule
    work: Program

    def on(self, items: NDArray[Any], outer: Mapping[Key, Any]) -> Any:
        """What dask would compute of these items."""
        return self.func(self.work.run(items, outer), axis=self.axis, keepdims=True)


def reduce_block(frame: Frame, index: Any, step: PushedStep, outer: list[Any]) -> Any:
    """Compute the chunk step of a reduction for one block of a frame.

    Parameters
    ----------
    frame : Frame
    index : tuple of slice
        The block.
    step : PushedStep
    outer : list
        Results of other tasks.

    Returns
    -------
    ndarray or dict of ndarray
        What dask's own chunk step gives for the block.
    """
    values = dict(zip(step.work.outer, outer, strict=True))
    if not all(map(is_scalar, outer)) or 0 in parse_selection(index, frame.shape).shape:
        return step.on(np.asarray(frame.read(index)), values)
    chunk_step = ChunkStep(partial(step.on, outer=values), step.axis, step.rule)
    return chunk_step.result(frame.reduce(index, chunk_step))


def _reduction_of(top: Node) -> tuple[Read, PushedStep] | None:
    """The reduction that a task computes, if it can be pushed."""
    if not isinstance(top, Call) or len(top.args) != 1 or set(top.kwargs) != {"axis", "keepdims"}:
        return None
    rule, axis = rule_of(top.func), top.kwargs["axis"]
    if rule is None or not isinstance(axis, tuple) or top.kwargs["keepdims"] is not True:
        return None
    found = program_of(top.args[0])
    if found is None:
        return None
    read, work = found
    if read.region.frame.dtype.kind not in _KINDS or not read.selects_slices:
        return None
    return read, PushedStep(top.func, axis, rule, work)
