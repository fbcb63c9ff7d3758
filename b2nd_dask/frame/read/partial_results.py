"""Partial results of reductions: how two merge, and what a repeated element contributes."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

PartialResult = Mapping[str, NDArray[Any]]
"""What some elements contribute to a reduction: arrays with length 1 along the reduced axes. Axes
beyond those of the elements may follow."""


def count_in_box(out: Sequence[slice], axis: tuple[int, ...]) -> NDArray[np.int64]:
    """The number of elements of a box, for each element of the reduced result.

    Parameters
    ----------
    out : sequence of slice
        The box.
    axis : tuple of int
        Reduced axes.

    Examples
    --------
    >>> count_in_box((slice(2, 5), slice(0, 2)), axis=(0,))
    array([[3, 3]])
    """
    lengths = [along.stop - along.start for along in out]
    kept = [1 if i in axis else length for i, length in enumerate(lengths)]
    return np.full(kept, math.prod(lengths[i] for i in axis), np.int64)


@dataclass(frozen=True)
class Accumulation:
    """How partial results of one kind of reduction accumulate."""

    merge: Callable[[PartialResult, PartialResult], PartialResult]
    """The partial result of the elements of both, in whichever order they come."""
    repeat: Callable[[PartialResult, NDArray[np.int64]], PartialResult]
    """The partial result of one repeated element, from that of a single one and how often it
    occurs for each element of the reduced result."""

    def merge_along(
        self, axis: int, fields: PartialResult, seen: NDArray[np.bool_]
    ) -> tuple[PartialResult, NDArray[np.bool_]]:
        """Merge those that are `seen`, always two halves: sums lose as little as pairwise."""

        def part(values: NDArray[Any], start: int, stop: int) -> NDArray[Any]:
            return values[(slice(None),) * axis + (slice(start, stop),)]

        while (length := seen.shape[axis]) > 1:
            half, rest = (length + 1) // 2, length // 2
            ends = (0, rest), (half, length)
            first, second = ({k: part(v, *end) for k, v in fields.items()} for end in ends)
            one, other = (part(seen, *end) for end in ends)
            with np.errstate(all="ignore"):
                merged = self.merge(first, second)
            joined = {}
            for name, values in fields.items():
                more = (...,) + (None,) * (values.ndim - seen.ndim)
                alone = np.where(one[more], first[name], second[name])
                found = np.where((one & other)[more], merged[name], alone)
                joined[name] = np.concatenate([found, part(values, rest, half)], axis)
            fields, seen = joined, np.concatenate([one | other, part(seen, rest, half)], axis)
        return fields, seen


def extremes(ufunc: np.ufunc) -> Accumulation:
    """Accumulate values of which `ufunc` chooses one, as `numpy.minimum` and `numpy.logical_or`."""
    return Accumulation(partial(_merge_by, ufunc), _same)


def _merge_by(ufunc: np.ufunc, first: PartialResult, second: PartialResult) -> PartialResult:
    return {name: ufunc(values, second[name]) for name, values in first.items()}


def _times(one: PartialResult, counts: NDArray[np.int64]) -> PartialResult:
    with np.errstate(all="ignore"):
        return {name: _multiplied(values, _fitted(counts, values)) for name, values in one.items()}


def _to_the_power(one: PartialResult, counts: NDArray[np.int64]) -> PartialResult:
    with np.errstate(all="ignore"):
        return {name: _raised(values, _fitted(counts, values)) for name, values in one.items()}


def _same(one: PartialResult, counts: NDArray[np.int64]) -> PartialResult:
    return {name: np.broadcast_to(values, counts.shape).copy() for name, values in one.items()}


def _fitted(counts: NDArray[np.int64], values: NDArray[Any]) -> NDArray[np.int64]:
    return counts.reshape(counts.shape + (1,) * (values.ndim - counts.ndim))


def _multiplied(values: NDArray[Any], counts: NDArray[np.int64]) -> NDArray[Any]:
    """Values so many times, in their dtype."""
    if values.dtype.kind != "c":
        times: NDArray[Any] = values * counts.astype(values.dtype)
        return times
    # as complex numbers, an infinite part times 0 would be NaN
    out = np.empty(np.broadcast_shapes(values.shape, counts.shape), values.dtype)
    out.real, out.imag = values.real * counts, values.imag * counts
    return out


def _raised(values: NDArray[Any], counts: NDArray[np.int64]) -> NDArray[Any]:
    """Values to the power of counts, in their dtype; whole numbers wrap around as products do."""
    whole = {"u": np.dtype("u8"), "i": np.dtype("i8")}
    wide = whole.get(values.dtype.kind, values.dtype)
    power: NDArray[Any] = np.power(values.astype(wide), counts.astype(wide))
    return power.astype(values.dtype)


def _merge_moments(first: PartialResult, second: PartialResult) -> PartialResult:
    """Merge counts, totals and sums of squared deviations (Chan, Golub and LeVeque 1979)."""
    n, m = first["n"], second["n"]
    with np.errstate(divide="ignore", invalid="ignore"):
        apart = np.abs(second["total"] / m - first["total"] / n)
        between = np.where((n > 0) & (m > 0), apart**2 * (n * (m / (n + m))), 0)
    squares = first["M"] + second["M"]
    squares += between[..., None].astype(squares.dtype)
    return {"total": first["total"] + second["total"], "n": n + m, "M": squares}


SUMS = Accumulation(partial(_merge_by, np.add), _times)
PRODUCTS = Accumulation(partial(_merge_by, np.multiply), _to_the_power)
#: Fields ``n``, ``total`` and ``M``: count, sum, and sum of squared deviations from the mean.
MOMENTS = Accumulation(_merge_moments, _times)
