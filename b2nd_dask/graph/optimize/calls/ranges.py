"""What elementwise work makes of elements of which only the range is known: interval arithmetic.

Every operation here is monotone, its rounding included: its results for the ends of a range bound
all others. What is not known to be so may have any result.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np


@dataclass(frozen=True, eq=False)
class Range:
    """The values of an expression, in each of some chunks; fields are arrays, or scalars."""

    low: Any
    """No value is less; of booleans False is less. None where nothing is known."""
    high: Any
    has_nan: Any
    """Whether some values may be NaN or NaT. The ends say nothing of them."""
    has_others: Any
    """Whether some values may be others. If not, the ends mean nothing."""
    is_constant: Any
    """Whether all values are the same, bit for bit."""

    @property
    def is_boolean(self) -> bool:
        """Whether the values are booleans."""
        return self.low is not None and np.asarray(self.low).dtype.kind == "b"

    @property
    def is_float(self) -> bool:
        """Whether the values are floats."""
        return self.low is not None and np.asarray(self.low).dtype.kind == "f"


def anything_of(args: list[Range]) -> Range:
    """The result of a function that is not known, but depends on its arguments alone."""
    constant: Any = True
    for arg in args:
        constant = constant & np.asarray(arg.is_constant)
    return Range(None, None, True, True, constant)


def _truths(low: Any, high: Any) -> Range:
    """Booleans."""
    low, high = np.asarray(low, np.bool_), np.asarray(high, np.bool_)
    return Range(low, high, False, True, low == high)


def _comparison(
    is_least: Callable[[Range, Range], Any], is_most: Callable[[Range, Range], Any]
) -> Callable[[Range, Range], Range]:
    """A comparison, which is false for NaN."""

    def compare(a: Range, b: Range) -> Range:
        a, b = _in_one_unit(a, b)
        always = is_least(a, b) & ~_any(a.has_nan, b.has_nan)
        return _truths(always & _all(a, b), is_most(a, b) & _all(a, b))

    return compare


def _any(*flags: Any) -> Any:
    return np.logical_or.reduce(np.broadcast_arrays(*flags))


def _all(a: Range, b: Range) -> Any:
    return np.logical_and(a.has_others, b.has_others)


def _in_one_unit(a: Range, b: Range) -> tuple[Range, Range]:
    """Two ranges of which times have the finer unit; NumPy wraps around what is too far for it."""
    kinds = {np.asarray(end).dtype.kind for end in (a.low, b.low)}
    if not kinds <= set("mM") or np.asarray(a.low).dtype == np.asarray(b.low).dtype:
        return a, b
    unit = np.result_type(a.low, b.low)
    return _in_unit(a, unit), _in_unit(b, unit)


def _in_unit(a: Range, unit: np.dtype[Any]) -> Range:
    """Times in another unit; of chunks with an end that wraps around, any that there are."""
    ticks = np.iinfo(np.int64)
    low, high = np.asarray(a.low), np.asarray(a.high)
    least, most = (np.array(end, np.int64).view(unit) for end in (ticks.min + 1, ticks.max))
    try:
        ends = low.astype(unit), high.astype(unit)
    except OverflowError:
        # NumPy 2.5 refuses what those before it wrap around
        return replace(a, low=least, high=most)
    fits = np.logical_and.reduce(
        [
            (end.astype(own.dtype) == own) | np.isnat(own)
            for end, own in zip(ends, (low, high), strict=True)
        ]
    )
    return replace(a, low=np.where(fits, ends[0], least), high=np.where(fits, ends[1], most))


_GREATER = _comparison(lambda a, b: a.low > b.high, lambda a, b: a.high > b.low)
_GREATER_EQUAL = _comparison(lambda a, b: a.low >= b.high, lambda a, b: a.high >= b.low)
_EQUAL = _comparison(
    lambda a, b: (a.low == b.high) & (a.high == b.low),
    lambda a, b: (a.low <= b.high) & (a.high >= b.low),
)


def _not_equal(a: Range, b: Range) -> Range | None:
    return _not(_EQUAL(a, b))


def _not(a: Range) -> Range | None:
    truth = _truth(a)
    return truth and _truths(~truth.high, ~truth.low)


def _inverted(a: Range) -> Range | None:
    return _not(a) if a.is_boolean else None


def _truth(a: Range) -> Range | None:
    """What `astype(bool)` makes of values; NaN is true."""
    if a.is_boolean:
        return a
    if np.asarray(a.low).dtype.kind not in "iuf":
        return None
    all_zero = (a.low == 0) & (a.high == 0) & a.has_others
    some_zero = (a.low <= 0) & (a.high >= 0) & a.has_others
    return _truths(~np.asarray(some_zero), _any(~np.asarray(all_zero), a.has_nan))


def _logical(operation: np.ufunc) -> Callable[[Range, Range], Range | None]:
    """An operation on truths that is monotone."""

    def combine(a: Range, b: Range) -> Range | None:
        first, second = _truth(a), _truth(b)
        if first is None or second is None:
            return None
        return _truths(operation(first.low, second.low), operation(first.high, second.high))

    return combine


def _bitwise(operation: np.ufunc) -> Callable[[Range, Range], Range | None]:
    """The same for operators that also work on the bits of numbers."""
    combine = _logical(operation)
    return lambda a, b: combine(a, b) if a.is_boolean and b.is_boolean else None


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


def cast(a: Range, dtype: np.dtype[Any]) -> Range | None:
    """The values of another dtype; None where nothing is known of them."""
    source = np.asarray(a.low).dtype
    if dtype.kind == "b":
        return _truth(a)
    # conversions between whole numbers wrap around
    if source.kind not in "biuf" or not (dtype.kind == "f" or np.can_cast(source, dtype, "safe")):
        return None
    low, high = np.asarray(a.low).astype(dtype), np.asarray(a.high).astype(dtype)
    return Range(low, high, a.has_nan, a.has_others, a.is_constant)


def _floats(low: Any, high: Any, args: list[Range]) -> Range | None:
    """The result of an operation on floats; whole numbers may wrap around."""
    if np.asarray(low).dtype.kind != "f":
        return None
    unknown = np.isnan(low) | np.isnan(high)
    low, high = np.where(unknown, -np.inf, low), np.where(unknown, np.inf, high)
    has_others = np.logical_and.reduce(np.broadcast_arrays(*(arg.has_others for arg in args)))
    has_nan = _any(unknown & has_others, *(arg.has_nan for arg in args))
    return Range(low, high, has_nan, has_others, anything_of(args).is_constant)


def _with_scalar(operation: Callable[[Any, Any], Any]) -> Callable[[Range, Range], Range | None]:
    """An operation that is monotone in either argument where the other is a finite scalar."""

    def combine(a: Range, b: Range) -> Range | None:
        scalar = next((arg.low for arg in (a, b) if arg.low is arg.high), None)
        if scalar is None or np.asarray(scalar).dtype.kind not in "biuf":
            return None
        ends = operation(a.low, b.low), operation(a.high, b.high)
        if np.isinf(_as_result(scalar, ends[0])):
            return None
        return _floats(np.minimum(*ends), np.maximum(*ends), [a, b])

    return combine


def _as_result(scalar: Any, result: Any) -> Any:
    """A scalar as NumPy takes it for a result: 1e300 is infinite, and 1e-50 zero, among float32."""
    return np.asarray(scalar).astype(np.asarray(result).dtype)


def _divided(a: Range, b: Range) -> Range | None:
    # there is a pole at 0
    if b.low is not b.high or np.any(_as_result(b.low, a.low / b.low) == 0):
        return None
    return _with_scalar(operator.truediv)(a, b)


def _negative(a: Range) -> Range | None:
    return _floats(-a.high, -a.low, [a]) if a.is_float else None


def _absolute(a: Range) -> Range | None:
    if not a.is_float:
        return None
    low, high = np.abs(a.low), np.abs(a.high)
    least = np.where((a.low <= 0) & (a.high >= 0), low.dtype.type(0), np.minimum(low, high))
    return _floats(least, np.maximum(low, high), [a])


def where(condition: Range, a: Range, b: Range) -> Range:
    """The values of `a` where a condition is true, and of `b` elsewhere."""
    always, never = condition.low, ~condition.high
    constant = (always & a.is_constant) | (never & b.is_constant)
    if a.low is None or b.low is None:
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


def _swapped(rule: Callable[[Range, Range], Range]) -> Callable[[Range, Range], Range]:
    return lambda a, b: rule(b, a)


#: What functions make of ranges; None where nothing is known of the result.
RULES: dict[Callable[..., Any], Callable[..., Range | None]] = {
    **dict.fromkeys((operator.gt, np.greater), _GREATER),
    **dict.fromkeys((operator.lt, np.less), _swapped(_GREATER)),
    **dict.fromkeys((operator.ge, np.greater_equal), _GREATER_EQUAL),
    **dict.fromkeys((operator.le, np.less_equal), _swapped(_GREATER_EQUAL)),
    **dict.fromkeys((operator.eq, np.equal), _EQUAL),
    **dict.fromkeys((operator.ne, np.not_equal), _not_equal),
    **dict.fromkeys((operator.and_, np.bitwise_and), _bitwise(np.logical_and)),
    **dict.fromkeys((operator.or_, np.bitwise_or), _bitwise(np.logical_or)),
    **dict.fromkeys((operator.invert, np.invert), _inverted),
    np.logical_and: _logical(np.logical_and),
    np.logical_or: _logical(np.logical_or),
    np.logical_not: _not,
    **dict.fromkeys((np.isnan, np.isnat), _is_nan),
    np.isfinite: _is_finite,
    np.isinf: _is_infinite,
    **dict.fromkeys((operator.add, np.add), _with_scalar(operator.add)),
    **dict.fromkeys((operator.sub, np.subtract), _with_scalar(operator.sub)),
    **dict.fromkeys((operator.mul, np.multiply), _with_scalar(operator.mul)),
    **dict.fromkeys((operator.truediv, np.divide), _divided),
    **dict.fromkeys((operator.neg, np.negative), _negative),
    **dict.fromkeys((abs, np.absolute), _absolute),
}
