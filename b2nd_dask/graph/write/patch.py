"""Regions and appended rows as whole chunks: what an update has to write, and where."""

from __future__ import annotations

import itertools
import math
import operator
from typing import Any, NamedTuple

import dask.array as da
import numpy as np
from numpy.typing import NDArray

from b2nd_dask.format.grid import Grid, expand_ellipsis, parse_selection
from b2nd_dask.frame.reference import FrameReference
from b2nd_dask.graph.read.blocks import Chunks
from b2nd_dask.graph.read.from_b2nd import array_of, block_sizes
from b2nd_dask.graph.write.input_arrays import constant_element

#: Start and stop along each axis.
Bounds = list[tuple[int, int]]


class Patch(NamedTuple):
    """Elements that an update writes: whole chunks, except at the array's edges."""

    elements: da.Array
    origin: tuple[int, ...]
    """Index of the first element in the frame; the corner of a chunk."""
    shape: tuple[int, ...]
    """Of the whole array after the update."""
    new: da.Array
    """The new elements, without the old ones of the same chunks."""
    corner: tuple[int, ...]
    """Index of the first new element in the frame."""

    def cut_chunks(self, grid: Grid) -> NDArray[np.int64]:
        """Number, ascending, the chunks of the old frame of which some elements stay."""
        if self.elements is self.new:
            return np.empty(0, np.int64)
        cells = [
            range(start // chunk, -(-min(start + n, size) // chunk))
            for start, n, size, chunk in zip(
                self.origin, self.elements.shape, grid.shape, grid.chunks, strict=True
            )
        ]
        numbers: NDArray[np.int64] = np.ravel_multi_index(np.ix_(*cells), grid.counts)
        cut = np.ones(numbers.shape, bool)
        # chunks all of whose elements are new make a box
        cut[tuple(self._replaced(axis, along, grid) for axis, along in enumerate(cells))] = False
        return numbers[cut]

    def _replaced(self, axis: int, along: range, grid: Grid) -> slice:
        """Of chunks along an axis, those of which no element stays."""
        size, chunk = grid.shape[axis], grid.chunks[axis]
        low, high = self.corner[axis], self.corner[axis] + self.new.shape[axis]
        inside = [at * chunk >= low and min((at + 1) * chunk, size) <= high for at in along]
        first = inside.index(True) if any(inside) else 0
        return slice(first, first + sum(inside))


def region_patch(arr: da.Array, frame: FrameReference, region: Any) -> Patch:
    """Complete an array that goes to a region with the old elements of the chunks that it cuts.

    Parameters
    ----------
    arr : dask.array.Array
        Of the region's shape, with or without the axes that an integer names; or an array that
        broadcasts to it.
    region : int, slice, Ellipsis, or a tuple of these
        Slices with step 1.

    Raises
    ------
    ValueError
        The region is no box in the array, or `arr` does not broadcast to it.
    """
    bounds, singles = region_bounds(region, frame.shape)
    arr = broadcast_to_region(arr, block_sizes(frame, "auto"), bounds, singles)
    box = [
        (start // c * c, min(-(-stop // c) * c, n))
        for (start, stop), c, n in zip(bounds, frame.chunks, frame.shape, strict=True)
    ]
    origin = tuple(start for start, _ in box)
    if 0 in arr.shape or box == bounds:
        return Patch(arr, origin, frame.shape, arr, origin)
    old, elements, covered = array_of(frame, "auto"), arr, list(bounds)
    for axis, ((start, stop), (low, high)) in enumerate(zip(bounds, box, strict=True)):
        # the old elements before and behind, as wide as what was put together so far
        before, behind = (
            old[tuple(slice(*edge) for edge in (*covered[:axis], cut, *covered[axis + 1 :]))]
            for cut in ((low, start), (stop, high))
        )
        elements = da.concatenate([before, elements, behind], axis=axis)
        covered[axis] = (low, high)
    return Patch(elements, origin, frame.shape, arr, tuple(start for start, _ in bounds))


def append_patch(arr: da.Array, frame: FrameReference, axis: int) -> Patch:
    """Complete an array that is appended with the old elements of last chunks that are not full.

    Parameters
    ----------
    arr : dask.array.Array
        Of the frame's shape, but for its length along `axis`.

    Raises
    ------
    ValueError
        There is no such axis, or the lengths along the other axes differ.
    """
    if not -frame.ndim <= axis < frame.ndim:
        raise ValueError(
            f"append_axis={axis}: the array in the frame has {frame.ndim} axes; choose one of them"
        )
    axis %= frame.ndim
    length, chunk = frame.shape[axis], frame.chunks[axis]
    rest = (*frame.shape[:axis], *frame.shape[axis + 1 :])
    if arr.ndim != frame.ndim or (*arr.shape[:axis], *arr.shape[axis + 1 :]) != rest:
        hint = (
            f"; give it that axis, as da.expand_dims(x, {axis}) does" if arr.shape == rest else ""
        )
        raise ValueError(
            f"an array of shape {arr.shape} cannot be appended along axis {axis} to a frame of "
            f"shape {frame.shape}: the other axes differ{hint}"
        )
    after = (*frame.shape[:axis], length + arr.shape[axis], *frame.shape[axis + 1 :])
    first = length // chunk * chunk
    origin = tuple(first if i == axis else 0 for i in range(frame.ndim))
    if first == length:
        return Patch(arr, origin, after, arr, origin)
    last = tuple(slice(first, None) if i == axis else slice(None) for i in range(frame.ndim))
    old = array_of(frame, "auto")[last]
    corner = tuple(length if i == axis else 0 for i in range(frame.ndim))
    return Patch(da.concatenate([old, arr], axis=axis), origin, after, arr, corner)


def region_bounds(region: Any, shape: tuple[int, ...]) -> tuple[Bounds, list[int]]:
    """Start and stop of a region along each axis, and the axes that it names by an integer."""
    index = list(region) if isinstance(region, tuple) else [region]
    if any(part is None for part in index):
        raise ValueError(f"region={region!r}: a region has no new axes; leave out None")
    for part in index:
        if not _is_basic(part):
            kind = type(part).__name__
            raise ValueError(
                f"only integers, slices of step 1 and ... make a region, not a {kind}: "
                'for other elements assign to the dask array, and write it with mode="w"'
            )
    try:
        selection = parse_selection(tuple(index), shape)
        axes = expand_ellipsis(index, len(shape))
    except IndexError as error:
        raise ValueError(f"region={region!r} of an array of shape {shape}: {error}") from None
    for axis, n in zip(axes, shape, strict=True):
        if not isinstance(axis, slice):
            continue
        start, stop, step = axis.indices(n)
        # slices past the end would drop elements silently
        past = axis.stop is not None and axis.stop > n
        if step != 1 or stop < start or past:
            if past:
                hint = "append_axis= makes it longer"
            else:
                hint = "steps are not written" if step != 1 else "its stop is before its start"
            raise ValueError(
                f"region={region!r}: {axis} is no range of an axis with {n} elements; {hint}"
            )
    singles = [i for i, axis in enumerate(axes) if not isinstance(axis, slice)]
    return [(axis.start, axis.stop) for axis in selection.axes], singles


def _is_basic(part: Any) -> bool:
    try:
        operator.index(part)
    except TypeError:
        return isinstance(part, slice) or part is Ellipsis
    return True


def broadcast_to_region(
    arr: da.Array, blocks: Chunks, bounds: Bounds, singles: list[int]
) -> da.Array:
    """Broadcast an array to a region as NumPy's assignment does, without copying its elements.

    Parameters
    ----------
    blocks : tuple of tuple of int
        Lengths of blocks of the whole frame, where those of a broadcast array end.
    bounds : list of tuple of int
        Start and stop of the region along each axis.
    singles : list of int
        Axes that the region names by an integer: the array has them at length 1, or not at all.

    Raises
    ------
    ValueError
        The array does not broadcast to the region.
    """
    shape = tuple(stop - start for start, stop in bounds)
    if arr.shape == shape:
        return arr
    aligned = _with_axes_of(shape, singles, arr)
    if aligned.shape == shape:
        return aligned
    if 0 in shape:
        nothing: da.Array = da.zeros(shape, dtype=arr.dtype, chunks=shape)
        return nothing
    sizes = _block_sizes(blocks, bounds)
    element = constant_element(arr)
    wide: da.Array
    if element is None:
        # dask copies slices of views, so views are made as they are written; and not by
        # broadcast_to, which array.query-planning does not have
        like = da.zeros(shape, dtype=arr.dtype, chunks=sizes)
        lengths = zip(aligned.shape, sizes, strict=True)
        aligned = aligned.rechunk(tuple((1,) if n == 1 else axis for n, axis in lengths))
        wide = da.map_blocks(_broadcast, aligned, like, dtype=arr.dtype, chunks=sizes)
    else:
        wide = da.full(shape, element, dtype=arr.dtype, chunks=sizes)
    return wide


def _broadcast(block: NDArray[Any], like: NDArray[Any]) -> NDArray[Any]:
    return np.broadcast_to(block, like.shape)


def _with_axes_of(shape: tuple[int, ...], singles: list[int], arr: da.Array) -> da.Array:
    """Give an array the axes of a region; those that are broadcast have length 1."""
    axes = [axis for axis in range(len(shape)) if axis not in singles]
    # as NumPy does, which drops leading axes of length 1
    extra = max(0, arr.ndim - len(axes))
    lengths = arr.shape[extra:]
    axes = axes[len(axes) - len(lengths) :]
    matches = (n in (1, shape[axis]) for n, axis in zip(lengths, axes, strict=True))
    if math.prod(arr.shape[:extra]) != 1 or not all(matches):
        raise ValueError(
            f"an array of shape {arr.shape} does not fill the region of shape {shape}, and does "
            "not broadcast to it: give an array of that shape"
        )
    # by two steps: integers and new axes in one are computed wrong with array.query-planning
    dropped: da.Array = arr[(0,) * extra] if extra else arr
    index = tuple(slice(None) if axis in axes else None for axis in range(len(shape)))
    aligned: da.Array = dropped[index]
    return aligned


def _block_sizes(blocks: Chunks, bounds: Bounds) -> Chunks:
    """Lengths of the blocks of a region that end where blocks of the whole frame end."""
    sizes = []
    for (start, stop), axis in zip(bounds, blocks, strict=True):
        inner = [edge for edge in itertools.accumulate(axis) if start < edge < stop]
        sizes.append(tuple(b - a for a, b in itertools.pairwise([start, *inner, stop])))
    return tuple(sizes)
