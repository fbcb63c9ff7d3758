"""Changes of frames: an update writes a region or appends.

Chunks that are covered only in part are completed by old elements.
"""

from __future__ import annotations

import itertools
import math
import operator
from functools import partial
from typing import Any

import dask.array as da
import numpy as np
from dask.base import tokenize
from numpy.typing import NDArray

from b2nd_dask.format.grid import Grid, expand_ellipsis, parse_selection
from b2nd_dask.frame.open.cache import process_cache
from b2nd_dask.frame.read.plan import Axes
from b2nd_dask.frame.read.scan import content_digest
from b2nd_dask.frame.reference import FrameReference
from b2nd_dask.frame.write.new_frame import pack_entries
from b2nd_dask.frame.write.records import ChunkBox
from b2nd_dask.frame.write.transaction import Transaction
from b2nd_dask.frame.write.update import (
    Update,
    entries_digest,
    require_no_coordinates,
    state_of,
    update_plan,
)
from b2nd_dask.graph.read.from_b2nd import array_of
from b2nd_dask.graph.read.sizes import sizes_in
from b2nd_dask.graph.write.input_arrays import as_dask
from b2nd_dask.graph.write.options import WriteOptions, check_existing
from b2nd_dask.graph.write.write_tasks import WriteJob, constant_element, opening
from b2nd_dask.storage import list_staging, update_staging_for


def update_job(arr: Any, frame: FrameReference, options: WriteOptions) -> WriteJob:
    """Make the job that changes a frame, planned on its current state.

    Raises ValueError if the array does not fit the region or the axis, or options contradict the
    frame, UnsupportedFrameError if the frame cannot be changed in place; else as `as_dask`.
    """
    is_delayed, location = not options.compute, frame.location
    array = as_dask(arr, frame.dtype, named=options.resume, snapshot=is_delayed)
    check_existing(frame, array, options)
    entries = None if options.entries is None else options.entries(frame)
    staging_of = partial(update_staging_for, location, state_of(frame.parsed), fsync=options.fsync)
    # raises if the frame cannot be changed in place, before any read of it
    staging, call = staging_of(), ""
    if options.resume:
        call = options.change_key(array, location.label)
        if (key := _key_of_finished_run(frame, call)) is not None:
            done = Transaction(update_plan(frame.parsed, frame.shape), staging_of(resume_key=key))
            return WriteJob(done, opening(done), array, (0,) * frame.ndim)
    array, axes = _fit(array, frame, options)
    stops = (along.stop for along in axes)
    plan = update_plan(frame.parsed, tuple(map(max, frame.shape, stops)))
    box = ChunkBox.of(corner_of(axes), tuple(map(len, axes)), plan.grid)
    whole = box.axes(plan.grid)
    keeps_old = 0 not in array.shape and whole != axes
    if options.resume:
        old = box.within(frame.grid).chunks(frame.grid) if keeps_old else np.empty(0, np.int64)
        key = _key_of_new_run(call, frame, (corner_of(axes), plan), old)
        staging = staging_of(resume_key=key)
    # the frame may be updated concurrently while the old elements of cut chunks are read
    elements = _completed(array, frame.following(), axes, whole) if keeps_old else array
    state = frame.parsed.token, frame.shape, box, keeps_old, entries_digest(frame.parsed, box)
    packed = pack_entries(entries, compressed=True)
    update = Update(plan, staging, *state, packed, is_delayed=is_delayed)
    return WriteJob(update, opening(update), elements, corner_of(whole), groups=True)


def _fit(array: da.Array, frame: FrameReference, options: WriteOptions) -> tuple[da.Array, Axes]:
    """Broadcast an array to its region, or check it for an append; also return its positions."""
    if options.region is not None:
        axes, singles = region_axes(options.region, frame.shape)
        return broadcast_to_region(array, frame.grid, axes, singles), axes
    axis = int(options.append_axis or 0)
    axes = _appended_axes(array, frame.shape, axis)
    if options.entries is None:
        require_no_coordinates(frame, axis)
    return array, axes


def _key_of_new_run(
    call: str, frame: FrameReference, target: tuple[Any, ...], old: NDArray[np.int64]
) -> str:
    """The key of an update that is not published; `old` are chunks that keep some old elements.

    It depends on the digest of these chunks. It does not depend on the time and size of the file
    (nor on names of tasks that read it), which change if a commit is killed, nor on other chunks,
    which concurrent updates may change.
    """
    content = content_digest(process_cache.open(frame.location, frame.version), old)
    keys = (call + tokenize(*target, content, n)[:8] for n in itertools.count())
    # a key in the history is that of an earlier update with the same elements, which other updates
    # may have overwritten since
    return next(key for key in keys if key not in frame.parsed.keys)


def corner_of(axes: Axes) -> tuple[int, ...]:
    """The first position along each axis."""
    return tuple(along.start for along in axes)


def _key_of_finished_run(frame: FrameReference, call: str) -> str | None:
    """The key of a run of this call that failed or was killed after its publication; else None.

    The frame's history contains its key, and its staging area still exists. A second run would
    append twice.
    """
    keys = [key for key in frame.parsed.keys if key.startswith(call)]
    # listed only if needed: it takes long in a directory of many files
    left = {info.key for info in list_staging(frame.location.urlpath)} if keys else set()
    return next((key for key in keys if key in left), None)


def checked_axis(axis: int, ndim: int) -> int:
    """Normalize the number of an axis of a frame; raise ValueError if there is none."""
    if not -ndim <= axis < ndim:
        raise ValueError(
            f"append_axis={axis}: the array in the frame has {ndim} axes; choose one of them"
        )
    return axis % ndim


def _appended_axes(arr: da.Array, shape: tuple[int, ...], axis: int) -> Axes:
    """Positions of an array that is appended to a frame of the given shape.

    Raises ValueError if there is no such axis, or if lengths along the other axes differ.
    """
    axis = checked_axis(axis, len(shape))
    rest = (*shape[:axis], *shape[axis + 1 :])
    if arr.ndim != len(shape) or (*arr.shape[:axis], *arr.shape[axis + 1 :]) != rest:
        hint = f"; add that axis by da.expand_dims(x, {axis})" if arr.shape == rest else ""
        raise ValueError(
            f"an array of shape {arr.shape} cannot be appended along axis {axis} to a frame of "
            f"shape {shape}: the other axes differ{hint}"
        )
    axes = list(map(range, shape))
    axes[axis] = range(shape[axis], shape[axis] + arr.shape[axis])
    return tuple(axes)


def _completed(arr: da.Array, frame: FrameReference, axes: Axes, whole: Axes) -> da.Array:
    """Complete new elements to whole chunks by the old elements around them."""
    old, elements, covered = array_of(frame, "auto"), arr, list(axes)
    for axis, (along, wide) in enumerate(zip(axes, whole, strict=True)):
        # old elements before and behind; earlier axes are complete already
        index = [slice(each.start, each.stop) for each in covered]
        before, behind = (
            old[(*index[:axis], slice(*cut), *index[axis + 1 :])]
            for cut in ((wide.start, along.start), (along.stop, wide.stop))
        )
        elements = da.concatenate([before, elements, behind], axis=axis)
        covered[axis] = wide
    return elements


def region_axes(region: Any, shape: tuple[int, ...]) -> tuple[Axes, list[int]]:
    """Positions of a region along each axis, and the axes with an integer index."""
    index = list(region) if isinstance(region, tuple) else [region]
    for part in index:
        if part is None:
            raise ValueError(f"region={region!r}: a region has no new axes; remove None")
        if isinstance(part, bool) or not _is_basic(part):
            kind = type(part).__name__
            raise ValueError(
                f"region= takes integers, slices of step 1 and ..., not a {kind}. "
                'To change other elements, assign to the dask array, and write it with mode="w"'
            )
    try:
        selection = parse_selection(tuple(index), shape)
        axes = expand_ellipsis(index, len(shape))
    except IndexError as error:
        raise ValueError(f"region={region!r} of an array of shape {shape}: {error}") from None
    for axis, n in zip(axes, shape, strict=True):
        if not isinstance(axis, slice):
            continue
        start, stop, step = axis.indices(n)
        # slices past the end would drop elements silently
        if axis.stop is not None and axis.stop > n:
            hint = "append_axis= makes the axis longer"
        elif step != 1:
            hint = "the step must be 1"
        elif stop < start:
            hint = "its stop is before its start"
        else:
            continue
        raise ValueError(
            f"region={region!r}: {axis} is not a range of an axis with {n} elements; {hint}"
        )
    return selection.axes, [i for i, axis in enumerate(axes) if not isinstance(axis, slice)]


def _is_basic(part: Any) -> bool:
    try:
        operator.index(part)
    except TypeError:
        return isinstance(part, slice) or part is Ellipsis
    return True


def broadcast_to_region(arr: da.Array, grid: Grid, axes: Axes, singles: list[int]) -> da.Array:
    """Broadcast an array to a region as NumPy's assignment does, without copying its elements.

    `grid` is the frame's. Axes of `singles`, those with an integer index, have length 1 in the
    array or are missing. Raises ValueError if the array does not broadcast.
    """
    shape = tuple(map(len, axes))
    if arr.shape == shape:
        return arr
    aligned = _with_axes_of(shape, singles, arr)
    if aligned.shape == shape:
        return aligned
    blocks = da.zeros(grid.shape, chunks=sizes_in(grid, arr.dtype, "auto"))
    # these blocks end where whole chunks of the frame end
    sizes = blocks[tuple(slice(along.start, along.stop) for along in axes)].chunks
    element = np.zeros((), arr.dtype) if 0 in shape else constant_element(arr)
    wide: da.Array
    if element is None:
        # views are made in the write tasks, since dask copies slices of views; da.broadcast_to is
        # missing with array.query-planning
        like = da.zeros(shape, dtype=arr.dtype, chunks=sizes)
        lengths = zip(aligned.shape, sizes, strict=True)
        aligned = aligned.rechunk(tuple((1,) if n == 1 else axis for n, axis in lengths))
        wide = da.map_blocks(_broadcast, aligned, like, dtype=arr.dtype, chunks=sizes)
    else:
        wide = da.full(shape, element, dtype=arr.dtype, chunks=sizes)
    return wide


def _broadcast(block: NDArray[Any], like: NDArray[Any]) -> NDArray[Any]:
    return np.broadcast_to(block, like.shape)


def _with_axes_of(shape: tuple[int, ...], singles: list[int], arr: da.Array) -> da.Array:
    """Give an array the axes of a region; broadcast axes have length 1."""
    axes = [axis for axis in range(len(shape)) if axis not in singles]
    # NumPy drops leading axes of length 1
    extra = max(0, arr.ndim - len(axes))
    lengths = arr.shape[extra:]
    axes = axes[len(axes) - len(lengths) :]
    matches = (n in (1, shape[axis]) for n, axis in zip(lengths, axes, strict=True))
    if math.prod(arr.shape[:extra]) != 1 or not all(matches):
        raise ValueError(
            f"an array of shape {arr.shape} does not broadcast to the region of shape {shape}: "
            "give an array of that shape"
        )
    # two steps: integers and new axes in one index give wrong results with array.query-planning
    dropped: da.Array = arr[(0,) * extra] if extra else arr
    index = tuple(slice(None) if axis in axes else None for axis in range(len(shape)))
    aligned: da.Array = dropped[index]
    return aligned
