"""Reduce a region while it is read: what chunks contribute is merged, no array is built."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from b2nd_dask.format.index import ChunkKind
from b2nd_dask.frame.open.opening import OpenedFrame
from b2nd_dask.frame.read.constant_runs import Box, Cells, ConstantRuns
from b2nd_dask.frame.read.fill import Fill
from b2nd_dask.frame.read.pieces import iter_chunks
from b2nd_dask.frame.read.plan import Part, RegionPlan
from b2nd_dask.frame.read.region import special_element

PartialResult = Mapping[str, NDArray[Any]]
"""What some elements contribute to a reduction: arrays with length 1 along the reduced axes. Axes
beyond those of the elements may follow."""


class Reduction(Protocol):
    """What to do with elements and with partial results."""

    @property
    def axis(self) -> tuple[int, ...]:
        """Axes to reduce, in ascending order."""

    @property
    def positional(self) -> bool:
        """Whether partial results tell where elements are; else only their values count."""

    def partial_result(self, elements: NDArray[Any], start: tuple[int, ...]) -> PartialResult:
        """PartialResult of a box of elements; `start` is its corner in the region.

        Where all axes are reduced and nothing is positional, elements come in any order and shape.
        """

    def merge(self, first: PartialResult, second: PartialResult) -> PartialResult:
        """PartialResult of both, in whichever order they come."""

    def repeat(self, one: PartialResult, places: ConstantRuns) -> PartialResult:
        """PartialResult of an element, whose own is `one`, that is repeated at some places."""


def reduce_region(
    opened: OpenedFrame, axes: tuple[range, ...], fill: Fill, how: Reduction
) -> PartialResult:
    """Reduce a region.

    Chunks that repeat one element are counted, not expanded.

    Parameters
    ----------
    opened : OpenedFrame
    axes : tuple of range
        Ascending positions to read along each axis, at least one each.
    fill : Fill
        Its dtype is that of the elements; not a structured one.
    how : Reduction

    Returns
    -------
    mapping of str to ndarray

    Raises
    ------
    CorruptChunkError, UnsupportedFrameError, UninitializedChunkError
        With the chunk's number.
    """
    constant = opened.parsed.index.single_kind
    if constant:
        # of any number of chunks, none is looked at
        return _of_constant(special_element(fill, constant, 0), axes, how)
    plan = RegionPlan.of(opened.parsed, axes)
    total = _Total(plan, how)
    for kind in np.unique(plan.kinds).tolist():
        if kind != ChunkKind.STORED:
            first = int(plan.chunks[np.argmax(plan.kinds == kind)])
            total.add_constants(special_element(fill, kind, first), plan.kinds == kind)
    in_order = how.positional or len(how.axis) < len(axes)
    for part, elements in iter_chunks(opened, list(plan.parts()), fill, in_order=in_order):
        if elements.ndim:
            total.add(part, how.partial_result(elements, tuple(s.start for s in part.out)))
        else:
            total.add_constant(part, elements)
    return total.fields


def _of_constant(element: NDArray[Any], axes: tuple[range, ...], how: Reduction) -> PartialResult:
    region = tuple(slice(0, len(axis)) for axis in axes)
    return how.repeat(_of_one(element, len(axes), how), Box(region, how.axis))


def _of_one(element: NDArray[Any], ndim: int, how: Reduction) -> PartialResult:
    return how.partial_result(element.reshape((1,) * ndim), (0,) * ndim)


class _Total:
    """The partial results so far, at each place along the axes that are kept."""

    def __init__(self, plan: RegionPlan, how: Reduction) -> None:
        self._how = how
        self._pieces = plan.pieces
        self._shape = tuple(
            1 if i in how.axis else cells[-1].out.stop for i, cells in enumerate(plan.pieces)
        )
        self._seen = np.zeros(self._shape, bool)
        self._last: tuple[bytes, PartialResult] | None = None
        self.fields: dict[str, NDArray[Any]] = {}

    def add(self, part: Part, new: PartialResult) -> None:
        """Add what one chunk contributes."""
        place = self._place(part)
        if self._seen[place].all():
            new = self._how.merge({k: v[place] for k, v in self._all(new).items()}, new)
        for name, values in new.items():
            self._all(new)[name][place] = values
        self._seen[place] = True

    def add_constant(self, part: Part, element: NDArray[Any]) -> None:
        """Add a chunk that repeats one element."""
        self.add(part, self._repeated(element, Box(part.out, self._how.axis)))

    def add_constants(self, element: NDArray[Any], chosen: NDArray[np.bool_]) -> None:
        """Add all chunks of the plan that are chosen; all repeat one element."""
        places = Cells(self._pieces, chosen, self._how.axis)
        counts = places.counts
        new = self._repeated(element, places)
        old = self._all(new)
        merged = self._how.merge(old, new) if self._seen.any() else new
        for name, values in old.items():
            more = (...,) + (None,) * (values.ndim - counts.ndim)
            both, only = (self._seen & (counts > 0))[more], (~self._seen & (counts > 0))[more]
            np.copyto(values, merged[name], where=both)
            np.copyto(values, new[name], where=only)
        self._seen |= counts > 0

    def _repeated(self, element: NDArray[Any], places: ConstantRuns) -> PartialResult:
        # chunks that repeat an element are often followed by chunks that repeat the same
        content = element.tobytes()
        if self._last is None or self._last[0] != content:
            self._last = content, _of_one(element, len(self._shape), self._how)
        return self._how.repeat(self._last[1], places)

    def _all(self, like: PartialResult) -> dict[str, NDArray[Any]]:
        """The arrays of all places, made when the dtypes of partial results are known."""
        if not self.fields:
            ndim = len(self._shape)
            self.fields = {
                name: np.zeros(self._shape + values.shape[ndim:], values.dtype)
                for name, values in like.items()
            }
        return self.fields

    def _place(self, part: Part) -> tuple[slice, ...]:
        return tuple(slice(0, 1) if i in self._how.axis else out for i, out in enumerate(part.out))
