"""The jobs of a rechunk: what a pass reads and writes, and the intermediate frames between passes.

A job is one pass: tasks that read regions, verify what is read in parts, and write a frame.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
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
from b2nd_dask.frame.write.records import ChunkRecords, staged_records
from b2nd_dask.frame.write.transaction import Transaction, begin
from b2nd_dask.graph.read.blocks import Chunks, regions_of
from b2nd_dask.graph.resources import available, nbytes_of
from b2nd_dask.graph.write.write_tasks import Job, Tasks, WriteJob, new_token, opening
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

    tasks: Mapping[Any, Any]
    """The task that returns the source, and those that it needs."""
    key: Any
    """Of the task of the `Source`."""
    grid: Grid
    dtype: np.dtype[Any]
    source: RegionSource | StoredChunks | None = None
    """What the task returns, where it reads the user's frames, which are verified."""
    is_verified: bool = False
    """Whether some of these frames have checksums."""
    is_cut: bool = False
    """Whether the elements begin or end inside of chunks, or these do not lie as in `grid`: then
    they are verified by themselves."""


def _lines_up(frame: Readable) -> bool:
    """Whether chunks of joined frames lie as those of one frame would that has their grid."""
    if not isinstance(frame, JoinedReference):
        return True
    alike = len({own.chunks for own in frame.frames}) == 1
    return alike and not (frame.starts[:-1] % frame.grid.chunks[frame.axis]).any()


@dataclass(frozen=True, eq=False, kw_only=True)
class RechunkJob(Job):
    """Elements of frames, and the pass that makes a frame with other chunks of them."""

    source: Elements
    way: OnePass

    def graph(self, staged: ChunkRecords | None) -> Delayed:
        """As `Job.graph`: verification, regions or ranges of chunks, commit."""
        tasks, grid = Tasks(self), self.way.target
        tasks.graph |= self.source.tasks
        sizes = tuple(map(steps, grid.shape, self.way.region))
        missing, known = tasks.missing(sizes, (0,) * len(sizes), grid, staged)
        # also where no chunk is missing: those that are staged may be of a run that found damage
        checks = self._checks(tasks)
        name = tasks.name("write")
        work = {
            (name, *at): (rechunk_region, self.source.key, region, tasks.opening)
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
        if not isinstance(read, RegionSource) or not self.way.verifies:
            return checks
        for number, axes in read.parts():
            frame = read.frames[number]
            if has_checksums(frame):
                boxes = boxes_to_verify(frame.grid, axes, most_chunks(frame.grid))
                for i, corners in enumerate(boxes):
                    task = (verify_stored, self.source.key, number, *corners, tasks.opening)
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
        self.opened = opening(target.staging.label, (begin, target))
        # by name and grid: the frame, the tasks that write it, and the key of its commit
        self._written: dict[tuple[str, Grid], tuple[IntermediateFrame, dict[Any, Any], Any]] = {}

    def new_key(self, step: str) -> str:
        """A key of a task, which is shown as one of the target."""
        return step + new_token(self._staging.label)

    def elements_of(self, frame: Readable, view: View) -> Elements:
        """The elements of a view of the user's frames."""
        if isinstance(frame, JoinedReference) and all(view.window):
            frame, window = frame.part_of_axes(view.window)
            view = replace(view, window=window)
        grid, seen = frame.grid, view.grid_of(frame.grid)
        verified = any(map(has_checksums, frame.frames))
        is_cut = not _lines_up(frame) or any(
            along.start % max(c, 1) or (along.stop != n and along.stop % c)
            for along, n, c in zip(view.window, grid.shape, grid.chunks, strict=True)
        )
        reads, key = RegionSource(frame, view, self.budget.read_batch), self.new_key("source")
        return Elements({key: reads}, key, seen, frame.dtype, reads, verified, is_cut)

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
        key = self.new_key("flat")
        flat = {key: (flat_source, source.key, source.grid.shape, shape)}
        reads = source._replace(tasks={**source.tasks, **flat}, key=key)
        make = partial(RechunkJob, source=reads, way=way)
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
            self._written[name, grid] = intermediate, *self._tasks_of(intermediate, make)
        intermediate, tasks, commit = self._written[name, grid]
        view = view or View.whole(grid.shape)
        read = intermediate, view, self.budget.read_batch
        source = (open_view, *read, commit) if commit else open_view(*read, "published before")
        key = self.new_key("source")
        return Elements({**tasks, key: source}, key, view.grid_of(intermediate.plan.grid), dtype)

    def _tasks_of(
        self, intermediate: IntermediateFrame, make: Callable[..., Job]
    ) -> tuple[dict[Any, Any], Any]:
        """Tasks that write a frame, and the key of its commit; none where an earlier run has."""
        plan, staging, staged = intermediate.plan, intermediate.staging, None
        if staging.resumable:
            if intermediate.is_published():
                return {}, None
            staged = staged_records(staging, plan.row, plan.grid.nchunks)
        task = (begin_intermediate, intermediate, self.opened.key, self._reads_again)
        opened = opening(self._staging.label, task, self.opened)
        written = make(transaction=intermediate, opened=opened).graph(staged)
        return dict(written.__dask_graph__()), written.key
