"""Parse layers that move elements: slices and rechunks by their tasks, reshapes by their names.

dask stores the tasks of slices and rechunks as a dict. Each task slices a block of the layer below,
or joins several. All tasks at one position along an axis must have the same index entry there. The
entries in order form a slice; those of a rechunk form the whole array.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from typing import Any

import numpy as np

from b2nd_dask.graph._dask_compat import Alias, GraphNode, List, M, Task, TaskRef, core
from b2nd_dask.graph.expression.elementwise import FILTERS as GETTERS
from b2nd_dask.graph.expression.elementwise import is_among
from b2nd_dask.graph.expression.nodes import Selection
from b2nd_dask.graph.read.blocks import Chunks, cut

#: Names of dask's reshape layers.
_RESHAPE = re.compile(r"reshape-[0-9a-f]{32}")
_CONCATENATE = core.concatenate_shaped
#: The entry of an index for an axis; None for a new axis.
_Entry = range | int | None
#: Maps the key of a task or block to its index entries in the array below; None if unknown.
_IndexOf = Callable[[Any], list[_Entry] | None]


def as_task(key: Any, value: Any) -> GraphNode | None:
    """A value of a layer as a task; converts aliases and indices in dask's older form."""
    if type(value) is Alias:
        # dask stores some aliases under another key
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
    """Parse a layer whose blocks are slices of the array below, in order; None for other layers.

    `below` is the layer below, `chunks` are its blocks.
    """
    along = [dict(enumerate(cut(range(sum(sizes)), sizes))) for sizes in chunks]

    @cache
    def block(key: Any) -> list[_Entry] | None:
        if not isinstance(key, tuple) or key[0] != below or len(key) != 1 + len(along):
            return None
        found: list[Any] = list(map(dict.get, along, key[1:]))
        return None if None in found else found

    def index(key: Any) -> list[_Entry] | None:
        # dask's rechunk slices blocks in the same layer, under other names
        return _index(tasks[key], block) if key in tasks else block(key)

    if not all(isinstance(key, tuple) for key in tasks):
        return None
    found = _joined((key[1:], _index(task, index)) for key, task in tasks.items() if key[0] == name)
    return None if found is None else Selection.of_index(*found)


def _index(task: Any, index_of: _IndexOf) -> list[_Entry] | None:
    """Index entries of a task, in positions of the array below; None if it does anything else."""
    if type(task) is Alias:
        return index_of(task.target)
    if type(task) is not Task or task.kwargs or len(task.args) != 2:
        return None
    source, index = task.args
    if task.func is _CONCATENATE:
        return _concatenated_index(source, index, index_of)
    if not is_among(task.func, GETTERS) or type(source) is not TaskRef:
        return None
    positions = index_of(source.key)
    if positions is None or not isinstance(index, tuple):
        return None
    if sum(part is not None for part in index) != len(positions):
        return None
    axes = iter(positions)
    entries: list[_Entry] = []
    for part in index:
        along = None if part is None else next(axes)
        if type(part) is slice and type(along) is range:
            entries.append(along[part])
        elif part is None:
            entries.append(None)
        elif type(part) is int and type(along) is range and -len(along) <= part < len(along):
            entries.append(along[part])
        else:
            return None
    return entries


def _concatenated_index(parts: Any, shape: Any, index_of: _IndexOf) -> list[_Entry] | None:
    """Index entries of joined parts, which form a grid of the given shape."""
    counts = tuple(shape.args if isinstance(shape, List) else getattr(shape, "value", shape))
    keys = [getattr(part, "key", None) for part in parts.args] if type(parts) is List else []
    if len(keys) != math.prod(counts):
        return None
    found = _joined(zip(itertools.product(*map(range, counts)), map(index_of, keys), strict=True))
    return None if found is None else found[0]


def _joined(
    parts: Iterable[tuple[Sequence[Any], list[_Entry] | None]],
) -> tuple[list[_Entry], Chunks] | None:
    """Join the index entries of parts by their grid coordinates; None if they form no index.

    Parts with the same coordinate along an axis must have the same entry there. Also returns the
    lengths of the parts.
    """
    # for each entry of the index: the entry at each coordinate along its axis
    tables: list[dict[Any, _Entry]] | None = None
    count = 0
    for at, entries in parts:
        if entries is None:
            return None
        count += 1
        tables = [{} for _ in entries] if tables is None else tables
        # a dropped axis has no coordinate
        coordinates = iter(at)
        for table, entry in zip(tables, entries, strict=False):
            coordinate = 0 if type(entry) is int else next(coordinates, None)
            if coordinate is None or table.setdefault(coordinate, entry) != entry:
                return None
        if len(entries) != len(tables) or next(coordinates, None) is not None:
            return None
    # coordinates are unique, so equal counts mean that the grid is complete
    if tables is None or math.prod(map(len, tables)) != count:
        return None
    index: list[_Entry] = []
    sizes: list[tuple[int, ...]] = []
    for table in tables:
        if table.keys() != set(range(len(table))):
            return None
        along = [table[coordinate] for coordinate in range(len(table))]
        ranges = [entry for entry in along if isinstance(entry, range)]
        whole = _consecutive(ranges) if ranges else along[0]
        if len(ranges) < len(along) != 1 or (ranges and whole is None):
            return None
        index.append(whole)
        if not isinstance(whole, int):
            sizes.append(tuple(map(len, ranges)) or (1,))
    return index, tuple(sizes)


def _consecutive(ranges: Sequence[range]) -> range | None:
    """Join consecutive ranges; None if they are not consecutive."""
    filled = [along for along in ranges if along]
    if not filled:
        return range(0)
    first, last, total = filled[0][0], filled[-1][-1], sum(map(len, filled))
    step = (last - first) // max(1, total - 1) or 1
    found = range(first, first + total * step, step)
    return found if cut(found, tuple(map(len, filled))) == filled else None


def transposed_axes(layer: Any, layers: Any) -> tuple[int, ...] | None:
    """The axes of a transpose, in NumPy's order; None for other layers."""
    function = layer.task.func
    if function not in (np.transpose, np.swapaxes) or len(layer.indices) != 1:
        return None
    ((source, labels),) = layer.indices
    if labels is None or source not in layers or set(labels) != set(layer.output_indices):
        return None
    # dask moves the blocks along with their elements
    moved = tuple(labels.index(label) for label in layer.output_indices)
    # run the function on an array whose lengths identify its axes
    numbered = np.empty(tuple(range(len(labels))))
    try:
        result = function(numbered, **layer.task.kwargs).shape
    except (TypeError, ValueError):
        return None
    return moved if moved == result else None


def is_reshape(tasks: Mapping[Any, Any], name: str) -> bool:
    """Whether a layer is a reshape of dask that keeps the order of elements."""
    # the name decides: "reshape-blockwise-" has the same tasks with another order of blocks
    reshapes = all(isinstance(task, Task) and task.func is M.reshape for task in tasks.values())
    return reshapes and _RESHAPE.fullmatch(name) is not None
