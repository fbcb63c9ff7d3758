"""`numpy.memmap` arrays as references to their files, which tasks map part by part."""

from __future__ import annotations

import errno
import mmap
import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.lib.array_utils import byte_bounds
from numpy.lib.stride_tricks import as_strided
from numpy.typing import NDArray

from b2nd_dask.errors import StaleFrameError

#: Bytes at both ends of an array that must be those of the file.
_COMPARED = 4096
#: Bytes of the file that are mapped at a time.
_WINDOW = 4 << 20
#: The mappings of this process, on Linux.
_MAPPINGS = Path("/proc/self/maps")


@dataclass(frozen=True)
class MappedArray:
    """Where a file holds the elements of an array.

    NumPy takes it for an array: the file is mapped then, until the elements are copied. A file that
    changed by then raises an error, so that old and new elements are never mixed. One that is made
    shorter while it is copied ends the process with SIGBUS, as with any mapping: no error can be
    raised for that.

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
        if copy is False:
            raise ValueError("the elements are in a file: copy=False cannot be met")
        try:
            self._require_unchanged()
            elements = self._elements()
            # after the copy: what a writer did meanwhile would be mixed with what was there
            self._require_unchanged()
        except FileNotFoundError:
            raise FileNotFoundError(
                errno.ENOENT,
                "this process does not see the file of a memory-mapped array; np.asarray(x) in "
                "its place is sent to other machines element by element",
                self.path,
            ) from None
        return elements if dtype is None else elements.astype(dtype, copy=False)

    def _require_unchanged(self) -> None:
        if _state(os.stat(self.path)) != self.state:  # noqa: PTH116 - only asked for its state
            raise StaleFrameError(
                "the file of a memory-mapped array changed after it was passed to to_b2nd",
                path=self.path,
            )

    def _elements(self) -> NDArray[Any]:
        # laid out as in the file: neither the copy nor those who use it jump through memory
        like = as_strided(np.empty(1, self.dtype), self.shape, self.strides)
        elements = np.empty_like(like, subok=False)
        if elements.size:
            self._copy_to(elements)
        return elements

    def _copy_to(self, elements: NDArray[Any]) -> None:
        low, high = self._bounds()
        if high - low <= max(_WINDOW, self.dtype.itemsize):
            elements[...] = self._mapped(low, high)
            return
        # what is mapped counts as memory, with the pages between the elements
        for half in self._halves():
            self[half]._copy_to(elements[half])

    def _mapped(self, low: int, high: int) -> NDArray[Any]:
        """The elements in the file itself, mapped as long as they are referred to."""
        try:
            window = np.memmap(self.path, np.uint8, "r", offset=low, shape=(high - low,))
        except ValueError as error:
            # the file ends before
            raise _cut_off(self.path, high) from error
        return np.ndarray(self.shape, self.dtype, window, self.first - low, self.strides)

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

    Returns
    -------
    MappedArray or None
        None for any other array, and where the file holds other elements: changes of mode ``"c"``,
        a file that was removed or replaced.

    Raises
    ------
    StaleFrameError
        The file ends before the array does.
    """
    mapping = getattr(elements, "_mmap", None)
    path = getattr(elements, "filename", None)
    if not isinstance(elements, np.memmap) or mapping is None or path is None:
        return None
    if not elements.size:
        return None
    whole = np.frombuffer(mapping, np.uint8)
    low, _ = byte_bounds(whole)
    first = elements.ctypes.data - low
    offset = elements.offset - elements.offset % mmap.ALLOCATIONGRANULARITY
    if not 0 <= first < len(whole):
        return None
    name = os.fspath(path)
    end = offset + byte_bounds(elements)[1] - low
    if mapping.size() < end:
        # of the file that is mapped, whatever its name is now; reading on would end the process
        raise _cut_off(name, end)
    if elements.mode == "c":
        return None
    # what was assigned to the array goes to the file now, and changes its time no more
    mapping.flush()
    try:
        with open(name, "rb") as file:  # noqa: PTH123 - the name may be any that is given
            found = MappedArray(
                name,
                _state(os.fstat(file.fileno())),
                offset + first,
                elements.shape,
                elements.strides,
                elements.dtype,
            )
            same = _is_mapped_file(file, elements.ctypes.data)
        if same is None:
            same = mapping.size() == found.state[1] and _same_ends(found, elements)
    except OSError:
        return None
    return found if same else None


def _is_mapped_file(file: BinaryIO, address: int) -> bool | None:
    """Whether an address is in a mapping of a file; None where the system does not tell.

    A mapping of the file is made to compare with, since the numbers of devices in the list of
    mappings are not those of `os.stat` on every file system (btrfs, overlayfs).
    """
    with mmap.mmap(file.fileno(), 1, access=mmap.ACCESS_READ) as mapping:
        ours = _file_mapped_at(byte_bounds(np.frombuffer(mapping, np.uint8))[0])
    theirs = _file_mapped_at(address)
    return None if ours is None or theirs is None else ours == theirs


def _file_mapped_at(address: int) -> tuple[bytes, int] | None:
    """Device and inode of the file that is mapped at an address, as Linux lists them."""
    try:
        lines = _MAPPINGS.read_bytes().splitlines()
    except OSError:
        return None
    for line in lines:
        bounds, _, _, device, inode, *_ = line.split(maxsplit=5)
        low, high = (int(bound, 16) for bound in bounds.split(b"-"))
        if low <= address < high:
            # 0 stands for no file
            return (device, int(inode)) if int(inode) else None
    return None


def _same_ends(found: MappedArray, elements: NDArray[Any]) -> bool:
    """Whether the file begins and ends as the array does: a name may stand for another file now."""
    count = max(1, _COMPARED // elements.dtype.itemsize)
    ends: list[tuple[slice, ...]] = []
    for end in (slice(None, 1), slice(-1, None)):
        head = (end,) * max(0, elements.ndim - 1)
        last = slice(None, count) if end.start is None else slice(-count, None)
        ends.append((*head, last)[: elements.ndim])
    return all(np.asarray(found[index]).tobytes() == elements[index].tobytes() for index in ends)


def _state(stat: os.stat_result) -> tuple[int, ...]:
    return stat.st_ino, stat.st_size, stat.st_mtime_ns


def _cut_off(path: str, end: int) -> StaleFrameError:
    return StaleFrameError(
        f"the file of a memory-mapped array was made shorter after it was mapped: the array ends "
        f"at byte {end}, where the file has no more; write the file anew and map it again",
        path=path,
    )
