"""What each block of the graph slices: the frame, or the constant that fills the block."""

from __future__ import annotations

import itertools
import zlib
from typing import Any

import numpy as np
from numpy.typing import NDArray

from b2nd_dask.format.index import ChunkKind
from b2nd_dask.frame.array import Frame
from b2nd_dask.graph import _dask_compat

Chunks = tuple[tuple[int, ...], ...]


class FrameRegion:
    """The whole frame, as dask's getter slices it in a task.

    dask pushes further slices into the index, so that only what is needed is read.

    Parameters
    ----------
    frame : Frame
    views : bool
        Whether blocks of one repeated value may be read-only views of a single element. Otherwise
        all are writable, as functions of the user may expect.
    """

    def __init__(self, frame: Frame, *, views: bool = False) -> None:
        self.frame = frame
        self.views = views

    def __getitem__(self, index: Any) -> Any:
        elements = self.frame.read(index)
        return elements if self.views else writable(elements)

    def giving_views(self) -> FrameRegion:
        """The same, with views."""
        return FrameRegion(self.frame, views=True)


class ConstantRegion:
    """An array of one repeated element; unlike a zero-stride ndarray it pickles small.

    Parameters
    ----------
    kind : int
        Of chunks that repeat an element: a code of `Frame.chunk_kinds`. The element itself would
        lose its byte order in a pickle (NumPy's protocols below 5).
    frame : Frame
    views : bool
        As for `FrameRegion`.
    """

    def __init__(self, kind: int, frame: Frame, *, views: bool = False) -> None:
        self.kind = kind
        self.frame = frame
        self.views = views

    def __getitem__(self, index: Any) -> Any:
        # what was zeros when the graph was built may hold data now
        self.frame.check_current()
        element: Any = self.frame.constant_element(self.kind)
        elements = np.broadcast_to(element, self.frame.shape)
        elements = elements[index] if index else elements
        return elements if self.views else writable(elements)

    def giving_views(self) -> ConstantRegion:
        """The same, with views."""
        return ConstantRegion(self.kind, self.frame, views=True)


def writable(elements: Any) -> Any:
    """Copy an array that is read-only.

    Parameters
    ----------
    elements : object

    Returns
    -------
    object
        The argument itself where it is writable, or no array.
    """
    if isinstance(elements, np.ndarray) and not elements.flags.writeable:
        return elements.copy(order="C")
    return elements


#: Without it there are no graphs of layers, and no arguments for them.
_Argument: Any = _dask_compat.optional("ArrayBlockwiseDep") or object


class FrameBlocks(_Argument):  # type: ignore[misc]
    """The argument of each block's task, from the block's place in the grid.

    Parameters
    ----------
    frame : Frame
    chunks : tuple of tuple of int
        Blocks of the dask array.
    """

    def __init__(self, frame: Frame, chunks: Chunks) -> None:
        super().__init__(chunks)
        self.frame = frame
        self._region = FrameRegion(frame)
        self._kinds = _uniform_kinds(frame, chunks)
        kinds = () if self._kinds is None else np.unique(self._kinds).tolist()
        self._constants = {
            kind: ConstantRegion(kind, frame)
            for kind in kinds
            if frame.constant_element(kind) is not None
        }

    def __getitem__(self, block: tuple[int, ...]) -> FrameRegion | ConstantRegion:
        kind = ChunkKind.STORED if self._kinds is None else self._kinds[block]
        return self._constants.get(int(kind), self._region)

    def __getstate__(self) -> dict[str, Any]:
        # the graph travels to the scheduler: runs of equal kinds, which is what frames have, take
        # no room
        state = dict(self.__dict__)
        if self._kinds is not None:
            state["_kinds"] = zlib.compress(self._kinds.tobytes(), 1)
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        if self._kinds is not None:
            flat = np.frombuffer(zlib.decompress(state["_kinds"]), np.uint8)
            self._kinds = flat.reshape(self.numblocks)


def _uniform_kinds(frame: Frame, chunks: Chunks) -> NDArray[np.uint8] | None:
    """For each dask block the kind that all frame chunks under it share, STORED where they differ.

    None where no block is special.
    """
    kinds = frame.chunk_kinds()
    if not any(kinds.strides):
        # all chunks alike, so many that looking at each would take long
        kind = kinds.flat[0] if kinds.size else ChunkKind.STORED
        counts = tuple(map(len, chunks))
        return np.broadcast_to(np.uint8(kind), counts) if kind else None
    if not kinds.any():
        return None
    low, high = kinds, kinds
    for axis, (sizes, frame_size) in enumerate(zip(chunks, frame.chunks, strict=True)):
        starts = np.fromiter(itertools.accumulate(sizes, initial=0), np.int64)
        if all(size == frame_size for size in sizes[:-1]) and len(sizes) == kinds.shape[axis]:
            continue
        # frame chunks from .. to under each dask block, which may overlap where the grids are not
        # aligned
        first = np.minimum(starts[:-1] // frame_size, kinds.shape[axis] - 1)
        last = np.maximum(first, -(-starts[1:] // frame_size) - 1)
        low = _reduce_ranges(np.minimum, low, first, last, axis)
        high = _reduce_ranges(np.maximum, high, first, last, axis)
    uniform = np.where(low == high, low, np.uint8(ChunkKind.STORED))
    return uniform if uniform.any() else None


def _reduce_ranges(
    ufunc: np.ufunc,
    values: NDArray[np.uint8],
    first: NDArray[np.int64],
    last: NDArray[np.int64],
    axis: int,
) -> NDArray[np.uint8]:
    """Reduce values[first[i] : last[i] + 1] along an axis for each i."""
    # reduceat takes pairs (from, to) and reduces the even ones; `to` must exist, so one neutral row
    # is added
    edge = np.take(values, [-1], axis)
    bounds = np.stack([first, last + 1], axis=1).reshape(-1)
    reduced = ufunc.reduceat(np.concatenate([values, edge], axis), bounds, axis)
    return np.take(reduced, np.arange(0, len(bounds), 2), axis)
