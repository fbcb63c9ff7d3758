"""Checked casts: elements with the dtype of a frame, or an error where they would change."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray


def fits(given: np.dtype[Any], wanted: np.dtype[Any]) -> bool:
    """Whether elements convert without loss, except of floating-point precision.

    Times fit if their values allow it, which `checked_cast` verifies.

    Examples
    --------
    >>> fits(np.dtype("f8"), np.dtype("f4")), fits(np.dtype("i8"), np.dtype("i4"))
    (True, False)
    """
    lossy = (wanted.kind in "fc" and given.kind in "iufc") or given.kind == wanted.kind in "mM"
    return np.can_cast(given, wanted, "same_kind" if lossy else "safe")


def cast_value(elements: NDArray[Any], dtype: np.dtype[Any], name_in_error: str) -> NDArray[Any]:
    """Cast elements with a dtype that no user chose: the values must fit, not the dtype.

    Returns the same elements if `dtype` cannot represent them. Raises OverflowError if a number is
    too large for a float type, or a time for the unit.

    Examples
    --------
    >>> u1 = np.dtype("u1")
    >>> cast_value(np.array(255), u1, "").dtype, cast_value(np.array(256), u1, "").dtype
    (dtype('uint8'), dtype('int64'))
    """
    if fits(elements.dtype, dtype):
        return checked_cast(elements, dtype, name_in_error)
    if elements.dtype.kind in "biu" and dtype.kind in "biu":
        cast = elements.astype(dtype)
        return cast if np.array_equal(cast, elements) else elements
    return elements


def cast_fill(fill: Any, dtype: np.dtype[Any]) -> NDArray[Any]:
    """Cast a scalar to a 0-d array; an error if more than its precision would change."""
    is_time = dtype.kind in "mM"
    given = np.array(fill, _dtype_of_text(fill, dtype) if isinstance(fill, str) else None)
    element = cast_value(given, dtype, f"fill={fill!r}").reshape(())
    problem = f"fill={fill!r} does not fit elements of {dtype}"
    if element.dtype != dtype:
        both_whole = given.dtype.kind in "iub" and dtype.kind in "iub"
        raise (OverflowError if both_whole else TypeError)(problem)
    if is_time and not np.array_equal(element, given.reshape(()), equal_nan=True):
        raise OverflowError(problem)
    return element


def _dtype_of_text(fill: str, dtype: np.dtype[Any]) -> np.dtype[Any] | str | None:
    """Choose the dtype of a text: dates have the unit in which they are written."""
    if dtype.kind == "M" and fill.strip().lower() not in ("nat", ""):
        return "M8"
    # durations as text, and NaT, have no unit
    return dtype if dtype.kind in "mM" else None


def checked_cast(block: Any, wanted: np.dtype[Any], name_in_error: str) -> NDArray[Any]:
    """Cast a block; raise OverflowError where NumPy would write infinity or other times."""
    try:
        with np.errstate(over="raise"):
            elements: NDArray[Any] | None = np.asarray(block, wanted)
    except FloatingPointError:
        raise OverflowError(
            f"{name_in_error} has elements that are too large for {wanted}: they would become "
            "infinity. Write a frame of a wider dtype; or convert by .astype first, if infinity "
            "is intended"
        ) from None
    except OverflowError:
        # NumPy 2.5 raises instead of wrapping times around
        elements = None
    if elements is None or _has_other_times(np.asarray(block), elements):
        raise OverflowError(
            f"{name_in_error} has times that {wanted} cannot hold: they are out of its range, or "
            "not multiples of its unit. Write a frame with another unit, or round the times first"
        )
    return elements


def _has_other_times(given: NDArray[Any], elements: NDArray[Any]) -> bool:
    """Whether some times are out of range for a finer unit, or between steps of a coarser one."""
    if given.dtype == elements.dtype:
        return False
    if given.dtype.names and elements.dtype.names:
        # NumPy assigns fields by position
        fields = zip(given.dtype.names, elements.dtype.names, strict=True)
        return any(_has_other_times(given[one], elements[other]) for one, other in fields)
    if not given.dtype.kind == elements.dtype.kind in "mM":
        return False
    return not bool(((elements.astype(given.dtype) == given) | np.isnat(given)).all())
