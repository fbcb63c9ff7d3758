"""Elements in a narrower dtype, or times in a finer unit, as long as their magnitude fits."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray


def checked_cast(block: Any, wanted: np.dtype[Any], place: str) -> NDArray[Any]:
    """Convert a block, which NumPy does at any price.

    It makes infinity of numbers that are too large, and only warns; times wrap around in silence.

    Parameters
    ----------
    block : array-like
    wanted : numpy.dtype
    place : str
        Names the block in the error.

    Returns
    -------
    ndarray

    Raises
    ------
    OverflowError
        An element is too large for the dtype.
    """
    try:
        with np.errstate(over="raise"):
            elements = np.asarray(block, wanted)
    except FloatingPointError:
        raise OverflowError(
            f"{place} has elements that are too large for {wanted}: they would be written as "
            "infinity. Where that is meant, convert by .astype before, or write a frame of a wider "
            "dtype"
        ) from None
    if _has_wrapped(np.asarray(block), elements):
        raise OverflowError(
            f"{place} has times that are out of the range of {wanted}: they would become other "
            "times. Write a frame of a coarser unit"
        )
    return elements


def _has_wrapped(given: NDArray[Any], elements: NDArray[Any]) -> bool:
    """Whether there are times that are too far off for a finer unit."""
    if given.dtype == elements.dtype:
        return False
    if given.dtype.names and elements.dtype.names:
        # NumPy assigns fields by their places
        fields = zip(given.dtype.names, elements.dtype.names, strict=True)
        return any(_has_wrapped(given[one], elements[other]) for one, other in fields)
    if not given.dtype.kind == elements.dtype.kind in "mM":
        return False
    # NumPy calls casts safe that keep the kind and gain precision
    finer = np.can_cast(given.dtype, elements.dtype, "safe")
    same = (elements.astype(given.dtype) == given) | np.isnat(given)
    return finer and not bool(same.all())
