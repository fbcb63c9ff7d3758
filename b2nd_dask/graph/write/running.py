"""Running a write: its graph is computed now or handed out, and nothing is left where it fails."""

from __future__ import annotations

import errno
from collections.abc import Callable
from typing import Protocol

import dask.array as da
from dask.delayed import Delayed, delayed

from b2nd_dask.frame.access import frame_at
from b2nd_dask.frame.reference import FrameReference
from b2nd_dask.frame.write.idempotent import RAN_BEFORE, clean_up, give_up, is_published
from b2nd_dask.frame.write.records import ChunkRecords, read_journals
from b2nd_dask.frame.write.writer import FramePlan
from b2nd_dask.graph.read.from_b2nd import MANY_TASKS, array_of
from b2nd_dask.graph.write.resume import log_reused
from b2nd_dask.processes import unseen
from b2nd_dask.storage import Location, Staging, only_here


class Job(Protocol):
    """What is written to which frame."""

    @property
    def plan(self) -> FramePlan:
        """Of the frame."""

    @property
    def staging(self) -> Staging:
        """Where its chunks are staged."""

    def graph(self, staged: ChunkRecords | None) -> Delayed:
        """The tasks; chunks that are staged already are not computed again."""


def run_job(
    job: Job, location: Location, warn: Callable[[], None], *, compute: bool, resume: bool
) -> da.Array | Delayed:
    """Compute a job, or return the Delayed that does so, as `compute` of `to_b2nd` says."""
    done = resume and is_published(job.plan, job.staging)
    written = _finished_before(job) if done else _remaining_work(job, resume=resume)
    if not compute:
        warn()
        return written
    if not done:
        _compute(job, written, warn, resume=resume)
    frame = _opened(job, location)
    # to build a graph of very many blocks takes minutes
    return array_of(frame, "auto" if frame.chunk_kinds().size > MANY_TASKS else None)


def _opened(job: Job, location: Location) -> FrameReference:
    """Open the frame that a job has written."""
    try:
        return frame_at(location)
    except FileNotFoundError as error:
        # the client's own staging area, in which nobody has staged anything
        clean_up(job.staging)
        advice = "the tasks have written the frame where this process does not see it"
        raise unseen(error, location.label, advice) from error


def _finished_before(job: Job) -> Delayed:
    """Clean up after a job that was killed when its frame was complete."""
    clean_up(job.staging)
    log_reused(job.staging.label, job.plan.grid.nchunks, job.plan.grid.nchunks)
    done: Delayed = delayed(job.staging.label)
    return done


def _remaining_work(job: Job, *, resume: bool) -> Delayed:
    """The graph of what has to be computed of a job."""
    staged = read_journals(job.staging, job.plan.grid.nchunks) if resume else None
    return job.graph(staged)


def _compute(job: Job, written: Delayed, warn: Callable[[], None], *, resume: bool) -> None:
    """Compute a job; leave no staging area behind, unless it can be resumed."""
    # raises before anything is computed; a staging area that was never prepared is not cleaned up
    job.staging.prepare()
    try:
        warn()
        written.compute()
    except BaseException as error:
        if not resume:
            # an interrupt, too, must not leave the disk full
            give_up(job.staging)
        # a worker that is lost after it published has its tasks run again, on a staging area that
        # is gone
        if not isinstance(error, RAN_BEFORE) or not is_published(job.plan, job.staging):
            raise
    hint = only_here(job.staging.label)
    if hint and not is_published(job.plan, job.staging):
        clean_up(job.staging)
        raise FileNotFoundError(
            errno.ENOENT, f"another process wrote the frame{hint}", job.staging.label
        )
