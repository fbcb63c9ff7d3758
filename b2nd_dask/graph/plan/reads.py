"""What tasks read: regions of single frames, some of which one array is put together of."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from b2nd_dask.format.grid import Grid, parse_selection
from b2nd_dask.frame.joined import JoinedReference, Readable
from b2nd_dask.frame.read.read_cost import ReadCosts, Region, uncompressed_costs
from b2nd_dask.frame.rechunk.intermediate_frame import IntermediateFrame
from b2nd_dask.storage import Location


class ReadFrame(Protocol):
    """A frame that tasks read; `FrameReference` is one."""

    @property
    def location(self) -> Location:
        """Where it is."""
        ...

    @property
    def grid(self) -> Grid:
        """Its chunks and blocks."""
        ...

    @property
    def dtype(self) -> np.dtype[Any]:
        """Dtype of its elements."""
        ...

    def read_costs(self, regions: Sequence[Region]) -> ReadCosts:
        """What reading regions would take."""
        ...

    def __dask_tokenize__(self) -> Any: ...


class PlannedFrame:
    """A frame that the same graph writes before it reads it: how well it compresses is unknown."""

    def __init__(self, intermediate: IntermediateFrame) -> None:
        self.location = intermediate.location
        self.grid = intermediate.plan.grid
        self.dtype = intermediate.plan.dtype

    def read_costs(self, regions: Sequence[Region]) -> ReadCosts:
        """What reading regions would take if nothing compressed."""
        return uncompressed_costs(self.grid, regions)

    def __dask_tokenize__(self) -> Any:
        return "b2nd_dask.PlannedFrame", self.location.label


class Piece(NamedTuple):
    """A region of one frame."""

    frame: ReadFrame
    region: Region


class FoundRead(NamedTuple):
    """An array that a task reads."""

    pieces: list[Piece]
    """Read one after another."""
    is_streamed: bool = False
    """Whether chunks are reduced one by one, and no array of the region is built."""
    held: float = 0.0
    """Bytes that work on the elements holds beside them, for each byte of elements."""
    is_copied: bool = False
    """Whether the pieces are copied to where they belong in one array."""
    results: float = 0.0
    """Bytes of partial results, where chunks are reduced one by one."""


def found_read(
    frame: Readable, region: tuple[range, ...], held: float, *, is_streamed: bool = False
) -> FoundRead:
    """The read of a region; of joined frames, of the parts that lie in each of them."""
    if not isinstance(frame, JoinedReference):
        return FoundRead([Piece(frame, region)], is_streamed, held)
    pieces = [Piece(part.frame, part.axes) for part in frame.split(region)]
    return FoundRead(pieces, is_streamed, held, is_copied=len(pieces) > 1)


class Recorder:
    """Looks like a frame to `Window`, and notes what is read of it."""

    def __init__(self, frame: Readable, held: float) -> None:
        self.shape = frame.shape
        self.blocks = frame.blocks
        self.dtype = frame.dtype
        self.reads: list[FoundRead] = []
        self._frame = frame
        self._held = held

    def read_axes(self, axes: tuple[range, ...]) -> NDArray[Any]:
        """Note a region; return elements of its shape."""
        self.reads.append(found_read(self._frame, axes, self._held))
        return np.broadcast_to(np.zeros((), self.dtype), tuple(map(len, axes)))

    def read(self, index: Any) -> Any:
        """Note a region by its index."""
        selection = parse_selection(index, self.shape)
        return self.read_axes(selection.axes)[selection.finish]

    def read_points(self, coords: tuple[NDArray[np.int64], ...]) -> NDArray[Any]:
        """Note the blocks of single elements, as a region each."""
        if isinstance(self._frame, JoinedReference):
            parts = [(frame, own) for frame, own, _ in self._frame.split_points(coords)]
        else:
            parts = [(self._frame, coords)]
        for frame, own in parts:
            # a frame without axes has one block
            blocks = np.array(frame.blocks, np.int64)[:, None]
            corners = np.unique(np.stack(own) // blocks * blocks, axis=1).T if own else [()]
            for corner in np.asarray(corners, np.int64).tolist():
                region = tuple(range(at, at + 1) for at in corner)
                self.reads.append(FoundRead([Piece(frame, region)], held=self._held))
        return np.zeros(len(coords[0]), self.dtype)
