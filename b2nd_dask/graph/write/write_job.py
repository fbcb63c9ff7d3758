"""What is to be written where: the plan of a frame and the job that makes it."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import dask.array as da

from b2nd_dask.errors import level_of_caller
from b2nd_dask.format.array_meta import MAX_CATERVA_NDIM
from b2nd_dask.format.chunk.compression import DELTA_FILTER
from b2nd_dask.format.chunk.defaults import compression_of
from b2nd_dask.format.header import MAX_HEADER_LEN
from b2nd_dask.format.integrity import RECORD_NAME, has_room, is_record, users_vlmeta
from b2nd_dask.format.metalayers import MAX_METALAYERS
from b2nd_dask.format.values import pack_metadata
from b2nd_dask.frame.open.cache import process_cache
from b2nd_dask.frame.read.contents import content_digest
from b2nd_dask.frame.reference import FrameReference
from b2nd_dask.frame.write.commit import commit
from b2nd_dask.frame.write.update import commit_update, update_plan, update_staging
from b2nd_dask.frame.write.writer import FramePlan
from b2nd_dask.graph.write.assign import converted
from b2nd_dask.graph.write.dropped import source_frames
from b2nd_dask.graph.write.layout import frame_grid
from b2nd_dask.graph.write.patch import append_patch, region_patch
from b2nd_dask.graph.write.resume import finished_key, resume_key, update_call, update_key
from b2nd_dask.graph.write.write_tasks import WriteJob
from b2nd_dask.storage import Location, staging_for


@dataclass(frozen=True, eq=False)
class FrameOptions:
    """What a frame is to be like, as users say it; fields as for `to_b2nd`."""

    chunks: Any
    blocks: Any
    cparams: Any
    meta: Mapping[str, Any] | str | None
    vlmeta: Mapping[str, Any] | str | None
    contiguous: bool
    caterva: bool

    @property
    def given(self) -> list[str]:
        """Names of the arguments that were not left out; booleans are always there."""
        names = ("chunks", "blocks", "cparams", "meta", "vlmeta")
        return [name for name in names if getattr(self, name) is not None]


def new_plan(array: da.Array, form: FrameOptions) -> FramePlan:
    """Fix everything about a new frame but its data.

    Parameters
    ----------
    array : dask.array.Array
    form : Form

    Returns
    -------
    FramePlan

    Raises
    ------
    ValueError
        Chunks or blocks that do not fit, too many metadata entries.
    TypeError
        Metadata that cannot be stored.
    """
    how = compression_of(form.cparams, array.dtype.itemsize)
    plan = FramePlan(
        grid=frame_grid(array, form.chunks, form.blocks, how),
        dtype=array.dtype,
        compression=how,
        sparse=not form.contiguous,
        meta=_packed(array, "meta", form.meta),
        vlmeta=_packed(array, "vlmeta", form.vlmeta),
        caterva=form.caterva,
    )
    _check_plan(plan)
    return plan


def new_job(
    array: da.Array, location: Location, plan: FramePlan, *, replace: bool, resume: bool
) -> WriteJob:
    """The work of writing a new frame.

    Parameters
    ----------
    array : dask.array.Array
    location : Location
    plan : FramePlan
    replace : bool
        Whether a frame that is there may be replaced.
    resume : bool
        Whether to go on with what another run has staged.

    Returns
    -------
    WriteJob

    Raises
    ------
    ValueError
        Metadata that need more than a header can hold.
    OSError
        What `Staging` raises for a target that cannot be written.
    """
    header_len = len(plan.header())
    if header_len > MAX_HEADER_LEN:
        raise ValueError(f"a header of {header_len} bytes; put large metadata into vlmeta=")
    origin = (0,) * array.ndim
    state = "w" if replace else "w-"
    staging = staging_for(
        location,
        sparse=plan.sparse,
        replace=replace,
        header_len=header_len,
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
    """The work of changing a frame.

    Parameters
    ----------
    array : dask.array.Array
    location : Location
    frame : FrameReference
        The frame as it is.
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
        An array that does not fit there.
    UnsupportedFrameError
        A frame that cannot be changed in place.
    """
    array = converted(array, frame.dtype)
    # refuses what cannot be changed in place, before anything of it is read
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
        opened = process_cache().open(location, frame.version)
        content = content_digest(opened, patch.cut_chunks(frame.parsed.grid))
        key = update_key(call, patch.corner, plan, content)
        staging = update_staging(location, frame.parsed, resume_key=key)
    return WriteJob(patch.elements, patch.origin, plan, staging, finish)


def _check_plan(plan: FramePlan) -> None:
    """Refuse what the format has no room for; warn of what others read wrong."""
    several = plan.grid.blocks != plan.grid.chunks
    if DELTA_FILTER in plan.compression.filters and several and plan.dtype.itemsize > 1:
        warnings.warn(
            "python-blosc2 reads slices of arrays with the delta filter wrong where chunks have "
            "several blocks (b2nd_dask reads them right): choose blocks= as large as chunks=, or "
            "another filter",
            UserWarning,
            stacklevel=level_of_caller(),
        )
    if "b2nd" in plan.meta or "caterva" in plan.meta:
        raise ValueError("the names b2nd and caterva are the array's own metalayers")
    if plan.caterva and plan.grid.ndim > MAX_CATERVA_NDIM:
        raise ValueError(f"{plan.grid.ndim} dimensions; Caterva has at most {MAX_CATERVA_NDIM}")
    room = MAX_METALAYERS - 1 - plan.caterva
    if len(plan.meta) > room or not has_room(plan.vlmeta, 0):
        raise ValueError(
            f"a frame has room for {room} fixed metadata entries, and beside its checksums for "
            f"{MAX_METALAYERS - 1} of variable length; put several values into one"
        )


def _packed(
    array: da.Array, name: str, entries: Mapping[str, Any] | str | None
) -> Mapping[str, bytes]:
    compressed = name == "vlmeta"
    if isinstance(entries, str):
        if entries != "keep":
            raise ValueError(f'{name}={entries!r}; a mapping, "keep" or None is expected')
        frame = _source_frame(array)
        return frame.vlmeta.stored if compressed else frame.meta.stored
    if compressed and isinstance(entries, Mapping):
        # what python-blosc2 lists of a frame includes the record of its checksums
        if RECORD_NAME in entries and not is_record(entries[RECORD_NAME]):
            raise ValueError(f"the vlmeta name {RECORD_NAME} is that of the frame's own checksums")
        entries = users_vlmeta(entries)
    return pack_metadata(entries or {}, compressed=compressed)


def _source_frame(array: da.Array) -> FrameReference:
    """The one frame that an array was computed from."""
    frames = source_frames(array)
    if len(frames) != 1:
        raise ValueError(
            f'"keep" needs one frame that the graph of the array reads, and finds {len(frames)}; '
            "give a mapping instead, as meta=frame.meta and vlmeta=frame.vlmeta of a frame, or "
            "vlmeta=x.attrs of an array of xarray"
        )
    return frames[0]
