"""Push indices into the reads behind them, through elementwise work."""

from __future__ import annotations

import operator
from dataclasses import dataclass
from types import EllipsisType
from typing import Any

import numpy as np
from dask.typing import Key

from b2nd_dask.frame.reference import FrameReference
from b2nd_dask.graph._dask_compat import List, Task, TaskRef, _shuffle, chunk, core
from b2nd_dask.graph.optimize.calls.expression import (
    Call,
    Literal,
    Node,
    Outer,
    Read,
    is_among,
    is_scalar,
)
from b2nd_dask.graph.optimize.calls.program import Program, program_of
from b2nd_dask.graph.optimize.calls.window import Window
from b2nd_dask.graph.optimize.rules.rule import TaskRule
from b2nd_dask.graph.read.blocks import ConstantRegion, FrameRegion, writable

#: Functions that index their first argument by their second.
_GETTERS = frozenset({chunk.getitem, operator.getitem})
#: Those of dask that index it by positions alone.
_TAKERS = frozenset({core._vindex_slice_and_transpose, _shuffle._getitem})


def index_block(
    region: FrameRegion | ConstantRegion,
    block: tuple[slice, ...],
    func: Any,
    work: Program,
    outer: list[Any],
    *how: Any,
) -> Any:
    """Index a block of a frame, then do the elementwise work that dask would do before.

    Parameters
    ----------
    region : FrameRegion or ConstantRegion
        What dask would slice by `block`.
    block : tuple of slice
    func : callable
        Indexes its first argument, by means of the others.
    work : Program
        The elementwise work.
    outer : list
        Results of other tasks that the work needs.
    *how
        Arguments of `func`.

    Returns
    -------
    ndarray
        Writable, unless the region gives views.
    """
    found = _indexed(region.frame, block, func, work, outer, how)
    return found if region.views else writable(found)


def _indexed(
    frame: FrameReference,
    block: tuple[slice, ...],
    func: Any,
    work: Program,
    outer: list[Any],
    how: tuple[Any, ...],
) -> Any:
    values = dict(zip(work.outer, outer, strict=True))
    if not all(map(is_scalar, outer)):
        return func(work.run(np.asarray(frame.read(block)), values), *how)
    elements = func(Window(frame, block), *how)
    if np.ndim(elements) or not work.steps:
        return work.run(elements, values)
    # single elements behave otherwise than arrays: integers that overflow warn, and strings compare
    # to Python's booleans
    one = work.run(np.asarray(elements)[None], values)
    return one.reshape(()) if isinstance(elements, np.ndarray) else one[0]


def _indexes(call: Call) -> bool:
    if is_among(call.func, _TAKERS):
        return True
    if not is_among(call.func, _GETTERS) or len(call.args) != 2:
        return False
    index = call.args[1]
    if not isinstance(index, Literal):
        return False
    parts = index.value if isinstance(index.value, tuple) else (index.value,)
    return all(map(_selects_places, parts))


def _selects_places(part: Any) -> bool:
    """Whether a part of an index is none of fields, nor a single bool."""
    if isinstance(part, bool | np.bool_):
        return False
    return part is None or isinstance(
        part, int | np.integer | slice | EllipsisType | list | np.ndarray
    )


@dataclass(frozen=True)
class IndexedRead:
    """A block that is read, worked on element by element, and then indexed."""

    read: Read
    work: Program
    func: Any
    """Indexes its first argument by means of the others."""
    arguments: tuple[Outer | Literal, ...]
    """The others."""


def indexed_read_of(top: Node) -> IndexedRead | None:
    """What a task reads and indexes, if it can read no more of the block than it indexes."""
    if not isinstance(top, Call) or top.kwargs or not _indexes(top):
        return None
    found = program_of(top.args[0])
    arguments = tuple(node for node in top.args[1:] if isinstance(node, Outer | Literal))
    if found is None or not found[0].selects_slices or len(arguments) < len(top.args) - 1:
        return None
    return IndexedRead(*found, top.func, arguments)


def index_task(key: Key, found: IndexedRead, data_producer: bool) -> Task:
    """A task that reads no more of a block than its index selects."""
    return Task(
        key,
        index_block,
        found.read.region,
        found.read.index,
        found.func,
        found.work,
        List(*(TaskRef(name) for name in found.work.outer)),
        *(TaskRef(a.key) if isinstance(a, Outer) else a.value for a in found.arguments),
        _data_producer=data_producer,
    )


INDEX_PUSHDOWN = TaskRule(
    "index_pushdown",
    "Chunks are grids of blocks that decode independently: only those that an index touches are "
    "read, decoded and worked on.",
    indexed_read_of,
    index_task,
)
