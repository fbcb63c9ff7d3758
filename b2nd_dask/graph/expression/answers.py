"""What statistics of chunks answer of the chunk steps of dask's reductions."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from b2nd_dask.format.statistics import ChunkStatistics
from b2nd_dask.frame.read.reduction import Answers, Counted
from b2nd_dask.graph._dask_compat import chunk, reductions
from b2nd_dask.graph.expression.derived import Derived, are_exact_totals, derived_from, or_unknown
from b2nd_dask.graph.expression.elementwise import UFUNCS, is_among, unwrapped
from b2nd_dask.graph.expression.nodes import Literal
from b2nd_dask.graph.expression.predicates import is_constant
from b2nd_dask.graph.expression.program import Operand, Program, Result, Step
from b2nd_dask.graph.expression.ranges import is_safe_cast

#: Results of constant chunks that are added each for itself; chunks with yet others are read.
_MOST_RESULTS = 64
_ELEMENTS = Result(0)

Known = tuple[NDArray[Any], NDArray[np.bool_]]
"""A value for each chunk, and for which chunks it is known."""
_Totals = tuple[dict[str, NDArray[Any]], NDArray[np.bool_]]
"""The fields of a partial result of each chunk, and for which chunks they are known."""


@dataclass(frozen=True, eq=False)
class Question:
    """A chunk step after a program, as `frame.read.reduction.Ask`."""

    step: Callable[..., Any]
    """dask's chunk step, without its keywords."""
    keywords: Mapping[str, Any]
    program: Program
    dtype: np.dtype[Any]
    """Of the elements."""

    def __call__(self, statistics: ChunkStatistics, counts: NDArray[np.int64]) -> Answers:
        """Answer for each chunk."""
        return or_unknown(lambda: self._answers(Derived(statistics, counts)), Answers())

    def _answers(self, chunks: Derived) -> Answers:
        has_fields = is_among(self.step, _FIELDS)
        is_filled = self.dtype.kind in "fc" and _replaces_nan(self.program)
        dtype = self.dtype if is_filled else _only_cast_to(self.program, self.dtype)
        if has_fields and dtype is not None:
            return Answers(totals=self._totals(chunks.filled() if is_filled else chunks, dtype))
        if not self.program.steps:
            return Answers()
        totals = or_unknown(lambda: self._totals_of_made(chunks), None) if has_fields else None
        return Answers([*self._constants(chunks), *self._classes(chunks)], totals)

    def _totals_of_made(self, chunks: Derived) -> _Totals | None:
        made = derived_from(self.program, chunks.statistics, chunks.counts)
        return None if made is None else self._totals(made, made.statistics.least.dtype)

    def _totals(self, chunks: Derived, dtype: np.dtype[Any]) -> _Totals:
        """The fields of the chunk step, for what was cast to a dtype."""
        fields = _FIELDS[self.step](chunks, dtype, self.keywords)
        known = [chunks.statistics.known, *(known for _, known in fields.values())]
        answered: NDArray[np.bool_] = np.logical_and.reduce(known)
        return {name: values for name, (values, _) in fields.items()}, answered

    def _constants(self, chunks: Derived) -> Counted:
        """Elements that stand for all of those of some chunks."""
        constant = is_constant(self.program, chunks.statistics, chunks.counts)
        if not constant.any():
            return []
        # of the range, or NaN where all elements are: any stands for the others
        elements = chunks.statistics.least[constant]
        made = np.broadcast_to(self.program.run(elements), elements.shape)
        # by their bits: 0.0 is not -0.0
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
        """Elements that stand for all that the program does not distinguish, and their numbers."""
        uses = [step for step in self.program.steps if _ELEMENTS in step.args]
        if not uses:
            return []
        zero, one = np.zeros((), self.dtype), np.ones((), self.dtype)
        known, counts = chunks.statistics.known, chunks.counts
        if all(map(_asks_for_nan, uses)):
            # of integers none is NaN
            nan = _nan_of(self.dtype) if self.dtype.kind in "fcmM" else zero
            nans = np.where(known, chunks.statistics.nans, 0)
            return [(nan, nans), (zero, np.where(known, counts - nans, 0))]
        if all(map(_asks_for_zero, uses)):
            nonzeros = np.where(known, chunks.statistics.nonzeros, 0)
            return [(one, nonzeros), (zero, np.where(known, counts - nonzeros, 0))]
        return []


def _nan_of(dtype: np.dtype[Any]) -> Any:
    return np.full((), "NaT" if dtype.kind in "mM" else np.nan, dtype)


def _only_cast_to(program: Program, dtype: np.dtype[Any]) -> np.dtype[Any] | None:
    """The dtype to which a program casts numbers exactly; None where it does more."""
    last: Operand = _ELEMENTS
    for number, step in enumerate(program.steps, start=1):
        func, keywords = unwrapped(step.func, step.keywords)
        wanted = np.dtype(keywords["astype_dtype"]) if func is chunk.astype else None
        if wanted is None or step.args != (last,) or not is_safe_cast(dtype, wanted):
            return None
        dtype, last = wanted, Result(number)
    return dtype


def _replaces_nan(program: Program) -> bool:
    """Whether a program is ``where(isnan(x), 0, x)``, as xarray's sums make it."""
    if len(program.steps) != 2:
        return False
    first, second = program.steps
    if first.func is not np.isnan or second.func is not np.where or first.kwargs or second.kwargs:
        return False
    mask, zero, elements = second.args
    is_zero = isinstance(zero, Literal) and bool(np.asarray(zero.value) == 0)
    in_order = first.args == (_ELEMENTS,) and (mask, elements) == (Result(1), _ELEMENTS)
    return bool(in_order and is_zero)


def _asks_for_nan(step: Step) -> bool:
    return is_among(step.func, {np.isnan, np.isnat}) and not step.kwargs


def _asks_for_zero(step: Step) -> bool:
    func, keywords = unwrapped(step.func, step.keywords)
    if func is chunk.astype:
        return bool(np.dtype(keywords["astype_dtype"]).kind == "b")
    if keywords:
        return False
    others = [arg for arg in step.args if arg != _ELEMENTS]
    with_zero = len(others) == 1 and isinstance(others[0], Literal) and _is_zero(others[0].value)
    compares = UFUNCS.get(func, func) in (np.equal, np.not_equal)
    return func is np.logical_not or (compares and with_zero)


def _is_zero(value: Any) -> bool:
    return bool(np.asarray(value).dtype.kind in "biufc" and value == 0)


Fields = dict[str, Known]
"""The fields of a partial result."""


def _sum(chunks: Derived, dtype: np.dtype[Any], wanted: Any) -> Known:
    """Sums of elements that were cast to a dtype, in the `wanted` one."""
    statistics, known = chunks.statistics, chunks.knows("total", "nans")
    wanted = np.sum(np.zeros(1, dtype)).dtype if wanted is None else np.dtype(wanted)
    if statistics.total.dtype.kind in "iu":
        # modulo 2**64, as NumPy's own sums
        known = (
            known
            if wanted.kind in "iu"
            else are_exact_totals(statistics, chunks.counts) & (wanted.kind == "f")
        )
    else:
        known = known & (wanted.kind == dtype.kind and wanted.itemsize >= dtype.itemsize)
    if not known.any():
        # a cast may warn
        return np.zeros(len(known)), known
    total = statistics.total.astype(_ACCUMULATORS.get(wanted.kind, wanted.newbyteorder("=")))
    has_nan = statistics.nans > 0
    if has_nan.any():
        # which part of a complex sum is NaN is not known, nor what NumPy makes of a NaN in others
        known = known & (~has_nan | (total.dtype.kind == "f"))
        if total.dtype.kind == "f":
            total = np.where(has_nan, np.nan, total)
    return total, known


#: What sums of floats accumulate in.
_ACCUMULATORS = {"f": np.dtype("f8"), "c": np.dtype("c16")}


def _total_rule(chunks: Derived, dtype: np.dtype[Any], keywords: Any) -> Fields:
    return {"": _sum(chunks, dtype, keywords.get("dtype"))}


def _nan_total_rule(chunks: Derived, dtype: np.dtype[Any], keywords: Any) -> Fields:
    return _total_rule(chunks.filled(), dtype, keywords)


def _mean_rule(chunks: Derived, dtype: np.dtype[Any], keywords: Any) -> Fields:
    skips = keywords.get("sum", chunk.sum) is chunk.nansum
    counts = chunks.counts - chunks.statistics.nans if skips else chunks.counts
    total = _sum(chunks.filled() if skips else chunks, dtype, keywords.get("dtype", "f8"))
    return {"n": (counts, chunks.knows("nans")), "total": total}


def _any_rule(chunks: Derived, dtype: np.dtype[Any], keywords: Any) -> Fields:
    return {"": (chunks.statistics.nonzeros > 0, chunks.knows("nonzeros"))}


def _all_rule(chunks: Derived, dtype: np.dtype[Any], keywords: Any) -> Fields:
    return {"": (chunks.statistics.nonzeros == chunks.counts, chunks.knows("nonzeros"))}


def _extreme_rule(*, greatest: bool, skips_nan: bool) -> Callable[..., Fields]:
    def fields(chunks: Derived, dtype: np.dtype[Any], keywords: Any) -> Fields:
        statistics = chunks.statistics
        needed = ("greatest" if greatest else "least", *(() if skips_nan else ("nans",)))
        known = chunks.knows(*needed) & statistics.has_range
        values = (statistics.greatest if greatest else statistics.least).astype(dtype)
        nan = statistics.nans == chunks.counts if skips_nan else statistics.nans > 0
        if nan.any():
            values = np.where(nan, _nan_of(dtype), values)
        return {"": (values, known)}

    return fields


#: Chunks, the dtype of their elements, and keywords, to fields of the result.
_FIELDS: dict[Callable[..., Any], Callable[..., Fields]] = {
    chunk.sum: _total_rule,
    chunk.nansum: _nan_total_rule,
    chunk.any: _any_rule,
    chunk.all: _all_rule,
    reductions.chunk_min: _extreme_rule(greatest=False, skips_nan=False),
    reductions.chunk_max: _extreme_rule(greatest=True, skips_nan=False),
    reductions._nanmin_skip: _extreme_rule(greatest=False, skips_nan=True),
    reductions._nanmax_skip: _extreme_rule(greatest=True, skips_nan=True),
    reductions.mean_chunk: _mean_rule,
}
