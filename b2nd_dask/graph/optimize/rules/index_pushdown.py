"""Index pushdown: read only the elements that an index selects, then do the elementwise work."""

from __future__ import annotations

from dataclasses import dataclass
from types import EllipsisType
from typing import Any

import numpy as np
from dask.typing import Key
from numpy.typing import NDArray

from b2nd_dask.format.grid import parse_selection
from b2nd_dask.frame.joined import Readable
from b2nd_dask.graph._dask_compat import List, Task, TaskRef, _shuffle, core
from b2nd_dask.graph.layers.slices import GETTERS
from b2nd_dask.graph.optimize.calls.elementwise import ElementwiseWork, elementwise_work_of
from b2nd_dask.graph.optimize.calls.expression import (
    Call,
    Dependency,
    Literal,
    Node,
    Read,
    is_among,
    is_scalar,
)
from b2nd_dask.graph.optimize.rules.rule import TaskRule
from b2nd_dask.graph.read.blocks import ConstantRegion, FrameRegion, writable

#: dask's functions that index their first argument by positions alone.
_POSITION_GETTERS = frozenset({core._vindex_slice_and_transpose, _shuffle._getitem})


def index_block(
    region: FrameRegion | ConstantRegion,
    block: tuple[slice, ...],
    func: Any,
    work: ElementwiseWork,
    results: list[Any],
    *arguments: Any,
) -> Any:
    """Index a block of a frame, then do the elementwise work that dask would do before.

    Parameters
    ----------
    region : FrameRegion or ConstantRegion
        The region that dask would slice by `block`.
    block : tuple of slice
    func : callable
        Indexes its first argument by the others.
    work : ElementwiseWork
        The elementwise work.
    results : list
        Results of the dependencies of the work.
    *arguments
        The other arguments of `func`.

    Returns
    -------
    ndarray
        Writable, unless the region returns views.
    """
    found = _indexed(region.frame, block, func, work, results, arguments)
    return found if region.views else writable(found)


def _indexed(
    frame: Readable,
    block: tuple[slice, ...],
    func: Any,
    work: ElementwiseWork,
    results: list[Any],
    arguments: tuple[Any, ...],
) -> Any:
    values = dict(zip(work.dependencies, results, strict=True))
    if not all(map(is_scalar, results)):
        return func(work.run(np.asarray(frame.read(block)), values), *arguments)
    elements = func(Window(frame, block), *arguments)
    if np.ndim(elements) or not work.steps:
        return work.run(elements, values)
    # single elements behave otherwise than arrays: integers that overflow warn, and strings compare
    # to Python's booleans
    one = work.run(np.asarray(elements)[None], values)
    return one.reshape(()) if isinstance(elements, np.ndarray) else one[0]


def _indexes(call: Call) -> bool:
    if is_among(call.func, _POSITION_GETTERS):
        return True
    if not is_among(call.func, GETTERS) or len(call.args) != 2:
        return False
    index = call.args[1]
    if not isinstance(index, Literal):
        return False
    parts = index.value if isinstance(index.value, tuple) else (index.value,)
    return all(map(_selects_positions, parts))


def _selects_positions(part: Any) -> bool:
    """Whether a part of an index is neither a field nor a single bool."""
    if isinstance(part, bool | np.bool_):
        return False
    return part is None or isinstance(
        part, int | np.integer | slice | EllipsisType | list | np.ndarray
    )


@dataclass(frozen=True)
class IndexedRead:
    """A block that is read, worked on element by element, and then indexed."""

    read: Read
    work: ElementwiseWork
    func: Any
    """Indexes its first argument by the others."""
    arguments: tuple[Dependency | Literal, ...]
    """The other arguments of `func`."""


def indexed_read_of(top: Node) -> IndexedRead | None:
    """Parse a task that indexes a block; None if the index cannot move into the read."""
    if not isinstance(top, Call) or top.kwargs or not _indexes(top):
        return None
    found = elementwise_work_of(top.args[0])
    arguments = tuple(node for node in top.args[1:] if isinstance(node, Dependency | Literal))
    if found is None or not found[0].selects_slices or len(arguments) < len(top.args) - 1:
        return None
    return IndexedRead(*found, top.func, arguments)


def index_task(key: Key, found: IndexedRead, data_producer: bool) -> Task:
    """Make a task that reads only the elements of a block that its index selects."""
    return Task(
        key,
        index_block,
        found.read.region,
        found.read.index,
        found.func,
        found.work,
        List(*(TaskRef(name) for name in found.work.dependencies)),
        *(TaskRef(a.key) if isinstance(a, Dependency) else a.value for a in found.arguments),
        _data_producer=data_producer,
    )


class Window:
    """A block of a frame that is read when it is indexed; one slice selects it along each axis."""

    def __init__(self, frame: Readable, index: tuple[slice, ...]) -> None:
        self._frame = frame
        self._index = index
        self._axes = parse_selection(index, frame.shape).axes

    def __repr__(self) -> str:
        return f"<Window {self._index} of {self._frame!r}>"

    @property
    def shape(self) -> tuple[int, ...]:
        """Elements along each axis."""
        return tuple(map(len, self._axes))

    def __getitem__(self, index: Any) -> NDArray[Any]:
        """Read a part of the block, as NumPy would index it.

        Basic indices, points and lists along one axis read the selected elements only.
        """
        axes, full = self._axes, index if isinstance(index, tuple) else (index,)
        if all(map(_is_basic, full)):
            return self._read_basic(full, axes)
        if len(full) == len(axes) and all(map(_is_positions, full)):
            return self._read_points(full, axes)
        if _are_positions_along_one(full):
            return self._read_along(full, axes)
        elements: NDArray[Any] = np.asarray(self._frame.read_axes(axes))[index]
        return elements

    def _read_basic(self, index: Any, axes: tuple[range, ...]) -> NDArray[Any]:
        selection = parse_selection(index, self.shape)
        chosen = tuple(
            axis[r.start : r.stop : r.step] for axis, r in zip(axes, selection.axes, strict=True)
        )
        elements: NDArray[Any] = np.asarray(self._frame.read_axes(chosen))[selection.finish]
        return elements

    def _read_points(self, index: Any, axes: tuple[range, ...]) -> NDArray[Any]:
        coords = [_positions(i, axis) for i, axis in zip(index, axes, strict=True)]
        joint = np.broadcast_arrays(*coords)
        found = self._frame.read_points(tuple(c.reshape(-1) for c in joint))
        return found.reshape(joint[0].shape)

    def _read_along(self, index: Any, axes: tuple[range, ...]) -> NDArray[Any]:
        """Read a list of positions along one axis: neighbouring blocks in one read."""
        along = next(i for i, part in enumerate(index) if _is_positions(part))
        full = [*index, *(slice(None),) * (len(axes) - len(index))]
        positions = _positions(full[along], axes[along])
        distinct, inverse = np.unique(positions, return_inverse=True)
        chosen = [
            _as_slice(axis[i]) if isinstance(i, slice) else i
            for axis, i in zip(axes, full, strict=True)
        ]
        shape = [
            len(range(n)[s])
            for s, n in zip(chosen, self._frame.shape, strict=True)
            if isinstance(s, slice)
        ]
        shape.insert(along, len(distinct))
        # np.concatenate would return native byte order
        found = np.empty(shape, self._frame.dtype)
        cells = distinct // self._frame.blocks[along]
        start = 0
        for run in np.split(distinct, np.flatnonzero(np.diff(cells) > 1) + 1):
            first = int(run[0])
            chosen[along] = slice(first, int(run[-1]) + 1)
            elements = np.take(np.asarray(self._frame.read(tuple(chosen))), run - first, along)
            target = (slice(None),) * along + (slice(start, start + len(run)),)
            found[target], start = elements, start + len(run)
        return np.take(found, inverse.reshape(positions.shape), along)


def _is_basic(part: Any) -> bool:
    if isinstance(part, bool | np.bool_):
        return False
    return part is None or isinstance(part, int | np.integer | slice | EllipsisType)


def _is_positions(part: Any) -> bool:
    """Whether a part of an index is a 1-D list of integers."""
    return isinstance(part, list | np.ndarray) and (
        np.ndim(part) == 1 and np.asarray(part).dtype.kind in "iu"
    )


def _are_positions_along_one(index: tuple[Any, ...]) -> bool:
    """Whether an index has positions along one axis, and slices along the others."""
    lists = [part for part in index if _is_positions(part)]
    rest = [part for part in index if not _is_positions(part)]
    return (
        len(lists) == 1
        and len(lists[0]) > 0
        and all(isinstance(p, slice) and (p.step is None or p.step > 0) for p in rest)
    )


def _positions(part: Any, axis: range) -> NDArray[np.int64]:
    """Convert positions in the block to positions in the frame."""
    inside = np.asarray(part, np.int64)
    wrong = (inside < -len(axis)) | (inside >= len(axis))
    if wrong.any():
        raise IndexError(
            f"index {inside[wrong][0]} is out of bounds for an axis of {len(axis)} elements"
        )
    return axis.start + axis.step * np.where(inside < 0, inside + len(axis), inside)


def _as_slice(positions: range) -> slice:
    return slice(positions.start, max(positions.stop, positions.start), positions.step)


INDEX_PUSHDOWN = TaskRule(
    "index_pushdown",
    "Chunks are grids of blocks that decode independently: only those that an index touches are "
    "read, decoded and worked on.",
    indexed_read_of,
    index_task,
)
