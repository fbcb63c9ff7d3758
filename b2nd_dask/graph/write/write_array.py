"""`write_array`: elements as a new frame, or as a part of an existing one."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from dataclasses import replace as replaced
from functools import partial
from typing import Any

import dask.array as da
from dask.base import compute as compute_together
from dask.delayed import Delayed

from b2nd_dask.frame.members.writable import frame_to_change, target_of
from b2nd_dask.frame.reference import FrameReference
from b2nd_dask.frame.write.idempotent import give_up
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
from b2nd_dask.graph.write.running import Job, run_job
from b2nd_dask.graph.write.source_metadata import warn_of_dropped
from b2nd_dask.graph.write.write_tasks import WriteJob, new_job, update_job, write_graphs
from b2nd_dask.storage import Location

_FIELDS = fields(FrameOptions)
_MODES = (*NEW, "a", "r+", "stage")


def write_array(arr: Any, urlpath: Any, *, compute: bool = True, **options: Any) -> Any:
    """Write elements, as `to_b2nd`; `options` are those of `write_job`."""
    if options.get("mode") == "stage":
        _check_mode("stage", options.get("region"), options.get("append_axis"), _asked(options))
        _check_max_mem("stage", options.get("max_mem"))
        _check_stage(options)
        location = target_of(urlpath, options.get("storage_options"))
        return _stage(arr, location, options["region"], compute=compute)
    job, location, warn = write_job(arr, urlpath, snapshot=not compute, **options)
    return run_job(job, location, warn, compute=compute, resume=options.get("resume", False))


def write_job(
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
    resume: bool = False,
    fsync: bool = True,
    max_mem: int | float | str | None = None,
    labels: Mapping[str, Any] | None = None,
    entries: Callable[[FrameReference], Mapping[str, Any]] | None = None,
    stats: bool = False,
    snapshot: bool = False,
) -> tuple[Job, Location, Callable[[], None]]:
    """Make the job of a write, the place of its frame, and what warns of dropped metadata.

    Parameters
    ----------
    labels : mapping, optional
        The vlmeta of a new frame for which none is given.
    entries : callable, optional
        Takes the frame that is changed; gives the entries of vlmeta that change together with the
        elements.
    snapshot : bool
        Whether NumPy arrays are copied, since they may change before the job is computed.
    others
        As for `to_b2nd`.
    """
    options = FrameOptions(chunks, blocks, cparams, meta, vlmeta, contiguous, caterva, stats)
    _check_mode(mode, region, append_axis, options)
    _check_max_mem(mode, max_mem)
    old = None if mode in NEW else _existing_frame(urlpath, storage_options, mode)
    if old is None:
        location, elements = target_of(urlpath, storage_options, contiguous=contiguous), arr
    else:
        location, elements = old.location, as_elements(arr, old.dtype)
    array = as_dask(elements, named=resume, snapshot=snapshot)
    if old is None:
        replace = NEW.get(mode, False)
        if vlmeta is None and labels:
            options = replaced(options, vlmeta=labels)
        plan = new_plan(array, options)
        job = new_job(array, location, plan, replace=replace, resume=resume, fsync=fsync)
        bounded = job if max_mem is None else bounded_job(job, max_mem)
        warn = partial(warn_of_dropped, arr, array, meta=meta, vlmeta=vlmeta)
        return bounded, location, warn
    check_region_options(old, options)
    check_append_options(old, array, options)
    new = None if entries is None else entries(old)
    job = update_job(
        array, location, old, region, append_axis, resume=resume, fsync=fsync, entries=new
    )
    return job, location, lambda: None


def run_together(jobs: Sequence[Job]) -> None:
    """Compute several writes, of which what they share is computed once.

    Where one fails, nothing is left of those that were not published.
    """
    together = [job for job in jobs if isinstance(job, WriteJob)]
    others = [job.graph(None) for job in jobs if not isinstance(job, WriteJob)]
    try:
        compute_together(*write_graphs(together), *others)
    except BaseException:
        for job in jobs:
            give_up(job.staging)
        raise


def _check_max_mem(mode: str, max_mem: Any) -> None:
    if max_mem is not None and mode not in NEW:
        raise ValueError(f"max_mem= is for new frames, not for mode={mode!r}: leave it out")


def _asked(options: Mapping[str, Any]) -> FrameOptions:
    defaults = {"contiguous": True, "caterva": False, "stats": False}
    return FrameOptions(**{f.name: options.get(f.name, defaults.get(f.name)) for f in _FIELDS})


def _check_stage(options: Mapping[str, Any]) -> None:
    if options.get("resume", False):
        raise ValueError('resume=True: a part (mode="stage") is staged again as a whole; leave out')
    if options.get("stats", False):
        raise ValueError("stats=True: whether a frame has statistics, create(..., stats=) says")
    if not options.get("fsync", True):
        raise ValueError(
            'fsync=False: a part (mode="stage") must last until its frame is committed; leave out'
        )


def _stage(arr: Any, location: Location, region: Any, *, compute: bool) -> da.Array | Delayed:
    """Stage a part of a frame that was begun."""
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
