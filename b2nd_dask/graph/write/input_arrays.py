"""Conversion of array-likes to dask arrays, in the frame's dtype and in blocks of whole chunks."""

from __future__ import annotations

from typing import Any

import dask.array as da
import numpy as np
from numpy.typing import NDArray

from b2nd_dask.frame.access import is_opened_array
from b2nd_dask.frame.array import Frame
from b2nd_dask.frame.write.new_frame import check_storable
from b2nd_dask.frame.write.writer import cast_value, checked_cast, fits
from b2nd_dask.graph import _dask_compat
from b2nd_dask.graph.read.blocks import constant_of
from b2nd_dask.graph.read.from_b2nd import expressions, from_b2nd, is_expression
from b2nd_dask.graph.read.sizes import aligned_sizes
from b2nd_dask.graph.write.numpy_arrays import array_in_blocks, from_numpy, numpy_source


def as_dask(
    arr: Any, dtype: np.dtype[Any] | None = None, *, named: bool = False, snapshot: bool = False
) -> da.Array:
    """Make a dask array of anything array-like, block by block if it has chunks.

    `dtype` is that of an existing frame; `named` and `snapshot` as for `from_numpy`.

    Raises TypeError for masked arrays, for a dtype that a frame cannot hold, and if a cast to
    `dtype` would lose more than floating-point precision; ValueError for an array of unknown shape.
    If an element is too large for `dtype`, or a time is no multiple of its unit, the computation
    raises OverflowError.
    """
    if dtype is not None:
        return _converted(as_dask(_as_elements(arr, dtype), named=named, snapshot=snapshot), dtype)
    # an array of xarray may hold a mapped file
    arr = held_by(arr)
    if not hasattr(arr, "dtype"):
        arr = np.asarray(arr)
    # checked first: dask has no chunks for such arrays
    _check_elements(arr)
    if isinstance(arr, Frame) or is_opened_array(arr) or getattr(arr, "ndim", None) is None:
        # from_b2nd raises the error if it is no array at all
        return from_b2nd(arr)
    array: da.Array
    if isinstance(arr, np.ndarray):
        array = from_numpy(arr, named=named, snapshot=snapshot)
    elif is_expression(arr):
        array = expressions().classic_array(arr)
    else:
        array = da.asarray(arr)
    if any(np.isnan(n) for n in array.shape):
        raise ValueError(
            f"the array has chunks of unknown size (shape {array.shape}): call "
            ".compute_chunk_sizes() first"
        )
    if not isinstance(array.dtype, np.dtype):
        # an array expression has the dtype as passed to map_blocks, for instance `float`
        dtype = np.dtype(array.dtype)
        meta = np.empty((0,) * array.ndim, dtype)
        array = da.map_blocks(np.asarray, array, dtype=dtype, meta=meta)
    return array


def is_labelled(given: Any) -> bool:
    """Whether an object comes from xarray; does not import xarray."""
    return any(base.__module__.split(".")[0] == "xarray" for base in type(given).__mro__)


def held_by(arr: Any) -> Any:
    """The array inside a labelled array of xarray; any other object unchanged."""
    return arr.data if is_labelled(arr) and hasattr(arr, "dtype") else arr


def _check_elements(arr: Any) -> None:
    """Raise TypeError if a frame cannot hold the elements of an array."""
    try:
        dtype = np.dtype(arr.dtype)
    except TypeError:
        raise TypeError(
            f"a frame cannot hold a {type(arr).__name__}, which has no NumPy dtype: convert it "
            "first, for instance by .astype, .to_numpy or da.from_delayed"
        ) from None
    check_storable(dtype)
    if isinstance(getattr(arr, "_meta", arr), np.ma.MaskedArray):
        raise TypeError(
            "a masked array cannot be written or compressed, since a frame has no masks: pass "
            "da.ma.filled(x, value)"
        )


def _as_elements(value: Any, dtype: np.dtype[Any]) -> Any:
    """Convert numbers and lists to the dtype of a frame if it can represent them.

    The user did not choose their dtype: NumPy makes int64 of any ``[1, 2]``. So the numbers must
    fit, not the dtype. Arrays, whose dtype the user chose, and numbers that do not fit are returned
    unchanged.
    """
    is_scalar = isinstance(value, np.generic) or (type(value) is np.ndarray and value.ndim == 0)
    if hasattr(value, "dtype") and not is_scalar:
        return value
    elements = cast_value(np.asarray(value), dtype, "the value for the frame")
    # a constant dask array is recognized when it is written: it needs no task for each block
    return da.full((), elements, dtype=elements.dtype) if not elements.ndim else elements


def _converted(arr: da.Array, dtype: np.dtype[Any]) -> da.Array:
    """Cast an array to the dtype of its frame; errors as for `as_dask`."""
    if arr.dtype == dtype:
        return arr
    if not fits(arr.dtype, dtype):
        raise TypeError(
            f"elements of dtype {arr.dtype} do not fit a frame of {dtype}; convert by .astype"
        )
    # for times (also in fields) NumPy's can_cast ignores the range
    if dtype.kind not in "mMV" and np.can_cast(arr.dtype, dtype):
        cast: da.Array = arr.astype(dtype)
    else:
        name = "the array for the frame"
        cast = da.map_blocks(checked_cast, arr, dtype=dtype, wanted=dtype, name_in_error=name)
    return cast


def constant_element(arr: da.Array) -> NDArray[Any] | None:
    """The 0-d element of an array made by `da.zeros`, `da.full` and the like; else None.

    Examples
    --------
    >>> constant_element(da.full((10**6, 10**6), 2.5))
    array(2.5)
    >>> constant_element(da.zeros(5) + 1) is None
    True
    """
    layers = _dask_compat.layers_of(arr)
    return constant_of(layers.get(arr.name), arr.ndim) if len(layers) == 1 else None


def aligned_to(arr: da.Array, chunks: tuple[int, ...]) -> da.Array:
    """Give an array blocks of whole frame chunks, with the sizes of `aligned_sizes`.

    A plain NumPy array is cut into the new blocks. Any other array is rechunked; frames are then
    read in the new blocks if that costs little.
    """
    wanted = aligned_sizes(arr.chunks, chunks, arr.dtype.itemsize)
    if wanted == arr.chunks:
        return arr
    source = numpy_source(arr)
    return arr.rechunk(wanted) if source is None else array_in_blocks(source, wanted)
