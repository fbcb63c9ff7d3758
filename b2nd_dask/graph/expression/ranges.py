"""Interval arithmetic: the range of a function's results from the ranges of its arguments.

Every operation here is monotone, including its rounding: the results for the ends of a range bound
all others. `RULES` lists the dtype kinds for which this holds; any other result is unknown. Casts
and comparisons between numbers and times are not monotone (-2**63 becomes NaT), nor casts to text.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from b2nd_dask.graph.expression.elementwise import NUMBERS


@dataclass(frozen=True, eq=False)
class Line:
    """Results of the form `slope * element + shift`, in the chunks of the mask `holds`."""

    slope: float
    shift: float
    holds: Any = True
    rounded: Any = 0.0
    """Maximum distance of a result from the line, due to rounding."""

    def of(self, totals: Any, counts: Any) -> Any:
        """The sums of results, from the sums and the counts of the elements."""
        return self.slope * totals + self.shift * counts


@dataclass(frozen=True, eq=False)
class Range:
    """The values of an expression in each chunk; fields are arrays or scalars."""

    low: Any
    """Lower bound (for booleans False is less). None if nothing is known."""
    high: Any
    has_nan: Any
    """Whether some values may be NaN or NaT, to which the bounds do not apply."""
    has_others: Any
    """Whether some values may be other than NaN; if not, the bounds mean nothing."""
    is_constant: Any
    """Whether the values do not depend on the elements of the chunk."""
    line: Line | None = None
    """The line from whole numbers to the values; None if unknown."""

    @property
    def kind(self) -> str:
        """Dtype kind of the values, as NumPy's letter; empty if nothing is known."""
        return "" if self.low is None else np.asarray(self.low).dtype.kind

    @property
    def is_boolean(self) -> bool:
        """Whether the values are booleans."""
        return self.kind == "b"

    @property
    def is_false(self) -> Any:
        """Whether all values are false."""
        return np.logical_not(self.high) if self.is_boolean else False

    @property
    def is_scalar(self) -> bool:
        """Whether it is a value of the program, the same in all chunks."""
        return self.low is self.high


def anything_of(args: Sequence[Range]) -> Range:
    """The result of an unknown function that depends only on its arguments."""
    constant: Any = True
    for arg in args:
        constant = constant & np.asarray(arg.is_constant)
    return Range(None, None, True, True, constant)


def _truths(low: Any, high: Any) -> Range:
    """The range of booleans."""
    low, high = np.asarray(low, np.bool_), np.asarray(high, np.bool_)
    return Range(low, high, False, True, low == high)


def _ends(func: np.ufunc, *args: Range) -> tuple[Any, Any]:
    """The bounds of a function that is monotone in each argument; NaN if one of the ends is NaN."""
    ends = [(arg.low,) if arg.is_scalar else (arg.low, arg.high) for arg in args]
    corners = [func(*each) for each in itertools.product(*ends)]
    return functools.reduce(np.minimum, corners), functools.reduce(np.maximum, corners)


def _comparison(compare: np.ufunc, a: Range, b: Range) -> Range:
    """The rule of an order, which is false for NaN."""
    a, b = _in_one_unit(a, b)
    low, high = _ends(compare, a, b)
    others = np.logical_and(a.has_others, b.has_others)
    return _truths(low & ~_any(a.has_nan, b.has_nan) & others, high & others)


def _equal(a: Range, b: Range) -> Range:
    orders = (_comparison(order, a, b) for order in (np.less_equal, np.greater_equal))
    return _logical(np.logical_and, *orders)


def _any(*flags: Any) -> Any:
    return np.logical_or.reduce(np.broadcast_arrays(*flags))


def _in_one_unit(a: Range, b: Range) -> tuple[Range, Range]:
    """Convert times to the finer unit of both; NumPy wraps around values out of its bounds."""
    if a.kind not in "mM" or np.asarray(a.low).dtype == np.asarray(b.low).dtype:
        return a, b
    unit = np.result_type(a.low, b.low)
    return _in_unit(a, unit), _in_unit(b, unit)


def _in_unit(a: Range, unit: np.dtype[Any]) -> Range:
    """Times in another unit; unbounded for chunks with an end that wraps around."""
    ticks = np.iinfo(np.int64)
    low, high = np.asarray(a.low), np.asarray(a.high)
    least, most = (np.array(end, np.int64).view(unit) for end in (ticks.min + 1, ticks.max))
    try:
        ends = low.astype(unit), high.astype(unit)
    except OverflowError:
        # NumPy 2.5 raises here, older versions wrap around
        return replace(a, low=least, high=most)
    fits = np.logical_and.reduce(
        [
            (end.astype(own.dtype) == own) | np.isnat(own)
            for end, own in zip(ends, (low, high), strict=True)
        ]
    )
    return replace(a, low=np.where(fits, ends[0], least), high=np.where(fits, ends[1], most))


def _truth(a: Range) -> Range:
    """The range after `astype(bool)`; NaN is true."""
    if a.is_boolean:
        return a
    all_zero = (a.low == 0) & (a.high == 0) & a.has_others
    some_zero = (a.low <= 0) & (a.high >= 0) & a.has_others
    return _truths(~np.asarray(some_zero), _any(~np.asarray(all_zero), a.has_nan))


def _logical(operation: np.ufunc, *args: Range) -> Range:
    """The rule of a monotone operation on booleans."""
    return _truths(*_ends(operation, *map(_truth, args)))


def _is_nan(a: Range) -> Range:
    return _truths(~np.asarray(a.has_others), a.has_nan)


def _is_finite(a: Range) -> Range:
    ends = np.isfinite(a.low) & np.isfinite(a.high) & ~np.asarray(a.has_nan)
    return _truths(ends & a.has_others, ~_all_infinite(a) & a.has_others)


def _is_infinite(a: Range) -> Range:
    low = _all_infinite(a) & ~np.asarray(a.has_nan) & a.has_others
    return _truths(low, (np.isinf(a.low) | np.isinf(a.high)) & a.has_others)


def _all_infinite(a: Range) -> Any:
    return (np.asarray(a.low) == np.inf) | (np.asarray(a.high) == -np.inf)


def is_safe_cast(source: np.dtype[Any], dtype: np.dtype[Any]) -> bool:
    """Whether a cast keeps values; NumPy also calls casts of numbers to times and text safe."""
    if source == dtype:
        return True
    are_numbers = source.kind in NUMBERS and dtype.kind in NUMBERS
    return are_numbers and np.can_cast(source, dtype, "safe")


def cast(a: Range, dtype: np.dtype[Any]) -> Range | None:
    """The range after a cast; None if unknown."""
    if not _are_of((_REALS,), [a]) or dtype.kind not in _REALS:
        return None
    if dtype.kind == "b":
        return _truth(a)
    low, high = np.asarray(a.low), np.asarray(a.high)
    # casts to floats round, which keeps the order; casts to integers wrap around
    if dtype.kind != "f" and not is_safe_cast(low.dtype, dtype):
        return None
    return Range(low.astype(dtype), high.astype(dtype), a.has_nan, a.has_others, a.is_constant)


def _floats(low: Any, high: Any, *args: Range) -> Range | None:
    """The result of an operation on floats; None for whole numbers, which may wrap around."""
    if np.asarray(low).dtype.kind != "f":
        return None
    unknown = np.isnan(low) | np.isnan(high)
    low, high = np.where(unknown, -np.inf, low), np.where(unknown, np.inf, high)
    has_others = np.logical_and.reduce(np.broadcast_arrays(*(arg.has_others for arg in args)))
    has_nan = _any(unknown & has_others, *(arg.has_nan for arg in args))
    return Range(low, high, has_nan, has_others, anything_of(args).is_constant)


def _with_scalar(operation: np.ufunc, a: Range, b: Range) -> Range | None:
    """The rule of an operation that is monotone if the other argument is a finite scalar."""
    scalar = next((arg.low for arg in (a, b) if arg.is_scalar), None)
    if scalar is None:
        return None
    low, high = _ends(operation, a, b)
    return None if np.isinf(_as_result(scalar, low)) else _floats(low, high, a, b)


def _as_result(scalar: Any, result: Any) -> Any:
    """A scalar as NumPy casts it for a result: as float32, 1e300 is infinite, and 1e-50 is 0."""
    return np.asarray(scalar).astype(np.asarray(result).dtype)


def _divided(a: Range, b: Range) -> Range | None:
    # division has a pole at 0
    if not b.is_scalar or np.any(_as_result(b.low, a.low / b.low) == 0):
        return None
    return _with_scalar(np.true_divide, a, b)


def _absolute(a: Range) -> Range | None:
    low, high = np.abs(a.low), np.abs(a.high)
    least = np.where((a.low <= 0) & (a.high >= 0), low.dtype.type(0), np.minimum(low, high))
    return _floats(least, np.maximum(low, high), a)


def where(condition: Range, a: Range, b: Range) -> Range:
    """The range of `a` where a condition is true, and of `b` elsewhere."""
    always, never = condition.low, condition.is_false
    constant = (always & a.is_constant) | (never & b.is_constant)
    if not _are_of(_ORDERED, [a, b]):
        return Range(None, None, True, True, constant)
    a, b = _in_one_unit(a, b)
    low = np.where(a.has_others, a.low, b.low), np.where(b.has_others, b.low, a.low)
    high = np.where(a.has_others, a.high, b.high), np.where(b.has_others, b.high, a.high)

    def chosen(of_a: Any, of_b: Any, either: Any) -> Any:
        return np.where(always, of_a, np.where(never, of_b, either))

    return Range(
        chosen(a.low, b.low, np.minimum(*low)),
        chosen(a.high, b.high, np.maximum(*high)),
        chosen(a.has_nan, b.has_nan, _any(a.has_nan, b.has_nan)),
        chosen(a.has_others, b.has_others, _any(a.has_others, b.has_others)),
        constant,
    )


class _Rule(NamedTuple):
    """The rule that maps a function's argument ranges to its result."""

    kinds: tuple[str, ...]
    """Groups of dtype kinds; all arguments must be in one group."""
    result: Callable[..., Range | None]
    """Returns None if nothing is known."""


#: Group of dtype kinds with a common order.
_REALS = "biuf"
_ORDERED = (_REALS, "M", "m")


def _are_of(kinds: tuple[str, ...], args: list[Range]) -> bool:
    return any(all(arg.kind and arg.kind in entry for arg in args) for entry in kinds)


_ORDERS = (np.greater, np.less, np.greater_equal, np.less_equal)
_BITWISE = (np.bitwise_and, np.bitwise_or, np.invert)
_LOGICAL = (np.logical_and, np.logical_or, np.logical_not)
_LINEAR = (np.add, np.subtract, np.multiply)

_TRUTHS: dict[np.ufunc, _Rule] = {
    **{order: _Rule(_ORDERED, functools.partial(_comparison, order)) for order in _ORDERS},
    np.equal: _Rule(_ORDERED, _equal),
    np.not_equal: _Rule(_ORDERED, lambda a, b: _logical(np.logical_not, _equal(a, b))),
    **{func: _Rule(("b",), functools.partial(_logical, func)) for func in _BITWISE},
    **{func: _Rule((_REALS,), functools.partial(_logical, func)) for func in _LOGICAL},
    np.isnan: _Rule(_ORDERED, _is_nan),
    np.isnat: _Rule(_ORDERED, _is_nan),
    np.isfinite: _Rule((_REALS,), _is_finite),
    np.isinf: _Rule((_REALS,), _is_infinite),
}
#: Functions that may have one result for all values of a range.
CONDITIONS = frozenset(_TRUTHS)

#: The interval rule of each function, operators by their ufuncs; other results are unknown.
RULES: dict[np.ufunc, _Rule] = {
    **_TRUTHS,
    **{func: _Rule((_REALS,), functools.partial(_with_scalar, func)) for func in _LINEAR},
    np.divide: _Rule((_REALS,), _divided),
    np.negative: _Rule(("f",), lambda a: _floats(*_ends(np.negative, a), a)),
    np.absolute: _Rule(("f",), _absolute),
}


def result_of(func: Any, args: list[Range]) -> Range | None:
    """The result of a function for ranges; None if unknown."""
    if func is np.where and args[0].is_boolean:
        return where(*args)
    rule = RULES.get(func)
    return rule.result(*args) if rule is not None and _are_of(rule.kinds, args) else None
