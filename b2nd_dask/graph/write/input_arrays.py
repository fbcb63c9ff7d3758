"""Conversion of array-likes to dask arrays, in the frame's dtype.

A NumPy array is not copied: blocks are views of memory, or regions of a file. A `numpy.memmap`
becomes a reference to its file; each task maps its own region.
"""

from __future__ import annotations

import errno
import mmap
import os
import uuid
from dataclasses import dataclass, replace
from typing import Any

import dask.array as da
import numpy as np
from dask.array.core import normalize_chunks
from dask.base import tokenize
from numpy.lib.array_utils import byte_bounds
from numpy.lib.stride_tricks import as_strided
from numpy.typing import NDArray

from b2nd_dask.errors import StaleFrameError
from b2nd_dask.frame.access import is_opened_array
from b2nd_dask.frame.array import Frame
from b2nd_dask.frame.write.new_frame import check_storable
from b2nd_dask.frame.write.writer import cast_value, checked_cast, fits
from b2nd_dask.graph import _dask_compat
from b2nd_dask.graph.read.blocks import BlockArgument, Chunks, blockwise_array, regions_of
from b2nd_dask.graph.read.from_b2nd import expressions, from_b2nd, is_expression

#: Bytes at both ends of an array that are compared with the file.
_COMPARED = 4096
#: Bytes of the file that are mapped at a time.
_WINDOW = 4 << 20


def as_dask(
    arr: Any, dtype: np.dtype[Any] | None = None, *, named: bool = False, snapshot: bool = False
) -> da.Array:
    """Make a dask array of anything array-like, block by block if it has chunks.

    `dtype` is that of an existing frame; `named` and `snapshot` as for `from_numpy`.

    Raises TypeError for masked arrays, for a dtype that a frame cannot hold, and if a cast to
    `dtype` would lose more than floating-point precision; ValueError for an array of unknown shape.
    If an element is too large for `dtype`, or a time is no multiple of its unit, the computation
    raises OverflowError.
    """
    if dtype is not None:
        return _converted(as_dask(_as_elements(arr, dtype), named=named, snapshot=snapshot), dtype)
    # an array of xarray may hold a mapped file
    arr = without_labels(arr)
    if not hasattr(arr, "dtype"):
        arr = _in_memory(arr)
    # checked first: dask has no chunks for such arrays
    _check_elements(arr)
    if isinstance(arr, Frame) or is_opened_array(arr) or getattr(arr, "ndim", None) is None:
        # from_b2nd raises the error if it is no array at all
        return from_b2nd(arr)
    array: da.Array
    if isinstance(arr, np.ndarray):
        array = from_numpy(arr, named=named, snapshot=snapshot)
    elif is_expression(arr):
        array = expressions().classic_array(arr)
    else:
        array = da.asarray(arr)
    if any(np.isnan(n) for n in array.shape):
        raise ValueError(
            f"the array has chunks of unknown size (shape {array.shape}): call "
            ".compute_chunk_sizes() first"
        )
    if not isinstance(array.dtype, np.dtype):
        # an array expression has the dtype as passed to map_blocks, for instance `float`
        dtype = np.dtype(array.dtype)
        meta = np.empty((0,) * array.ndim, dtype)
        array = da.map_blocks(np.asarray, array, dtype=dtype, meta=meta)
    return array


def _in_memory(value: Any) -> NDArray[Any]:
    """Convert numbers and lists; TypeError for an SChunk, over which NumPy iterates without end."""
    if type(value).__name__ == "SChunk":
        raise TypeError("an SChunk has no dtype: pass np.frombuffer(schunk[:], dtype)")
    return np.asarray(value)


def is_labelled(given: Any) -> bool:
    """Whether an object comes from xarray; does not import xarray."""
    return any(base.__module__.split(".")[0] == "xarray" for base in type(given).__mro__)


def without_labels(arr: Any) -> Any:
    """The array inside a labelled array of xarray; other objects unchanged."""
    return arr.data if is_labelled(arr) and hasattr(arr, "dtype") else arr


def _check_elements(arr: Any) -> None:
    """Raise TypeError if a frame cannot hold the elements of an array."""
    try:
        dtype = np.dtype(arr.dtype)
    except TypeError:
        raise TypeError(
            f"a frame cannot hold a {type(arr).__name__}, which has no NumPy dtype: convert it "
            "first, for instance by .astype, .to_numpy or da.from_delayed"
        ) from None
    check_storable(dtype)
    if isinstance(getattr(arr, "_meta", arr), np.ma.MaskedArray):
        raise TypeError(
            "a masked array cannot be written or compressed, since a frame has no masks: pass "
            "da.ma.filled(x, value)"
        )


def _as_elements(value: Any, dtype: np.dtype[Any]) -> Any:
    """Convert numbers and lists to the dtype of a frame if it can represent them.

    The user did not choose their dtype: NumPy makes int64 of any ``[1, 2]``. So the numbers must
    fit, not the dtype. Arrays, whose dtype the user chose, and numbers that do not fit are returned
    unchanged.
    """
    is_scalar = isinstance(value, np.generic) or (type(value) is np.ndarray and value.ndim == 0)
    if hasattr(value, "dtype") and not is_scalar:
        return value
    elements = cast_value(_in_memory(value), dtype, "the value for the frame")
    # a write of a constant dask array needs no task for each block
    return da.full((), elements, dtype=elements.dtype) if not elements.ndim else elements


def _converted(arr: da.Array, dtype: np.dtype[Any]) -> da.Array:
    """Cast an array to the dtype of its frame; errors as for `as_dask`."""
    if arr.dtype == dtype:
        return arr
    if not fits(arr.dtype, dtype):
        raise TypeError(
            f"elements of dtype {arr.dtype} do not fit a frame of {dtype}; convert by .astype"
        )
    # for times (also in fields) NumPy's can_cast ignores the range
    if dtype.kind not in "mMV" and np.can_cast(arr.dtype, dtype):
        cast: da.Array = arr.astype(dtype)
    else:
        name = "the array for the frame"
        cast = da.map_blocks(checked_cast, arr, dtype=dtype, wanted=dtype, name_in_error=name)
    return cast


@dataclass(frozen=True)
class MappedArray:
    """Reference to the elements of an array in a file.

    NumPy converts it to an array: it maps the file while it copies the elements. If the file has
    changed, this raises an error, so old and new elements are never mixed. If the file is truncated
    during the copy, SIGBUS ends the process, as with any mapping; Python cannot raise an error for
    it.

    A `numpy.memmap` would be pickled with a copy of all elements. Its pages, once read, would count
    as memory of the process until it is closed.
    """

    path: str
    state: tuple[int, ...]
    """State of the file: inode, size, time of the last change."""
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
        """A region of the array: one slice of step 1 for each axis; more indices are ignored."""
        axes = [axis.indices(n)[:2] for axis, n in zip(index, self.shape, strict=False)]
        first = self.first + sum(a * step for (a, _), step in zip(axes, self.strides, strict=True))
        return replace(self, first=first, shape=tuple(b - a for a, b in axes))

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        if copy is False:
            raise ValueError("copy=False is not possible: the elements are in a file")
        # axes in the order of the file: neither the copy nor its readers jump through memory
        like = as_strided(np.empty(1, self.dtype), self.shape, self.strides)
        elements = np.empty_like(like, subok=False)
        try:
            self._require_unchanged()
            if elements.size:
                self._copy_to(elements)
            # checked after the copy, too: a concurrent writer would mix old and new elements
            self._require_unchanged()
        except FileNotFoundError:
            raise FileNotFoundError(
                errno.ENOENT,
                "this process does not see the file of a memory-mapped array: pass np.asarray(x), "
                "whose elements are sent to other machines",
                self.path,
            ) from None
        return elements if dtype is None else elements.astype(dtype, copy=False)

    def _require_unchanged(self) -> None:
        if file_state(self.path) != self.state:
            raise StaleFrameError(
                "the file of a memory-mapped array changed after it was passed to to_b2nd",
                path=self.path,
            )

    def _copy_to(self, elements: NDArray[Any]) -> None:
        reach = [(n - 1) * step for n, step in zip(self.shape, self.strides, strict=True)]
        low = self.first + sum(min(0, along) for along in reach)
        high = self.first + sum(max(0, along) for along in reach) + self.dtype.itemsize
        if high - low > max(_WINDOW, self.dtype.itemsize):
            # mapped pages between elements count as memory, too: halve the axis with the widest
            # reach in the file
            axis = max(range(self.ndim), key=lambda axis: abs(reach[axis]))
            middle = self.shape[axis] // 2
            for part in (slice(0, middle), slice(middle, None)):
                half = tuple(part if i == axis else slice(None) for i in range(self.ndim))
                self[half]._copy_to(elements[half])
            return
        try:
            window = np.memmap(self.path, np.uint8, "r", offset=low, shape=(high - low,))
        except ValueError as error:
            # the file ends before the range
            raise _truncated(self.path, high) from error
        elements[...] = np.ndarray(self.shape, self.dtype, window, self.first - low, self.strides)


def mapped_array(elements: NDArray[Any]) -> MappedArray | None:
    """Find the elements of a memory-mapped array, or of a view of one, in its file.

    None for any other array, and if the file has other elements: changes of mode ``"c"``, or a
    removed or replaced file. Raises StaleFrameError if the file ends before the array.
    """
    mapping = getattr(elements, "_mmap", None)
    path = getattr(elements, "filename", None)
    if not isinstance(elements, np.memmap) or mapping is None or path is None or not elements.size:
        return None
    low, high = byte_bounds(np.frombuffer(mapping, np.uint8))
    if not low <= elements.ctypes.data < high:
        return None
    # difference between memory addresses and file offsets
    shift = low - elements.offset + elements.offset % mmap.ALLOCATIONGRANULARITY
    name, end = os.fspath(path), byte_bounds(elements)[1] - shift
    if mapping.size() < end:
        # a read behind the end of a file that was truncated would end the process
        raise _truncated(name, end)
    if elements.mode == "c":
        return None
    # assigned elements are written to the file now, before its time is taken
    mapping.flush()
    first = elements.ctypes.data - shift
    try:
        state = file_state(name)
        found = MappedArray(name, state, first, elements.shape, elements.strides, elements.dtype)
        same = mapping.size() == state[1] and _same_ends(found, elements)
    except OSError:
        return None
    return found if same else None


def _same_ends(found: MappedArray, elements: NDArray[Any]) -> bool:
    """Whether both ends of the file and the array are equal: the name may be another file's now."""
    count = max(1, _COMPARED // elements.dtype.itemsize)
    outer = elements.ndim - 1
    # as many slices as axes, also for 0-d
    head = (*(slice(1),) * outer, slice(count))[: elements.ndim]
    tail = (*(slice(-1, None),) * outer, slice(-count, None))[: elements.ndim]
    return all(np.asarray(found[end]).tobytes() == elements[end].tobytes() for end in (head, tail))


def file_state(path: str) -> tuple[int, ...]:
    """Inode, size and time of the last change of a file, to detect changes."""
    stat = os.stat(path)  # noqa: PTH116 - the name may be any that is given
    return stat.st_ino, stat.st_size, stat.st_mtime_ns


def _truncated(path: str, end: int) -> StaleFrameError:
    return StaleFrameError(
        f"the file of a memory-mapped array became shorter after it was mapped: the array ends "
        f"at byte {end}, the file ends earlier. Write the file again, and map it again",
        path=path,
    )


Source = NDArray[Any] | MappedArray


def from_numpy(elements: NDArray[Any], *, named: bool, snapshot: bool) -> da.Array:
    """Cut a NumPy array into blocks of about dask's ``array.chunk-size``; tasks read mapped files.

    With `named`, equal arrays get equal names: this reads all elements, or a file's time of last
    change. With `snapshot`, elements in memory are copied; the user may then change them before
    the array is computed.
    """
    source: Source | None = mapped_array(elements)
    if source is None:
        # subclasses: only the elements
        source = np.array(elements) if snapshot else np.asarray(elements)
    # empty array: dask would divide by the number of elements
    wanted = "auto" if elements.size else source.shape
    sizes: Chunks = normalize_chunks(wanted, source.shape, dtype=source.dtype)
    if not named:
        return array_in_blocks(source, sizes)
    # one token per block: dask would copy arrays that are not contiguous
    regions: Any = regions_of(sizes)
    tokens = [tokenize(source[(*region, ...)]) for region in regions]
    # the strides distinguish the array from its transpose
    return array_in_blocks(source, sizes, tokenize(sizes, source.strides, tokens))


class ArrayBlocks(BlockArgument):  # type: ignore[misc]
    """The argument of each block's task: a view of an array, or a reference to a region of a file.

    A task in another process receives only its own block, not the array.
    """

    def __init__(self, source: Source, chunks: Chunks) -> None:
        super().__init__(chunks)
        self.source = source
        self._slices = _dask_compat.ArraySliceDep(chunks)
        self._token = uuid.uuid4().hex

    def __dask_tokenize__(self) -> str:
        # dask's token would read all elements, and copy them if they are not contiguous
        return self._token

    def __getitem__(self, block: tuple[int, ...]) -> Source:
        # the ellipsis keeps a 0-d array an array
        region: Any = (*self._slices[block], ...)
        return self.source[region]


def array_in_blocks(source: Source, sizes: Chunks, token: str | None = None) -> da.Array:
    """Make a dask array with blocks of the given lengths; by default its name is unique."""
    name = f"array-b2nd-{token or uuid.uuid4().hex}"
    return blockwise_array(source, sizes, name, lambda: (np.asarray, ArrayBlocks(source, sizes)))


def numpy_source(arr: da.Array) -> Source | None:
    """The NumPy array that a dask array only cuts into blocks; else None."""
    layer = _dask_compat.only_layer(arr)
    # a fused layer has another function
    if _dask_compat.block_function(layer) is not np.asarray:
        return None
    blocks = _dask_compat.block_arguments(layer)
    return next((dep.source for dep in blocks if isinstance(dep, ArrayBlocks)), None)
