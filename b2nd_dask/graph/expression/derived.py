"""Statistics of a program's results, derived from statistics of its elements.

The minimum and maximum of the elements bound the result of each step. A bound is the exact minimum
or maximum if the program attains it at one of the two. If the program only scales and shifts whole
numbers, as for packed data, the sum follows from their sum.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from b2nd_dask.format.statistics import ChunkStatistics
from b2nd_dask.graph._dask_compat import chunk
from b2nd_dask.graph.expression.elementwise import FILTERS
from b2nd_dask.graph.expression.nodes import Literal
from b2nd_dask.graph.expression.program import Operand, Program, Result
from b2nd_dask.graph.expression.ranges import Line, Range, anything_of, cast, result_of

logger = logging.getLogger("b2nd_dask")
_T = TypeVar("_T")

#: Maximum rounding error of an element, in units of the precision of the greatest magnitude. With
#: a larger error no sum is derived: ``(x + 1e20) - 1e20`` has lost most digits.
_MOST_ROUNDED = 1 << 10
#: The same relative to the greatest magnitude: for float16 so many units are the whole magnitude.
_MOST_APART = 2.0**-12
#: Unknown values that do not depend on the elements.
_UNRELATED = Range(None, None, True, True, True)


def or_unknown(evaluate: Callable[[], _T], unknown: _T) -> _T:
    """Evaluate rules on statistics; return `unknown` if one raises an exception.

    An error of the user's own program is raised when the elements are read.
    """
    try:
        with np.errstate(all="ignore"):
            return evaluate()
    except Exception:
        logger.debug("a rule for statistics raised an exception", exc_info=True)
        return unknown


@dataclass(frozen=True, eq=False)
class Derived:
    """Known statistics of a program's results in each chunk."""

    statistics: ChunkStatistics
    counts: NDArray[np.int64]
    masks: Mapping[str, NDArray[np.bool_]] = field(default_factory=dict)
    """The chunks whose column is known, for columns that are not known in all chunks."""

    def known_mask(self, *columns: str) -> NDArray[np.bool_]:
        """Mask of chunks whose columns are known, if the chunks have statistics."""
        known = np.ones(len(self.counts), np.bool_)
        for name in columns:
            known = known & self.masks.get(name, True)
        return known

    def filled(self) -> Derived:
        """The statistics with zeros in place of NaN; minimum and maximum become unknown."""
        known = self.statistics
        rest = known.nonzeros - known.nans
        statistics = known._replace(nans=np.zeros_like(known.nans), nonzeros=rest)
        nothing = np.zeros(len(self.counts), np.bool_)
        masks = {**self.masks, "least": nothing, "greatest": nothing}
        return Derived(statistics, self.counts, masks)


def derived_from(
    program: Program, statistics: ChunkStatistics, counts: NDArray[np.int64]
) -> Derived | None:
    """Statistics of a program's results; None if these are unknown, or no floats."""
    top, n = range_of(program, statistics, counts), len(counts)
    if top.kind != "f":
        return None
    has_nan, has_others = (np.broadcast_to(each, n) for each in (top.has_nan, top.has_others))
    at_ends = [
        np.broadcast_to(program.run(each), n) for each in (statistics.least, statistics.greatest)
    ]
    reached = {
        name: ~has_others | (at_ends[0] == bound) | (at_ends[1] == bound)
        for name, bound in (("least", top.low), ("greatest", top.high))
    }
    least, greatest = (
        np.where(has_others, bound, np.nan).astype(at_ends[0].dtype)
        for bound in (top.low, top.high)
    )
    total, follows = _total(top, statistics, counts)
    nans = np.where(has_others, 0, counts)
    nothing = np.zeros(n, np.bool_)
    masks = {"nans": ~has_nan | ~has_others, "total": follows & ~has_nan, "nonzeros": nothing}
    derived = ChunkStatistics(statistics.known, least, greatest, total, nans, statistics.nonzeros)
    return Derived(derived, counts, masks | reached)


def _total(
    results: Range, statistics: ChunkStatistics, counts: NDArray[np.int64]
) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """Sums of a program's results for whole numbers, and the mask of chunks with known sums."""
    line = results.line
    if line is None:
        return np.zeros(len(counts)), np.zeros(len(counts), np.bool_)
    most = np.minimum(_MOST_ROUNDED * _rounding(results), _MOST_APART * _most(results))
    follows = (line.rounded <= most) & np.isfinite(line.rounded)
    follows = follows & line.holds & statistics.exact_totals(counts)
    return line.of(statistics.total.astype("f8"), counts), follows


def _rounding(floats: Range) -> Any:
    """Maximum rounding error of a result in a range."""
    return _most(floats) * float(np.finfo(np.asarray(floats.low).dtype).eps)


def _most(floats: Range) -> Any:
    """The greatest magnitude of a range."""
    return np.maximum(np.abs(floats.low), np.abs(floats.high)).astype("f8")


def _added(a: Line, b: Line, sign: int = 1) -> Line:
    slope, shift = a.slope + sign * b.slope, a.shift + sign * b.shift
    return Line(slope, shift, a.holds & b.holds, a.rounded + b.rounded)


def _multiplied(a: Line, b: Line) -> Line | None:
    if b.slope:
        return None if a.slope else _multiplied(b, a)
    return Line(a.slope * b.shift, a.shift * b.shift, a.holds, a.rounded * abs(b.shift))


def _divided(a: Line, b: Line) -> Line | None:
    return None if b.slope or not b.shift else _multiplied(a, Line(0, 1 / b.shift))


_LINES: dict[Any, Callable[..., Line | None]] = {
    np.add: _added,
    np.subtract: lambda a, b: _added(a, b, -1),
    np.multiply: _multiplied,
    np.true_divide: _divided,
    chunk.astype: lambda a: a,
    np.where: lambda a: a,
}


def _line(func: Any, args: list[Range], result: Range) -> Line | None:
    """The line by which a step scales and shifts elements; None if it does more."""
    rule, holds = _LINES.get(func), np.True_
    if rule is None or result.kind != "f":
        return None
    if func is np.where:
        condition, _, *args = args
        holds = np.logical_not(condition.high)
    dtype = np.asarray(result.low).dtype
    lines = [_line_of(arg, dtype) for arg in args]
    found = None if None in lines else rule(*lines)
    if found is None:
        return None
    return replace(found, holds=found.holds & holds, rounded=found.rounded + _rounding(result))


def _line_of(arg: Range, dtype: np.dtype[Any]) -> Line | None:
    if not arg.is_scalar:
        return arg.line
    # rounded to the result's dtype, as in NumPy: 0.1 has another value as float32
    number = np.asarray(arg.low)
    is_number = number.ndim == 0 and number.dtype.kind in "iuf"
    return Line(0, float(number.astype(dtype))) if is_number else None


def range_of(program: Program, statistics: ChunkStatistics, counts: NDArray[np.int64]) -> Range:
    """The range of a program's results in each chunk, of `counts` elements."""
    unknown = Range(None, None, True, True, False)
    if not statistics.has_range:
        return unknown
    has_nan, has_others = statistics.nans > 0, statistics.nans < counts
    line = Line(1, 0) if statistics.least.dtype.kind in "biu" else None
    elements = Range(statistics.least, statistics.greatest, has_nan, has_others, False, line)
    return or_unknown(lambda: _range(program, elements), unknown)


def _range(program: Program, elements: Range) -> Range:
    values = [elements]

    def value(operand: Operand) -> Range:
        if isinstance(operand, Result):
            return values[operand.number]
        return _of_scalar(operand.value) if isinstance(operand, Literal) else _UNRELATED

    for step in program.steps:
        func, keywords = step.call
        args = [value(arg) for arg in step.args]
        found = _call(func, args, keywords)
        values.append(replace(found, line=_line(func, args, found)))
    return values[-1]


def _call(func: Any, args: list[Range], keywords: Mapping[str, Any]) -> Range:
    if func in FILTERS:
        chosen, mask = anything_of(args), args[1]
        return replace(chosen, is_constant=chosen.is_constant | mask.is_false)
    others = {name: value for name, value in keywords.items() if name != "enforce_dtype"}
    if func is chunk.astype:
        found = cast(args[0], np.dtype(others["astype_dtype"]))
    else:
        found = None if others else result_of(func, args)
    if found is not None and found.low is not None and "enforce_dtype" in keywords:
        found = cast(found, np.dtype(keywords["enforce_dtype"]))
    return found or anything_of(args)


def _of_scalar(value: Any) -> Range:
    if np.asarray(value).dtype.kind not in "biufmM":
        return _UNRELATED
    is_nan = bool(value != value)
    return Range(value, value, is_nan, not is_nan, True)
