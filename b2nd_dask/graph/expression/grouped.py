"""Grouped reductions of flox, by which xarray's `groupby` and `resample` reduce arrays of dask.

flox reduces each block by `flox.core.chunk_reduce`, which knows its steps by name and sorts single
elements into groups; for blocks that hold whole groups `_reduce_blockwise` calls it. Kernels take
the place of the names: along an axis such as time, neighbours mostly belong to one group, and NumPy
reduces such a run in one call. The groups, the combination of blocks and the result remain flox's.
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

from b2nd_dask.graph._dask_compat import NameChangedError, chunk, private_names, warn_once
from b2nd_dask.graph.expression.chunk_kernels import count_kernel, sum_kernel
from b2nd_dask.graph.expression.elementwise import is_among

#: The private names of flox, with their parameters in version 0.11, which was checked.
_NAMES = {
    "core": {
        "chunk_reduce": (
            "array, by, func, expected_groups, axis, fill_value, dtype, reindex, engine, kwargs, "
            "sort, user_dtype"
        ),
        "_reduce_blockwise": (
            "array, by, agg, axis, expected_groups, fill_value, engine, sort, reindex"
        ),
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
#: The means of flox, as a sum divided by a count.
_MEANS = {"mean": "sum", "nanmean": "nansum"}
#: The result of NumPy and flox for a group of missing elements; the fill value replaces it.
_OF_MISSING = {"nanmax": -np.inf, "nanmin": np.inf}


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
        runs, dtype = list(_runs(group_idx)), np.dtype(dtype)
        if len(runs) * _LEAST_RUN > array.size or not _is_supported(self.name, array, dtype):
            found = _names().generic_aggregate(
                group_idx, array, engine=self.engine, func=self.name, axis=-1, size=size,
                fill_value=fill_value, dtype=dtype,
            )  # fmt: skip
            return found.astype(dtype, copy=False)
        elements = np.moveaxis(array, -1, 0)
        with np.errstate(all="ignore"):
            if self.name in _MEANS:
                found = _reduced(_MEANS[self.name], elements, runs, size, dtype, fill_value)
                found = found / _reduced("nanlen", elements, runs, size, np.dtype(np.intp), 0)
            else:
                found = _reduced(self.name, elements, runs, size, dtype, fill_value)
            if (worst := _OF_MISSING.get(self.name)) is not None:
                missing = np.isnan(found)
                if self.engine == "flox":
                    # this engine does not distinguish a group of infinities from an absent one
                    missing |= found == worst
                np.copyto(found, fill_value, where=missing)
            return np.ascontiguousarray(np.moveaxis(found, 0, -1), dtype)


def _reduced(
    name: str,
    elements: NDArray[Any],
    runs: list[tuple[int, slice]],
    size: int,
    dtype: np.dtype[Any],
    fill_value: Any,
) -> NDArray[Any]:
    """Reduce the first axis by runs; floats are summed in a wider dtype."""
    combine, reduce = _STEPS[name]
    # a sum of many float32 in float32 loses digits
    wide = np.result_type(dtype, "f8") if combine is np.add and dtype.kind == "f" else dtype
    result = np.full((size, *elements.shape[1:]), fill_value, wide)
    seen = set[int]()
    for group, run in runs:
        value, total = reduce(elements[run], wide), result[group, ...]
        if group in seen:
            combine(total, value, out=total)
        else:
            total[...] = value
        seen.add(group)
    return result


def _runs(group_idx: NDArray[Any]) -> Iterator[tuple[int, slice]]:
    """Runs of neighbours in one group: its number, and the run's positions."""
    bounds = [0, *(np.flatnonzero(np.diff(group_idx)) + 1).tolist(), len(group_idx)]
    for first, end in itertools.pairwise(bounds):
        if first < end:
            yield int(group_idx[first]), slice(first, end)


def _is_supported(name: str, array: Any, dtype: np.dtype[Any]) -> bool:
    if type(array) is not np.ndarray or array.dtype.kind not in "biuf":
        return False
    # flox casts the result, not the elements
    return name in ("len", "nanlen") or np.can_cast(array.dtype, dtype, "same_kind")


def with_kernels(func: Any) -> Any | None:
    """The function that flox calls for each block, with kernels; None for any other function."""
    if not isinstance(func, partial):
        return None
    engine = func.keywords.get("engine")
    first = getattr(func.func, "first", None)  # of functions composed by toolz
    step = first if isinstance(first, partial) else func
    if getattr(step.func, "__module__", "") != "flox.core" or engine not in ("numpy", "flox"):
        return None
    try:
        names = _names()
    except NameChangedError as error:
        warn_once("b2nd_dask leaves grouped reductions to flox", error)
        return None
    keywords = step.keywords
    if step.func is names.chunk_reduce:
        kernels = _kernels(keywords["func"], keywords["fill_value"], keywords["dtype"], engine)
        changed = partial(step, func=kernels)
    elif step.func is names._reduce_blockwise:
        agg = copy.copy(keywords["agg"])
        kernels = _kernels(agg.numpy, agg.fill_value["numpy"], agg.dtype["numpy"], engine)
        agg.numpy = kernels
        changed = partial(step, agg=agg)
    else:
        return None
    if kernels is None:
        return None
    if step is func:
        return changed
    composed: Any = copy.copy(func.func)
    composed.first = changed
    return partial(composed, **func.keywords)


def _kernels(names: Any, fills: Any, dtypes: Any, engine: str) -> tuple[GroupedStep, ...] | None:
    """Steps with kernels in place of all names; None if there are others."""
    steps = zip(names, fills, map(np.dtype, dtypes), strict=True)
    if not all(_has_kernel(*each) for each in steps):
        return None
    return tuple(GroupedStep(name, engine) for name in names)


def _has_kernel(name: Any, fill_value: Any, dtype: np.dtype[Any]) -> bool:
    """Whether a step of flox has a kernel, whose result is that of both engines."""
    if dtype.kind not in "iuf" or not isinstance(fill_value, int | float | np.number):
        return False
    if is_among(name, _MEANS):
        return bool(np.isnan(fill_value))
    if is_among(name, ("len", "nanlen")):
        return bool(fill_value == 0)
    return is_among(name, _STEPS) and (dtype.kind == "f" or float(fill_value).is_integer())


@cache
def _names() -> Any:
    """The private names of flox, as attributes; raise `NameChangedError` if one has changed."""
    return private_names("flox", _NAMES)
