"""Casts to the dtype of a frame that raise an error instead of losing more than precision."""

from __future__ import annotations

from typing import Any

import dask.array as da
import numpy as np

from b2nd_dask.frame.write.casts import cast_value, checked_cast, fits


def as_elements(value: Any, dtype: np.dtype[Any]) -> Any:
    """Convert numbers and lists to the dtype of a frame, where that can represent them.

    Nobody chose their own dtype: NumPy makes int64 of ``[1, 2]``, whatever it is for. So the
    numbers have to fit, not the dtype. Arrays have a dtype that was chosen, see `converted`.

    Parameters
    ----------
    value : object
        The argument of `to_b2nd`.

    Returns
    -------
    object
        An array of `dtype`. What the dtype cannot represent, and arrays, are returned as they are.

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
    elements = cast_value(np.asarray(value), dtype, "the value for the frame")
    # a constant dask array is recognized as such when it is written, and needs no task a block
    return da.full((), elements, dtype=elements.dtype) if not elements.ndim else elements


def converted(arr: da.Array, dtype: np.dtype[Any]) -> da.Array:
    """Cast an array to the dtype of the frame that it goes into.

    Raises
    ------
    TypeError
        Elements would lose more than floating-point precision. That an element is too large for
        the dtype, or a time between its units, shows when it is computed, as an OverflowError.
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
        name = "the array for the frame"
        cast = da.map_blocks(checked_cast, arr, dtype=dtype, wanted=dtype, name_in_error=name)
    return cast
