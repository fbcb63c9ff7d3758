"""The jobs of a rechunk: what a pass reads and writes, and the intermediate frames between passes.

A job is one pass: tasks that read regions, verify what is read in parts, and write a frame.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import dask.array as da
import numpy as np
from dask.base import tokenize
from dask.delayed import Delayed

from b2nd_dask.format.grid import Grid, steps
from b2nd_dask.frame.joined import JoinedReference, Readable
from b2nd_dask.frame.read.read_cost import ChunkRange, Region
from b2nd_dask.frame.rechunk.one_pass import LEAST_BATCH, VERIFIED_AT_ONCE, Budget, OnePass
from b2nd_dask.frame.rechunk.passes import bounded_chunks, flat_pass, log_passes, plan_passes
from b2nd_dask.frame.rechunk.source import RegionSource, Source, StoredChunks, View, flat_source
from b2nd_dask.frame.rechunk.work import (
    IntermediateFrame,
    begin_intermediate,
    boxes_to_verify,
    has_checksums,
    open_view,
    rechunk_region,
    verify_stored,
)
from b2nd_dask.frame.write.conflicts import ChunkBox
from b2nd_dask.frame.write.transaction import Transaction, begin
from b2nd_dask.graph.read.blocks import Chunks, regions_of
from b2nd_dask.graph.resources import available, nbytes_of
from b2nd_dask.graph.write.write_tasks import Job, Tasks, WriteJob, task_of
from b2nd_dask.storage import Staging

#: Without `max_mem` a rechunk takes this part of the memory, and of each thread at most so much.
_SHARE, _MOST_OF_THREAD = 1 / 4, 512 << 20
#: Compressed bytes that are read at once of a store, if the memory allows.
_REMOTE_BATCH = 64 << 20


def budget_of(max_mem: Any, staging: Staging, *, is_remote: bool) -> Budget:
    """Divide the memory that a user states among threads and buffers; errors as for `nbytes_of`."""
    resources = available()
    if max_mem is None:
        most = min(resources.memory * _SHARE, resources.threads * _MOST_OF_THREAD)
    else:
        most = nbytes_of(max_mem)
    most_batch = _REMOTE_BATCH if is_remote else LEAST_BATCH
    return Budget(most, max(1, resources.threads), staging.batch_nbytes, most_batch)


class Elements(NamedTuple):
    """Elements that regions are read from, in the order of the target's axes."""

    made: Delayed
    """The task that returns the `Source`."""
    grid: Grid
    dtype: np.dtype[Any]
    source: RegionSource | None = None
    """What the task returns, where it reads the user's frames, which are verified."""

    @property
    def is_verified(self) -> bool:
        """Whether some frames of the user have checksums."""
        return self.source is not None and any(map(has_checksums, self.source.frames))

    @property
    def is_cut(self) -> bool:
        """Whether the elements begin or end inside of chunks, or these do not lie as in a grid.

        Then chunks are verified by themselves.
        """
        if self.source is None:
            return False
        frame, window = self.source.frame, self.source.view.window
        if isinstance(frame, JoinedReference):
            alike = len({own.chunks for own in frame.frames}) == 1
            if not alike or (frame.starts[:-1] % frame.grid.chunks[frame.axis]).any():
                return True
        return any(
            along.start % max(c, 1) or (along.stop != n and along.stop % c)
            for along, n, c in zip(window, frame.shape, frame.grid.chunks, strict=True)
        )


@dataclass(frozen=True, eq=False, kw_only=True)
class RechunkJob(Job):
    """Elements of frames, and the pass that makes a frame with other chunks of them."""

    source: Elements
    way: OnePass

    def graph(self) -> Delayed:
        """As `Job.graph`: verification, regions or ranges of chunks, commit."""
        tasks, grid = Tasks(self), self.way.target
        tasks.graph |= dict(self.source.made.dask)
        sizes = tuple(map(steps, grid.shape, self.way.region))
        missing, known = tasks.missing(sizes, (0,) * len(sizes), grid)
        # also where no chunk is missing: those that are staged may be of a run that found damage
        checks = self._checks(tasks)
        name = tasks.name("write")
        work = {
            (name, *at): (rechunk_region, self.source.made.key, region, tasks.opening)
            for at, region in zip(np.ndindex(missing.shape), regions_of(sizes), strict=True)
            if missing[at]
        }
        tasks.graph |= with_concurrency({**checks, **work}, self.way.concurrency)
        # the commit waits for the verification, too
        return tasks.committed([*work, *known], list(checks))

    def _checks(self, tasks: Tasks) -> dict[Any, Any]:
        """Tasks that verify the chunks of frames of the user, where these have checksums."""
        checks: dict[Any, Any] = {}
        name, read = tasks.name("verify"), self.source.source
        if read is None or not self.way.verifies:
            return checks
        for number, axes in read.parts():
            frame = read.frames[number]
            if has_checksums(frame):
                boxes = boxes_to_verify(frame.grid, axes, most_chunks(frame.grid))
                for i, corners in enumerate(boxes):
                    task = (verify_stored, self.source.made.key, number, *corners, tasks.opening)
                    checks[name, number, i] = task
        return checks


def with_concurrency(
    work: dict[Any, tuple[Any, ...]], concurrency: int
) -> dict[Any, tuple[Any, ...]]:
    """Make each task wait for the one so many before it: never do more run at once.

    No scheduler starts a task before its dependencies are done, whatever its threads are, or
    become: so the memory of all tasks stays bounded on all of them.
    """
    keys = list(work)
    return {
        key: (*task, keys[i - concurrency]) if i >= concurrency else task
        for i, (key, task) in enumerate(work.items())
    }


def regions_of_task(
    func: Any, source: Source, *arguments: Any
) -> Iterator[tuple[Readable, Region]]:
    """What a task reads of its source: `verify_stored`, or another one that takes a region."""
    if func is not verify_stored:
        yield from source.regions(arguments[0])
    elif not isinstance(source, StoredChunks):
        number, first, last, *_ = arguments
        frame = source.frames[number]
        chunks = ChunkBox.between(first, last, frame.grid).chunks(frame.grid)
        for run in np.split(chunks, np.flatnonzero(np.diff(chunks) > 1) + 1):
            yield frame, ChunkRange(int(run[0]), int(run[-1]) + 1)


def most_chunks(grid: Grid) -> int:
    """Chunks that one task verifies, or copies as they are stored."""
    return max(1, VERIFIED_AT_ONCE // max(1, grid.chunk_nbytes))


class IntermediateFrames:
    """Those of the write of a frame: each is written once, before it is read.

    Its `budget` is what is left of the memory, without the tasks that are planned. `reads_again`:
    functions, which run again where the write does, read some of the frames.
    """

    def __init__(self, target: Transaction, budget: Budget, *, reads_again: bool = False) -> None:
        self._target, self._staging = target, target.staging
        self.budget = budget
        self._reads_again = reads_again
        # one task for the target as well: another one would make the area anew after a failure
        self.opened = self.task("open", (begin, target))
        # by name and grid: the frame, and its commit; none where an earlier run has written it
        self._written: dict[tuple[str, Grid], tuple[IntermediateFrame, Delayed | None]] = {}

    def task(self, step: str, task: Any, *behind: Any) -> Delayed:
        """A task, which is shown as one of the target, with those that it needs."""
        return task_of(self._staging.label, step, task, *behind)

    def elements_of(self, frame: Readable, view: View) -> Elements:
        """The elements of a view of the user's frames."""
        if isinstance(frame, JoinedReference) and all(view.window):
            frame, window = frame.part_of_axes(view.window)
            view = replace(view, window=window)
        reads = RegionSource(frame, view, self.budget.read_batch)
        return Elements(self.task("source", reads), view.grid_of(frame.grid), frame.dtype, reads)

    def rechunked(self, source: Elements, name: str) -> RechunkJob:
        """Make the job that rechunks elements to the target; `name` is that of its passes."""
        source, way = self._before_last_pass(source, self._target.plan.grid, name)
        return RechunkJob(transaction=self._target, opened=self.opened, source=source, way=way)

    def written(self, array: da.Array, view: View | None = None) -> Elements:
        """Write an array in its own order; return the elements of a view, by default all."""
        # as long as divides all blocks but the last
        chunks = tuple(math.gcd(*axis[:-1]) or max(1, axis[0]) for axis in array.chunks)
        grid = Grid(array.shape, chunks, chunks, array.dtype.itemsize)
        make = partial(WriteJob, elements=array, origin=(0,) * array.ndim)
        return self._once(array.name, grid, array.dtype, make, view)

    def reshaped(self, source: Elements, shape: tuple[int, ...], name: str, view: View) -> Elements:
        """Write elements in another shape, in ranges of their C order; return those of a view."""
        way = flat_pass(shape, source.grid.itemsize, self.budget)
        self.budget = self.budget.without(way.graph_nbytes)
        task = flat_source, source.made.key, source.grid.shape, shape
        flat = self.task("flat", task, source.made)
        make = partial(RechunkJob, source=source._replace(made=flat), way=way)
        return self._once(name, way.target, source.dtype, make, view)

    def in_chunks(self, source: Elements, chunks: Chunks, name: str) -> Elements:
        """Rechunk elements to a frame that has blocks as chunks."""
        sizes = bounded_chunks(tuple(max(axis) for axis in chunks), source.grid.itemsize)
        grid = Grid(source.grid.shape, sizes, sizes, source.grid.itemsize)

        def make(**target: Any) -> RechunkJob:
            last, way = self._before_last_pass(source, grid, name)
            return RechunkJob(source=last, way=way, **target)

        return self._once(name, grid, source.dtype, make)

    def _before_last_pass(
        self, source: Elements, grid: Grid, name: str
    ) -> tuple[Elements, OnePass]:
        """The last pass to a frame, and what it reads; those before make intermediate frames."""
        passes = plan_passes(source.grid, grid, self.budget)
        if source.is_cut:
            first, *others = passes.steps
            passes = passes._replace(steps=(first._replace(verifies=True), *others))
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
        """The elements of a view of the frame of a layer, which one job writes for all views."""
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
