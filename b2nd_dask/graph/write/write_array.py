"""`write_array`: elements as a new frame, or as a part of an existing one."""

from __future__ import annotations

import operator
from collections.abc import Mapping
from functools import partial
from typing import Any

import dask.array as da
from dask.delayed import Delayed

from b2nd_dask.frame.members.writable import frame_to_change, target_of
from b2nd_dask.frame.reference import FrameReference
from b2nd_dask.frame.write.update import open_for_update
from b2nd_dask.graph.write.checked_cast import as_elements
from b2nd_dask.graph.write.frame_options import (
    FrameOptions,
    check_append_options,
    check_region_options,
    new_plan,
)
from b2nd_dask.graph.write.input_arrays import as_dask
from b2nd_dask.graph.write.modes import NEW, check_mode
from b2nd_dask.graph.write.parts import part_job
from b2nd_dask.graph.write.rechunk.bounded import bounded_job
from b2nd_dask.graph.write.running import run_job
from b2nd_dask.graph.write.source_metadata import warn_of_dropped
from b2nd_dask.graph.write.write_tasks import new_job, update_job
from b2nd_dask.storage import Location

_MODES = (*NEW, "a", "r+", "stage")


def write_array(
    arr: Any,
    urlpath: Any,
    *,
    mode: str = "w-",
    chunks: Any = None,
    blocks: Any = None,
    cparams: Any = None,
    meta: Mapping[str, Any] | str | None = None,
    vlmeta: Mapping[str, Any] | str | None = None,
    contiguous: bool = True,
    region: Any = None,
    append_axis: int | None = None,
    caterva: bool = False,
    storage_options: Mapping[str, Any] | None = None,
    compute: bool = True,
    resume: bool = False,
    max_mem: int | float | str | None = None,
    entries: Mapping[str, Any] | None = None,
) -> da.Array | Delayed:
    """Write elements; as `to_b2nd`, but for objects that bring labels.

    Parameters
    ----------
    entries : mapping, optional
        Entries of vlmeta that an update changes together with the elements.
    """
    options = FrameOptions(chunks, blocks, cparams, meta, vlmeta, contiguous, caterva)
    _check_mode(mode, region, append_axis, options)
    if max_mem is not None and mode not in NEW:
        raise ValueError(f"max_mem= is for new frames, not for mode={mode!r}: leave it out")
    if mode == "stage":
        location = target_of(urlpath, storage_options)
        return _stage(arr, location, region, compute=compute, resume=resume)
    old = None if mode in NEW else _existing_frame(urlpath, storage_options, mode)
    if old is None:
        location, elements = target_of(urlpath, storage_options, contiguous=contiguous), arr
    else:
        location, elements = old.location, as_elements(arr, old.dtype)
    array = as_dask(elements, named=resume, snapshot=not compute)
    if old is None:
        replace = NEW.get(mode, False)
        job = new_job(array, location, new_plan(array, options), replace=replace, resume=resume)
        bounded = job if max_mem is None else bounded_job(job, max_mem)
        warn = partial(warn_of_dropped, arr, array, meta=meta, vlmeta=vlmeta)
        return run_job(bounded, location, warn, compute=compute, resume=resume)
    check_region_options(old, options)
    check_append_options(old, array, options)
    job = update_job(array, location, old, region, append_axis, resume=resume, entries=entries)
    return run_job(job, location, lambda: None, compute=compute, resume=resume)


def _stage(
    arr: Any, location: Location, region: Any, *, compute: bool, resume: bool
) -> da.Array | Delayed:
    """Stage a part of a frame that was begun."""
    if resume:
        raise ValueError('resume=True: a part (mode="stage") is staged again as a whole; leave out')
    job = part_job(arr, location, region, snapshot=not compute)
    staged = job.graph(None)
    if not compute:
        return staged
    staged.compute()
    return job.elements


def _check_mode(mode: str, region: Any, append_axis: int | None, options: FrameOptions) -> None:
    """Check that arguments do not contradict each other."""
    check_mode(mode, _MODES)
    if region is not None and append_axis is not None:
        raise ValueError("give region= or append_axis=, not both")
    if append_axis is not None:
        try:
            operator.index(append_axis)
        except TypeError:
            raise TypeError(f"append_axis={append_axis!r}: give the number of an axis") from None
    if mode in NEW:
        if region is not None or append_axis is not None:
            raise ValueError(
                f'mode={mode!r} makes a new frame; region= goes with mode="r+", '
                'append_axis= with "r+" or "a"'
            )
    elif mode == "stage" and region is None:
        raise ValueError('mode="stage" stages a part of a frame: say which, by region=')
    elif region is None and append_axis is None:
        ways = "region= or append_axis=" if mode == "r+" else "append_axis="
        raise ValueError(f"mode={mode!r} changes a frame: say where, by {ways}")
    elif mode == "a" and region is not None:
        raise ValueError('a region is written into a frame that is there: use mode="r+"')
    elif mode in ("r+", "stage") and options.given:
        raise ValueError(
            f"mode={mode!r} does not change chunks, compression and metadata of the frame: leave "
            f"out {', '.join(f'{name}=' for name in options.given)}"
        )


def _existing_frame(
    urlpath: Any, storage_options: Mapping[str, Any] | None, mode: str
) -> FrameReference | None:
    try:
        return open_for_update(frame_to_change(urlpath, storage_options))
    except FileNotFoundError:
        if mode == "r+":
            raise
        return None
