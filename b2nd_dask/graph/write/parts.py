"""`create`, and the job that stages a part of the frame that it has begun."""

from __future__ import annotations

import os
import uuid
from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np
from dask.array.core import normalize_chunks

from b2nd_dask.format.grid import Grid
from b2nd_dask.frame.members.writable import target_of
from b2nd_dask.frame.write.begun import BegunFrame, begin, begun_at
from b2nd_dask.frame.write.others import ChunkBox
from b2nd_dask.frame.write.parts import finish_part, open_part
from b2nd_dask.graph.write.checked_cast import as_elements, converted
from b2nd_dask.graph.write.frame_options import FrameOptions, array_like, new_plan
from b2nd_dask.graph.write.input_arrays import as_dask
from b2nd_dask.graph.write.modes import NEW, check_mode
from b2nd_dask.graph.write.patch import Bounds, broadcast_to_region, region_bounds
from b2nd_dask.graph.write.write_tasks import WriteJob
from b2nd_dask.storage import Location


def create(
    urlpath: str | os.PathLike[str],
    shape: int | tuple[int, ...],
    dtype: Any,
    *,
    mode: str = "w-",
    chunks: Any = None,
    blocks: Any = None,
    cparams: Any = None,
    meta: Mapping[str, Any] | None = None,
    vlmeta: Mapping[str, Any] | None = None,
    contiguous: bool = True,
    storage_options: Mapping[str, Any] | None = None,
    stats: bool = False,
) -> None:
    """Begin a frame, of which jobs then stage parts, until `commit` makes it appear.

    ``to_b2nd(x, urlpath, mode="stage", region=...)`` stages a part: whole chunks, from any process
    on any machine that reaches the target, at any time and in any order. Parts must not overlap. A
    job that runs again stages its part again. `list_staging` shows the begun frame, and
    `remove_staging` gives it up. To begin the same frame again changes nothing, and jobs may do so
    at once. Of two that differ the later is refused, but not for certain in a store that cannot
    put an object on the condition that there is none; S3 can.

    Parameters
    ----------
    urlpath : str or os.PathLike
        Path of the frame, or an fsspec URL.
    shape : int or tuple of int
        Of the whole array.
    dtype : dtype-like
        Of its elements.
    mode : {"w-", "w"}
        Whether the commit may replace a frame that is there: ``"w"``.
    chunks, blocks, cparams, meta, vlmeta, contiguous, storage_options, stats
        As for `to_b2nd`. Give `chunks` so that each part is made of whole ones; by default they are
        dask's choice for the shape.

    Raises
    ------
    FileExistsError
        Something is there that `mode` does not allow to replace, or another frame was begun there.
    ValueError
        The shape, chunks or blocks do not fit, or there are too many metadata entries.
    TypeError
        It is no dtype, or holds Python objects, or metadata cannot be stored.
    OSError
        Nothing can be written there.

    Examples
    --------
    >>> import pathlib, tempfile
    >>> path = pathlib.Path(tempfile.mkdtemp(), "a.b2nd")
    >>> create(path, (1000, 500), "f4", chunks=(100, 500))
    >>> path.exists()
    False
    """
    check_mode(mode)
    location = target_of(urlpath, storage_options, contiguous=contiguous)
    options = FrameOptions(chunks, blocks, cparams, meta, vlmeta, contiguous, False, stats)
    like = array_like(shape, dtype, chunks)
    begin(location, BegunFrame(new_plan(like, options), NEW[mode], uuid.uuid4().hex[:16]))


def part_job(arr: Any, location: Location, region: Any, *, snapshot: bool) -> WriteJob:
    """Make the job of staging a part of the frame that was begun at a location.

    Raises
    ------
    FileNotFoundError
        None was.
    ValueError
        The region is not made of whole chunks, or the array does not fit it.
    """
    begun = begun_at(location)
    plan = begun.plan
    array = as_dask(as_elements(arr, plan.dtype), named=False, snapshot=snapshot)
    bounds, singles = region_bounds(region, plan.grid.shape)
    _require_whole_chunks(bounds, plan.grid, region)
    array = broadcast_to_region(
        converted(array, plan.dtype), _blocks_of(plan.grid, plan.dtype), bounds, singles
    )
    origin = tuple(start for start, _ in bounds)
    box = ChunkBox.of(origin, array.shape, plan.grid)
    finish = partial(finish_part, box=box, key=begun.key)
    find = partial(open_part, key=begun.key)
    return WriteJob(array, origin, plan, begun.staging(location), finish, find)


def _blocks_of(grid: Grid, dtype: np.dtype[Any]) -> Any:
    """Lengths of blocks of whole chunks, along each axis of the frame."""
    if 0 in grid.shape:
        return tuple((n,) for n in grid.shape)
    whole = normalize_chunks(grid.chunks, grid.shape)
    return normalize_chunks("auto", grid.shape, dtype=dtype, previous_chunks=whole)


def _require_whole_chunks(bounds: Bounds, grid: Grid, region: Any) -> None:
    """Check that no part writes a piece of a chunk, of which another would write the rest."""
    if any(start == stop for start, stop in bounds):
        return  # no elements, of no chunk
    axes = list(zip(bounds, grid.chunks, grid.shape, strict=True))
    whole = [
        (start // max(c, 1) * c, min(-(-stop // max(c, 1)) * c, n)) for (start, stop), c, n in axes
    ]
    if whole != [tuple(ends) for ends in bounds]:
        said = ", ".join(f"{a}:{b}" for a, b in whole)
        raise ValueError(
            f"region={region!r} cuts chunks of {grid.chunks}, and a part is made of whole chunks: "
            f"stage [{said}], or create the frame with other chunks"
        )
