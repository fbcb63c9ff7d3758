"""Partial results of reductions: how two of them merge, and what a constant run contributes."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from b2nd_dask.format.grid import AxisCells

PartialResult = Mapping[str, NDArray[Any]]
"""What some elements contribute to a reduction: arrays with length 1 along the reduced axes. Axes
beyond those of the elements may follow."""


class ConstantRuns(Protocol):
    """Where a region repeats one element. Arrays have length 1 along the reduced axes."""

    @property
    def counts(self) -> NDArray[np.int64]:
        """How often the element occurs, for each element of the reduced result."""

    @property
    def firsts(self) -> tuple[NDArray[np.int64], ...]:
        """Positions of the first one in C order, along each reduced axis.

        Any position where the element does not occur.
        """


class BoxRuns:
    """A run that fills a box.

    Parameters
    ----------
    out : tuple of slice
        The box in the region.
    axis : tuple of int
        Reduced axes.

    Examples
    --------
    >>> box = BoxRuns((slice(2, 5), slice(0, 2)), axis=(0,))
    >>> box.counts, box.firsts
    (array([[3, 3]]), (array([[2, 2]]),))
    """

    def __init__(self, out: tuple[slice, ...], axis: tuple[int, ...]) -> None:
        self._out = out
        self._axis = axis
        self._shape = tuple(1 if i in axis else s.stop - s.start for i, s in enumerate(out))

    @property
    def counts(self) -> NDArray[np.int64]:
        """As `ConstantRuns.counts`."""
        reduced = (self._out[i] for i in self._axis)
        return np.full(self._shape, math.prod(s.stop - s.start for s in reduced), np.int64)

    @property
    def firsts(self) -> tuple[NDArray[np.int64], ...]:
        """As `ConstantRuns.firsts`."""
        return tuple(np.full(self._shape, self._out[i].start, np.int64) for i in self._axis)


class Cells:
    """The cells of the chunk grid that a region touches.

    Parameters
    ----------
    cells : sequence of AxisCells
        The cells along each axis.
    axis : tuple of int
        Reduced axes.
    """

    def __init__(self, cells: Sequence[AxisCells], axis: tuple[int, ...]) -> None:
        self._cells = cells
        self._axis = axis

    def of_chunks(self, values: NDArray[Any]) -> NDArray[Any]:
        """Give values of the touched chunks, in C order, the shape of the cells."""
        return values.reshape([len(along) for along in self._cells])

    def spread(self, values: NDArray[Any]) -> NDArray[Any]:
        """Repeat values of cells along the axes that are kept, for each element of the cells."""
        for i in range(values.ndim):
            if i not in self._axis:
                values = np.repeat(values, self.lengths(i), axis=i)
        return values

    def lengths(self, axis: int) -> NDArray[np.int64]:
        """Selected positions in each cell along an axis."""
        return self._cells[axis].lengths


class CountedRuns:
    """Runs of which only the lengths are known.

    Parameters
    ----------
    counts : ndarray of int64
        As `ConstantRuns.counts`.
    """

    def __init__(self, counts: NDArray[np.int64]) -> None:
        self.counts = counts

    @property
    def firsts(self) -> tuple[NDArray[np.int64], ...]:
        """Raise LookupError: nobody knows."""
        raise LookupError("runs that are only counted have no positions")


class CellRuns:
    """Runs that fill some cells of a grid.

    Parameters
    ----------
    cells : sequence of AxisCells
        The cells along each axis.
    chosen : ndarray of bool
        Which cells, in C order.
    axis : tuple of int
        Reduced axes.
    """

    def __init__(
        self, cells: Sequence[AxisCells], chosen: NDArray[np.bool_], axis: tuple[int, ...]
    ) -> None:
        self._along = cells
        self._cells = Cells(cells, axis)
        self._chosen = self._cells.of_chunks(chosen)
        self._axis = axis

    @property
    def counts(self) -> NDArray[np.int64]:
        """As `ConstantRuns.counts`."""
        counts = self._chosen.astype(np.int64)
        for i in self._axis:
            lengths = self._cells.lengths(i)[:, None]
            counts = np.moveaxis(np.moveaxis(counts, i, -1) @ lengths, -1, i)
        return self._cells.spread(counts)

    @property
    def firsts(self) -> tuple[NDArray[np.int64], ...]:
        """As `ConstantRuns.firsts`."""
        kept = [i for i in range(self._chosen.ndim) if i not in self._axis]
        cells = self._chosen.transpose(*kept, *self._axis)
        reduced = cells.shape[len(kept) :]
        # the first element in C order is the corner of the first cell in C order
        first = np.argmax(cells.reshape(*cells.shape[: len(kept)], -1), axis=-1)
        numbers = np.unravel_index(np.expand_dims(first, self._axis), reduced)
        return tuple(
            self._cells.spread(self._along[i].bounds[along])
            for i, along in zip(self._axis, numbers, strict=True)
        )


@dataclass(frozen=True)
class Accumulation:
    """How partial results of one kind of reduction accumulate."""

    merge: Callable[[PartialResult, PartialResult], PartialResult]
    """The partial result of the elements of both, in whichever order they come."""
    repeat: Callable[[PartialResult, ConstantRuns], PartialResult]
    """The partial result of constant runs, from the one of a single such element."""
    positional: bool = False
    """Whether partial results tell where elements are; else only their values count."""


def extremes(ufunc: np.ufunc) -> Accumulation:
    """Accumulate values of which `ufunc` chooses one, as `numpy.minimum` and `numpy.logical_or`."""
    return Accumulation(partial(_merge_by, ufunc), _same)


def first_extremes(
    argfunc: Callable[..., NDArray[np.intp]],
    value: np.ufunc | None,
    locate: Callable[[tuple[NDArray[np.intp], ...]], NDArray[np.intp]],
) -> Accumulation:
    """Accumulate candidates for the first extreme: fields ``element``, ``arg`` and maybe ``value``.

    Parameters
    ----------
    argfunc : callable
        Finds the position of the extreme along an axis, as `numpy.argmin`.
    value : numpy.ufunc, optional
        Chooses between values of the field ``value``.
    locate : callable
        Turns positions in the region, along each reduced axis, into values of ``arg``.
    """
    return Accumulation(
        partial(_merge_candidates, argfunc, value), partial(_repeat_candidate, locate), True
    )


def _merge_by(ufunc: np.ufunc, first: PartialResult, second: PartialResult) -> PartialResult:
    return {name: ufunc(values, second[name]) for name, values in first.items()}


def _times(one: PartialResult, runs: ConstantRuns) -> PartialResult:
    counts = runs.counts
    with np.errstate(all="ignore"):
        return {name: _multiplied(values, _fitted(counts, values)) for name, values in one.items()}


def _to_the_power(one: PartialResult, runs: ConstantRuns) -> PartialResult:
    counts = runs.counts
    with np.errstate(all="ignore"):
        return {name: _raised(values, _fitted(counts, values)) for name, values in one.items()}


def _same(one: PartialResult, runs: ConstantRuns) -> PartialResult:
    shape = runs.counts.shape
    return {name: np.broadcast_to(values, shape).copy() for name, values in one.items()}


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


def _merge_candidates(
    argfunc: Callable[..., NDArray[np.intp]],
    value: np.ufunc | None,
    first: PartialResult,
    second: PartialResult,
) -> PartialResult:
    # of equal elements, and of NaNs, the one that comes first wins
    swapped = second["arg"] < first["arg"]
    one, other = first["element"], second["element"]
    in_order = [np.where(swapped, other, one), np.where(swapped, one, other)]
    later = argfunc(np.stack(in_order), axis=0) != swapped
    fields = {name: np.where(later, second[name], first[name]) for name in ("element", "arg")}
    if value is not None:
        fields["value"] = value(first["value"], second["value"])
    return fields


def _repeat_candidate(
    locate: Callable[[tuple[NDArray[np.intp], ...]], NDArray[np.intp]],
    one: PartialResult,
    runs: ConstantRuns,
) -> PartialResult:
    arg = locate(runs.firsts)
    others = one.keys() - {"arg"}
    return {"arg": arg} | {name: np.broadcast_to(one[name], arg.shape) for name in others}


SUMS = Accumulation(partial(_merge_by, np.add), _times)
PRODUCTS = Accumulation(partial(_merge_by, np.multiply), _to_the_power)
#: Fields ``n``, ``total`` and ``M``: count, sum, and sum of squared deviations from the mean.
MOMENTS = Accumulation(_merge_moments, _times)
