"""Grouped reductions of flox, by which xarray's `groupby` and `resample` reduce arrays of dask.

flox reduces each block by `flox.core.chunk_reduce`, which knows its steps by name and sorts single
elements into groups. Kernels take the place of the names: along an axis such as time, neighbours
mostly belong to one group, and NumPy reduces such a run in one call. The groups, the combination
of blocks and the result remain flox's.
"""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from b2nd_dask.graph._dask_compat import DaskChangedError, chunk, resolved, warn_once
from b2nd_dask.graph.expression.chunk_kernels import count_kernel, sum_kernel
from b2nd_dask.graph.expression.elementwise import is_among

#: The private names of flox, with their parameters in version 0.11, which was checked.
_NAMES = {
    "core": {
        "chunk_reduce": (
            "array, by, func, expected_groups, axis, fill_value, dtype, reindex, engine, kwargs, "
            "sort, user_dtype"
        )
    },
    "aggregations": {
        "generic_aggregate": (
            "group_idx, array, engine, func, axis, size, fill_value, dtype, **kwargs"
        )
    },
}
#: Minimum number of elements of a run: NumPy's call for a shorter one takes longer than flox.
_LEAST_RUN = 1 << 12


def _extreme(ufunc: np.ufunc, elements: NDArray[Any], dtype: np.dtype[Any]) -> Any:
    return ufunc.reduce(elements, axis=0)


def _summed(sum_of: Any, elements: NDArray[Any], dtype: np.dtype[Any]) -> Any:
    return sum_kernel(elements, (0,), dtype, sum_of)[""][0]


#: The ufunc that combines the runs of a group, and the reduction of a run, by flox's names.
_STEPS: dict[str, tuple[np.ufunc, Callable[..., Any]]] = {
    "sum": (np.add, partial(_summed, chunk.sum)),
    "nansum": (np.add, partial(_summed, chunk.nansum)),
    "len": (np.add, lambda elements, dtype: len(elements)),
    "nanlen": (np.add, lambda elements, dtype: count_kernel(elements, (0,))[0]),
    "max": (np.maximum, partial(_extreme, np.maximum)),
    "nanmax": (np.fmax, partial(_extreme, np.fmax)),
    "min": (np.minimum, partial(_extreme, np.minimum)),
    "nanmin": (np.fmin, partial(_extreme, np.fmin)),
}


@dataclass(frozen=True)
class GroupedStep:
    """A step of flox that reduces runs of neighbours; flox takes functions and names alike."""

    name: str
    engine: str
    """The implementation that flox chose."""

    def __call__(
        self,
        group_idx: NDArray[Any],
        array: NDArray[Any],
        *,
        size: int,
        dtype: Any,
        fill_value: Any,
    ) -> Any:
        """Reduce the last axis of an array, in which each position has the number of its group.

        The last axis of the result has `size` groups; absent ones have the fill value.
        """
        runs = list(_runs(group_idx))
        if not _is_supported(array, self.name, dtype) or len(runs) * _LEAST_RUN > array.size:
            found = _names().generic_aggregate(
                group_idx, array, engine=self.engine, func=self.name, axis=-1, size=size,
                fill_value=fill_value, dtype=dtype,
            )  # fmt: skip
            return found.astype(dtype, copy=False)
        combine, reduce = _STEPS[self.name]
        elements, dtype = np.moveaxis(array, -1, 0), np.dtype(dtype)
        # a sum of many float32 in float32 loses digits
        wide = np.result_type(dtype, "f8") if combine is np.add and dtype.kind == "f" else dtype
        result = np.full((size, *elements.shape[1:]), fill_value, wide)
        with np.errstate(all="ignore"):
            for group, run in runs:
                found = result[group, ...]
                combine(found, reduce(elements[run], wide), out=found)
            return np.ascontiguousarray(np.moveaxis(result, 0, -1), dtype)


def _runs(group_idx: NDArray[Any]) -> Iterator[tuple[int, slice]]:
    """Runs of neighbours in one group: its number, and the run's positions."""
    bounds = [0, *(np.flatnonzero(np.diff(group_idx)) + 1).tolist(), len(group_idx)]
    for first, end in itertools.pairwise(bounds):
        if first < end:
            yield int(group_idx[first]), slice(first, end)


def _is_supported(array: Any, name: str, dtype: Any) -> bool:
    if type(array) is not np.ndarray or array.dtype.kind not in "biuf":
        return False
    # flox casts the result, not the elements
    return name in ("len", "nanlen") or np.can_cast(array.dtype, dtype, "same_kind")


def with_kernels(func: Any) -> Any | None:
    """The function that flox calls for each block, with kernels; None for any other function."""
    composed: Any = func.func if isinstance(func, partial) else None
    step: Any = getattr(composed, "first", None)  # of functions composed by toolz
    if not isinstance(step, partial) or getattr(step.func, "__module__", "") != "flox.core":
        return None
    keywords, engine = step.keywords, func.keywords.get("engine")
    try:
        is_known = step.func is _names().chunk_reduce
    except DaskChangedError as error:
        warn_once("b2nd_dask leaves grouped reductions to flox", error)
        return None
    if not is_known or engine not in ("numpy", "flox"):
        return None
    steps = zip(keywords["func"], keywords["fill_value"], keywords["dtype"], strict=True)
    if not all(_has_kernel(*each) for each in steps):
        return None
    composed = copy.copy(composed)
    composed.first = partial(step, func=tuple(GroupedStep(n, engine) for n in keywords["func"]))
    return partial(composed, **func.keywords)


def _has_kernel(name: Any, fill_value: Any, dtype: Any) -> bool:
    """Whether a step of flox has a kernel, and the fill value does not change its results."""
    dtype = np.dtype(dtype)
    if not is_among(name, _STEPS) or dtype.kind not in "iuf" or np.ndim(fill_value):
        return False
    info = np.iinfo(dtype) if dtype.kind in "iu" else None
    ends = np.array([info.min, info.max] if info else [-np.inf, np.inf], dtype)
    combine, _ = _STEPS[name]
    return bool(fill_value == fill_value and (combine(dtype.type(fill_value), ends) == ends).all())


@cache
def _names() -> Any:
    """The private names of flox, as attributes; raise `DaskChangedError` if one has changed."""
    return resolved("flox", _NAMES)
