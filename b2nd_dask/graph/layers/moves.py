"""Layers that move elements: all but reshapes are known by what each of their tasks does.

dask holds the tasks of slices and rechunks as a dict. Each task takes parts of blocks of the layer
below. In a slice, the first task at a position along an axis tells the block and its part; all
others there must agree. For a rechunk, dask itself tells what each new block takes from old ones.
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
    List,
    M,
    Task,
    TaskRef,
    core,
    old_to_new,
)
from b2nd_dask.graph.expression.elementwise import FILTERS as GETTERS
from b2nd_dask.graph.expression.elementwise import is_among
from b2nd_dask.graph.expression.nodes import Selection
from b2nd_dask.graph.read.blocks import Chunks

#: The name that dask gives to a layer that reshapes.
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
    elif type(task) is Task and is_among(task.func, GETTERS) and not task.kwargs:
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


def is_rechunk(
    tasks: Mapping[Any, Any], name: str, below: str, chunks: Chunks, sizes: Chunks
) -> bool:
    """Whether the tasks of a layer make blocks of `sizes` of the same elements.

    As dask's ``rechunk`` does it: each block is put together of blocks, and parts of blocks, of the
    layer below, which has the blocks `chunks`.
    """
    if len(chunks) != len(sizes) or tuple(map(sum, chunks)) != tuple(map(sum, sizes)):
        return False
    sources = old_to_new(chunks, sizes)
    for at in itertools.product(*map(range, map(len, sizes))):
        along = [axis[i] for axis, i in zip(sources, at, strict=True)]
        references = _put_together(tasks.get((name, *at)), [len(pieces) for pieces in along])
        wanted = list(itertools.product(*along))
        if references is None or len(references) != len(wanted):
            return False
        for key, pieces in zip(references, wanted, strict=True):
            if not _is_part(tasks, key, below, pieces, chunks):
                return False
    return True


def _put_together(task: Any, counts: list[int]) -> list[Any] | None:
    """Keys of what a task puts together, in C order, so many along each axis."""
    if type(task) is Alias:
        return [task.target]
    if type(task) is not Task or task.func is not core.concatenate_shaped or task.kwargs:
        return None
    parts, shape = task.args
    if type(parts) is not List or list(_plain(shape)) != counts:
        return None
    return list(map(_key_of, parts.args))


def _key_of(part: Any) -> Any:
    """The key that an argument refers to; None if it is no reference."""
    if type(part) is Alias:
        return part.target
    return part.key if type(part) is TaskRef else None


def _plain(shape: Any) -> Any:
    """A list of numbers, which dask may have wrapped."""
    return shape.args if isinstance(shape, List) else getattr(shape, "value", shape)


def _is_part(
    tasks: Mapping[Any, Any], key: Any, below: str, pieces: Sequence[tuple[int, slice]], old: Chunks
) -> bool:
    """Whether a key is that of a block of the layer below, or of a part of it."""
    wanted = [slice(part.start, part.stop, 1) for _, part in pieces]
    block = (below, *(number for number, _ in pieces))
    if key == block:
        lengths = [along[number] for along, (number, _) in zip(old, pieces, strict=True)]
        return wanted == [slice(0, length, 1) for length in lengths]
    task = tasks.get(key)
    if type(task) is not Task or not is_among(task.func, GETTERS) or len(task.args) != 2:
        return False
    reference, index = task.args
    if type(reference) is not TaskRef or reference.key != block or not isinstance(index, tuple):
        return False
    taken = [
        slice(part.start or 0, part.stop, part.step or 1)
        for part in index
        if isinstance(part, slice)
    ]
    return len(taken) == len(index) and taken == wanted


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


def is_reshape(tasks: dict[Any, Any], name: str) -> bool:
    """Whether a layer is one of dask's reshapes, which keep the order of elements."""
    # the tasks alone do not say in which order blocks follow each other: "reshape-blockwise-" has
    # the same
    reshapes = all(isinstance(task, Task) and task.func is M.reshape for task in tasks.values())
    return reshapes and _RESHAPE.fullmatch(name) is not None
