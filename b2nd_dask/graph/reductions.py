"""The chunk steps of dask's reductions, in terms of contributions that merge."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from dask.array import chunk, reductions
from numpy.typing import NDArray

from b2nd_dask.frame.reduce import Partial

Merge = Callable[[Partial, Partial], Partial]
Repeat = Callable[[Partial, NDArray[np.int64]], Partial]


@dataclass(frozen=True)
class Rule:
    """How contributions to one kind of reduction are merged and repeated."""

    merge: Merge
    repeat: Repeat


@dataclass(frozen=True)
class ChunkStep:
    """The chunk step of a dask reduction, as `frame.reduce.Reduction`."""

    func: Callable[[NDArray[Any]], Any]
    """Gives an array or a dict of arrays, with length 1 along the reduced axes."""
    axis: tuple[int, ...]
    rule: Rule

    def partial(self, items: NDArray[Any]) -> Partial:
        """As `frame.reduce.Reduction.partial`."""
        found = self.func(items)
        fields = found if isinstance(found, dict) else {"": found}
        return {name: np.asarray(values) for name, values in fields.items()}

    def merge(self, first: Partial, second: Partial) -> Partial:
        """As `frame.reduce.Reduction.merge`."""
        return self.rule.merge(first, second)

    def repeat(self, one: Partial, counts: NDArray[np.int64]) -> Partial:
        """As `frame.reduce.Reduction.repeat`."""
        return self.rule.repeat(one, counts)


def rule_of(func: Callable[..., Any]) -> Rule | None:
    """Find the rule for the chunk step of a reduction.

    Parameters
    ----------
    func : callable
        What dask calls on each block.

    Returns
    -------
    Rule or None
        None for what is no chunk step, and for those that merge otherwise than here.
    """
    keywords: dict[str, Any] = {}
    while isinstance(func, partial):
        if func.args:
            return None
        keywords = {**func.keywords, **keywords}
        func = func.func
    if keywords.get("order", 2) != 2:
        return None
    try:
        return _RULES.get(func)
    except TypeError:
        return None  # not hashable


def _with_ufunc(ufunc: np.ufunc) -> Merge:
    return partial(_merge_by, ufunc)


def _merge_by(ufunc: np.ufunc, first: Partial, second: Partial) -> Partial:
    return {name: ufunc(values, second[name]) for name, values in first.items()}


def _times(one: Partial, counts: NDArray[np.int64]) -> Partial:
    return {name: _counted(np.multiply, values, counts) for name, values in one.items()}


def _to_the_power(one: Partial, counts: NDArray[np.int64]) -> Partial:
    return {name: _counted(np.power, values, counts) for name, values in one.items()}


def _same(one: Partial, counts: NDArray[np.int64]) -> Partial:
    return {name: np.broadcast_to(values, counts.shape) for name, values in one.items()}


def _counted(ufunc: np.ufunc, values: NDArray[Any], counts: NDArray[np.int64]) -> NDArray[Any]:
    """Apply in the dtype of the values, which is that of the result."""
    more = counts.reshape(counts.shape + (1,) * (values.ndim - counts.ndim))
    with np.errstate(all="ignore"):
        found: NDArray[Any] = ufunc(values, more.astype(values.dtype))
    return found


def _merge_moments(first: Partial, second: Partial) -> Partial:
    """Merge counts, totals and sums of squared deviations (Chan, Golub and LeVeque 1979)."""
    n, m = first["n"], second["n"]
    with np.errstate(divide="ignore", invalid="ignore"):
        apart = np.abs(second["total"] / m - first["total"] / n)
        between = np.where((n > 0) & (m > 0), apart**2 * (n * (m / (n + m))), 0)
    squares = first["M"] + second["M"]
    squares += between[..., None].astype(squares.dtype)
    return {"total": first["total"] + second["total"], "n": n + m, "M": squares}


_ADD = Rule(_with_ufunc(np.add), _times)
_MULTIPLY = Rule(_with_ufunc(np.multiply), _to_the_power)
_MOMENTS = Rule(_merge_moments, _times)


def _extreme(ufunc: np.ufunc) -> Rule:
    return Rule(_with_ufunc(ufunc), _same)


_RULES: dict[Callable[..., Any], Rule] = {
    chunk.sum: _ADD,
    chunk.nansum: _ADD,
    chunk.prod: _MULTIPLY,
    chunk.nanprod: _MULTIPLY,
    chunk.any: _extreme(np.logical_or),
    chunk.all: _extreme(np.logical_and),
    reductions.chunk_min: _extreme(np.minimum),
    reductions.chunk_max: _extreme(np.maximum),
    reductions._nanmin_skip: _extreme(np.fmin),
    reductions._nanmax_skip: _extreme(np.fmax),
    reductions.mean_chunk: _ADD,
    reductions.moment_chunk: _MOMENTS,
}
