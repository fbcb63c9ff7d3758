"""Statistics pruning: answers to dask's chunk steps, and chunks that need no read.

For a reduction, statistics give the partial results of chunks. For other reads, predicates
prune chunks whose elements cannot change the result.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from b2nd_dask.format.statistics import ChunkStatistics
from b2nd_dask.frame.read.reduce import Predicate
from b2nd_dask.frame.read.reduction import Answers, Counted
from b2nd_dask.frame.reference import FrameReference
from b2nd_dask.graph._dask_compat import chunk
from b2nd_dask.graph.expression.derived import Derived, derived_from, or_unknown, range_of
from b2nd_dask.graph.expression.elementwise import is_among, is_number
from b2nd_dask.graph.expression.nodes import Literal
from b2nd_dask.graph.expression.program import Compiled, Operand, Program, Result, Step
from b2nd_dask.graph.expression.ranges import CONDITIONS, is_safe_cast

#: Maximum number of distinct results of constant chunks; chunks with further results are read.
_MOST_RESULTS = 64
_ELEMENTS = Result(0)

Known = tuple[NDArray[Any], NDArray[np.bool_]]
"""A value for each chunk, and the mask of chunks where it is known."""
_Totals = tuple[dict[str, NDArray[Any]], NDArray[np.bool_]]
"""The fields of each chunk's partial result, and the mask of chunks where they are known."""
Fields = dict[str, Known]
"""The fields of a partial result, each with its own mask."""
FieldsOf = Callable[[Derived, np.dtype[Any], Mapping[str, Any]], Fields]
"""Takes statistics of chunks, the dtype of their elements, and the step's keywords."""


@dataclass(frozen=True, eq=False)
class StatsQuery:
    """Answers a chunk step after a program from statistics: a `frame.read.reduction.Ask`."""

    fields: FieldsOf | None
    """Partial results of the chunk step from statistics; None if they determine none."""
    keywords: Mapping[str, Any]
    program: Program
    dtype: np.dtype[Any]
    """Dtype of the elements."""

    def __call__(self, statistics: ChunkStatistics, counts: NDArray[np.int64]) -> Answers:
        """Answer for each chunk from its statistics."""
        return or_unknown(lambda: self._answers(Derived(statistics, counts)), Answers())

    def _answers(self, chunks: Derived) -> Answers:
        if self.program.filters:
            return Answers(self._unselected(chunks))
        is_filled = self.dtype.kind in "fc" and _replaces_nan(self.program)
        dtype = self.dtype if is_filled else _only_cast_to(self.program, self.dtype)
        if self.fields is not None and dtype is not None:
            return Answers(totals=self._totals(chunks.filled() if is_filled else chunks, dtype))
        if not self.program.steps:
            return Answers()
        measured = self.program, chunks.statistics, chunks.counts
        totals = or_unknown(lambda: self._totals(self.fields and derived_from(*measured)), None)
        return Answers([*self._constants(chunks), *self._classes(chunks)], totals)

    def _totals(self, chunks: Derived | None, dtype: np.dtype[Any] | None = None) -> _Totals | None:
        """The fields of the chunk step, or of elements cast to a dtype; None if unknown."""
        if self.fields is None or chunks is None:
            return None
        dtype = chunks.statistics.least.dtype if dtype is None else dtype
        fields = self.fields(chunks, dtype, self.keywords)
        known = [chunks.statistics.known, *(known for _, known in fields.values())]
        answered: NDArray[np.bool_] = np.logical_and.reduce(known)
        return {name: values for name, (values, _) in fields.items()}, answered

    def _unselected(self, chunks: Derived) -> Counted:
        """A representative element of the chunks that the mask prunes, with counts per chunk."""
        mask = self.program.steps[-1].args[1]
        if not isinstance(mask, Result):
            return []
        selects = Program(self.program.steps[: mask.number])
        dropped = false_chunks(selects, chunks.statistics, chunks.counts)
        element = chunks.statistics.least[dropped][:1]
        return [(element.reshape(()), np.where(dropped, chunks.counts, 0))] if len(element) else []

    def _constants(self, chunks: Derived) -> Counted:
        """Representative elements of chunks with a constant result, with counts per chunk."""
        constant = constant_chunks(self.program, chunks.statistics, chunks.counts)
        if not constant.any():
            return []
        # an element of the range, or NaN if all are NaN: any element represents its chunk
        elements = chunks.statistics.least[constant]
        made = np.broadcast_to(self.program.run(elements), elements.shape)
        # compared bit by bit: 0.0 is not -0.0
        bits = np.ascontiguousarray(made).view(np.uint8).reshape(len(made), made.dtype.itemsize)
        _, first, which = np.unique(bits, axis=0, return_index=True, return_inverse=True)
        groups = []
        for number, at in enumerate(first[:_MOST_RESULTS].tolist()):
            chosen = constant.copy()
            chosen[constant] = which.reshape(-1) == number
            element = elements[at : at + 1].reshape(())
            groups.append((element, np.where(chosen, chunks.counts, 0)))
        return groups

    def _classes(self, chunks: Derived) -> Counted:
        """One representative per class of elements that the program distinguishes, with counts."""
        uses = [step for step in self.program.steps if _ELEMENTS in step.args]
        if not uses:
            return []
        zero, one = np.zeros((), self.dtype), np.ones((), self.dtype)
        known, counts = chunks.statistics.known, chunks.counts
        if all(is_among(step.func, {np.isnan, np.isnat}) and not step.kwargs for step in uses):
            # no integer is NaN
            nan = _nan_of(self.dtype) if self.dtype.kind in "fcmM" else zero
            nans = np.where(known, chunks.statistics.nans, 0)
            return [(nan, nans), (zero, np.where(known, counts - nans, 0))]
        if all(map(_is_zero_test, uses)):
            nonzeros = np.where(known, chunks.statistics.nonzeros, 0)
            return [(one, nonzeros), (zero, np.where(known, counts - nonzeros, 0))]
        return []


def _nan_of(dtype: np.dtype[Any]) -> Any:
    return np.full((), "NaT" if dtype.kind in "mM" else np.nan, dtype)


def _only_cast_to(program: Program, dtype: np.dtype[Any]) -> np.dtype[Any] | None:
    """The dtype of a program of exact casts only; None if it does more."""
    last: Operand = _ELEMENTS
    for number, step in enumerate(program.steps, start=1):
        func, keywords = step.call
        wanted = np.dtype(keywords["astype_dtype"]) if func is chunk.astype else None
        if wanted is None or step.args != (last,) or not is_safe_cast(dtype, wanted):
            return None
        dtype, last = wanted, Result(number)
    return dtype


def _replaces_nan(program: Program) -> bool:
    """Whether a program is ``where(isnan(x), 0, x)``, as in xarray's sums."""
    if len(program.steps) != 2:
        return False
    first, second = program.steps
    if first.func is not np.isnan or second.func is not np.where or first.kwargs or second.kwargs:
        return False
    mask, zero, elements = second.args
    in_order = first.args == (_ELEMENTS,) and (mask, elements) == (Result(1), _ELEMENTS)
    return in_order and _is_zero(zero)


def _is_zero_test(step: Step) -> bool:
    func, keywords = step.call
    if func is chunk.astype:
        return bool(np.dtype(keywords["astype_dtype"]).kind == "b")
    if keywords:
        return False
    others = [arg for arg in step.args if arg != _ELEMENTS]
    with_zero = len(others) == 1 and _is_zero(others[0])
    return func is np.logical_not or (func in (np.equal, np.not_equal) and with_zero)


def _is_zero(operand: Operand) -> bool:
    return isinstance(operand, Literal) and is_number(operand.value) and bool(operand.value == 0)


def _sum(chunks: Derived, dtype: np.dtype[Any], wanted: Any) -> Known:
    """Sums of elements cast to `dtype`, in the dtype `wanted`."""
    statistics, known = chunks.statistics, chunks.known_mask("total", "nans")
    wanted = np.sum(np.zeros(1, dtype)).dtype if wanted is None else np.dtype(wanted)
    if statistics.total.dtype.kind in "iu":
        # modulo 2**64, like NumPy's own sums
        if wanted.kind not in "iu":
            known = statistics.exact_totals(chunks.counts) & (wanted.kind == "f")
    else:
        known = known & (wanted.kind == dtype.kind and wanted.itemsize >= dtype.itemsize)
    if not known.any():
        # no chunk is known: skip the cast, which may warn
        return np.zeros(len(known)), known
    total = statistics.total.astype(_ACCUMULATORS.get(wanted.kind, wanted.newbyteorder("=")))
    has_nan = statistics.nans > 0
    if has_nan.any():
        # of a complex sum either part may be NaN, and for integers NumPy's result is undefined
        known = known & (~has_nan | (total.dtype.kind == "f"))
        if total.dtype.kind == "f":
            total = np.where(has_nan, np.nan, total)
    return total, known


#: Dtypes in which sums of floats accumulate.
_ACCUMULATORS = {"f": np.dtype("f8"), "c": np.dtype("c16")}


def sum_fields(chunks: Derived, dtype: np.dtype[Any], keywords: Any) -> Fields:
    """Fields of `sum`."""
    return {"": _sum(chunks, dtype, keywords.get("dtype"))}


def nansum_fields(chunks: Derived, dtype: np.dtype[Any], keywords: Any) -> Fields:
    """Fields of `nansum`."""
    return sum_fields(chunks.filled(), dtype, keywords)


def mean_fields(chunks: Derived, dtype: np.dtype[Any], keywords: Any) -> Fields:
    """Fields of `mean` and `nanmean`."""
    skips = keywords.get("sum", chunk.sum) is chunk.nansum
    counts = chunks.counts - chunks.statistics.nans if skips else chunks.counts
    total = _sum(chunks.filled() if skips else chunks, dtype, keywords.get("dtype", "f8"))
    return {"n": (counts, chunks.known_mask("nans")), "total": total}


def any_fields(chunks: Derived, dtype: np.dtype[Any], keywords: Any) -> Fields:
    """Fields of `any`."""
    return {"": (chunks.statistics.nonzeros > 0, chunks.known_mask("nonzeros"))}


def all_fields(chunks: Derived, dtype: np.dtype[Any], keywords: Any) -> Fields:
    """Fields of `all`."""
    return {"": (chunks.statistics.nonzeros == chunks.counts, chunks.known_mask("nonzeros"))}


def extreme_fields(
    column: str, chunks: Derived, dtype: np.dtype[Any], keywords: Any, *, skips_nan: bool = False
) -> Fields:
    """Fields of `min` or `max`, from the column of statistics."""
    statistics = chunks.statistics
    needed = (column, *(() if skips_nan else ("nans",)))
    known = chunks.known_mask(*needed) & statistics.has_range
    values = getattr(statistics, column).astype(dtype)
    nan = statistics.nans == chunks.counts if skips_nan else statistics.nans > 0
    if nan.any():
        values = np.where(nan, _nan_of(dtype), values)
    return {"": (values, known)}


def constant_chunks(
    program: Program, statistics: ChunkStatistics, counts: NDArray[np.int64]
) -> NDArray[np.bool_]:
    """Mask of chunks in which a program has one result for all elements."""
    constant = range_of(program, statistics, counts).is_constant
    return np.broadcast_to(constant, len(counts)) & statistics.known


def false_chunks(
    program: Program, statistics: ChunkStatistics, counts: NDArray[np.int64]
) -> NDArray[np.bool_]:
    """Mask of chunks in which a program is false for all elements."""
    false = range_of(program, statistics, counts).is_false
    return np.broadcast_to(false, len(counts)) & statistics.known


def predicate_of(compiled: Compiled | None) -> Predicate | None:
    """The predicate that prunes the read of a program; None if it cannot prune a chunk."""
    if compiled is None or compiled.reads != [compiled.read]:
        return None
    source, program = compiled.read.source, compiled.program
    if not isinstance(source, FrameReference) or not source.has_statistics:
        return None
    # without a condition, a result is constant only if the elements are
    decides = any(map(_is_condition, program.steps))
    return partial(constant_chunks, program) if decides else None


def _is_condition(step: Step) -> bool:
    """Whether the range of a chunk may decide a step, although its elements differ."""
    func, keywords = step.call
    is_cast = func is chunk.astype and np.dtype(keywords["astype_dtype"]).kind == "b"
    return func in CONDITIONS or is_cast
