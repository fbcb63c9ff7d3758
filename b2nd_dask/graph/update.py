"""Regions and appended rows as whole chunks: what an update has to write, and where."""

from __future__ import annotations

from typing import Any, NamedTuple

import dask.array as da
import numpy as np

from b2nd_dask.format.dtypes import fits
from b2nd_dask.frame.source import Frame
from b2nd_dask.graph.read import array_of


class Patch(NamedTuple):
    """New items for a frame, made of whole chunks but at the array's edges."""

    items: da.Array
    origin: tuple[int, ...]
    """Where the first item goes; the corner of a chunk."""
    shape: tuple[int, ...]
    """Of the whole array after the update."""


def region_patch(arr: da.Array, frame: Frame, region: tuple[slice, ...]) -> Patch:
    """Complete an array that goes to a region with the old items of the chunks it cuts.

    Parameters
    ----------
    arr : dask.array.Array
        Of the region's shape.
    frame : Frame
    region : tuple of slice
        One for each axis, with step 1.

    Returns
    -------
    Patch

    Raises
    ------
    ValueError
        A region that is no box in the array, or of another shape than `arr`.
    """
    bounds = _bounds(region, frame.shape)
    shape = tuple(stop - start for start, stop in bounds)
    if shape != arr.shape:
        raise ValueError(f"an array of shape {arr.shape} does not fill the region of shape {shape}")
    box = [
        (start // c * c, min(-(-stop // c) * c, n))
        for (start, stop), c, n in zip(bounds, frame.chunks, frame.shape, strict=True)
    ]
    origin = tuple(start for start, _ in box)
    if 0 in shape or box == bounds:
        return Patch(arr, origin, frame.shape)
    old, items, covered = array_of(frame, "auto"), arr, list(bounds)
    for axis, ((start, stop), (low, high)) in enumerate(zip(bounds, box, strict=True)):
        # what lies before and behind, as wide as what was put together so far
        before, behind = (
            old[tuple(slice(*edge) for edge in (*covered[:axis], cut, *covered[axis + 1 :]))]
            for cut in ((low, start), (stop, high))
        )
        items = da.concatenate([before, items, behind], axis=axis)
        covered[axis] = (low, high)
    return Patch(items, origin, frame.shape)


def append_patch(arr: da.Array, frame: Frame, axis: int) -> Patch:
    """Complete an array that is appended with the old items of last chunks that are not full.

    Parameters
    ----------
    arr : dask.array.Array
        Of the frame's shape, but for its length along `axis`.
    frame : Frame
    axis : int

    Returns
    -------
    Patch

    Raises
    ------
    ValueError
        No such axis, or another shape along the other axes.
    """
    if not -frame.ndim <= axis < frame.ndim:
        raise ValueError(f"append_axis={axis}: the array has {frame.ndim} axes")
    axis %= frame.ndim
    length, chunk = frame.shape[axis], frame.chunks[axis]
    rest = (*frame.shape[:axis], *frame.shape[axis + 1 :])
    if arr.ndim != frame.ndim or (*arr.shape[:axis], *arr.shape[axis + 1 :]) != rest:
        raise ValueError(
            f"an array of shape {arr.shape} cannot be appended to {frame.shape} along axis {axis}"
        )
    after = (*frame.shape[:axis], length + arr.shape[axis], *frame.shape[axis + 1 :])
    first = length // chunk * chunk
    origin = tuple(first if i == axis else 0 for i in range(frame.ndim))
    if first == length:
        return Patch(arr, origin, after)
    place = tuple(slice(first, None) if i == axis else slice(None) for i in range(frame.ndim))
    old = array_of(frame, "auto")[place]
    return Patch(da.concatenate([old, arr], axis=axis), origin, after)


def _bounds(region: Any, shape: tuple[int, ...]) -> list[tuple[int, int]]:
    given = region if isinstance(region, tuple) else (region,)
    if len(given) != len(shape) or not all(isinstance(axis, slice) for axis in given):
        raise ValueError(f"region={region!r} is not one slice for each of {len(shape)} axes")
    bounds = []
    for axis, n in zip(given, shape, strict=True):
        start, stop, step = axis.indices(n)
        # slices past the end would drop items without a word
        if step != 1 or stop < start or (axis.stop is not None and axis.stop > n):
            raise ValueError(f"{axis} is no range of an axis with {n} items; steps are not written")
        bounds.append((start, stop))
    return bounds


def converted(arr: da.Array, dtype: np.dtype[Any]) -> da.Array:
    """An array in the dtype of the frame that it goes into.

    Parameters
    ----------
    arr : dask.array.Array
    dtype : numpy.dtype

    Returns
    -------
    dask.array.Array

    Raises
    ------
    TypeError
        Items would lose more than floating-point or time precision.
    """
    if arr.dtype == dtype:
        return arr
    if not fits(arr.dtype, dtype):
        raise TypeError(
            f"items of dtype {arr.dtype} do not fit a frame of {dtype}; convert by .astype"
        )
    cast: da.Array = arr.astype(dtype)
    return cast
