"""Sums and products of narrow floats, in a wider dtype until a block is complete.

Chunks of a frame are reduced one by one. A sum that is rounded to its dtype for each of them
overflows, or loses digits, where NumPy's sum of the whole block does not.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from b2nd_dask.graph._dask_compat import chunk, reductions
from b2nd_dask.graph.optimize.calls.expression import is_among

_WIDER = {
    np.dtype("f2"): np.dtype("f8"),
    np.dtype("f4"): np.dtype("f8"),
    np.dtype("c8"): np.dtype("c16"),
}
_HALF = np.dtype("f2")
_SUMS = frozenset({chunk.sum, chunk.nansum})
_TOTALS = _SUMS | {chunk.prod, chunk.nanprod}


def wider(dtype: np.dtype[Any]) -> np.dtype[Any] | None:
    """The dtype that results of a narrower one are accumulated in.

    Returns
    -------
    numpy.dtype or None
        None for dtypes that are added up as they are.
    """
    return _WIDER.get(dtype.newbyteorder("="))


def accumulating(func: Callable[..., Any]) -> Callable[..., Any] | None:
    """Make dask's chunk step of a sum, product, mean or moment accumulate in a wider dtype.

    Parameters
    ----------
    func : callable
        The chunk step; perhaps in partials, without positional arguments.

    Returns
    -------
    callable or None
        Its results are not rounded, and of either dtype. None where nothing would change.
    """
    base: Any = func
    keywords: dict[str, Any] = {}
    while isinstance(base, partial):
        base, keywords = base.func, {**base.keywords, **keywords}
    if "dtype" in keywords and wider(np.dtype(keywords["dtype"])) is None:
        return None
    if is_among(base, _TOTALS):
        return partial(_total, base, **keywords)
    total = keywords.get("sum", chunk.sum)
    count = keywords.get("numel", reductions.numel)
    own = {"sum": partial(_total, total), "numel": partial(_count, count)}
    return partial(base, **{**keywords, **own})


def _total(
    func: Callable[..., Any], elements: NDArray[Any], *, dtype: Any = None, **keywords: Any
) -> Any:
    narrow = elements.dtype if dtype is None else np.dtype(dtype)
    wide = wider(narrow)
    if wide is None:
        return func(elements, dtype=dtype, **keywords)
    with np.errstate(over="ignore", invalid="ignore"):
        # NumPy's own sums lose little of four bytes, and take half of the time
        if func in _SUMS and narrow.newbyteorder("=") != _HALF:
            total = func(elements, dtype=dtype, **keywords)
            if np.isfinite(total).all():
                return total
        return func(elements.astype(narrow, copy=False), dtype=wide, **keywords)


def _count(
    func: Callable[..., Any], elements: NDArray[Any], *, dtype: Any = None, **keywords: Any
) -> Any:
    if dtype is None:
        return func(elements, **keywords)
    return func(elements, dtype=wider(np.dtype(dtype)) or dtype, **keywords)
