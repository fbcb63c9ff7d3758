"""The chunk steps of dask's `argmin` and the like, as candidates with their positions."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from numbers import Integral
from typing import Any

import numpy as np
from numpy.typing import NDArray

from b2nd_dask.frame.read.partial_results import PartialResult, first_extremes
from b2nd_dask.frame.read.reduction import Reduction
from b2nd_dask.graph._dask_compat import chunk, reductions
from b2nd_dask.graph.optimize.calls.elementwise import BoundWork
from b2nd_dask.graph.optimize.calls.expression import Call, Literal, Node, is_among
from b2nd_dask.graph.optimize.calls.reductions import Combining

#: Functions in dask's chunk step, and what finds the value beside the element. Only those that
#: skip NaNs need the latter: they locate a NaN as if it were infinite, but return the value of an
#: infinite element then.
_SEARCHES: dict[tuple[Callable[..., Any], ...], np.ufunc | None] = {
    (np.min, np.argmin): None,
    (np.max, np.argmax): None,
    (np.nanmin, reductions._nanargmin): np.fmin,
    (np.nanmax, reductions._nanargmax): np.fmax,
}


@dataclass(frozen=True)
class Search:
    """A chunk step that finds where an extreme is first, as `reduction_pushdown.ChunkStep`."""

    func: partial[Any]
    axis: tuple[int, ...]
    """One, or all."""
    offset: Any
    """Of the block: along the axis, or along all axes and with the shape of the whole array."""
    value: np.ufunc | None
    """Finds the value, where that is not the element."""

    def is_combined_by(self, combining: Combining) -> bool:
        """Return False: of equal elements dask's first is that of the first block, not of all."""
        return False

    @property
    def argfunc(self) -> Callable[..., NDArray[np.intp]]:
        """The function that finds the position in an array."""
        found: Callable[..., NDArray[np.intp]] = self.func.args[1]
        return found

    @property
    def numpy_axis(self) -> int | None:
        """The argument `axis` of NumPy's function."""
        return None if isinstance(self.offset, tuple) else self.axis[0]

    def whole(self, elements: NDArray[Any]) -> Any:
        """As `reduction_pushdown.ChunkStep.whole`."""
        return self.func(elements, self.axis, self.offset)

    def streamed(self, work: BoundWork) -> StreamedSearch:
        """As `reduction_pushdown.ChunkStep.streamed`."""
        return StreamedSearch(self, work)

    def locate(self, positions: tuple[NDArray[np.intp], ...]) -> NDArray[np.intp]:
        """Convert positions in the block, along each axis, to positions in the whole array."""
        if self.numpy_axis is not None:
            along: NDArray[np.intp] = positions[0] + self.offset
            return along
        offset, shape = self.offset
        moved = tuple(p + first for p, first in zip(positions, offset, strict=True))
        flat: NDArray[np.intp] = np.ravel_multi_index(moved, shape)
        return flat


class StreamedSearch:
    """A search chunk by chunk, after elementwise work, as `reduction_pushdown.Streamed`."""

    def __init__(self, step: Search, work: BoundWork) -> None:
        accumulation = first_extremes(step.argfunc, step.value, step.locate)
        self.reduction = Reduction(step.axis, accumulation, self._partial_result)
        self._step = step
        self._work = work

    def _partial_result(self, elements: NDArray[Any], start: tuple[int, ...]) -> PartialResult:
        elements, axis = self._work(elements), self._step.numpy_axis
        found = self._step.argfunc(elements, axis=axis, keepdims=True)
        if axis is None:
            inner = np.unravel_index(found, elements.shape)
            best = elements[inner]
        else:
            inner = (found,)
            best = np.take_along_axis(elements, found, axis)
        positions = tuple(p + start[i] for i, p in zip(self._step.axis, inner, strict=True))
        fields = {"element": best, "arg": self._step.locate(positions)}
        if self._step.value is not None:
            fields["value"] = self._step.value.reduce(elements, axis=axis, keepdims=True)
        return fields

    def result(self, total: PartialResult) -> Any:
        """As `reduction_pushdown.Streamed.result`."""
        values, arg = total.get("value", total["element"]), total["arg"]
        native = values.dtype.newbyteorder("=")
        found = np.empty(arg.shape, [("vals", native), ("arg", arg.dtype)])
        found["vals"], found["arg"] = values, arg
        return found


def search_of(call: Call) -> Search | None:
    """Parse a call as a search in a block; None if it is no chunk step of dask's own."""
    func, args = call.func, call.args
    if (
        not isinstance(func, partial)
        or func.func is not reductions.arg_chunk
        or func.keywords
        or len(args) != 3
        or call.kwargs
    ):
        return None
    known = tuple(map(_unwrapped, func.args))
    axis, offset = map(_value, args[1:])
    if (
        not is_among(known, _SEARCHES)
        or not isinstance(axis, tuple)
        or not isinstance(offset, tuple | Integral)
    ):
        return None
    return Search(func, axis, offset, _SEARCHES[known])


def _unwrapped(func: Any) -> Any:
    """Return the function inside dask's wrapper that keeps dimensions, or the function itself."""
    # in graphs that were sent to a scheduler the wrappers are copies
    if getattr(func, "__code__", None) == chunk.argmin.__code__:
        return func.__wrapped__
    return func


def _value(node: Node) -> Any:
    return node.value if isinstance(node, Literal) else None
