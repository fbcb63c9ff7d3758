"""`numpy.memmap` arrays as references to their files, which tasks map part by part."""

from __future__ import annotations

import errno
import math
import mmap
import os
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.lib.array_utils import byte_bounds
from numpy.typing import NDArray

from b2nd_dask.errors import StaleFrameError

#: Bytes at both ends of an array that must be those of the file.
_COMPARED = 4096
#: Bytes of the file that are mapped at a time where they hold other elements, too.
_WINDOW = 4 << 20


@dataclass(frozen=True)
class MappedArray:
    """Where a file holds the elements of an array.

    NumPy takes it for an array: the file is mapped then, and for as long as the elements are used.
    A `numpy.memmap` would be pickled as a copy of all elements, and what was read of it would count
    as memory of the process until it is closed.
    """

    path: str
    state: tuple[int, ...]
    """Of the file: inode, size, time of its last change."""
    first: int
    """Byte offset of the first element."""
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: np.dtype[Any]

    @property
    def ndim(self) -> int:
        """Number of axes."""
        return len(self.shape)

    def __dask_tokenize__(self) -> tuple[Any, ...]:
        return (self.path, self.state, self.first, self.shape, self.strides, repr(self.dtype))

    def __getitem__(self, index: tuple[Any, ...]) -> MappedArray:
        """A part of the array: slices inside of it, one for each axis, of step 1."""
        axes = [axis.indices(n)[:2] for axis, n in zip(index, self.shape, strict=True)]
        first = self.first + sum(a * step for (a, _), step in zip(axes, self.strides, strict=True))
        return replace(self, first=first, shape=tuple(b - a for a, b in axes))

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        try:
            if _state(self.path) != self.state:
                raise StaleFrameError(
                    "the file of a memory-mapped array changed after it was passed to to_b2nd",
                    path=self.path,
                )
            elements = self._elements()
        except FileNotFoundError:
            raise FileNotFoundError(
                errno.ENOENT,
                "this process does not see the file of a memory-mapped array; np.asarray(x) in "
                "its place is sent to other machines element by element",
                self.path,
            ) from None
        return np.array(elements, dtype, copy=copy)

    def _elements(self) -> NDArray[Any]:
        if not math.prod(self.shape):
            return np.empty(self.shape, self.dtype)
        low, high = self._bounds()
        if high - low <= _WINDOW or high - low == math.prod(self.shape) * self.dtype.itemsize:
            window = np.memmap(self.path, np.uint8, "r", offset=low, shape=(high - low,))
            return np.ndarray(self.shape, self.dtype, window, self.first - low, self.strides)
        # pages between the elements would be mapped as well, in the end all of the file
        elements = np.empty(self.shape, self.dtype)
        for half in self._halves():
            elements[half] = self[half]._elements()
        return elements

    def _bounds(self) -> tuple[int, int]:
        """Byte offsets of the file between which the elements are."""
        reach = [(n - 1) * step for n, step in zip(self.shape, self.strides, strict=True)]
        low = self.first + sum(min(0, part) for part in reach)
        return low, self.first + sum(max(0, part) for part in reach) + self.dtype.itemsize

    def _halves(self) -> list[tuple[slice, ...]]:
        """Two halves of the array that are as far apart in the file as possible."""
        reach = [abs(step) * (n - 1) for n, step in zip(self.shape, self.strides, strict=True)]
        axis = reach.index(max(reach))
        middle, whole = self.shape[axis] // 2, [slice(None)] * self.ndim
        parts = (slice(0, middle), slice(middle, None))
        return [(*whole[:axis], part, *whole[axis + 1 :]) for part in parts]


def mapped_array(elements: NDArray[Any]) -> MappedArray | None:
    """Find the elements of a memory-mapped array, or of a view of one, in its file.

    Parameters
    ----------
    elements : ndarray

    Returns
    -------
    MappedArray or None
        None for any other array, and where the file holds other elements: changes of mode ``"c"``,
        a file that was removed or replaced.
    """
    mapping = getattr(elements, "_mmap", None)
    path = getattr(elements, "filename", None)
    if not isinstance(elements, np.memmap) or mapping is None or path is None:
        return None
    if elements.mode == "c" or not elements.size:
        return None
    whole = np.frombuffer(mapping, np.uint8)
    low, _ = byte_bounds(whole)
    first = elements.ctypes.data - low
    offset = elements.offset - elements.offset % mmap.ALLOCATIONGRANULARITY
    if not 0 <= first < len(whole):
        return None
    # what was assigned to the array goes to the file now, and changes its time no more
    mapping.flush()
    try:
        state = _state(os.fspath(path))
        found = MappedArray(
            os.fspath(path),
            state,
            offset + first,
            elements.shape,
            elements.strides,
            elements.dtype,
        )
        same = mapping.size() == state[1] and _same_ends(found, elements)
    except OSError:
        return None
    return found if same else None


def _same_ends(found: MappedArray, elements: NDArray[Any]) -> bool:
    """Whether the file begins and ends as the array does: a name may stand for another file now."""
    count = max(1, _COMPARED // elements.dtype.itemsize)
    ends: list[tuple[slice, ...]] = []
    for place in (slice(None, 1), slice(-1, None)):
        head = (place,) * max(0, elements.ndim - 1)
        last = slice(None, count) if place.start is None else slice(-count, None)
        ends.append((*head, last)[: elements.ndim])
    return all(np.asarray(found[end]).tobytes() == elements[end].tobytes() for end in ends)


def _state(path: str) -> tuple[int, ...]:
    stat = os.stat(path)  # noqa: PTH116 - nothing else is done with the path
    return stat.st_ino, stat.st_size, stat.st_mtime_ns
