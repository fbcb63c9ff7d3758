"""The chunk steps of dask's reductions, and the combination of their partial results."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from b2nd_dask.frame.read.reduction import (
    MOMENTS,
    PRODUCTS,
    SUMS,
    Accumulation,
    PartialResult,
    Reduction,
    extremes,
)
from b2nd_dask.graph._dask_compat import _concatenate2, chunk, reductions
from b2nd_dask.graph.expression import pruning
from b2nd_dask.graph.expression.chunk_kernels import (
    Kernel,
    extreme_kernel,
    mean_kernel,
    moment_kernel,
    product_kernel,
    sum_kernel,
)
from b2nd_dask.graph.expression.elementwise import is_among
from b2nd_dask.graph.expression.program import ELEMENTS, Program
from b2nd_dask.graph.expression.pruning import FieldsOf, StatsQuery
from b2nd_dask.graph.expression.tiles import reduce_in_tiles

#: Keywords of dask's chunk steps.
_KEYWORDS = frozenset({"dtype", "implicit_complex_dtype", "numel", "order", "sum"})
#: Keywords of dask's combining steps.
_COMBINING_KEYWORDS = frozenset({"axis", "keepdims", "dtype", "ddof", "order", "sum", "numel"})
_MEANS = (reductions.mean_combine, reductions.mean_agg)
_MOMENTS = (reductions.moment_combine, reductions.moment_agg)
#: Pairs of `sum` and `numel` that skip the same elements.
_COUNTED = frozenset({(chunk.sum, reductions.numel), (chunk.nansum, reductions.nannumel)})


def combining_step(func: Any) -> tuple[Any, bool]:
    """The combining function of a task, and whether dask concatenates the partial results."""
    first = getattr(func, "first", None)  # of functions composed by toolz
    if not isinstance(first, partial) or first.func is not _concatenate2:
        return func, False
    (func,) = func.funcs
    return func, True


def _same_dtype(one: Any, other: Any) -> bool:
    return one is other or (
        one is not None and other is not None and bool(np.dtype(one) == np.dtype(other))
    )


@dataclass(frozen=True)
class ReductionKind:
    """How reductions of one kind accumulate chunk by chunk."""

    accumulation: Accumulation
    kernel: Kernel
    """Computes partial results, perhaps in a wider dtype than dask's chunk step."""
    combined_by: tuple[Callable[..., Any], ...]
    """Steps by which dask combines results of the chunk step."""
    fields: FieldsOf | None = None
    """Partial results from statistics of chunks; None if these determine none."""
    is_tiled: bool = False
    """Whether the kernel makes arrays of all elements; tiles keep these in the cache."""


@dataclass(frozen=True, eq=False)
class Fold:
    """A chunk step of dask: the computation on each block before results are combined.

    Elementwise work may precede it.
    """

    func: Callable[..., Any]
    """The step, perhaps a partial with keywords."""
    axis: tuple[int, ...]
    """Axes to reduce."""
    program: Program = ELEMENTS
    """The preceding elementwise work."""
    prunes: bool = False
    """Whether chunks whose statistics suffice are not read."""

    @property
    def _kind(self) -> ReductionKind:
        return _KINDS[_with_keywords(self.func)[0]]

    def is_combined_by(self, step: Any, *, concatenated: bool) -> bool:
        """Whether this step on several blocks together may replace a combining step of dask.

        That step must be one of dask's own reductions, a partial with their keywords. Its
        argument is an array of partial results if `concatenated`, else a list of them.
        """
        if not isinstance(step, partial) or step.args:
            return False
        _, own = _with_keywords(self.func)
        func, keywords = step.func, step.keywords
        # these functions take a list of partial results, each with several fields
        has_fields = is_among(func, _MEANS + _MOMENTS)
        default = own.get("dtype") if has_fields else None
        sums = keywords.get("sum")
        return (
            is_among(func, self._kind.combined_by)
            and not (func is chunk.prod and _is_inexact(own.get("dtype")))
            and keywords.get("axis") == self.axis
            and keywords.keys() <= _COMBINING_KEYWORDS
            and concatenated is not has_fields
            and _same_dtype(keywords.get("dtype", default), own.get("dtype"))
            and keywords.get("order", 2) == 2
            and is_among(keywords.get("numel"), (None, own.get("numel")))
            and (is_among(sums, (None, np.sum)) or sums is own.get("sum"))
        )

    def combining(self, func: Any) -> Any:
        """A combining step of dask; for moments without results of no element, which become NaN."""
        drops = self.program.filters and self._kind.accumulation is MOMENTS
        return partial(_combine_nonempty, func) if drops else func

    def bound(self, inputs: Sequence[Any]) -> Fold:
        """A copy with values as the inputs of its program."""
        return replace(self, program=self.program.bound(inputs)) if inputs else self

    def step(self, elements: NDArray[Any]) -> Any:
        """Run dask's own chunk step on the program's result."""
        return self.func(elements, axis=self.axis, keepdims=True)

    def axes(self, ndim: int) -> tuple[int, ...]:
        """The axes of the elements that it reduces: all of them after a filter."""
        return tuple(range(ndim)) if self.program.filters else self.axis

    def reduction(self, dtype: np.dtype[Any], ndim: int) -> Reduction:
        """The reduction that runs chunk by chunk on a dtype; the program must have no inputs."""
        _, keywords = _with_keywords(self.func)
        ask = StatsQuery(self._kind.fields, keywords, self.program, dtype) if self.prunes else None
        of_chunk = self._in_tiles
        if not self.program.steps and not self._kind.is_tiled:
            # the elements of a chunk are in the cache
            of_chunk = partial(self._kernel, axis=self.axis)
        return Reduction(self.axes(ndim), self._kind.accumulation, of_chunk, ask)

    @property
    def _kernel(self) -> Kernel:
        return partial(self._kind.kernel, **_with_keywords(self.func)[1])

    def _in_tiles(self, *arrays: NDArray[Any]) -> PartialResult:
        """Reduce elements, perhaps with inputs; narrow floats accumulate in wider ones.

        There are no fields if a filter selects no element.
        """
        if not self.program.filters:
            accumulation = self._kind.accumulation
            return reduce_in_tiles(self.program, arrays, self._kernel, self.axis, accumulation)
        selected, ones = self.program.run(arrays[0], arrays[1:]), (1,) * arrays[0].ndim
        found = self._kernel(selected, self.axis, scratch=True) if selected.size else {}
        return {name: values.reshape(ones + values.shape[1:]) for name, values in found.items()}

    def of_block(self, elements: NDArray[Any], inputs: Sequence[Any]) -> Any:
        """The result of dask's chunk step after the program, for a block in memory."""
        total = self._in_tiles(elements, *inputs)
        return self.result(total, elements.dtype, elements.ndim, inputs)

    def result(
        self, total: PartialResult, dtype: np.dtype[Any], ndim: int, inputs: Sequence[Any] = ()
    ) -> Any:
        """Convert the partial result of all elements to the result of dask's own chunk step."""
        with np.errstate(all="ignore"):
            fields = self.result_of_one(dtype, ndim, inputs, count=1 if total else 0)
            for name, values in total.items():
                shape = fields[name].shape if self.program.filters else values.shape
                fields[name] = values.astype(fields[name].dtype, copy=False).reshape(shape)
        return fields.get("", fields)

    def result_of_one(
        self, dtype: np.dtype[Any], ndim: int, inputs: Sequence[Any] = (), *, count: int = 1
    ) -> dict[str, NDArray[Any]]:
        """The result of dask's chunk step for one element: an example with its dtypes and fields.

        With a `count` of 0 it is the result for no selected element. The program runs on an empty
        array, since it may raise for a value that no frame has.
        """
        made = self.program.dtype([np.empty((0,) * ndim, dtype), *inputs])
        found = self.step(np.ones((count,) * (1 if self.program.filters else ndim), made))
        fields = found if isinstance(found, dict) else {"": found}
        return {name: np.asarray(values) for name, values in fields.items()}


def _combine_nonempty(func: Any, results: list[Any]) -> Any:
    """Combine the results of blocks in which a filter selects elements; if none, all results."""
    return func([each for each in results if each["n"].any()] or results)


def fold_of(func: Any, kwargs: Mapping[str, Any]) -> Fold | None:
    """Parse the call of a function on a block as a fold; None for an unknown chunk step."""
    if set(kwargs) != {"axis", "keepdims"}:
        return None
    axis, keepdims = kwargs["axis"], kwargs["keepdims"]
    is_plain = isinstance(axis, tuple) and keepdims is True
    return Fold(func, axis) if is_plain and _is_known(func) else None


def _with_keywords(func: Any) -> tuple[Any, dict[str, Any]]:
    """Unwrap partials without positional arguments; return the function and all keywords."""
    keywords: dict[str, Any] = {}
    while isinstance(func, partial) and not func.args:
        func, keywords = func.func, {**func.keywords, **keywords}
    return func, keywords


def _is_known(func: Callable[..., Any]) -> bool:
    """Whether a function, with its keywords, is a chunk step that runs chunk by chunk."""
    func, keywords = _with_keywords(func)
    counted = keywords.get("sum", chunk.sum), keywords.get("numel", reductions.numel)
    return (
        is_among(func, _KINDS)
        and keywords.keys() <= _KEYWORDS
        and keywords.get("order", 2) == 2
        and is_among(counted, _COUNTED)
        # with an integer dtype, counts wrap around whenever dask combines them
        and (
            _KINDS[func].combined_by not in (_MEANS, _MOMENTS) or _is_inexact(keywords.get("dtype"))
        )
    )


def _is_inexact(dtype: Any) -> bool:
    """Whether results are floats or complex numbers, as with the default dtype."""
    return dtype is None or np.dtype(dtype).kind in "fc"


def _extreme(ufunc: np.ufunc, fields: FieldsOf, *combined_by: Callable[..., Any]) -> ReductionKind:
    return ReductionKind(extremes(ufunc), partial(extreme_kernel, ufunc), combined_by, fields)


_NANSUM = partial(sum_kernel, sum=chunk.nansum)
_NANPROD = partial(product_kernel, skips_nan=True)
_LEAST = partial(pruning.extreme_fields, "least")
_GREATEST = partial(pruning.extreme_fields, "greatest")
_NANLEAST = partial(_LEAST, skips_nan=True)
_NANGREATEST = partial(_GREATEST, skips_nan=True)

#: The known chunk steps of dask.
_KINDS: dict[Callable[..., Any], ReductionKind] = {
    chunk.sum: ReductionKind(SUMS, sum_kernel, (chunk.sum,), pruning.sum_fields),
    chunk.nansum: ReductionKind(SUMS, _NANSUM, (chunk.sum,), pruning.nansum_fields),
    chunk.prod: ReductionKind(PRODUCTS, product_kernel, (chunk.prod,)),
    chunk.nanprod: ReductionKind(PRODUCTS, _NANPROD, (chunk.prod,)),
    chunk.any: _extreme(np.logical_or, pruning.any_fields, chunk.any),
    chunk.all: _extreme(np.logical_and, pruning.all_fields, chunk.all),
    reductions.chunk_min: _extreme(np.minimum, _LEAST, reductions.chunk_min, chunk.min),
    reductions.chunk_max: _extreme(np.maximum, _GREATEST, reductions.chunk_max, chunk.max),
    reductions._nanmin_skip: _extreme(np.fmin, _NANLEAST, reductions._nanmin_skip),
    reductions._nanmax_skip: _extreme(np.fmax, _NANGREATEST, reductions._nanmax_skip),
    reductions.mean_chunk: ReductionKind(SUMS, mean_kernel, _MEANS, pruning.mean_fields),
    reductions.moment_chunk: ReductionKind(MOMENTS, moment_kernel, _MOMENTS, is_tiled=True),
}
