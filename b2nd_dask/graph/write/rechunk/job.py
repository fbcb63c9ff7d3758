"""The tasks of a rechunk: regions of each pass, intermediate frames, the commit."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np
from dask.base import tokenize
from dask.delayed import Delayed
from dask.highlevelgraph import HighLevelGraph

from b2nd_dask.format.grid import Grid, steps
from b2nd_dask.frame.rechunk.intermediate_frame import (
    IntermediateFrame,
    intermediate_source,
    open_intermediate,
)
from b2nd_dask.frame.rechunk.one_pass import VERIFIED_AT_ONCE
from b2nd_dask.frame.rechunk.passes import PassPlan, Step
from b2nd_dask.frame.rechunk.source import Box, FlatSource, RegionSource
from b2nd_dask.frame.rechunk.work import (
    boxes_to_verify,
    copy_chunks,
    rechunk_region,
    verified_nbytes,
    verify_stored,
)
from b2nd_dask.frame.write.commit import commit_frame
from b2nd_dask.frame.write.idempotent import (
    OpenedStaging,
    finish_once,
    open_staging,
)
from b2nd_dask.frame.write.records import ChunkRecords, read_journals
from b2nd_dask.frame.write.writer import FramePlan
from b2nd_dask.graph.write.resume import log_reused, unstaged_blocks
from b2nd_dask.graph.write.write_tasks import merge_tree, named, new_token
from b2nd_dask.storage import Staging


class LaterSource(NamedTuple):
    """A source that tasks of the same graph make before it is read."""

    graph: dict[Any, Any]
    key: Any
    """Of the task that returns the `RegionSource`."""
    batch_nbytes: int
    """As for `RegionSource`."""


class RechunkJob(NamedTuple):
    """Elements of a frame, and the frame with other chunks that they go to."""

    source: RegionSource | FlatSource | LaterSource
    passes: PassPlan | None
    """None where chunks are copied as they are."""
    lanes: int
    """How many copies may run at once."""
    plan: FramePlan
    staging: Staging
    token: str = ""
    """End of the names of tasks; by default a new one of the frame that is written."""

    def graph(self, staged: ChunkRecords | None) -> Delayed:
        """Build the tasks; see `rechunk_graph`."""
        return rechunk_graph(self, staged)


class _Tasks:
    """The graph so far, and the names that its tasks share."""

    def __init__(self, job: RechunkJob) -> None:
        self.job = job
        self.token = job.token or new_token(job.staging.label)
        self.graph: dict[Any, Any] = {}
        self.opening = self.add("open", (open_staging, job.plan, job.staging))

    def name(self, step: str, number: int = 0) -> str:
        """Name a step of a pass; of the last pass as in any write."""
        return named(step, f"{self.token}-{number}" if number else self.token)

    def add(self, step: str, task: Any, number: int = 0) -> str:
        """Add a single task, or a value."""
        name = self.name(step, number)
        self.graph[name] = task
        return name


def rechunk_graph(job: RechunkJob, staged: ChunkRecords | None = None) -> Delayed:
    """Build the tasks of a rechunk: verification, regions, intermediate frames, commit.

    Parameters
    ----------
    staged : ChunkRecords, optional
        Chunks of the new frame that are staged already.

    Returns
    -------
    dask.delayed.Delayed
        Computes to the path or URL of the new frame.
    """
    tasks = _Tasks(job)
    if staged is not None:
        log_reused(job.staging.label, len(staged.rows), job.plan.grid.nchunks)
    verified: list[Any] = []
    if not job.plan.grid.nchunks:
        records = merge_tree([], tasks.name("merge"), tasks.graph)
    elif job.passes is None:
        records = _copies(tasks, staged)
    else:
        records, verified = _passes(tasks, job.passes, staged)
    plan = tasks.add("plan", job.plan)
    last = tasks.add("commit", (_finish_verified, records, plan, tasks.opening, verified))
    return Delayed(last, HighLevelGraph.from_collections(last, tasks.graph))


def _finish_verified(
    records: ChunkRecords, plan: FramePlan, opened: OpenedStaging, verified: list[None]
) -> str:
    """Publish; `verified` are the results of what must have succeeded before."""
    return finish_once(commit_frame, records, plan, opened)


def _passes(tasks: _Tasks, passes: PassPlan, staged: ChunkRecords | None) -> tuple[Any, list[Any]]:
    """Keys of the merged records of the last pass, and of the verification of what it reads."""
    job = tasks.job
    frames = [_intermediate(job, i, step.target) for i, step in enumerate(passes.steps[:-1])]
    # what an interrupted run has finished already
    done = [number for number, one in enumerate(frames) if job.staging.resumable and one.is_done()]
    first = done[-1] + 1 if done else 0
    most = job.source.batch_nbytes
    if first:
        source = tasks.add("source", intermediate_source(frames[first - 1], most), 1)
    else:
        source = _source(tasks)
    for number, one in enumerate(frames[first:], first + 1):
        found = read_journals(one.staging, one.plan.grid.nchunks) if staged is not None else None
        opening = tasks.add("open", (open_intermediate, one, tasks.opening), number)
        plan = tasks.add("plan", one.plan, number)
        step = passes.steps[number - 1]
        records, checks = _regions(tasks, step, source, plan, opening, found, number)
        # a run that goes on takes what is published as it is, without a look at what it is made of
        published = (_finish_verified, records, plan, opening, checks)
        commits = tasks.add("commit", published, number)
        following = (_source_after, one, most, commits, tasks.opening)
        source = tasks.add("source", following, number + 1)
    plan = tasks.add("plan", job.plan)
    step, number = passes.steps[-1], len(passes.steps)
    return _regions(tasks, step, source, plan, tasks.opening, staged, number)


def _source(tasks: _Tasks) -> Any:
    """Key of what the first pass reads."""
    source = tasks.job.source
    if not isinstance(source, LaterSource):
        return tasks.add("source", source, 1)
    tasks.graph |= source.graph
    return source.key


def _source_after(
    intermediate: IntermediateFrame, batch_nbytes: int, published: str, opened: OpenedStaging
) -> RegionSource | None:
    return None if opened.again else intermediate_source(intermediate, batch_nbytes)


def _intermediate(job: RechunkJob, number: int, grid: Grid) -> IntermediateFrame:
    """An intermediate frame; another plan, with another `max_mem`, makes another one."""
    key = tokenize(job.staging.key, number, grid)[:16]
    return IntermediateFrame.of(job.staging, grid, job.plan.dtype, key)


def _regions(
    tasks: _Tasks,
    step: Step,
    source: str,
    plan: str,
    opening: str,
    staged: ChunkRecords | None,
    number: int,
) -> tuple[Any, list[Any]]:
    """Keys of the merged records of a pass, and of the verification of what it reads."""
    grid = step.target
    sizes = tuple(steps(n, length) for n, length in zip(grid.shape, step.way.region, strict=True))
    missing = np.ones(tuple(map(len, sizes)), bool)
    extra: list[Any] = []
    if staged is not None:
        missing, reused = unstaged_blocks(sizes, (0,) * grid.ndim, grid, staged)
        extra = [tasks.add("known", reused, number)]
    checks: dict[Any, Any] = {}
    # also where no chunk is missing: those that are staged may be of a run that found damage
    if step.way.verifies and number == 1:
        checks = _checks(tasks, source)
    name = tasks.name("write", number)
    work = {
        (name, *at): (write_region, source, region, plan, opening)
        for at, region in zip(np.ndindex(missing.shape), boxes_of(sizes), strict=True)
        if missing[at]
    }
    tasks.graph |= in_lanes({**checks, **work}, step.way.lanes)
    top = merge_tree([*work, *extra], tasks.name("merge", number), tasks.graph)
    return top, list(checks)


def _checks(tasks: _Tasks, source: Any) -> dict[Any, Any]:
    """Tasks that verify the chunks of a frame of the user, where it has checksums."""
    read = tasks.job.source
    if isinstance(read, LaterSource):
        return {}
    name = tasks.name("verify", 1)
    checks = {}
    for number, axes in read.parts():
        if verified_nbytes(read.frames[number]):
            grid = read.frames[number].grid
            for i, corners in enumerate(boxes_to_verify(grid, axes, _most_chunks(grid))):
                checks[name, number, i] = (verify_task, source, number, *corners, tasks.opening)
    return checks


def _copies(tasks: _Tasks, staged: ChunkRecords | None) -> Any:
    """Key of the merged records of chunks that are copied as they are."""
    job = tasks.job
    is_staged = np.zeros(job.plan.grid.nchunks, bool)
    extra: list[Any] = []
    source, plan = _source(tasks), tasks.add("plan", job.plan)
    name, work = tasks.name("write"), {}
    if staged is not None:
        is_staged[staged.rows["chunk"]] = True
    whole = np.zeros(len(is_staged), bool)
    for i, (first, last) in enumerate(_ranges(job.plan.grid)):
        if is_staged[first:last].all():
            whole[first:last] = True
        else:
            work[name, i] = (copy_task, source, first, last, plan, tasks.opening)
    if staged is not None:
        reused = ChunkRecords(staged.parts, staged.rows[whole[staged.rows["chunk"]]])
        extra = [tasks.add("known", reused)]
    tasks.graph |= in_lanes(work, job.lanes)
    return merge_tree([*work, *extra], tasks.name("merge"), tasks.graph)


def in_lanes(work: dict[Any, tuple[Any, ...]], lanes: int) -> dict[Any, tuple[Any, ...]]:
    """Make each task wait for the one so many before it: never do more run at once.

    No scheduler starts a task before its dependencies are done, whatever its threads are, or
    become: so the memory of all tasks stays bounded on all of them.
    """
    keys = list(work)
    return {
        key: (*task, keys[i - lanes]) if i >= lanes else task
        for i, (key, task) in enumerate(work.items())
    }


def write_region(
    source: RegionSource | FlatSource,
    region: Box,
    plan: FramePlan,
    opened: OpenedStaging,
    *before: Any,
) -> ChunkRecords:
    """Task of a region; `before` is the result that it waits for."""
    if opened.again:
        # published already: the commit finds that, too
        return ChunkRecords.of({}, {}, {})
    return rechunk_region(source, region, plan, opened)


def copy_task(
    source: RegionSource,
    first: int,
    last: int,
    plan: FramePlan,
    opened: OpenedStaging,
    *before: Any,
) -> ChunkRecords:
    """Task that copies chunks as they are stored."""
    if opened.again:
        return ChunkRecords.of({}, {}, {})
    (frame,) = source.frames
    return copy_chunks(frame, first, last, plan, opened)


def verify_task(
    source: RegionSource | FlatSource,
    number: int,
    first: int,
    last: int,
    opened: OpenedStaging,
    *before: Any,
) -> None:
    """Task that verifies a box of chunks of one of the frames by their checksums.

    It runs after the staging area is made: an area that is made after another task has failed
    would stay behind. And a frame that was rechunked onto itself is not there to be verified again.
    """
    if not opened.again:
        verify_stored(source.frames[number], first, last, source.batch_nbytes)


def _ranges(grid: Grid) -> Iterable[tuple[int, int]]:
    """First and last numbers of chunks that are taken by one task, the last one not included."""
    step = _most_chunks(grid)
    return ((at, min(at + step, grid.nchunks)) for at in range(0, grid.nchunks, step))


def _most_chunks(grid: Grid) -> int:
    """Chunks that one task takes."""
    return max(1, VERIFIED_AT_ONCE // max(1, grid.chunk_nbytes))


def boxes_of(sizes: tuple[tuple[int, ...], ...]) -> Iterable[Box]:
    """Regions in C order."""
    edges = [list(itertools.accumulate(axis, initial=0)) for axis in sizes]
    return itertools.product(*([slice(*ends) for ends in itertools.pairwise(e)] for e in edges))
