"""Count, minimum, maximum, mean and standard deviation of an array in one pass over its blocks.

What a block adds is one record for each element of the result. Records combine exactly as those of
the whole would have been: means by their weights, squared differences by the formula of Chan et al.
"""

from __future__ import annotations

from typing import Any

import dask.array as da
import numpy as np
from numpy.typing import NDArray

from b2nd_dask.errors import UnsupportedFrameError

#: Kinds of dtypes that have an order, that have means.
_ORDERED, _AVERAGED = "biufmM", "biufc"


def moments(x: da.Array, axis: tuple[int, ...] | None = None) -> da.Array:
    """Describe an array, without computing.

    Parameters
    ----------
    x : dask.array.Array
        Of booleans, numbers, dates or durations.
    axis : tuple of int, optional
        Axes that are reduced; all by default.

    Returns
    -------
    dask.array.Array
        Records: `n` (elements that are no NaN or NaT), `nan`, `zeros`, `min`, `max`, `mean` and
        `m2`, the sum of squared differences from the mean.
    """
    if not is_described(x.dtype):
        raise UnsupportedFrameError(
            f"elements are {x.dtype}: minimum and mean are those of numbers and dates"
        )
    record = record_of(x.dtype)
    records: da.Array = da.reduction(
        x,
        chunk=_of_block,
        combine=_together,
        aggregate=_together,
        axis=axis,
        dtype=record,
        meta=np.empty((0,) * (x.ndim - len(axis) if axis is not None else 0), record),
    )
    return records


def is_described(dtype: np.dtype[Any]) -> bool:
    """Whether elements of a dtype have a minimum or a mean."""
    return dtype.kind in _ORDERED + _AVERAGED


def record_of(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """What is kept of elements of a dtype."""
    fields: list[tuple[str, Any]] = [(name, np.int64) for name in ("n", "nan", "zeros")]
    if dtype.kind in _ORDERED:
        fields += [(name, _comparable(dtype)) for name in ("min", "max")]
    if dtype.kind in _AVERAGED:
        fields += [("mean", np.complex128 if dtype.kind == "c" else np.float64)]
        fields += [("m2", np.float64)]
    return np.dtype(fields)


def _comparable(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """Numbers in the order of the elements: dates and durations as they are stored."""
    if dtype.kind in "mM":
        return np.dtype(np.int64)
    return np.dtype(np.uint8) if dtype.kind == "b" else dtype.newbyteorder("=")


def _bounds(dtype: np.dtype[Any]) -> tuple[Any, Any]:
    """What no element is above, and what none is below."""
    if dtype.kind == "f":
        return np.inf, -np.inf
    limits = np.iinfo(dtype)
    return limits.max, limits.min


def _of_block(block: NDArray[Any], axis: tuple[int, ...], keepdims: bool) -> NDArray[Any]:
    """What a block adds."""
    shape = tuple(1 if number in axis else n for number, n in enumerate(block.shape))
    found = np.zeros(shape, record_of(block.dtype))
    missing = np.isnan(block) if block.dtype.kind in "fcmM" else None
    found["nan"] = 0 if missing is None else missing.sum(axis, keepdims=True)
    found["n"] = block.size // max(1, found.size) - found["nan"]
    if block.dtype.kind in "fcmM" and not found["nan"].any():
        missing = None
    valid: Any = True if missing is None else ~missing
    found["zeros"] = np.count_nonzero(block == np.zeros((), block.dtype), axis, keepdims=True)
    if "min" in found.dtype.names:
        numbers = _numbers(block)
        above, below = _bounds(numbers.dtype)
        found["min"] = numbers.min(axis, keepdims=True, initial=above, where=valid)
        found["max"] = numbers.max(axis, keepdims=True, initial=below, where=valid)
    if "mean" in found.dtype.names:
        with np.errstate(invalid="ignore", over="ignore"):
            _average(found, block, axis, valid)
    return found


def _numbers(block: NDArray[Any]) -> NDArray[Any]:
    native = block.astype(block.dtype.newbyteorder("="), copy=False)
    return native.view(_comparable(block.dtype)) if native.dtype.kind in "bmM" else native


def _average(found: NDArray[Any], block: NDArray[Any], axis: tuple[int, ...], valid: Any) -> None:
    total = block.sum(axis, dtype=found["mean"].dtype, keepdims=True, where=valid)
    found["mean"] = total / np.maximum(1, found["n"])
    if block.dtype.kind == "b":
        # without an array of floats
        found["m2"] = total * (1 - found["mean"])
        return
    off = np.abs(block - found["mean"])
    off *= off
    found["m2"] = np.sum(off, axis, keepdims=True, where=valid)


def _together(parts: NDArray[Any], axis: tuple[int, ...], keepdims: bool) -> NDArray[Any]:
    """What several blocks add together."""
    found = np.zeros(parts["n"].sum(axis, keepdims=True).shape, parts.dtype)
    for name in ("n", "nan", "zeros"):
        found[name] = parts[name].sum(axis, keepdims=True)
    if "min" in found.dtype.names:
        found["min"] = parts["min"].min(axis, keepdims=True)
        found["max"] = parts["max"].max(axis, keepdims=True)
    if "mean" in found.dtype.names:
        with np.errstate(invalid="ignore", over="ignore"):
            weights = parts["n"] / np.maximum(1, found["n"])
            found["mean"] = (weights * parts["mean"]).sum(axis, keepdims=True)
            off = np.abs(parts["mean"] - found["mean"])
            # of blocks without elements the mean says nothing
            between = np.where(parts["n"] > 0, parts["n"] * off * off, 0)
            found["m2"] = (parts["m2"] + between).sum(axis, keepdims=True)
    return found if keepdims else found.squeeze(axis)
