"""Layers that move elements: slices and transposes by what they do, others by what dask calls them.

dask holds the tasks of slices as a dict. Each task takes a part of a block of the layer below. The
first task at a position along an axis tells the block and its part; all others there must agree.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from b2nd_dask.graph._dask_compat import (
    Alias,
    GraphNode,
    M,
    Task,
    TaskRef,
    core,
)
from b2nd_dask.graph.expression.elementwise import FILTERS as GETTERS
from b2nd_dask.graph.expression.elementwise import is_among
from b2nd_dask.graph.expression.nodes import Selection
from b2nd_dask.graph.read.blocks import Chunks

#: The names that dask gives to layers that rechunk, and that reshape.
_RECHUNK = re.compile(r"rechunk-merge-[0-9a-f]{32}")
_RESHAPE = re.compile(r"reshape-[0-9a-f]{32}")
#: A block along one axis: its number in the layer below, and what is taken of it.
_Piece = tuple[int, slice | int]


def as_task(key: Any, value: Any) -> GraphNode | None:
    """A value of a layer as a task, also of a second name or an index in dask's older form."""
    if type(value) is Alias:
        # dask holds some under yet another key
        return Alias(key, value.target)
    if isinstance(value, GraphNode):
        return value
    if not isinstance(value, tuple) or not value:
        return None
    if isinstance(value[0], str):
        return Alias(key, value)
    is_index = is_among(value[0], GETTERS) and len(value) == 3 and isinstance(value[1], tuple)
    return Task(key, value[0], TaskRef(value[1]), value[2]) if is_index else None


def selection_of(
    tasks: Mapping[Any, Any], name: str, below: str, chunks: Chunks
) -> Selection | None:
    """Parse a layer whose tasks each take a part of one block; None for other layers.

    Parameters
    ----------
    below : str
        The layer below.
    chunks : tuple of tuple of int
        Its blocks.
    """
    kinds = _kinds(next(iter(tasks.values()), None), len(chunks))
    if kinds is None:
        return None
    # the axis of the layer below that each entry of an index belongs to, and the layer's own axis
    axes = [axis for axis, kind in enumerate(kinds) if kind is not None]
    kept = [axis for axis, kind in enumerate(kinds) if kind is not int]
    inserted = [axis for axis, kind in enumerate(kinds) if kind is None]
    tables: list[dict[int, _Piece]] = [{} for _ in axes]
    for key, task in tasks.items():
        parts = _pieces_of(task, below, kinds)
        if parts is None or not isinstance(key, tuple) or key[0] != name:
            return None
        # an axis that is dropped has one block, one that is inserted too
        at = dict(zip(kept, key[1:], strict=False))
        if len(key) != len(kept) + 1 or any(at[axis] for axis in inserted):
            return None
        for table, axis, piece in zip(tables, axes, parts, strict=True):
            if table.setdefault(at.get(axis, 0), piece) != piece:
                return None
    # no two tasks have one place, so all places have one
    return _composed(tables, chunks, kinds) if math.prod(map(len, tables)) == len(tasks) else None


def _kinds(task: Any, ndim: int) -> tuple[type | None, ...] | None:
    """What the index of a task has in each place: a slice, an int, or None for a new axis."""
    if type(task) is Alias:
        return (slice,) * ndim
    if type(task) is not Task or len(task.args) != 2 or not isinstance(task.args[1], tuple):
        return None
    kinds = tuple(None if part is None else type(part) for part in task.args[1])
    known = all(kind in (None, slice, int) for kind in kinds)
    return kinds if known and len(kinds) - kinds.count(None) == ndim else None


def _pieces_of(task: Any, below: str, kinds: tuple[type | None, ...]) -> list[_Piece] | None:
    """The block that a task takes a part of, and what it takes, along each axis of the block."""
    if type(task) is Alias:
        key: Any = task.target
        index: Any = (slice(None),) * len(kinds)
    elif _is_getter(task):
        reference, index = task.args
        key = reference.key if type(reference) is TaskRef else None
    else:
        return None
    if not isinstance(key, tuple) or key[0] != below or not isinstance(index, tuple):
        return None
    if tuple(None if part is None else type(part) for part in index) != kinds:
        return None
    parts = [part for part in index if part is not None]
    return list(zip(key[1:], parts, strict=True)) if len(parts) == len(key) - 1 else None


def _is_getter(task: Any) -> bool:
    return type(task) is Task and is_among(task.func, GETTERS) and not task.kwargs


def _composed(
    tables: Sequence[Mapping[int, _Piece]], chunks: Chunks, kinds: tuple[type | None, ...]
) -> Selection | None:
    """Join the pieces along each axis; None where they are no range."""
    index: list[range | int | None] = []
    sizes: list[tuple[int, ...]] = []
    entries = iter(zip(chunks, tables, strict=True))
    for kind in kinds:
        if kind is None:
            index.append(None)
            sizes.append((1,))
            continue
        pieces = _pieces(*next(entries))
        along = _joined(pieces)
        if along is None:
            return None
        index.append(along if kind is slice else along[0])
        if kind is slice:
            sizes.append(tuple(map(len, pieces)))
    return Selection(tuple(index), tuple(sizes))


def _pieces(lengths: tuple[int, ...], table: Mapping[int, _Piece]) -> list[range]:
    """What the blocks along an axis have of the layer below; nothing where it is no such axis."""
    ends = list(itertools.accumulate(lengths, initial=0))
    pieces = []
    for at in range(len(table)):
        if at not in table or not 0 <= table[at][0] < len(lengths):
            return []
        number, part = table[at]
        positions = range(ends[number], ends[number + 1])
        pieces.append(positions[part] if isinstance(part, slice) else positions[part:][:1])
    return pieces


def _joined(pieces: Sequence[range]) -> range | None:
    """The range that pieces follow each other in; None where they form none."""
    filled = [piece for piece in pieces if piece]
    if not filled:
        return range(0) if pieces else None
    first, total = filled[0], sum(map(len, filled))
    after = first[1] if len(first) > 1 else filled[1][0] if len(filled) > 1 else first[0] + 1
    step = after - first[0]
    if not step:
        return None
    found = range(first[0], first[0] + total * step, step)
    done = 0
    for piece in filled:
        if piece != found[done : done + len(piece)]:
            return None
        done += len(piece)
    return found


def transposed_axes(layer: Any, layers: Any) -> tuple[int, ...] | None:
    """The axes of a transpose, as NumPy has them; None for other layers."""
    function = layer.task.func
    if function not in (np.transpose, np.swapaxes) or len(layer.indices) != 1:
        return None
    ((source, labels),) = layer.indices
    if labels is None or source not in layers or set(labels) != set(layer.output_indices):
        return None
    # dask moves the blocks along with their elements
    moved = tuple(labels.index(label) for label in layer.output_indices)
    # NumPy itself says what the function does, by an array whose lengths tell its axes apart
    numbered = np.empty(tuple(range(len(labels))))
    try:
        result = function(numbered, **layer.task.kwargs).shape
    except (TypeError, ValueError):
        return None
    return moved if moved == result else None


def is_rechunk(tasks: Mapping[Any, Any], name: str) -> bool:
    """Whether a layer is one of dask's rechunks, which put parts of blocks together."""
    return _RECHUNK.fullmatch(name) is not None and all(map(_is_of_rechunk, tasks.values()))


def _is_of_rechunk(task: Any) -> bool:
    joins = type(task) is Task and task.func is core.concatenate_shaped
    return joins or _is_getter(task) or type(task) is Alias


def is_reshape(tasks: Mapping[Any, Any], name: str) -> bool:
    """Whether a layer is one of dask's reshapes, which keep the order of elements."""
    # "reshape-blockwise-" has the same tasks, and keeps no order
    reshapes = all(isinstance(task, Task) and task.func is M.reshape for task in tasks.values())
    return reshapes and _RESHAPE.fullmatch(name) is not None
