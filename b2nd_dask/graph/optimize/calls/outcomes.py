"""What elementwise work makes of each chunk, as far as its statistics tell."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from b2nd_dask.format.statistics import ChunkStatistics
from b2nd_dask.graph._dask_compat import chunk
from b2nd_dask.graph.optimize.calls.elementwise import BoundWork, Operand, Result, unwrapped
from b2nd_dask.graph.optimize.calls.expression import Dependency
from b2nd_dask.graph.optimize.calls.ranges import Range, anything_of, cast, result_of

logger = logging.getLogger("b2nd_dask")
_T = TypeVar("_T")


def is_settled(
    bound: BoundWork, statistics: ChunkStatistics, counts: NDArray[np.int64]
) -> NDArray[np.bool_]:
    """Tell in which chunks work has one result, whatever their elements are.

    Parameters
    ----------
    counts : ndarray of int64
        Elements of each chunk.
    """
    top = _top(bound, statistics, counts)
    told = False if top is None else top.is_constant
    return np.broadcast_to(told, len(counts)) & statistics.known


def is_false(
    bound: BoundWork, statistics: ChunkStatistics, counts: NDArray[np.int64]
) -> NDArray[np.bool_]:
    """Tell in which chunks work is false, whatever their elements are; as `is_settled`."""
    top = _top(bound, statistics, counts)
    told = False if top is None or not top.is_boolean else ~np.asarray(top.high)
    return np.broadcast_to(told, len(counts)) & statistics.known


def _top(bound: BoundWork, statistics: ChunkStatistics, counts: NDArray[np.int64]) -> Range | None:
    if not statistics.has_range:
        return None
    has_nan, has_others = statistics.nans > 0, statistics.nans < counts
    elements = Range(statistics.least, statistics.greatest, has_nan, has_others, False)
    return or_unknown(lambda: _range_of(bound, elements), None)


def or_unknown(evaluate: Callable[[], _T], unknown: _T) -> _T:
    """Evaluate rules on statistics; return `unknown` where one raises an exception.

    An error of the user's own program is raised when the elements are read.
    """
    try:
        with np.errstate(all="ignore"):
            return evaluate()
    except Exception:
        logger.debug("a rule for statistics raised an exception", exc_info=True)
        return unknown


def _range_of(bound: BoundWork, elements: Range) -> Range:
    work, results = bound.work, bound.results
    values = {0: elements}

    def value(operand: Operand) -> Range:
        if isinstance(operand, Result):
            return values[operand.number]
        return _of_scalar(
            results[operand.key] if isinstance(operand, Dependency) else operand.value
        )

    for number, step in enumerate(work.steps, start=1):
        func, keywords = unwrapped(step.func, step.keywords)
        values[number] = _call(func, [value(arg) for arg in step.args], keywords)
    return value(work.top)


def _call(func: Any, args: list[Range], keywords: Mapping[str, Any]) -> Range:
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
        return Range(None, None, True, True, True)
    is_nan = bool(value != value)
    return Range(value, value, is_nan, not is_nan, True)
