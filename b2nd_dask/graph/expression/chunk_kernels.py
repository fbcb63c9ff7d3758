"""Kernels that reduce elements to a partial result, in few passes over them.

dask's own chunk steps copy all elements to leave missing ones (NaN) out of a sum, and search them
again to count the others. Here a sum that is not NaN proves that no element is missing.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from b2nd_dask.frame.read.reduction import PartialResult
from b2nd_dask.graph._dask_compat import chunk

Axis = tuple[int, ...]

#: Dtypes in which narrow floats accumulate until a block is complete. A sum that is rounded to the
#: narrow dtype after each chunk overflows or loses digits, unlike NumPy's sum of the whole block.
_WIDER = {
    np.dtype("f2"): np.dtype("f8"),
    np.dtype("f4"): np.dtype("f8"),
    np.dtype("c8"): np.dtype("c16"),
}
_HALF = np.dtype("f2")

#: Takes elements; reduced axes, which keep length 1; `scratch`, whether it may overwrite the
#: elements; and the keywords of dask's chunk step.
Kernel = Callable[..., PartialResult]


def sum_kernel(
    elements: NDArray[Any],
    axis: Axis,
    dtype: Any = None,
    sum: Any = chunk.sum,  # noqa: A002 - dask's keyword
    *,
    scratch: bool = False,
) -> PartialResult:
    """Compute the partial result of `sum` or `nansum`."""
    return {"": _summed(sum, elements, axis, dtype, scratch)[0]}


def product_kernel(
    elements: NDArray[Any],
    axis: Axis,
    dtype: Any = None,
    *,
    skips_nan: bool = False,
    scratch: bool = False,
) -> PartialResult:
    """Compute the partial result of `prod` or `nanprod`."""
    if skips_nan and elements.dtype.kind in "fc":
        elements = _replaced(elements, np.isnan(elements), 1, scratch)
    return {"": _accumulated(np.prod, elements, axis, dtype)}


def count_kernel(elements: NDArray[Any], axis: Axis) -> NDArray[np.int64]:
    """Count the elements that are not missing."""
    missing = np.isnan(elements) if elements.dtype.kind in "fc" else None
    has_missing = missing is not None and missing.any()
    return _count(elements, axis, missing if has_missing else None)


def mean_kernel(
    elements: NDArray[Any],
    axis: Axis,
    dtype: Any = "f8",
    sum: Any = chunk.sum,  # noqa: A002 - dask's keyword
    *,
    scratch: bool = False,
    **_: Any,
) -> PartialResult:
    """Compute the partial result of `mean`, or of `nanmean`, whose `sum` skips missing ones."""
    total, missing = _summed(sum, elements, axis, dtype, scratch)
    return {"n": _count(elements, axis, missing), "total": total}


def moment_kernel(
    elements: NDArray[Any],
    axis: Axis,
    dtype: Any = "f8",
    sum: Any = chunk.sum,  # noqa: A002 - dask's keyword
    implicit_complex_dtype: bool = False,
    *,
    scratch: bool = False,
    **_: Any,
) -> PartialResult:
    """Compute the partial result of `var` and `std`, or `nanvar` and `nanstd`."""
    own = None if implicit_complex_dtype else dtype
    total, missing = _summed(sum, elements, axis, own, scratch)
    n = _count(elements, axis, missing)
    with np.errstate(divide="ignore", invalid="ignore"):
        mean = total / n
        in_place = scratch and elements.dtype == mean.dtype
        deviations = np.subtract(elements, mean, out=elements if in_place else None)
    if deviations.dtype.kind == "c":
        deviations = np.abs(deviations)
    squares = np.square(deviations, out=deviations)
    if missing is not None:
        np.copyto(squares, 0, where=missing)
    summed, _missing = _summed(sum, squares, axis, dtype, scratch=True)
    return {"total": total, "n": n, "M": summed[..., None]}


def extreme_kernel(
    ufunc: np.ufunc, elements: NDArray[Any], axis: Axis, *, scratch: bool = False, **keywords: Any
) -> PartialResult:
    """Compute the partial result of a reduction by a ufunc, such as `np.minimum`."""
    return {"": ufunc.reduce(elements, axis=axis, keepdims=True, **keywords)}


def _summed(
    func: Any, elements: NDArray[Any], axis: Axis, dtype: Any, scratch: bool
) -> tuple[NDArray[Any], NDArray[np.bool_] | None]:
    """Sum elements like dask's `func`; also return the mask of missing ones if it skips any."""
    if func is chunk.sum:
        return _accumulated(np.sum, elements, axis, dtype), None
    kind = elements.dtype.kind
    # a sum in another kind (integers, or real parts) may hide that elements are missing
    if kind not in "fc" or dtype is None or np.dtype(dtype).kind in ("c", kind):
        with np.errstate(invalid="ignore"):
            total = _accumulated(np.sum, elements, axis, dtype)
        if kind not in "fc" or not np.isnan(total).any():
            return total, None
    missing = np.isnan(elements)
    present = _replaced(elements, missing, 0, scratch)
    return _accumulated(np.sum, present, axis, dtype), missing


def _accumulated(func: Any, elements: NDArray[Any], axis: Axis, dtype: Any) -> NDArray[Any]:
    """Sum or multiply elements; narrow floats in a wider dtype, if they might overflow."""
    narrow = elements.dtype if dtype is None else np.dtype(dtype)
    wide = _WIDER.get(narrow.newbyteorder("="))
    total: NDArray[Any]
    if wide is None:
        total = func(elements, axis=axis, dtype=dtype, keepdims=True)
        return total
    with np.errstate(over="ignore", invalid="ignore"):
        # NumPy's own sums of 4-byte floats lose little, and take half of the time
        if func is np.sum and narrow.newbyteorder("=") != _HALF:
            total = np.sum(elements, axis=axis, dtype=dtype, keepdims=True)
            if np.isfinite(total).all():
                return total.astype(wide)
        narrowed = elements.astype(narrow, copy=False)
        total = func(narrowed, axis=axis, dtype=wide, keepdims=True)
        return total


def _count(
    elements: NDArray[Any], axis: Axis, missing: NDArray[np.bool_] | None
) -> NDArray[np.int64]:
    """Number of elements that are not missing."""
    shape = [1 if i in axis else length for i, length in enumerate(elements.shape)]
    total = math.prod(elements.shape[i] for i in axis)
    if missing is None:
        return np.broadcast_to(np.int64(total), shape)
    if len(axis) == missing.ndim:
        return np.full(shape, total - np.count_nonzero(missing))
    # counts below 256 fit in bytes, whose sum takes a tenth of the time
    narrow = np.uint8 if total < 256 else np.int64
    nmissing = np.sum(missing.view(np.uint8), axis=axis, dtype=narrow, keepdims=True)
    counts: NDArray[np.int64] = total - nmissing.astype(np.int64)
    return counts


def _replaced(
    elements: NDArray[Any], missing: NDArray[np.bool_], by: int, scratch: bool
) -> NDArray[Any]:
    """Elements with a number in place of missing ones; a copy, unless they are scratch."""
    replaced = elements if scratch else elements.copy()
    np.copyto(replaced, by, where=missing)
    return replaced
