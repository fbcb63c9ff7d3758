"""Items in a narrower dtype, or times in a finer unit, as long as their magnitude fits."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray


def narrowed(block: Any, wanted: np.dtype[Any], place: str) -> NDArray[Any]:
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
        An item is too large for the dtype.
    """
    try:
        with np.errstate(over="raise"):
            items = np.asarray(block, wanted)
    except FloatingPointError:
        raise OverflowError(
            f"{place} has items that are too large for {wanted}: they would be written as "
            "infinity. Where that is meant, convert by .astype before, or write a frame of a wider "
            "dtype"
        ) from None
    if _has_wrapped(np.asarray(block), items):
        raise OverflowError(
            f"{place} has times that are out of the range of {wanted}: they would become other "
            "times. Write a frame of a coarser unit"
        )
    return items


def _has_wrapped(given: NDArray[Any], items: NDArray[Any]) -> bool:
    """Whether there are times that are too far off for a finer unit."""
    if given.dtype == items.dtype:
        return False
    if given.dtype.names and items.dtype.names:
        # NumPy assigns fields by their places
        fields = zip(given.dtype.names, items.dtype.names, strict=True)
        return any(_has_wrapped(given[one], items[other]) for one, other in fields)
    if not given.dtype.kind == items.dtype.kind in "mM":
        return False
    # NumPy calls casts safe that keep the kind and gain precision
    finer = np.can_cast(given.dtype, items.dtype, "safe")
    same = (items.astype(given.dtype) == given) | np.isnat(given)
    return finer and not bool(same.all())
