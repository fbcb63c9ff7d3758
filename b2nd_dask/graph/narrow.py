"""Items in a narrower dtype, as long as their magnitude fits."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray


def narrowed(block: Any, wanted: np.dtype[Any], place: str) -> NDArray[Any]:
    """Convert a block; NumPy would write numbers that are too large as infinity, and only warn.

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
    with np.errstate(over="raise"):
        try:
            return np.asarray(block, wanted)
        except FloatingPointError:
            problem = f"{place} has items that are too large for {wanted}"
    raise OverflowError(
        f"{problem}: they would be written as infinity. Where that is meant, convert by .astype "
        "before, or write a frame of a wider dtype"
    )
