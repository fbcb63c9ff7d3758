"""What is assigned to a frame: its elements in the frame's dtype, spread over the region."""

from __future__ import annotations

import itertools
import math
from typing import Any

import dask.array as da
import numpy as np
from numpy.typing import NDArray

from b2nd_dask.format.dtypes import fits
from b2nd_dask.frame.reference import FrameReference
from b2nd_dask.graph.read.blocks import Chunks
from b2nd_dask.graph.read.from_frame import block_sizes
from b2nd_dask.graph.write.checked_cast import checked_cast
from b2nd_dask.graph.write.constants import constant_element

Bounds = list[tuple[int, int]]


def as_elements(value: Any, dtype: np.dtype[Any]) -> Any:
    """Numbers and lists in the dtype of a frame, where that has them.

    Their own dtype is nobody's choice: NumPy makes int64 of ``[1, 2]``, whatever it is for. So it
    is the numbers that have to fit. Arrays have a dtype that was chosen, see `converted`.

    Parameters
    ----------
    value : object
        What is given to `to_b2nd`.
    dtype : numpy.dtype

    Returns
    -------
    object
        An array of `dtype`; what does not fit, and arrays, as they are.

    Raises
    ------
    OverflowError
        A number is too large for a float type.

    Examples
    --------
    >>> as_elements([1, 2], np.dtype("u1")).dtype, as_elements([1, 300], np.dtype("u1")).dtype
    (dtype('uint8'), dtype('int64'))
    """
    is_scalar = isinstance(value, np.generic) or (type(value) is np.ndarray and value.ndim == 0)
    if hasattr(value, "dtype") and not is_scalar:
        return value
    elements = np.asarray(value)
    if fits(elements.dtype, dtype):
        elements = checked_cast(elements, dtype, "the value for the frame")
    elif elements.dtype.kind in "biu" and dtype.kind in "biu":
        cast = elements.astype(dtype)
        elements = cast if np.array_equal(cast, elements) else elements
    # one element is recognized again, and needs no task a block
    return da.full((), elements, dtype=elements.dtype) if not elements.ndim else elements


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
        Elements would lose more than floating-point or time precision. That an element is too large
        for the dtype shows when it is computed, as an OverflowError.
    """
    if arr.dtype == dtype:
        return arr
    if not fits(arr.dtype, dtype):
        raise TypeError(
            f"elements of dtype {arr.dtype} do not fit a frame of {dtype}; convert by .astype"
        )
    # of times, which fields may be, NumPy looks at the unit, not at the range
    if dtype.kind not in "mMV" and np.can_cast(arr.dtype, dtype):
        cast: da.Array = arr.astype(dtype)
    else:
        place = "the array for the frame"
        cast = da.map_blocks(checked_cast, arr, dtype=dtype, wanted=dtype, place=place)
    return cast


def spread(arr: da.Array, frame: FrameReference, bounds: Bounds, singles: list[int]) -> da.Array:
    """An array as large as a region, by the rules of NumPy's assignment; only views are repeated.

    Parameters
    ----------
    arr : dask.array.Array
    frame : FrameReference
    bounds : list of tuple of int
        Where the region begins and ends along each axis.
    singles : list of int
        Axes that the region names by an integer: the array has them at length 1, or not at all.

    Returns
    -------
    dask.array.Array

    Raises
    ------
    ValueError
        An array that does not broadcast to the region.
    """
    shape = tuple(stop - start for start, stop in bounds)
    if arr.shape == shape:
        return arr
    aligned = _with_axes_of(shape, singles, arr)
    if aligned.shape == shape:
        return aligned
    if 0 in shape:
        nothing: da.Array = da.zeros(shape, dtype=arr.dtype, chunks=shape)
        return nothing
    sizes = _block_sizes(frame, bounds)
    element = constant_element(arr)
    wide: da.Array
    if element is None:
        # dask copies slices of views, so views are made as they are written; and not by
        # broadcast_to, which array.query-planning does not have
        like = da.zeros(shape, dtype=arr.dtype, chunks=sizes)
        lengths = zip(aligned.shape, sizes, strict=True)
        aligned = aligned.rechunk(tuple((1,) if n == 1 else axis for n, axis in lengths))
        wide = da.map_blocks(_widened, aligned, like, dtype=arr.dtype, chunks=sizes)
    else:
        wide = da.full(shape, element, dtype=arr.dtype, chunks=sizes)
    return wide


def _widened(block: NDArray[Any], like: NDArray[Any]) -> NDArray[Any]:
    return np.broadcast_to(block, like.shape)


def _with_axes_of(shape: tuple[int, ...], singles: list[int], arr: da.Array) -> da.Array:
    """An array with the axes of a region; those that are to be repeated have length 1."""
    axes = [axis for axis in range(len(shape)) if axis not in singles]
    # as NumPy does, which drops what is too much in front
    extra = max(0, arr.ndim - len(axes))
    lengths = arr.shape[extra:]
    axes = axes[len(axes) - len(lengths) :]
    matches = (n in (1, shape[axis]) for n, axis in zip(lengths, axes, strict=True))
    if math.prod(arr.shape[:extra]) != 1 or not all(matches):
        raise ValueError(
            f"an array of shape {arr.shape} does not fill the region of shape {shape}, and does "
            "not broadcast to it"
        )
    # by two steps: integers and new axes in one are computed wrong with array.query-planning
    dropped: da.Array = arr[(0,) * extra] if extra else arr
    index = tuple(slice(None) if axis in axes else None for axis in range(len(shape)))
    aligned: da.Array = dropped[index]
    return aligned


def _block_sizes(frame: FrameReference, bounds: Bounds) -> Chunks:
    """Sizes of blocks that end where those of the old elements do, which they are joined with."""
    sizes = []
    for (start, stop), axis in zip(bounds, block_sizes(frame, "auto"), strict=True):
        inner = [edge for edge in itertools.accumulate(axis) if start < edge < stop]
        sizes.append(tuple(b - a for a, b in itertools.pairwise([start, *inner, stop])))
    return tuple(sizes)
