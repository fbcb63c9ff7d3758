"""What the tasks of a rechunk read: regions of a frame, or of one that another task writes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, cast

import numpy as np

from b2nd_dask.frame.joined import JoinedReference
from b2nd_dask.frame.read.read_cost import ChunkRange
from b2nd_dask.frame.rechunk.intermediate_frame import IntermediateFrame
from b2nd_dask.frame.rechunk.source import (
    Box,
    FlatSource,
    RegionSource,
    axes_of,
    reshaped_boxes,
)
from b2nd_dask.frame.write.others import ChunkBox
from b2nd_dask.graph._dask_compat import Task
from b2nd_dask.graph.optimize.rules.pushdown import value_of
from b2nd_dask.graph.plan.reads import FoundRead, Piece, PlannedFrame, ReadFrame
from b2nd_dask.graph.write.rechunk.intermediate import open_view
from b2nd_dask.graph.write.rechunk.job import copy_task, verify_task, write_region

#: Tasks that a rechunk is made of.
RECHUNK_TASKS = (write_region, copy_task, verify_task)


class FlatShapes(NamedTuple):
    """The shapes of a source and of what has the same elements in C order."""

    source: tuple[int, ...]
    target: tuple[int, ...]


class VerifiedBox(NamedTuple):
    """Chunks that a task verifies, by the numbers of those at the corners of their box."""

    first: int
    last: int


class Source(NamedTuple):
    """Where a task of a rechunk reads its region, as `RegionSource` or `FlatSource` would."""

    frame: ReadFrame | JoinedReference
    order: tuple[int, ...]
    window: tuple[range, ...] | None = None
    flat: FlatShapes | None = None

    def of_frame(self, number: int) -> Source:
        """One of several joined frames."""
        if isinstance(self.frame, JoinedReference):
            return self._replace(frame=self.frame.frames[number])
        return self

    def read(self, region: Box | ChunkRange | VerifiedBox) -> FoundRead:
        """The read of a region of the target, or of chunks, which are those of one frame."""
        if isinstance(region, ChunkRange):
            return FoundRead([Piece(cast(ReadFrame, self.frame), region)])
        if isinstance(region, VerifiedBox):
            return FoundRead(self._verified(region))
        boxes = [region]
        if self.flat is not None:
            found = reshaped_boxes(region, self.flat.target, self.flat.source)
            boxes = [box for _, box, _ in found]
        pieces = [piece for box in boxes for piece in self._pieces(box)]
        return FoundRead(pieces, is_copied=self.flat is not None or len(pieces) > 1)

    def _verified(self, box: VerifiedBox) -> list[Piece]:
        """Chunks of a box, those that follow one another as one piece."""
        frame = cast(ReadFrame, self.frame)
        numbers = ChunkBox.between(*box, frame.grid).chunks(frame.grid)
        runs = np.split(numbers, np.flatnonzero(np.diff(numbers) > 1) + 1)
        return [Piece(frame, ChunkRange(int(run[0]), int(run[-1]) + 1)) for run in runs]

    def _pieces(self, box: Box) -> list[Piece]:
        axes = axes_of(box, self.order, self.window)
        if isinstance(self.frame, JoinedReference):
            return [Piece(part.frame, part.axes) for part in self.frame.split(axes)]
        return [Piece(self.frame, axes)]


def call_of(node: Any) -> tuple[Any, tuple[Any, ...]]:
    """The function and the arguments of a task."""
    if isinstance(node, Task):
        return node.func, tuple(node.args)
    # as the tasks that write are made
    return (node[0], node[1:]) if isinstance(node, tuple) and node else (None, ())


def index_of(func: Any, values: list[Any]) -> Box | ChunkRange | VerifiedBox:
    """What one of `RECHUNK_TASKS` reads of its source; `values` are its other arguments."""
    if func is write_region:
        region: Box = values[0]
        return region
    numbers = int(values[0]), int(values[1])
    return VerifiedBox(*numbers) if func is verify_task else ChunkRange(*numbers)


def box_of(argument: Any) -> Any:
    """The region that an argument is, a slice for each axis; None if it is another one."""
    value = value_of(argument)
    is_box = type(value) is tuple and all(type(along) is slice for along in value)
    return value if is_box else None


class Sources:
    """Finds what tasks of a rechunk read.

    Parameters
    ----------
    node_of : callable
        Returns the node of a graph that an argument refers to, or the argument.
    """

    def __init__(self, node_of: Callable[[Any], Any]) -> None:
        self._node_of = node_of
        # one for all tasks that read it
        self._frames: dict[int, tuple[IntermediateFrame, PlannedFrame]] = {}

    def of(self, argument: Any) -> Source | None:
        """What an argument reads; None if it is no source."""
        node = self._node_of(argument)
        value = value_of(node)
        if isinstance(value, RegionSource):
            return Source(value.frame, value.order, value.window)
        if isinstance(value, FlatSource):
            shapes = FlatShapes(value.source_shape, value.shape)
            source = self.of(value.source)
            return source and source._replace(flat=shapes)
        func, args = call_of(node)
        if func is FlatSource:
            below, *shapes_below = args
            source = self.of(below)
            return source and source._replace(flat=FlatShapes(*map(value_of, shapes_below)))
        intermediate = value_of(args[0]) if args else None
        if not isinstance(intermediate, IntermediateFrame):
            return None
        source = self._of_intermediate(intermediate)
        if func is not open_view:
            # what the next pass reads
            return source
        _, _, order, window, *_ = map(value_of, args)
        return source._replace(order=order, window=window)

    def _of_intermediate(self, intermediate: IntermediateFrame) -> Source:
        """All of what a task opens behind the pass that writes it."""
        frame = self._frames.setdefault(
            id(intermediate), (intermediate, PlannedFrame(intermediate))
        )[1]
        return Source(frame, tuple(range(frame.grid.ndim)))
