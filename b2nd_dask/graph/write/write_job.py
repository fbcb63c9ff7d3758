"""The job of a write: which elements go where in the frame, and what publishes them."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import dask.array as da

from b2nd_dask.frame.reference import FrameReference
from b2nd_dask.frame.write.commit import commit
from b2nd_dask.frame.write.records import ChunkRecords
from b2nd_dask.frame.write.update import commit_update, content_of, update_plan, update_staging
from b2nd_dask.frame.write.writer import FramePlan
from b2nd_dask.graph.write.checked_cast import converted
from b2nd_dask.graph.write.patch import append_patch, region_patch
from b2nd_dask.graph.write.resume import finished_key, resume_key, update_call, update_key
from b2nd_dask.storage import Location, Staging, staging_for


class WriteJob(NamedTuple):
    """Elements, where they go in which frame, and the function that publishes it."""

    elements: da.Array
    """In any blocks."""
    origin: tuple[int, ...]
    """Index of the first element in the frame; the corner of a chunk."""
    plan: FramePlan
    staging: Staging
    finish: Callable[[ChunkRecords, FramePlan, Staging], str]
    """Makes a frame of the staged chunks, and returns its path or URL."""


def new_job(
    array: da.Array, location: Location, plan: FramePlan, *, replace: bool, resume: bool
) -> WriteJob:
    """Make the job of writing a new frame; raise OSError where the target cannot be written."""
    origin = (0,) * array.ndim
    state = "w" if replace else "w-"
    staging = staging_for(
        location,
        sparse=plan.sparse,
        replace=replace,
        header_len=len(plan.header()),
        resume_key=resume_key(array, origin, plan, location.label, state) if resume else None,
    )
    return WriteJob(array, origin, plan, staging, commit)


def update_job(
    array: da.Array,
    location: Location,
    frame: FrameReference,
    region: Any,
    append_axis: int | None,
    *,
    resume: bool,
) -> WriteJob:
    """Make the job of changing a frame.

    Parameters
    ----------
    array : dask.array.Array
    location : Location
    frame : FrameReference
        The frame as it is now.
    region, append_axis
        As for `to_b2nd`.
    resume : bool
        Whether to go on with what another run has staged.

    Returns
    -------
    WriteJob

    Raises
    ------
    ValueError
        The array does not fit the region or the axis.
    UnsupportedFrameError
        The frame cannot be changed in place.
    """
    array = converted(array, frame.dtype)
    # raises where the frame cannot be changed in place, before anything of it is read
    staging = update_staging(location, frame.parsed)
    finish = partial(commit_update, old=frame)
    call = update_call(array, (region, append_axis), location.label) if resume else ""
    if resume and (key := finished_key(location, call)) is not None:
        plan = update_plan(frame.parsed, frame.shape)
        staging = update_staging(location, frame.parsed, resume_key=key)
        return WriteJob(array, (0,) * frame.ndim, plan, staging, finish)
    if region is not None:
        patch = region_patch(array, frame, region)
    else:
        patch = append_patch(array, frame, int(append_axis or 0))
    plan = update_plan(frame.parsed, patch.shape)
    if resume:
        content = content_of(location, frame, patch.cut_chunks(frame.parsed.grid))
        key = update_key(call, patch.corner, plan, content)
        staging = update_staging(location, frame.parsed, resume_key=key)
    return WriteJob(patch.elements, patch.origin, plan, staging, finish)
