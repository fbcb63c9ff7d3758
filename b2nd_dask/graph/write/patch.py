"""Regions and appended rows as whole chunks: what an update has to write, and where."""

from __future__ import annotations

import operator
from typing import Any, NamedTuple

import dask.array as da
import numpy as np
from numpy.typing import NDArray

from b2nd_dask.format.grid import Grid, expand_ellipsis, parse_selection
from b2nd_dask.frame.reference import FrameReference
from b2nd_dask.graph.read.from_frame import array_of
from b2nd_dask.graph.write.assign import Bounds, spread


class Patch(NamedTuple):
    """New items for a frame, made of whole chunks but at the array's edges."""

    elements: da.Array
    origin: tuple[int, ...]
    """Where the first item goes; the corner of a chunk."""
    shape: tuple[int, ...]
    """Of the whole array after the update."""
    new: da.Array
    """The new elements alone."""
    corner: tuple[int, ...]
    """Where the first of these goes."""

    def cut_chunks(self, grid: Grid) -> NDArray[np.int64]:
        """Number the chunks of the old frame that keep some of their elements.

        Parameters
        ----------
        grid : Grid
            Of the old frame.

        Returns
        -------
        ndarray of int64
            Ascending.
        """
        if self.elements is self.new:
            return np.empty(0, np.int64)
        cells = [
            range(start // chunk, -(-min(start + n, size) // chunk))
            for start, n, size, chunk in zip(
                self.origin, self.elements.shape, grid.shape, grid.chunks, strict=True
            )
        ]
        numbers: NDArray[np.int64] = np.ravel_multi_index(np.ix_(*cells), grid.counts)
        keeps = np.ones(numbers.shape, bool)
        # chunks all of whose elements are new make a box
        keeps[tuple(self._replaced(axis, along, grid) for axis, along in enumerate(cells))] = False
        return numbers[keeps]

    def _replaced(self, axis: int, along: range, grid: Grid) -> slice:
        """Of chunks along an axis, those that keep no element."""
        size, chunk = grid.shape[axis], grid.chunks[axis]
        low, high = self.corner[axis], self.corner[axis] + self.new.shape[axis]
        inside = [at * chunk >= low and min((at + 1) * chunk, size) <= high for at in along]
        first = inside.index(True) if any(inside) else 0
        return slice(first, first + sum(inside))


def region_patch(arr: da.Array, frame: FrameReference, region: Any) -> Patch:
    """Complete an array that goes to a region with the old items of the chunks it cuts.

    Parameters
    ----------
    arr : dask.array.Array
        Of the region's shape, with or without the axes that an integer names; or an array that
        broadcasts to it.
    frame : FrameReference
    region : int, slice, Ellipsis, or a tuple of these
        Slices with step 1.

    Returns
    -------
    Patch

    Raises
    ------
    ValueError
        A region that is no box in the array, or that `arr` does not broadcast to.
    """
    bounds, singles = _bounds(region, frame.shape)
    arr = spread(arr, frame, bounds, singles)
    box = [
        (start // c * c, min(-(-stop // c) * c, n))
        for (start, stop), c, n in zip(bounds, frame.chunks, frame.shape, strict=True)
    ]
    origin = tuple(start for start, _ in box)
    if 0 in arr.shape or box == bounds:
        return Patch(arr, origin, frame.shape, arr, origin)
    old, items, covered = array_of(frame, "auto"), arr, list(bounds)
    for axis, ((start, stop), (low, high)) in enumerate(zip(bounds, box, strict=True)):
        # what lies before and behind, as wide as what was put together so far
        before, behind = (
            old[tuple(slice(*edge) for edge in (*covered[:axis], cut, *covered[axis + 1 :]))]
            for cut in ((low, start), (stop, high))
        )
        items = da.concatenate([before, items, behind], axis=axis)
        covered[axis] = (low, high)
    return Patch(items, origin, frame.shape, arr, tuple(start for start, _ in bounds))


def append_patch(arr: da.Array, frame: FrameReference, axis: int) -> Patch:
    """Complete an array that is appended with the old items of last chunks that are not full.

    Parameters
    ----------
    arr : dask.array.Array
        Of the frame's shape, but for its length along `axis`.
    frame : FrameReference
    axis : int

    Returns
    -------
    Patch

    Raises
    ------
    ValueError
        No such axis, or another shape along the other axes.
    """
    if not -frame.ndim <= axis < frame.ndim:
        raise ValueError(f"append_axis={axis}: the array has {frame.ndim} axes")
    axis %= frame.ndim
    length, chunk = frame.shape[axis], frame.chunks[axis]
    rest = (*frame.shape[:axis], *frame.shape[axis + 1 :])
    if arr.ndim != frame.ndim or (*arr.shape[:axis], *arr.shape[axis + 1 :]) != rest:
        hint = (
            f"; give it that axis, as da.expand_dims(x, {axis}) does" if arr.shape == rest else ""
        )
        raise ValueError(
            f"an array of shape {arr.shape} cannot be appended to {frame.shape} along axis "
            f"{axis}{hint}"
        )
    after = (*frame.shape[:axis], length + arr.shape[axis], *frame.shape[axis + 1 :])
    first = length // chunk * chunk
    origin = tuple(first if i == axis else 0 for i in range(frame.ndim))
    if first == length:
        return Patch(arr, origin, after, arr, origin)
    place = tuple(slice(first, None) if i == axis else slice(None) for i in range(frame.ndim))
    old = array_of(frame, "auto")[place]
    corner = tuple(length if i == axis else 0 for i in range(frame.ndim))
    return Patch(da.concatenate([old, arr], axis=axis), origin, after, arr, corner)


def _bounds(region: Any, shape: tuple[int, ...]) -> tuple[Bounds, list[int]]:
    """Where a region begins and ends along each axis; the axes that it names by an integer."""
    items = list(region) if isinstance(region, tuple) else [region]
    if any(item is None for item in items):
        raise ValueError(f"region={region!r}: a region has no new axes")
    for item in items:
        if not _is_basic(item):
            kind = type(item).__name__
            raise ValueError(
                f"only integers, slices of step 1 and ... make a region, not a {kind}: "
                'for other items assign to the dask array, and write it with mode="w"'
            )
    try:
        selection = parse_selection(tuple(items), shape)
        axes = expand_ellipsis(items, len(shape))
    except IndexError as error:
        raise ValueError(f"region={region!r} of an array of shape {shape}: {error}") from None
    for axis, n in zip(axes, shape, strict=True):
        if not isinstance(axis, slice):
            continue
        start, stop, step = axis.indices(n)
        # slices past the end would drop items without a word
        past = axis.stop is not None and axis.stop > n
        if step != 1 or stop < start or past:
            hint = "append_axis= makes it longer" if past else "steps are not written"
            raise ValueError(f"{axis} is no range of an axis with {n} items; {hint}")
    singles = [i for i, axis in enumerate(axes) if not isinstance(axis, slice)]
    return [(axis.start, axis.stop) for axis in selection.axes], singles


def _is_basic(item: Any) -> bool:
    try:
        operator.index(item)
    except TypeError:
        return isinstance(item, slice) or item is Ellipsis
    return True
