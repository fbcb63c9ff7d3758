"""Where the elements of a region come from: a frame, its axes in some order, or another shape."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from b2nd_dask.frame.joined import JoinedReference, Readable
from b2nd_dask.frame.read.buffers import in_pages
from b2nd_dask.frame.read.decode import carrier
from b2nd_dask.frame.reference import FrameReference

Box = tuple[slice, ...]


@dataclass(frozen=True, eq=False, slots=True)
class RegionSource:
    """Where the elements of a region come from."""

    frame: Readable
    order: tuple[int, ...]
    """The axis of the frame that each axis of the target is; `range(ndim)` but for transposes."""
    batch_nbytes: int
    """Compressed bytes to read at once."""
    window: tuple[range, ...] | None = None
    """What is read of each axis of the frame; None for all of it."""

    @property
    def frames(self) -> tuple[FrameReference, ...]:
        """The frames that are read."""
        return frames_of(self.frame)

    def read(self, region: Box) -> NDArray[Any]:
        """Read a region of the target."""
        axes = axes_of(region, self.order, self.window)
        elements = self.frame.read_axes(axes, batch_nbytes=self.batch_nbytes)
        return elements.transpose(self.order)

    def parts(self) -> Iterator[tuple[int, tuple[range, ...]]]:
        """Numbers of the frames that are read, and what is read of each."""
        axes = self.window or tuple(map(range, self.frame.shape))
        if not isinstance(self.frame, JoinedReference):
            yield 0, axes
            return
        for part in self.frame.split(axes):
            yield part.number, part.axes


@dataclass(frozen=True, eq=False, slots=True)
class FlatSource:
    """Elements of another shape: those of a frame in C order."""

    source: RegionSource
    source_shape: tuple[int, ...]
    shape: tuple[int, ...]

    @property
    def batch_nbytes(self) -> int:
        """As for `RegionSource`."""
        return self.source.batch_nbytes

    @property
    def frames(self) -> tuple[FrameReference, ...]:
        """As `RegionSource.frames`."""
        return self.source.frames

    def parts(self) -> Iterator[tuple[int, tuple[range, ...]]]:
        """As `RegionSource.parts`."""
        return self.source.parts()

    def read(self, region: Box) -> NDArray[Any]:
        """Read a region of the target: each range that is contiguous in C order at once."""
        sizes = tuple(along.stop - along.start for along in region)
        elements = in_pages(sizes, carrier(self.source.frame.dtype))
        for outer, box, (begin, end) in reshaped_boxes(region, self.shape, self.source_shape):
            part = elements[outer].reshape(-1)[begin:end]
            part[:] = self.source.read(box).reshape(-1).view(part.dtype)
        return elements.view(self.source.frame.dtype)


def frames_of(readable: Readable) -> tuple[FrameReference, ...]:
    """List the frames that are joined, or the one."""
    return readable.frames if isinstance(readable, JoinedReference) else (readable,)


def axes_of(
    region: Box, order: tuple[int, ...], window: tuple[range, ...] | None
) -> tuple[range, ...]:
    """Where a region of a view lies in its frame; arguments as for `RegionSource`."""
    axes = [range(0)] * len(region)
    for axis, along in zip(order, region, strict=True):
        axes[axis] = window[axis][along] if window else range(along.start, along.stop)
    return tuple(axes)


def reshaped_boxes(
    region: Box, shape: tuple[int, ...], source_shape: tuple[int, ...]
) -> Iterator[tuple[tuple[int, ...], Box, tuple[int, int]]]:
    """Divide a region into boxes of an array that has the same elements in another shape.

    Yields
    ------
    tuple of int
        Index of a part of the region that is contiguous in C order.
    tuple of slice
        A box of the other array.
    tuple of int
        First and last element of it in that part.
    """
    sizes = tuple(along.stop - along.start for along in region)
    # behind this axis the region has all elements
    split = len(sizes)
    while split > 1 and sizes[split - 1] == shape[split - 1]:
        split -= 1
    split = max(0, split - 1)
    for outer in np.ndindex(sizes[:split]):
        start = [along.start + i for along, i in zip(region, outer, strict=False)]
        rest = [along.start for along in region[split:]]
        first = int(np.ravel_multi_index((*start, *rest), shape)) if shape else 0
        for box, part in flat_boxes(first, first + math.prod(sizes[split:]), source_shape):
            yield outer, box, part


def flat_boxes(
    start: int, stop: int, shape: tuple[int, ...]
) -> Iterator[tuple[Box, tuple[int, int]]]:
    """Divide a range of an array in C order into boxes, each with its part of the range.

    Examples
    --------
    >>> for box, part in flat_boxes(3, 21, (4, 6)):
    ...     print([(along.start, along.stop) for along in box], part)
    [(0, 1), (3, 6)] (0, 3)
    [(1, 3), (0, 6)] (3, 15)
    [(3, 4), (0, 3)] (15, 18)
    """
    at = start
    while at < stop:
        inner = 1
        axis = len(shape)
        # the largest rows that begin here and end inside the range
        while axis and at % (inner * shape[axis - 1]) == 0 and at + inner * shape[axis - 1] <= stop:
            axis -= 1
            inner *= shape[axis]
        if not axis:
            count = 1
        else:
            left = shape[axis - 1] - at // inner % shape[axis - 1]
            count = min(left, (stop - at) // inner)
        cell = np.unravel_index(at, shape) if shape else ()
        box = [slice(int(i), int(i) + 1) for i in cell[: max(0, axis - 1)]]
        if axis:
            box.append(slice(int(cell[axis - 1]), int(cell[axis - 1]) + count))
        box += [slice(0, n) for n in shape[axis:]]
        yield tuple(box), (at - start, at - start + count * inner)
        at += count * inner
