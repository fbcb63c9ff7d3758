"""Frames written in parts: `create` starts a frame, jobs stage regions of it."""

from __future__ import annotations

import math
import os
import uuid
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import dask.array as da
import numpy as np

from b2nd_dask.format.grid import MAX_NBYTES
from b2nd_dask.frame.members.writable import target_of
from b2nd_dask.frame.write.new_frame import check_storable
from b2nd_dask.frame.write.parts import Part, PendingFrame, pending_at
from b2nd_dask.frame.write.records import ChunkBox
from b2nd_dask.graph.read.sizes import is_length
from b2nd_dask.graph.write.chunk_sizes import LARGEST_DEFAULT_CHUNK, broadcast_sizes, is_fixed
from b2nd_dask.graph.write.input_arrays import as_dask
from b2nd_dask.graph.write.options import NEW, WriteOptions, check_mode, new_plan
from b2nd_dask.graph.write.regions import broadcast_to_region, corner_of, region_axes
from b2nd_dask.graph.write.write_tasks import WriteJob, opening
from b2nd_dask.storage import Location

#: Above this dask would list too many blocks; the format allows more.
_MOST_BLOCKS = 1 << 28


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
    """Create a frame that jobs write in parts; it appears by `commit`.

    ``to_b2nd(x, urlpath, mode="stage", region=...)`` stages a part: whole chunks, from any process
    on any machine that reaches the target, at any time and in any order. Parts must not overlap. A
    repeated job replaces its part. `list_staging` shows the pending frame, and `remove_staging`
    deletes it. To create the same frame again changes nothing; jobs may do so concurrently. A
    second, different frame raises an error. This is not certain in a store without conditional
    puts (put only if absent); S3 has them.

    Parameters
    ----------
    urlpath : str or os.PathLike
        Path of the frame, or an fsspec URL.
    shape : int or tuple of int
        Shape of the whole array.
    dtype : dtype-like
        Dtype of its elements.
    mode : {"w-", "w"}
        ``"w"`` if the commit may replace the frame that exists now, but no later one.
    chunks, blocks, cparams, meta, vlmeta, contiguous, storage_options, stats
        As for `to_b2nd`. Choose `chunks` so that each part is made of whole chunks; the default is
        dask's choice for the shape.

    Raises
    ------
    FileExistsError
        The target exists and `mode` does not replace it, or another frame was created there.
    ValueError
        The shape, chunks or blocks do not fit, or there are too many metadata entries.
    TypeError
        `dtype` is no dtype, or holds Python objects, or metadata cannot be stored.
    OSError
        The target cannot be written.

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
    options = WriteOptions(
        chunks=chunks,
        blocks=blocks,
        cparams=cparams,
        meta=meta,
        vlmeta=vlmeta,
        contiguous=contiguous,
        stats=stats,
    )
    plan = new_plan(_array_like(shape, dtype, chunks), options)
    PendingFrame.at(location, plan, uuid.uuid4().hex[:16], replace=NEW[mode]).begin()


def _array_like(shape: Any, dtype: Any, chunks: Any) -> da.Array:
    """Make an array of zeros, in dask's default blocks unless `chunks` are sizes."""
    try:
        elements = np.dtype(dtype)
    except TypeError as error:
        raise TypeError(f"dtype={dtype!r} is not a dtype: {error}") from None
    if not elements.itemsize:
        raise TypeError(f"dtype={dtype!r} has no length: give it one, as in {elements.str[:2]}20")
    check_storable(elements)
    sizes = tuple(shape) if isinstance(shape, list | tuple) else (shape,)
    if not all(is_length(n) and n >= 0 for n in sizes):
        raise ValueError(f"shape={shape!r}: give the number of elements, 0 or more, for each axis")
    nbytes = math.prod(max(int(n), 1) for n in sizes) * elements.itemsize
    if nbytes > MAX_NBYTES:
        limit = f"the maximum is {MAX_NBYTES}"
        raise ValueError(f"shape={shape!r} of {elements} has {nbytes} bytes; {limit}")
    # one block if the sizes are known, since dask lists the length of each block; also for an empty
    # array, since dask would divide by its number of elements
    is_known = all(map(is_fixed, broadcast_sizes("chunks", chunks, len(sizes))))
    blocks = sizes if is_known or 0 in sizes else "auto"
    if blocks == "auto" and nbytes > LARGEST_DEFAULT_CHUNK * _MOST_BLOCKS:
        raise ValueError(f"shape={shape!r} is too large for the default of chunks=: give chunks=")
    zeros: da.Array = da.zeros(sizes, dtype=elements, chunks=blocks)
    return zeros


def part_job(arr: Any, location: Location, options: WriteOptions) -> WriteJob:
    """Make the job that stages a part of the frame created at a location.

    Raises FileNotFoundError if there is none, and ValueError if the region is not made of whole
    chunks or the array does not fit it.
    """
    pending, region = pending_at(location), options.region
    plan = pending.plan
    array = as_dask(arr, plan.dtype, snapshot=not options.compute)
    axes, singles = region_axes(region, plan.grid.shape)
    box = ChunkBox.of(corner_of(axes), tuple(map(len, axes)), plan.grid)
    # another part would write the rest of a cut chunk; an empty region has no chunks
    if all(axes) and box.axes(plan.grid) != axes:
        raise ValueError(
            f"region={region!r} cuts chunks of {plan.grid.chunks}, but a part must consist of "
            f"whole chunks: stage {box.region(plan.grid)}, or create the frame with other chunks"
        )
    array = broadcast_to_region(array, plan.grid, axes, singles)
    # the staging area records whole parts, not the chunks that a part's tasks have staged
    staging = replace(pending.staging, resumable=False)
    part = Part(plan, staging, box, frame_key=pending.frame_key)
    return WriteJob(part, opening(part), array, corner_of(axes), groups=True)
