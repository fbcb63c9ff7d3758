"""Index a block by positions: only the blocks of its chunks that they touch are read."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from b2nd_dask.frame.joined import JoinedReference, Readable
from b2nd_dask.frame.read.buffers import writable
from b2nd_dask.graph.expression.elementwise import is_scalar
from b2nd_dask.graph.expression.program import Program
from b2nd_dask.graph.tasks.block_read import BlockRead


def index_block(
    block: BlockRead, func: Any, program: Program, inputs: Sequence[Any], *arguments: Any
) -> Any:
    """Index a block of a frame, then run the program that dask would run before.

    Parameters
    ----------
    block : BlockRead
        Its elements in the order of the frame.
    func : callable
        Indexes its first argument by the others.
    program : Program
        The elementwise work.
    inputs : sequence
        Inputs of the program.
    *arguments
        The other arguments of `func`.

    Returns
    -------
    ndarray
        Writable.
    """
    if not all(map(is_scalar, inputs)):
        return func(program.run(np.asarray(block.elements()), inputs), *arguments)
    return writable(program.run(func(Window(block.source, block.axes), *arguments), inputs))


class Window:
    """A block of a frame that is read when it is indexed."""

    def __init__(self, frame: Readable, axes: tuple[range, ...]) -> None:
        self._frame = frame
        self._axes = axes

    def __repr__(self) -> str:
        return f"<Window {self._axes} of {self._frame!r}>"

    def __getitem__(self, index: Any) -> NDArray[Any]:
        """Read a part of the block, as NumPy would index it.

        Of points, and of lists along one axis, which is all that dask leaves here, only the blocks
        that they touch are read; the whole block where a list touches most of it.
        """
        axes, full = self._axes, index if isinstance(index, tuple) else (index,)
        if len(full) == len(axes) and all(map(_is_positions, full)):
            return self._read_points(full, axes)
        if _are_positions_along_one(full):
            return self._read_along(full, axes)
        elements: NDArray[Any] = np.asarray(self._frame.read_axes(axes))[index]
        return elements

    def _read_points(self, index: Any, axes: tuple[range, ...]) -> NDArray[Any]:
        coords = [_positions(i, axis) for i, axis in zip(index, axes, strict=True)]
        joint = np.broadcast_arrays(*coords)
        found = self._frame.read_points(tuple(c.reshape(-1) for c in joint))
        return found.reshape(joint[0].shape)

    def _read_along(self, index: Any, axes: tuple[range, ...]) -> NDArray[Any]:
        """Read a list of positions along one axis: neighbouring blocks in one read."""
        along = next(i for i, part in enumerate(index) if _is_positions(part))
        positions = _positions(index[along], axes[along])
        distinct, inverse = np.unique(positions, return_inverse=True)
        full = (*index, *(slice(None),) * (len(axes) - len(index)))
        chosen = [
            axis[part] if isinstance(part, slice) else axis
            for axis, part in zip(axes, full, strict=True)
        ]
        shape = [len(axis) for axis in chosen]
        shape[along] = len(distinct)
        cells = distinct // self._frame.blocks[along]
        runs = np.split(distinct, np.flatnonzero(np.diff(cells) > 1) + 1)
        if 1 < len(runs) >= len(axes[along]) / self._frame.blocks[along] / 2:
            # so many reads cost more than the blocks between them
            elements: NDArray[Any] = np.asarray(self._frame.read_axes(axes))[index]
            return elements
        # np.concatenate would return native byte order
        found = np.empty(shape, self._frame.dtype)
        start = 0
        for run in runs:
            first = int(run[0])
            chosen[along] = range(first, int(run[-1]) + 1)
            elements = np.asarray(self._frame.read_axes(tuple(chosen)))
            target = (slice(None),) * along + (slice(start, start + len(run)),)
            found[target] = np.take(elements, run - first, along)
            start += len(run)
        return np.take(found, inverse.reshape(positions.shape), along)


def regions_of_index(
    block: BlockRead, func: Any, program: Program, inputs: Sequence[Any], *arguments: Any
) -> list[tuple[Readable, tuple[range, ...]]]:
    """What `index_block` reads, of arguments that are known, and of the block otherwise.

    Of blocks that are read for single elements one element stands for each.
    """
    whole, recorder = [(block.source, block.axes)], _Recorder(block.source)
    try:
        func(Window(recorder, block.axes), *arguments)  # type: ignore[arg-type]
    except Exception:  # noqa: BLE001 - of results of other tasks nothing is known
        return whole
    return recorder.regions if all(map(is_scalar, inputs)) else whole


class _Recorder:
    """Looks like a frame to `Window`, and notes what is read of it."""

    def __init__(self, frame: Readable) -> None:
        self.shape, self.blocks, self.dtype = frame.shape, frame.blocks, frame.dtype
        self.regions: list[tuple[Readable, tuple[range, ...]]] = []
        self._frame = frame

    def read_axes(self, axes: tuple[range, ...]) -> NDArray[Any]:
        """Note a region; return elements of its shape."""
        self.regions.append((self._frame, axes))
        return np.broadcast_to(np.zeros((), self.dtype), tuple(map(len, axes)))

    def read_points(self, coords: tuple[NDArray[np.int64], ...]) -> NDArray[Any]:
        """Note the blocks of single elements, each by one element."""
        parts = [(self._frame, coords)]
        if isinstance(self._frame, JoinedReference):
            parts = [(frame, own) for frame, own, _ in self._frame.split_points(coords)]
        for frame, own in parts:
            sizes = zip(own, frame.grid.chunks, frame.grid.blocks, strict=True)
            corners = [at - at % chunk % block for at, chunk, block in sizes]
            # a frame without axes has one block
            for corner in np.unique(corners, axis=1).T.tolist() if own else [()]:
                self.regions.append((frame, tuple(range(at, at + 1) for at in corner)))
        return np.zeros(len(coords[0]), self.dtype)


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
