"""The jobs of a rechunk: regions of a pass, and the intermediate frames between passes.

A job is one pass: its tasks read regions and write a frame.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import dask.array as da
import numpy as np
from dask.base import tokenize
from dask.delayed import Delayed

from b2nd_dask.format.grid import Grid, steps
from b2nd_dask.frame.joined import JoinedReference, Readable
from b2nd_dask.frame.rechunk.one_pass import LEAST_BATCH, Budget, OnePass
from b2nd_dask.frame.rechunk.passes import MOST_CHUNK, flat_pass, log_passes, plan_passes
from b2nd_dask.frame.rechunk.work import (
    FlatSource,
    IntermediateFrame,
    RegionSource,
    View,
    begin_intermediate,
    open_view,
    rechunk_region,
)
from b2nd_dask.frame.write.new_frame import halved
from b2nd_dask.frame.write.transaction import Transaction, begin
from b2nd_dask.graph.read.blocks import Chunks, regions_of
from b2nd_dask.graph.resources import available, nbytes_of
from b2nd_dask.graph.write.write_tasks import Job, Tasks, WriteJob, task_of
from b2nd_dask.storage import Staging

#: Default of `max_mem`: this share of the memory, and at most so many bytes per thread.
_SHARE, _MOST_OF_THREAD = 1 / 4, 512 << 20
#: Compressed bytes of one read from a store, if the memory allows.
_REMOTE_BATCH = 64 << 20


def budget_of(max_mem: Any, staging: Staging, *, is_remote: bool) -> Budget:
    """Divide the user's memory limit among threads and buffers; errors as for `nbytes_of`."""
    resources = available()
    if max_mem is None:
        most = min(resources.memory * _SHARE, resources.threads * _MOST_OF_THREAD)
    else:
        most = nbytes_of(max_mem)
    most_batch = _REMOTE_BATCH if is_remote else LEAST_BATCH
    return Budget(most, max(1, resources.threads), staging.batch_nbytes, most_batch)


class Elements(NamedTuple):
    """Readable elements of frames, in the order of the target's axes."""

    made: Delayed
    """The task that returns the `Source`."""
    grid: Grid
    dtype: np.dtype[Any]


@dataclass(frozen=True, eq=False, kw_only=True)
class RechunkJob(Job):
    """The pass that writes elements of frames to a frame with other chunks."""

    source: Elements
    way: OnePass

    def graph(self) -> Delayed:
        """The graph of `Job.graph`: regions or ranges of chunks, commit."""
        tasks, grid = Tasks(self), self.way.target
        tasks.graph |= dict(self.source.made.dask)
        sizes = tuple(map(steps, grid.shape, self.way.region))
        missing, known = tasks.missing(sizes, (0,) * len(sizes), grid)
        name = tasks.name("write")
        work = {
            (name, *at): (rechunk_region, self.source.made.key, region, tasks.opening)
            for at, region in zip(np.ndindex(missing.shape), regions_of(sizes), strict=True)
            if missing[at]
        }
        tasks.graph |= with_concurrency(work, self.way.concurrency)
        return tasks.committed([*work, *known])


def with_concurrency(
    work: dict[Any, tuple[Any, ...]], concurrency: int
) -> dict[Any, tuple[Any, ...]]:
    """Let each task depend on the task `concurrency` places earlier: no more run at once.

    This bounds the memory of all tasks on every scheduler: none starts a task before its
    dependencies are done, whatever its number of threads.
    """
    keys = list(work)
    return {
        key: (*task, keys[i - concurrency]) if i >= concurrency else task
        for i, (key, task) in enumerate(work.items())
    }


class IntermediateFrames:
    """The intermediate frames of a write: each is written once, before it is read.

    `budget` is the remaining memory, without the planned tasks. `reads_again`: functions read
    some of these frames, and run again if the write is retried.
    """

    def __init__(self, target: Transaction, budget: Budget, *, reads_again: bool = False) -> None:
        self._target, self._staging = target, target.staging
        self.budget = budget
        self._reads_again = reads_again
        # shared with the target: a second task would recreate the staging area after a failure
        self.opened = self.task("open", (begin, target))
        # by name and grid: the frame and its commit; the commit is None if an earlier run wrote it
        self._written: dict[tuple[str, Grid], tuple[IntermediateFrame, Delayed | None]] = {}

    def task(self, step: str, task: Any, *behind: Any) -> Delayed:
        """Make a task with its dependencies; its name shows it as a task of the target."""
        return task_of(self._staging.label, step, task, *behind)

    def elements_of(self, frame: Readable, view: View) -> Elements:
        """The elements of a view of the user's frames."""
        if isinstance(frame, JoinedReference) and all(view.window):
            frame, window = frame.part_of_axes(view.window)
            view = replace(view, window=window)
        reads = RegionSource(frame, view, self.budget.read_batch)
        return Elements(self.task("source", reads), view.grid_of(frame.grid), frame.dtype)

    def rechunked(self, source: Elements, name: str) -> RechunkJob:
        """Make the job that rechunks elements to the target; `name` is the name of its passes."""
        source, way = self._before_last_pass(source, self._target.plan.grid, name)
        return RechunkJob(transaction=self._target, opened=self.opened, source=source, way=way)

    def written(self, array: da.Array, view: View | None = None) -> Elements:
        """Write an array to an intermediate frame; return a view's elements, by default all."""
        # the length divides all blocks but the last
        chunks = tuple(math.gcd(*axis[:-1]) or max(1, axis[0]) for axis in array.chunks)
        grid = Grid(array.shape, chunks, chunks, array.dtype.itemsize)
        make = partial(WriteJob, elements=array, origin=(0,) * array.ndim)
        return self._once(array.name, grid, array.dtype, make, view)

    def reshaped(self, source: Elements, shape: tuple[int, ...], name: str, view: View) -> Elements:
        """Write elements in another shape, by ranges in C order; return the elements of a view."""
        way = flat_pass(shape, source.grid.itemsize, self.budget)
        self.budget = self.budget.without(way.graph_nbytes)
        task = FlatSource, source.made.key, source.grid.shape, shape
        flat = self.task("flat", task, source.made)
        make = partial(RechunkJob, source=source._replace(made=flat), way=way)
        return self._once(name, way.target, source.dtype, make, view)

    def in_chunks(self, source: Elements, chunks: Chunks, name: str) -> Elements:
        """Rechunk elements to an intermediate frame whose chunks are these blocks."""
        sizes = halved([max(axis) for axis in chunks], source.grid.itemsize, MOST_CHUNK)
        grid = Grid(source.grid.shape, sizes, sizes, source.grid.itemsize)

        def make(**target: Any) -> RechunkJob:
            last, way = self._before_last_pass(source, grid, name)
            return RechunkJob(source=last, way=way, **target)

        return self._once(name, grid, source.dtype, make)

    def _before_last_pass(
        self, source: Elements, grid: Grid, name: str
    ) -> tuple[Elements, OnePass]:
        """The last pass to a frame and its source; earlier passes write intermediate frames."""
        passes = plan_passes(source.grid, grid, self.budget)
        log_passes(self._staging.label, passes)
        for number, way in enumerate(passes.steps[:-1]):
            make = partial(RechunkJob, source=source, way=way)
            source = self._once(f"{name}-{number}", way.target, source.dtype, make)
        return source, passes.steps[-1]

    def _once(
        self,
        name: str,
        grid: Grid,
        dtype: np.dtype[Any],
        make: Callable[..., Job],
        view: View | None = None,
    ) -> Elements:
        """The elements of a view of an intermediate frame; one job writes it for all views."""
        if (name, grid) not in self._written:
            key = tokenize(self._staging.key, name, grid)[:16]
            intermediate = IntermediateFrame.of(self._staging, grid, dtype, key)
            self._written[name, grid] = intermediate, self._commit_of(intermediate, make)
        intermediate, commit = self._written[name, grid]
        view = view or View.whole(grid.shape)
        read = intermediate, view, self.budget.read_batch
        if commit is None:
            made = self.task("source", open_view(*read, "published before"))
        else:
            made = self.task("source", (open_view, *read, commit.key), commit)
        return Elements(made, view.grid_of(intermediate.plan.grid), dtype)

    def _commit_of(
        self, intermediate: IntermediateFrame, make: Callable[..., Job]
    ) -> Delayed | None:
        if intermediate.staging.resumable and intermediate.is_published():
            return None
        task = (begin_intermediate, intermediate, self.opened.key, self._reads_again)
        opened = self.task("open", task, self.opened)
        return make(transaction=intermediate, opened=opened).graph()
