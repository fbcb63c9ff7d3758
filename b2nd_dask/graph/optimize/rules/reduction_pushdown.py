"""Reduction pushdown: reduce a block chunk by chunk while it is read."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np
from dask.typing import Key
from numpy.typing import NDArray

from b2nd_dask.format.grid import parse_selection
from b2nd_dask.frame.joined import Readable
from b2nd_dask.frame.read.partial_results import PartialResult
from b2nd_dask.frame.read.reduction import Reduction
from b2nd_dask.graph._dask_compat import List, Task, TaskRef
from b2nd_dask.graph.optimize.calls.arg_reductions import search_of
from b2nd_dask.graph.optimize.calls.elementwise import (
    NUMBERS,
    BoundWork,
    ElementwiseWork,
    elementwise_work_of,
    is_number,
)
from b2nd_dask.graph.optimize.calls.expression import Call, Node, Read
from b2nd_dask.graph.optimize.calls.reductions import Combining, fold_of
from b2nd_dask.graph.optimize.rules.rule import TaskRule


class Streamed(Protocol):
    """A chunk step of dask that runs chunk by chunk of a frame."""

    @property
    def reduction(self) -> Reduction:
        """The reduction for `FrameReference.reduce`."""

    def result(self, total: PartialResult) -> Any:
        """Convert the partial result of all elements to the result of dask's own chunk step."""


class ChunkStep(Protocol):
    """What dask computes of each block before it combines the results."""

    @property
    def axis(self) -> tuple[int, ...]:
        """Axes to reduce."""

    def is_combined_by(self, combining: Combining) -> bool:
        """Whether one result for several blocks may replace a combining step over them."""

    def whole(self, elements: NDArray[Any]) -> Any:
        """Run dask's own chunk step on elements."""

    def streamed(self, work: BoundWork) -> Streamed:
        """Prepare the step for elements that come chunk by chunk, after elementwise work."""


@dataclass(frozen=True)
class BlockReduction:
    """The chunk step of a reduction, and the elementwise work before it."""

    chunk: ChunkStep
    work: ElementwiseWork
    asks: bool = False
    """Whether statistics of chunks may tell its result."""


def reduce_block(frame: Readable, index: Any, step: BlockReduction, results: list[Any]) -> Any:
    """Compute the chunk step of a reduction for one block of a frame.

    Parameters
    ----------
    index : tuple of slice
        The block.
    results : list
        Results of the dependencies of the elementwise work.

    Returns
    -------
    ndarray or dict of ndarray
        The result of dask's own chunk step for the block.
    """
    known = dict(zip(step.work.dependencies, results, strict=True))
    work = BoundWork(step.work, known, frame.dtype)
    axes = parse_selection(index, frame.shape).axes
    if not all(map(is_number, results)) or not all(axes):
        return step.chunk.whole(work(np.asarray(frame.read_axes(axes))))
    streamed = step.chunk.streamed(work)
    how = streamed.reduction if step.asks else replace(streamed.reduction, ask=None)
    return streamed.result(frame.reduce(axes, how))


def block_reduction_of(top: Node) -> tuple[Read, BlockReduction] | None:
    """Parse a task that reduces a block; None if the reduction cannot move into the read."""
    if not isinstance(top, Call):
        return None
    step = fold_of(top) or search_of(top)
    found = elementwise_work_of(top.args[0]) if step else None
    if step is None or found is None:
        return None
    read, work = found
    # booleans and numbers only: other elements add up in a certain order, or not at all
    numbers = read.region.frame.dtype.kind in NUMBERS and work.returns_numbers
    if not numbers or not read.selects_slices:
        return None
    return read, BlockReduction(step, work)


def reduction_task(key: Key, found: tuple[Read, BlockReduction], data_producer: bool) -> Task:
    """Make a task that reduces a block while it reads it."""
    read, step = found
    results = List(*(TaskRef(name) for name in step.work.dependencies))
    return Task(
        key,
        reduce_block,
        read.region.frame,
        read.index,
        step,
        results,
        _data_producer=data_producer,
    )


REDUCTION_PUSHDOWN = TaskRule(
    "reduction_pushdown",
    "Chunks are reduced one by one in a scratch buffer, so that no block is built, and chunks that "
    "repeat one value are counted, not decoded.",
    block_reduction_of,
    reduction_task,
)
