"""Layers that move elements: all but reshapes are known by what each of their tasks does.

dask holds the tasks of slices and rechunks as a dict. Each task takes parts of blocks of the layer
below. In a slice, the first task at a position along an axis tells what it takes, all others there
must agree; in a rechunk, what is put together must be the elements of the new block in order.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Callable, Mapping, Sequence
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
)
from b2nd_dask.graph.expression.elementwise import FILTERS as GETTERS
from b2nd_dask.graph.expression.elementwise import is_among
from b2nd_dask.graph.expression.nodes import Selection
from b2nd_dask.graph.read.blocks import Chunks

#: The name that dask gives to a layer that reshapes.
_RESHAPE = re.compile(r"reshape-[0-9a-f]{32}")
#: What an entry of an index takes along an axis; None for a new axis.
_Entry = range | int | None


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
    along = _ranges(chunks)

    def block(key: Any) -> list[range] | None:
        if not isinstance(key, tuple) or key[0] != below or len(key) != 1 + len(along):
            return None
        places = list(zip(along, key[1:], strict=True))
        is_there = all(0 <= number < len(own) for own, number in places)
        return [own[number] for own, number in places] if is_there else None

    # for each entry of the index what it takes at each place along its axis of the result
    tables: list[dict[int, _Entry]] | None = None
    for key, task in tasks.items():
        entries = _taken(task, block)
        if entries is None or not isinstance(key, tuple) or key[0] != name:
            return None
        tables = [{} for _ in entries] if tables is None else tables
        # an axis that is dropped is none of the result
        axes = [i for i, entry in enumerate(entries) if not isinstance(entry, int)]
        if len(tables) != len(entries) or len(key) != 1 + len(axes):
            return None
        places = dict(zip(axes, key[1:], strict=True))
        for i, (table, entry) in enumerate(zip(tables, entries, strict=True)):
            if table.setdefault(places.get(i, 0), entry) != entry:
                return None
    # no two tasks have one place, so all places have one
    if tables is None or math.prod(map(len, tables)) != len(tasks):
        return None
    return _composed(tables)


def _ranges(chunks: Chunks) -> list[list[range]]:
    """The positions of the blocks along each axis."""
    ends = (itertools.accumulate(along, initial=0) for along in chunks)
    return [list(itertools.starmap(range, itertools.pairwise(along))) for along in ends]


def _taken(task: Any, block: Callable[[Any], Sequence[range] | None]) -> list[_Entry] | None:
    """What a task takes of a block of the layer below, by an index, in positions of the array.

    `block` gives the positions of the block of a key; None where there is none.
    """
    if type(task) is Alias:
        whole = block(task.target)
        return None if whole is None else [*whole]
    if not _is_getter(task) or len(task.args) != 2 or type(task.args[0]) is not TaskRef:
        return None
    positions, index = block(task.args[0].key), task.args[1]
    if positions is None or not isinstance(index, tuple):
        return None
    if sum(part is not None for part in index) != len(positions):
        return None
    axes = iter(positions)
    entries: list[_Entry] = []
    for part in index:
        along = None if part is None else next(axes)
        if along is None:
            entries.append(None)
        elif type(part) is slice or (type(part) is int and -len(along) <= part < len(along)):
            entries.append(along[part])
        else:
            return None
    return entries


def _composed(tables: Sequence[Mapping[int, _Entry]]) -> Selection | None:
    """Join what is taken along each axis; None where that is no range."""
    index: list[_Entry] = []
    sizes: list[tuple[int, ...]] = []
    for table in tables:
        if table.keys() != set(range(len(table))):
            return None
        pieces = [table[place] for place in range(len(table))]
        ranges = [piece for piece in pieces if isinstance(piece, range)]
        along = _joined(ranges) if ranges else pieces[0]
        if len(ranges) < len(pieces) != 1 or (ranges and along is None):
            return None
        index.append(along)
        if not isinstance(along, int):
            sizes.append(tuple(map(len, ranges)) or (1,))
    return Selection(tuple(index), tuple(sizes))


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


def _is_getter(task: Any) -> bool:
    return type(task) is Task and is_among(task.func, GETTERS) and not task.kwargs


def is_rechunk(
    tasks: Mapping[Any, Any], name: str, below: str, chunks: Chunks, sizes: Chunks
) -> bool:
    """Whether the tasks of a layer make blocks of `sizes` of the same elements.

    As dask's ``rechunk`` does it: each block is put together of blocks, and parts of blocks, of the
    layer below, which has the blocks `chunks`.
    """
    if len(chunks) != len(sizes) or tuple(map(sum, chunks)) != tuple(map(sum, sizes)):
        return False
    numbers = itertools.product([below], *map(range, map(len, chunks)))
    blocks: dict[Any, Sequence[range]] = dict(
        zip(numbers, itertools.product(*_ranges(chunks)), strict=True)
    )

    def taken(key: Any) -> Sequence[_Entry] | None:
        whole = blocks.get(key)
        return _taken(tasks.get(key), blocks.get) if whole is None else whole

    return all(
        _put_together(tasks.get((name, *at)), taken) == list(region)
        for at, region in zip(
            np.ndindex(*map(len, sizes)), itertools.product(*_ranges(sizes)), strict=True
        )
    )


def _put_together(task: Any, taken: Callable[[Any], Sequence[Any] | None]) -> list[Any] | None:
    """The positions that a task puts together along each axis; None where it does not."""
    if type(task) is Alias:
        whole = taken(task.target)
        return None if whole is None else [*whole]
    if type(task) is not Task or task.func is not core.concatenate_shaped or task.kwargs:
        return None
    parts, shape = task.args
    counts = tuple(shape.args if isinstance(shape, List) else getattr(shape, "value", shape))
    keys = [getattr(part, "key", None) for part in parts.args] if type(parts) is List else []
    if len(keys) != math.prod(counts):
        return None
    pieces: list[dict[int, Any]] = [{} for _ in counts]
    for at, key in zip(np.ndindex(counts), keys, strict=True):
        entries = taken(key)
        if entries is None or len(entries) != len(counts):
            return None
        for own, number, entry in zip(pieces, at, entries, strict=True):
            if not isinstance(entry, range) or own.setdefault(number, entry) != entry:
                return None
    return [_joined(list(own.values())) for own in pieces]


def is_reshape(tasks: Mapping[Any, Any], name: str) -> bool:
    """Whether a layer is one of dask's reshapes, which keep the order of elements."""
    # the tasks alone do not say in which order blocks follow each other: "reshape-blockwise-" has
    # the same
    reshapes = all(isinstance(task, Task) and task.func is M.reshape for task in tasks.values())
    return reshapes and _RESHAPE.fullmatch(name) is not None
