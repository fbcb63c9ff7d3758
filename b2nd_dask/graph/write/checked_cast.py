"""Casts to the dtype of a frame that raise an error instead of losing more than precision."""

from __future__ import annotations

from typing import Any

import dask.array as da
import numpy as np
from numpy.typing import NDArray


def fits(given: np.dtype[Any], wanted: np.dtype[Any]) -> bool:
    """Whether elements convert with no other loss than of floating-point or time precision.

    Examples
    --------
    >>> fits(np.dtype("f8"), np.dtype("f4")), fits(np.dtype("i8"), np.dtype("i4"))
    (True, False)
    """
    lossy = (wanted.kind in "fc" and given.kind in "iufc") or given.kind == wanted.kind in "mM"
    return np.can_cast(given, wanted, "same_kind" if lossy else "safe")


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
    elements = np.asarray(value)
    if fits(elements.dtype, dtype):
        elements = checked_cast(elements, dtype, "the value for the frame")
    elif elements.dtype.kind in "biu" and dtype.kind in "biu":
        cast = elements.astype(dtype)
        elements = cast if np.array_equal(cast, elements) else elements
    # a constant dask array is recognized as such when it is written, and needs no task a block
    return da.full((), elements, dtype=elements.dtype) if not elements.ndim else elements


def converted(arr: da.Array, dtype: np.dtype[Any]) -> da.Array:
    """Cast an array to the dtype of the frame that it goes into.

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
        name = "the array for the frame"
        cast = da.map_blocks(checked_cast, arr, dtype=dtype, wanted=dtype, name_in_error=name)
    return cast


def checked_cast(block: Any, wanted: np.dtype[Any], name_in_error: str) -> NDArray[Any]:
    """Cast a block; raise OverflowError where NumPy would write infinity or wrap times around."""
    try:
        with np.errstate(over="raise"):
            elements = np.asarray(block, wanted)
    except FloatingPointError:
        raise OverflowError(
            f"{name_in_error} has elements that are too large for {wanted}: they would be written "
            "as infinity. Where that is meant, convert by .astype before, or write a frame of a "
            "wider dtype"
        ) from None
    if _has_wrapped(np.asarray(block), elements):
        raise OverflowError(
            f"{name_in_error} has times that are out of the range of {wanted}: they would become "
            "other times. Write a frame of a coarser unit"
        )
    return elements


def _has_wrapped(given: NDArray[Any], elements: NDArray[Any]) -> bool:
    """Whether there are times that are too far off for a finer unit."""
    if given.dtype == elements.dtype:
        return False
    if given.dtype.names and elements.dtype.names:
        # NumPy assigns fields by position
        fields = zip(given.dtype.names, elements.dtype.names, strict=True)
        return any(_has_wrapped(given[one], elements[other]) for one, other in fields)
    if not given.dtype.kind == elements.dtype.kind in "mM":
        return False
    # NumPy calls casts safe that keep the kind and gain precision
    finer = np.can_cast(given.dtype, elements.dtype, "safe")
    same = (elements.astype(given.dtype) == given) | np.isnat(given)
    return finer and not bool(same.all())
