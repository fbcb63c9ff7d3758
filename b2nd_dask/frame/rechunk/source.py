"""Where the elements of a region come from: a frame, its axes in some order, or another shape."""

from __future__ import annotations

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
    most_nbytes: int
    """Compressed bytes to read at once."""

    @property
    def frames(self) -> tuple[FrameReference, ...]:
        """The frames that are read."""
        return frames_of(self.frame)

    def read(self, region: Box) -> NDArray[Any]:
        """Read a region of the target."""
        axes = [range(0)] * len(region)
        for axis, along in zip(self.order, region, strict=True):
            axes[axis] = range(along.start, along.stop)
        elements = self.frame.read_axes(tuple(axes), most_nbytes=self.most_nbytes)
        return elements.transpose(self.order)


@dataclass(frozen=True, eq=False, slots=True)
class FlatSource:
    """Elements of another shape: those of a frame in C order."""

    source: RegionSource
    source_shape: tuple[int, ...]
    shape: tuple[int, ...]

    @property
    def most_nbytes(self) -> int:
        """As for `RegionSource`."""
        return self.source.most_nbytes

    @property
    def frames(self) -> tuple[FrameReference, ...]:
        """As `RegionSource.frames`."""
        return self.source.frames

    def read(self, region: Box) -> NDArray[Any]:
        """Read a region of the target: each range that is contiguous in C order at once."""
        sizes = tuple(along.stop - along.start for along in region)
        elements = in_pages(sizes, carrier(self.source.frame.dtype))
        # behind this axis the region has all elements
        split = len(sizes)
        while split > 1 and sizes[split - 1] == self.shape[split - 1]:
            split -= 1
        split = max(0, split - 1)
        for outer in np.ndindex(sizes[:split]):
            start = [along.start + i for along, i in zip(region, outer, strict=False)]
            rest = [along.start for along in region[split:]]
            first = int(np.ravel_multi_index((*start, *rest), self.shape)) if self.shape else 0
            part = elements[outer].reshape(-1)
            for box, (begin, end) in flat_boxes(first, first + part.size, self.source_shape):
                part[begin:end] = self.source.read(box).reshape(-1).view(part.dtype)
        return elements.view(self.source.frame.dtype)


def frames_of(readable: Readable) -> tuple[FrameReference, ...]:
    """List the frames that are joined, or the one."""
    return readable.frames if isinstance(readable, JoinedReference) else (readable,)


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
