"""What layers of slices, one above the other, select of a frame: one basic index says it.

Unlike a `Cut`, a selection may step, run backwards, and drop and insert axes.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import EllipsisType
from typing import Any

from dask.highlevelgraph import HighLevelGraph

from b2nd_dask.frame.joined import Readable
from b2nd_dask.graph._dask_compat import Alias, Task, TaskRef, block_function
from b2nd_dask.graph.layers.slices import GETTERS
from b2nd_dask.graph.read.blocks import Chunks, reading_of

#: A block along one axis: its number in the layer below, and what is taken of it.
_Piece = tuple[int, slice | int]


@dataclass(frozen=True)
class FrameSelection:
    """What a layer has of a frame, or of joined frames."""

    source: Readable
    positions: tuple[range, ...]
    """Along each axis of the source, in the order of the layer."""
    kept: tuple[int | None, ...]
    """For each axis of the layer the source's, in ascending order; None for an inserted one."""
    sizes: Chunks
    """Lengths of the layer's blocks."""

    @property
    def ascending(self) -> tuple[range, ...]:
        """The positions, as they are read."""
        return tuple(along if along.step > 0 else along[::-1] for along in self.positions)

    @property
    def finish(self) -> tuple[int | slice | EllipsisType | None, ...]:
        """Index into what was read: drops axes, turns them around, inserts new ones."""
        index: list[int | slice | EllipsisType | None] = []
        source = 0
        for axis in (*self.kept, len(self.positions)):
            if axis is None:
                index.append(None)
                continue
            index += [0] * (axis - source)
            if axis < len(self.positions):
                backwards = self.positions[axis].step < 0
                index.append(slice(None, None, -1) if backwards else slice(None))
            source = axis + 1
        return tuple(index)


def selection_of(graph: HighLevelGraph, name: str) -> FrameSelection | None:
    """Parse a layer that selects of a frame, perhaps through others; None for other layers."""
    taken: list[Mapping[Any, Any]] = []
    names = [name]
    while (reading := reading_of(graph.layers[names[-1]])) is None:
        layer, below = graph.layers[names[-1]], graph.dependencies[names[-1]]
        # of layers that are no functions of blocks dask holds the tasks, or makes them when asked
        tasks = getattr(layer, "mapping", None)
        if len(below) != 1 or block_function(layer) is not None or not isinstance(tasks, dict):
            return None
        taken.append(tasks)
        names += below
    source = reading.source
    full = tuple(map(range, source.shape))
    found: FrameSelection | None = FrameSelection(
        source, full, tuple(range(len(full))), reading.chunks
    )
    for tasks, own, below_name in zip(
        reversed(taken), reversed(names[:-1]), reversed(names[1:]), strict=True
    ):
        if found is None:
            return None
        found = _selected(found, tasks, own, below_name)
    return found


def _selected(
    below: FrameSelection, tasks: Mapping[Any, Any], name: str, source: str
) -> FrameSelection | None:
    """Parse the tasks of a layer, each of which takes a part of one block of the layer below."""
    kinds = _kinds(next(iter(tasks.values()), None), len(below.sizes))
    if kinds is None:
        return None
    # the axis of the layer below that each entry of an index belongs to, and the layer's own axis
    axes = [axis for axis, kind in enumerate(kinds) if kind is not None]
    kept = [axis for axis, kind in enumerate(kinds) if kind is not int]
    inserted = [axis for axis, kind in enumerate(kinds) if kind is None]
    tables: list[dict[int, _Piece]] = [{} for _ in axes]
    for key, task in tasks.items():
        parts = _pieces_of(task, source, kinds)
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
    return _composed(below, tables, kinds) if math.prod(map(len, tables)) == len(tasks) else None


def _kinds(task: Any, ndim: int) -> tuple[type | None, ...] | None:
    """What the index of a task has in each place: a slice, an int, or None for a new axis."""
    if type(task) is Alias:
        return (slice,) * ndim
    if type(task) is not Task or len(task.args) != 2 or not isinstance(task.args[1], tuple):
        return None
    kinds = tuple(None if part is None else type(part) for part in task.args[1])
    known = all(kind in (None, slice, int) for kind in kinds)
    return kinds if known and len(kinds) - kinds.count(None) == ndim else None


def _pieces_of(task: Any, source: str, kinds: tuple[type | None, ...]) -> list[_Piece] | None:
    """The block that a task takes a part of, and what it takes, along each axis of the block."""
    if type(task) is Alias:
        key: Any = task.target
        index: Any = (slice(None),) * len(kinds)
    elif type(task) is Task and task.func in GETTERS and not task.kwargs and len(task.args) == 2:
        reference, index = task.args
        key = reference.key if type(reference) is TaskRef else None
    else:
        return None
    if not isinstance(key, tuple) or key[0] != source or not isinstance(index, tuple):
        return None
    if tuple(None if part is None else type(part) for part in index) != kinds:
        return None
    parts = [part for part in index if part is not None]
    return list(zip(key[1:], parts, strict=True)) if len(parts) == len(key) - 1 else None


def _composed(
    below: FrameSelection, tables: Sequence[Mapping[int, _Piece]], kinds: tuple[type | None, ...]
) -> FrameSelection | None:
    """Join the pieces along each axis; None where they are no range."""
    positions, kept = list(below.positions), list[int | None]()
    sizes: list[tuple[int, ...]] = []
    entries = iter(zip(below.kept, below.sizes, tables, strict=True))
    for kind in kinds:
        if kind is None:
            kept.append(None)
            sizes.append((1,))
            continue
        axis, lengths, table = next(entries)
        pieces = _pieces(table, lengths)
        along = _joined(pieces)
        if along is None:
            return None
        if axis is not None:
            positions[axis] = _inside(positions[axis], along)
        elif along != range(1):
            return None
        if kind is slice:
            kept.append(axis)
            sizes.append(tuple(map(len, pieces)))
    return FrameSelection(below.source, tuple(positions), tuple(kept), tuple(sizes))


def _pieces(table: Mapping[int, _Piece], lengths: tuple[int, ...]) -> list[range]:
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


def _inside(positions: range, along: range) -> range:
    """Positions of positions."""
    start, step = positions.start + along.start * positions.step, positions.step * along.step
    return range(start, start + len(along) * step, step)
