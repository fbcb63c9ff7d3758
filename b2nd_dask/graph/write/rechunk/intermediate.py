"""Intermediate frames of a write within a stated memory, and what regions are read from."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import dask.array as da
import numpy as np
from dask.base import tokenize

from b2nd_dask.format.grid import Grid
from b2nd_dask.frame.joined import JoinedReference, Readable
from b2nd_dask.frame.rechunk.flat import flat_pass
from b2nd_dask.frame.rechunk.intermediate_frame import (
    IntermediateFrame,
    intermediate_source,
    open_intermediate,
)
from b2nd_dask.frame.rechunk.one_pass import Budget
from b2nd_dask.frame.rechunk.passes import (
    PassPlan,
    Step,
    bounded_chunks,
    log_passes,
    plan_passes,
)
from b2nd_dask.frame.rechunk.source import FlatSource, RegionSource
from b2nd_dask.frame.rechunk.work import verified_nbytes
from b2nd_dask.frame.write.commit import commit_frame
from b2nd_dask.frame.write.idempotent import OpenedStaging, open_staging
from b2nd_dask.frame.write.records import read_journals
from b2nd_dask.graph.layers.layers import View
from b2nd_dask.graph.read.blocks import Chunks
from b2nd_dask.graph.write.rechunk.job import LaterSource, RechunkJob
from b2nd_dask.graph.write.write_tasks import WriteJob, named, new_token


class Elements(NamedTuple):
    """Elements that regions are read from, in the order of the target's axes."""

    reads: RegionSource | LaterSource
    grid: Grid
    dtype: np.dtype[Any]
    stored: int = 0
    """Bytes to verify, as for `plan_passes`."""
    is_cut: bool = False
    """Whether the elements begin or end inside of chunks, or these do not lie as in `grid`: then
    they are verified by themselves."""


def elements_of(frame: Readable, view: View, batch_nbytes: int) -> Elements:
    """The elements of a view of frames."""
    window = view.window
    if window is not None and isinstance(frame, JoinedReference):
        frame, window = frame.part_of_axes(window)
    view = view._replace(window=window)
    grid, stored = frame.grid, verified_nbytes(frame)
    seen = _seen(grid, view)
    if window is not None:
        stored = math.ceil(stored * math.prod(seen.shape) / math.prod(grid.shape))
    is_cut = not _lines_up(frame)
    is_cut |= window is not None and any(
        along.start % c or (along.stop % c and along.stop != n)
        for along, n, c in zip(window, grid.shape, grid.chunks, strict=True)
    )
    reads = RegionSource(frame, view.order, batch_nbytes, window)
    return Elements(reads, seen, frame.dtype, stored, is_cut)


def _lines_up(frame: Readable) -> bool:
    """Whether chunks of joined frames lie as those of one frame would that has their grid."""
    if not isinstance(frame, JoinedReference):
        return True
    alike = len({own.chunks for own in frame.frames}) == 1
    return alike and not (frame.starts[:-1] % frame.grid.chunks[frame.axis]).any()


def passes_to(grid: Grid, source: Elements, budget: Budget, label: str) -> PassPlan:
    """Plan the passes from elements to a new frame, and log them."""
    passes = plan_passes(source.grid, grid, source.stored, budget)
    if source.is_cut:
        first, *others = passes.steps
        verifying = first._replace(way=first.way._replace(verifies=True))
        passes = passes._replace(steps=(verifying, *others))
    log_passes(label, passes)
    return passes


class _Written(NamedTuple):
    """An intermediate frame, and the tasks that write it."""

    intermediate: IntermediateFrame
    graph: dict[Any, Any]
    commit: Any
    """Key of the task that publishes it; None where it is there already."""
    opening: Any
    """Key of the task that makes its staging area."""


class IntermediateFrames:
    """Those of one write: each is written once, before it is read.

    Parameters
    ----------
    budget : Budget
        Its attribute is what is left of it, without the tasks that are planned.
    reads_again : bool
        Whether functions read some of them, which run again where the write does.
    """

    def __init__(self, write: WriteJob, budget: Budget, *, reads_again: bool) -> None:
        self._write = write
        self.budget = budget
        self._reads_again = reads_again
        self._opening = named("open", new_token(write.staging.label))
        self._known: dict[tuple[str, Grid], _Written] = {}

    def written(self, array: da.Array, view: View) -> Elements:
        """Write an array of which nothing has to be moved; `view` is that of the array."""
        chunks = tuple(_common(sizes) for sizes in array.chunks)
        grid = Grid(array.shape, chunks, chunks, array.dtype.itemsize)

        def job(intermediate: IntermediateFrame) -> WriteJob:
            origin, plan, staging = (0,) * array.ndim, intermediate.plan, intermediate.staging
            return WriteJob(array, origin, plan, staging, commit_frame, token=self.token())

        return self._viewed(self._once(array.name, grid, array.dtype, job), view)

    def reshaped(self, source: Elements, shape: tuple[int, ...], view: View) -> Elements:
        """Write elements in another shape, in ranges of their C order."""
        grid, way = flat_pass(shape, source.grid.itemsize, self.budget)
        self.budget = self.budget.without(way.graph_nbytes)

        def job(intermediate: IntermediateFrame) -> RechunkJob:
            reads: FlatSource | LaterSource
            if isinstance(source.reads, LaterSource):
                key = named("flat", self.token())
                flat = {key: (FlatSource, source.reads.key, source.grid.shape, shape)}
                reads = source.reads._replace(graph=source.reads.graph | flat, key=key)
            else:
                reads = FlatSource(source.reads, source.grid.shape, shape)
            passes = PassPlan((Step(grid, way),), 0.0)
            return RechunkJob(
                reads, passes, 1, intermediate.plan, intermediate.staging, self.token()
            )

        return self._viewed(self._once(view.base, grid, source.dtype, job), view)

    def in_chunks(self, source: Elements, chunks: Chunks, name: str) -> Elements:
        """Rechunk elements to a frame that has blocks as chunks."""
        sizes = bounded_chunks(tuple(max(axis) for axis in chunks), source.grid.itemsize)
        grid = Grid(source.grid.shape, sizes, sizes, source.grid.itemsize)

        def job(intermediate: IntermediateFrame) -> RechunkJob:
            passes = passes_to(grid, source, self.budget, self._write.staging.label)
            lanes, plan, staging = self.budget.threads, intermediate.plan, intermediate.staging
            return RechunkJob(source.reads, passes, lanes, plan, staging, self.token())

        whole = View(name, tuple(range(len(sizes))))
        return self._viewed(self._once(name, grid, source.dtype, job), whole)

    def token(self) -> str:
        """End of the names of tasks; they are shown as those of the target."""
        return new_token(self._write.staging.label)

    def _once(
        self,
        name: str,
        grid: Grid,
        dtype: np.dtype[Any],
        job: Callable[[IntermediateFrame], WriteJob | RechunkJob],
    ) -> _Written:
        """Plan the frame of a layer, unless another view of the layer is read from it already."""
        if (name, grid) not in self._known:
            staging = self._write.staging
            key = tokenize(staging.key, name, grid)[:16]
            intermediate = IntermediateFrame.of(staging, grid, dtype, key)
            self._known[name, grid] = self._tasks(intermediate, job)
        return self._known[name, grid]

    def _tasks(
        self,
        intermediate: IntermediateFrame,
        job: Callable[[IntermediateFrame], WriteJob | RechunkJob],
    ) -> _Written:
        """Tasks that write an intermediate frame; none where an earlier run has finished it."""
        staged = None
        if intermediate.staging.resumable:
            if intermediate.is_done():
                return _Written(intermediate, {}, None, None)
            staged = read_journals(intermediate.staging, intermediate.plan.grid.nchunks)
        made = job(intermediate)
        written, opening = made.graph(staged), named("open", made.token)
        graph: dict[Any, Any] = dict(written.__dask_graph__())
        graph |= {
            self._opening: (open_staging, self._write.plan, self._write.staging),
            opening: (open_intermediate, intermediate, self._opening, self._reads_again),
        }
        return _Written(intermediate, graph, written.key, opening)

    def _viewed(self, written: _Written, view: View) -> Elements:
        """The elements of a view of an intermediate frame, with the tasks that make them."""
        intermediate, graph, commits, opening = written
        most, order, window = self.budget.read_batch, view.order, view.window
        grid, dtype = _seen(intermediate.plan.grid, view), intermediate.plan.dtype
        if commits is None:
            return Elements(intermediate_source(intermediate, most, order, window), grid, dtype)
        key = named("source", self.token())
        source = (open_view, intermediate, most, order, window, commits, opening)
        return Elements(LaterSource({**graph, key: source}, key, most), grid, dtype)


def _seen(grid: Grid, view: View) -> Grid:
    """The grid of a view, by which passes are planned: it begins where a chunk does."""
    shape, blocks = grid.shape, grid.blocks
    if view.window is not None:
        shape = tuple(map(len, view.window))
        # where it does not, a region may touch one more block of each chunk, but not more than all
        blocks = tuple(
            c if along.start % c and (along.start % b or c % b) else b
            for along, c, b in zip(view.window, grid.chunks, grid.blocks, strict=True)
        )
    shape, chunks, blocks = (
        tuple(along[axis] for axis in view.order) for along in (shape, grid.chunks, blocks)
    )
    return Grid(shape, chunks, blocks, grid.itemsize)


def open_view(
    intermediate: IntermediateFrame,
    batch_nbytes: int,
    order: tuple[int, ...],
    window: tuple[range, ...] | None,
    published: str,
    opened: OpenedStaging,
) -> RegionSource | None:
    """Task that opens an intermediate frame, or a view of it, when it is there."""
    return (
        None
        if opened.is_skipped
        else intermediate_source(intermediate, batch_nbytes, order, window)
    )


def _common(sizes: tuple[int, ...]) -> int:
    """The longest chunk of which blocks of these lengths are made."""
    return math.gcd(*sizes[:-1]) if len(sizes) > 1 else max(1, sizes[0])
