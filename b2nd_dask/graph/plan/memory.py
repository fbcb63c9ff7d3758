"""What a task holds beside the block that it reads: results of elementwise work."""

from __future__ import annotations

import math
import warnings
from typing import Any, NamedTuple

import numpy as np

from b2nd_dask.graph._dask_compat import Task, core
from b2nd_dask.graph.optimize.calls.arg_reductions import Search
from b2nd_dask.graph.optimize.calls.elementwise import (
    UNKNOWN,
    ElementwiseWork,
    is_elementwise,
)
from b2nd_dask.graph.optimize.calls.expression import (
    Call,
    Literal,
    Node,
    NotUnderstoodError,
    Read,
    Scope,
)
from b2nd_dask.graph.optimize.rules.reduction_pushdown import BlockReduction
from b2nd_dask.graph.write.write_tasks import write_task

#: Partial results of chunks, those that they are merged with, and copies of both, as measured.
_COPIES_OF_RESULTS = 6.0
#: Arrays of positions that a search holds when it ends.
_POSITIONS_OF_RESULT = 4


class _Size(NamedTuple):
    """Bytes for each element of the block."""

    result: np.dtype[Any] | None
    """None of what is no block."""
    peak: float
    """While it is computed, its arguments included."""

    @property
    def nbytes(self) -> int:
        return self.result.itemsize if self.result else 0


def held_in(task: Task) -> float:
    """Bytes that a fused task holds beside what it reads, for each byte of that.

    What is not understood counts as one block more.
    """
    try:
        scope = Scope.of(task)
        top = scope.named(task.args[1])
    except NotUnderstoodError:
        return 1.0
    reads: list[int] = []
    size = _size(top, reads)
    if not reads:
        # of a source of another kind
        return 1.0
    return max(0.0, size.peak / max(reads) - 1)


def held_by_work(work: ElementwiseWork, dtype: np.dtype[Any]) -> float:
    """The same for elementwise work on what is read."""
    if not work.steps:
        return 0.0
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            made = np.asarray(work.run(np.ones(1, dtype), {}))
    except Exception:  # noqa: BLE001 - results of dependencies are not known
        return 1.0
    # a step's argument goes when its result is there
    steps = min(len(work.steps), 2)
    return steps * made.dtype.itemsize / dtype.itemsize - (steps == 2)


def held_by_reduction(step: BlockReduction, dtype: np.dtype[Any]) -> float:
    """The same for elementwise work and the chunk step of a reduction."""
    return held_by_work(step.work, dtype)


def results_of(step: BlockReduction, dtype: np.dtype[Any], shape: tuple[int, ...]) -> float:
    """Bytes of the partial results of a block: of what is read so far, and of a chunk more."""
    kept = math.prod(n for axis, n in enumerate(shape) if axis not in step.chunk.axis)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            made = step.chunk.whole(step.work.run(np.ones((1,) * len(shape), dtype), {}))
    except Exception:  # noqa: BLE001 - results of dependencies are not known
        made = np.ones(1)
    fields = made.values() if isinstance(made, dict) else (made,)
    return _COPIES_OF_RESULTS * kept * sum(np.asarray(field).nbytes for field in fields)


def held_by_search(
    search: Search, work: ElementwiseWork, dtype: np.dtype[Any], shape: tuple[int, ...]
) -> float:
    """The same for a search for positions in an array as a whole, after elementwise work."""
    axis = search.numpy_axis
    if axis is None:
        return held_by_work(work, dtype)
    # NumPy copies elements that do not follow each other along the axis
    turned = float(axis != len(shape) - 1)
    # positions in the block, along the axis and in the whole array, and the elements there
    found = (_POSITIONS_OF_RESULT * 8 + dtype.itemsize) / dtype.itemsize / shape[axis]
    return held_by_work(work, dtype) + max(turned, found)


def _size(node: Node, reads: list[int]) -> _Size:
    if isinstance(node, Read):
        dtype = node.region.frame.dtype
        reads.append(dtype.itemsize)
        return _Size(dtype, dtype.itemsize)
    if not isinstance(node, Call):
        return _Size(None, 0)
    args = [_size(arg, reads) for arg in node.args]
    held, peak = 0, 0.0
    for arg in args:
        peak = max(peak, held + arg.peak)
        held += arg.nbytes
    if node.func is write_task:
        # a chunk at a time
        return _Size(None, peak)
    if node.func in (list, core.finalize) and len(args) == 1:
        # of one block, which is the result
        return _Size(args[0].result, peak)
    result = _result(node, args)
    return _Size(result, max(peak, held + (result.itemsize if result else 0)))


def _result(node: Call, args: list[_Size]) -> np.dtype[Any] | None:
    arrays = [arg.result for arg in args if arg.result is not None]
    values = [arg.value if isinstance(arg, Literal) else UNKNOWN for arg in node.args]
    if not is_elementwise(node.func, values, node.kwargs):
        return arrays[0] if arrays else None
    given = [
        np.ones(1, size.result) if size.result is not None else 1 if value is UNKNOWN else value
        for size, value in zip(args, values, strict=True)
    ]
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return np.asarray(node.func(*given, **node.kwargs)).dtype
    except Exception:  # noqa: BLE001 - of what cannot be tried the block is as good a guess
        return arrays[0] if arrays else None
