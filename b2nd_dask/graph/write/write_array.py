"""`write_array`: elements as a new frame, or as a part of an existing one, by jobs that are run."""

from __future__ import annotations

import errno
import warnings
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

import dask.array as da
from dask.base import compute as compute_together
from dask.base import tokenize
from dask.delayed import Delayed, delayed

from b2nd_dask.errors import level_of_caller
from b2nd_dask.frame.access import frame_at
from b2nd_dask.frame.members.writable import frame_to_change, target_of
from b2nd_dask.frame.reference import FrameReference
from b2nd_dask.frame.write.new_frame import FramePlan
from b2nd_dask.frame.write.records import staged_records
from b2nd_dask.frame.write.transaction import Transaction, clean_up, give_up
from b2nd_dask.frame.write.update import open_for_update
from b2nd_dask.graph.read.from_b2nd import array_of, expressions, is_expression
from b2nd_dask.graph.read.sizes import MANY_TASKS
from b2nd_dask.graph.write.input_arrays import as_dask, as_elements, held_by
from b2nd_dask.graph.write.options import (
    NEW,
    STAGED_LAYOUT,
    WriteOptions,
    check_existing,
    dropped_metadata,
    new_plan,
)
from b2nd_dask.graph.write.parts import part_job
from b2nd_dask.graph.write.update import checked_axis, update_job
from b2nd_dask.graph.write.write_tasks import Job, WriteJob, log_reused, write_graphs
from b2nd_dask.processes import unseen
from b2nd_dask.storage import Location, only_here

#: Elements, the path or URL of their frame, and their `WriteOptions`.
Write = tuple[Any, Any, Mapping[str, Any]]


def write_array(arr: Any, urlpath: Any, *, compute: bool = True, **given: Any) -> Any:
    """Write elements, as `to_b2nd`; `given` are `WriteOptions`."""
    for name in ("append_dim", "encoding"):
        if name in given:
            raise ValueError(f"{name}= is for objects of xarray, which have names: leave it out")
    options = WriteOptions(**given)
    if options.mode == "stage":
        location = target_of(urlpath, options.storage_options)
        part = part_job(arr, location, options.region, snapshot=not compute)
        staged = part.graph(None)
        if not compute:
            return staged
        staged.compute()
        return _as_given(arr, part.elements)
    job, location = _job(arr, urlpath, options, snapshot=not compute)
    return _as_given(arr, run_job(job, location, compute=compute))


def _as_given(arr: Any, written: da.Array | Delayed) -> Any:
    """An array of the library that the given one is of."""
    is_array = isinstance(written, da.Array) and is_expression(held_by(arr))
    return expressions().expression_of(written) if is_array else written


def _job(arr: Any, urlpath: Any, options: WriteOptions, *, snapshot: bool) -> tuple[Job, Location]:
    """The job of a write, and the place of its frame; `snapshot` as for `from_numpy`."""
    old = None if options.mode in NEW else _existing_frame(urlpath, options)
    if old is not None:
        array = as_dask(as_elements(arr, old.dtype), named=options.resume, snapshot=snapshot)
        check_existing(old, array, options)
        return update_job(array, old, options), old.location
    location = target_of(urlpath, options.storage_options, contiguous=options.contiguous)
    array = as_dask(arr, named=options.resume, snapshot=snapshot)
    if options.append_axis is not None:
        checked_axis(options.append_axis, array.ndim)
    dropped = dropped_metadata(arr, array, options)
    if options.vlmeta is None and options.labels:
        options = replace(options, vlmeta=options.labels)
    plan = new_plan(array, options)
    new = new_frame(location, plan, array, options)
    whole = WriteJob(transaction=new, elements=array, origin=(0,) * array.ndim)
    job: Job = whole
    if options.max_mem is not None:
        # needs names of dask without which all else is written
        from b2nd_dask.graph.write.bounded import bounded_job

        job = bounded_job(whole, options.max_mem)
    return replace(job, dropped=dropped), location


def _existing_frame(urlpath: Any, options: WriteOptions) -> FrameReference | None:
    try:
        return open_for_update(frame_to_change(urlpath, options.storage_options))
    except FileNotFoundError:
        if options.mode == "r+":
            raise
        return None


def new_frame(
    location: Location, plan: FramePlan, source: object, options: WriteOptions
) -> Transaction:
    """Make the write of a new frame; raise OSError where the target cannot be written.

    `source`, an array by its name or a frame by its version, stands for the elements.
    """
    replaces, key = NEW.get(options.mode, False), None
    if options.resume:
        # what all runs of one write share, and no other write
        call = source, (0,) * plan.grid.ndim, plan, location.label, "w" if replaces else "w-"
        key = tokenize(STAGED_LAYOUT, *call)[:16]
    staging = plan.staging(location, replace=replaces, resume_key=key, fsync=options.fsync)
    return Transaction(plan, staging)


def write_together(writes: Iterable[Write]) -> None:
    """Write several arrays, of which what they share is computed once.

    Where one fails, nothing is left of those that were not published.
    """
    jobs = [_job(arr, to, WriteOptions(**given), snapshot=False)[0] for arr, to, given in writes]
    together = [job for job in jobs if isinstance(job, WriteJob)]
    others = [job.graph(None) for job in jobs if not isinstance(job, WriteJob)]
    try:
        compute_together(*write_graphs(together), *others)
    except BaseException:
        for job in jobs:
            give_up(job.staging)
        raise


def run_job(job: Job, location: Location, *, compute: bool) -> da.Array | Delayed:
    """Compute a job and open its frame, or return the Delayed that makes it."""
    nchunks, resumes = job.plan.grid.nchunks, job.staging.resumable
    if resumes and job.transaction.is_published():
        # the job was killed when its frame was complete
        clean_up(job.staging)
        log_reused(job.staging, nchunks, nchunks)
        if not compute:
            done: Delayed = delayed(job.staging.label)
            return done
    else:
        staged = staged_records(job.staging, job.plan.row, nchunks) if resumes else None
        written = job.graph(staged)
        if not compute:
            _warn(job)
            return written
        _compute(job, written)
    frame = _opened(job, location)
    # to build a graph of very many blocks takes minutes
    return array_of(frame, "auto" if frame.grid.nchunks > MANY_TASKS else None)


def _warn(job: Job) -> None:
    if job.dropped:
        warnings.warn(job.dropped, UserWarning, stacklevel=level_of_caller())


def _compute(job: Job, written: Delayed) -> None:
    """Compute a job; leave no staging area behind, unless it can be resumed."""
    # raises before anything is computed; a staging area that was never prepared is not cleaned up.
    # A worker that is lost after it published has its tasks run again, on an area that is gone.
    with job.staging.prepared(), job.transaction.once():
        try:
            _warn(job)
            written.compute()
        except BaseException:
            if not job.staging.resumable:
                # an interrupt, too, must not leave the disk full
                give_up(job.staging)
            raise
    hint = only_here(job.staging.label)
    if hint and not job.transaction.is_published():
        clean_up(job.staging)
        raise FileNotFoundError(
            errno.ENOENT, f"another process wrote the frame{hint}", job.staging.label
        )


def _opened(job: Job, location: Location) -> FrameReference:
    """Open the frame that a job has written."""
    try:
        return frame_at(location)
    except FileNotFoundError as error:
        # the client's own staging area, in which nobody has staged anything
        clean_up(job.staging)
        advice = "the tasks have written the frame where this process does not see it"
        raise unseen(error, location.label, advice) from error
