"""Push indices into the reads behind them, through elementwise work."""

from __future__ import annotations

import operator
from typing import Any

import numpy as np
from dask._task_spec import List, Task, TaskRef
from dask.array import _shuffle, chunk, core
from dask.typing import Key

from b2nd_dask.frame.source import Frame
from b2nd_dask.graph.expression import Call, Leaves, Literal, Node, Outer, evaluate, is_scalar
from b2nd_dask.graph.window import Window

#: Functions that do nothing with their first argument but index it.
_INDEXERS = frozenset(
    {chunk.getitem, operator.getitem, core._vindex_slice_and_transpose, _shuffle._getitem}
)


def index_task(key: Key, top: Node) -> Task | None:
    """A task that reads no more of a block than its index selects.

    Parameters
    ----------
    key : Key
        Of the task.
    top : Node
        What it computes.

    Returns
    -------
    dask Task or None
        None where the task is no index into a block, or one that takes the plain way.
    """
    if not isinstance(top, Call) or not _indexes(top.func) or top.kwargs:
        return None
    work, *how = top.args
    leaves = Leaves.of(work)
    if leaves is None or len(leaves.reads) != 1 or not leaves.reads[0].selects_slices:
        return None
    arguments = [_argument(node) for node in how]
    if None in arguments:
        return None
    (read,) = leaves.reads
    outer = List(*(TaskRef(name) for name in leaves.outer))
    return Task(
        key, index_block, read.region.frame, read.index, top.func, work, leaves.outer, outer,
        *(a for a in arguments if a is not None),
    )  # fmt: skip


def index_block(
    frame: Frame,
    block: tuple[slice, ...],
    func: Any,
    work: Node,
    names: list[Key],
    outer: list[Any],
    *how: Any,
) -> Any:
    """Index a block of a frame, then do the elementwise work that dask would do before.

    Parameters
    ----------
    frame : Frame
    block : tuple of slice
    func : callable
        Indexes its first argument, by means of the others.
    work : Node
        The elementwise work.
    names, outer : list
        Other tasks whose results the work needs, and these.
    *how
        Arguments of `func`.

    Returns
    -------
    ndarray
    """
    values = dict(zip(names, outer, strict=True))
    if all(map(is_scalar, outer)):
        return evaluate(work, func(Window(frame, block), *how), values)
    return func(evaluate(work, np.asarray(frame.read(block)), values), *how)


def _indexes(func: Any) -> bool:
    try:
        return func in _INDEXERS
    except TypeError:
        return False


def _argument(node: Node) -> Any:
    """An argument as a task takes it; None for one that cannot be passed on."""
    if isinstance(node, Outer):
        return TaskRef(node.key)
    return node.value if isinstance(node, Literal) else None
