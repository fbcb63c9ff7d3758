"""What is written: as a dask array, in the dtype of the frame, in blocks of whole chunks."""

from __future__ import annotations

import itertools
import math
from typing import Any

import dask.array as da
import numpy as np
from numpy.typing import NDArray

from b2nd_dask.format.grid import steps
from b2nd_dask.frame.access import is_opened_array
from b2nd_dask.frame.array import Frame
from b2nd_dask.frame.write.new_frame import check_storable
from b2nd_dask.frame.write.writer import cast_value, checked_cast, fits
from b2nd_dask.graph import _dask_compat
from b2nd_dask.graph.read.blocks import Chunks, constant_of
from b2nd_dask.graph.read.from_b2nd import expressions, from_b2nd, is_expression
from b2nd_dask.graph.resources import array_chunk_nbytes
from b2nd_dask.graph.write.numpy_arrays import array_in_blocks, from_numpy, numpy_source


def as_dask(arr: Any, *, named: bool, snapshot: bool) -> da.Array:
    """Make a dask array of anything array-like, block by block where it has chunks.

    `named` and `snapshot` as for `from_numpy`. Raises TypeError for a dtype that a frame cannot
    hold and for masked arrays, ValueError for an array of unknown shape.
    """
    # of xarray, which may hold a mapped file
    arr = held_by(arr)
    if not hasattr(arr, "dtype"):
        arr = np.asarray(arr)
    # before dask, which has no chunks for such arrays
    _check_elements(arr)
    if isinstance(arr, Frame) or is_opened_array(arr) or getattr(arr, "ndim", None) is None:
        # of what is no array at all, from_b2nd says so
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
        # an expression keeps what map_blocks was given, `float` for instance
        dtype = np.dtype(array.dtype)
        meta = np.empty((0,) * array.ndim, dtype)
        array = da.map_blocks(np.asarray, array, dtype=dtype, meta=meta)
    return array


def is_labelled(given: Any) -> bool:
    """Whether something is an object of xarray, which is not imported for it."""
    return any(base.__module__.split(".")[0] == "xarray" for base in type(given).__mro__)


def held_by(arr: Any) -> Any:
    """The array that a labelled array of xarray holds; anything else itself."""
    return arr.data if is_labelled(arr) and hasattr(arr, "dtype") else arr


def _check_elements(arr: Any) -> None:
    """Raise TypeError where a frame cannot hold the elements of an array."""
    try:
        dtype = np.dtype(arr.dtype)
    except TypeError:
        raise TypeError(
            f"a {type(arr).__name__} without a dtype of NumPy's is no array that a frame can hold: "
            "make it one first, for instance by .astype, .to_numpy or da.from_delayed"
        ) from None
    check_storable(dtype)
    if isinstance(getattr(arr, "_meta", arr), np.ma.MaskedArray):
        raise TypeError(
            "a masked array cannot be written or compressed, since a frame has no masks: pass "
            "da.ma.filled(x, value)"
        )


def as_elements(value: Any, dtype: np.dtype[Any]) -> Any:
    """Convert numbers and lists to the dtype of a frame, where that can represent them.

    Nobody chose their own dtype: NumPy makes int64 of ``[1, 2]``, whatever it is for. So the
    numbers have to fit, not the dtype. Arrays, whose dtype was chosen, and numbers that do not fit
    are returned as they are; see `converted`.

    Examples
    --------
    >>> as_elements([1, 2], np.dtype("u1")).dtype, as_elements([1, 300], np.dtype("u1")).dtype
    (dtype('uint8'), dtype('int64'))
    """
    is_scalar = isinstance(value, np.generic) or (type(value) is np.ndarray and value.ndim == 0)
    if hasattr(value, "dtype") and not is_scalar:
        return value
    elements = cast_value(np.asarray(value), dtype, "the value for the frame")
    # a constant dask array is recognized as such when it is written, and needs no task a block
    return da.full((), elements, dtype=elements.dtype) if not elements.ndim else elements


def converted(arr: da.Array, dtype: np.dtype[Any]) -> da.Array:
    """Cast an array to the dtype of the frame that it goes into.

    Raises TypeError where elements would lose more than floating-point precision. That an element
    is too large for the dtype, or a time between its units, shows when it is computed, as an
    OverflowError.
    """
    if arr.dtype == dtype:
        return arr
    if not fits(arr.dtype, dtype):
        raise TypeError(
            f"elements of dtype {arr.dtype} do not fit a frame of {dtype}; convert by .astype"
        )
    # of times, which fields may be, NumPy looks at the unit, not at the range
    if dtype.kind not in "mMV" and np.can_cast(arr.dtype, dtype):
        cast: da.Array = arr.astype(dtype)
    else:
        name = "the array for the frame"
        cast = da.map_blocks(checked_cast, arr, dtype=dtype, wanted=dtype, name_in_error=name)
    return cast


def constant_element(arr: da.Array) -> NDArray[Any] | None:
    """The element, 0-d, of an array that `da.zeros`, `da.full` or the like has made; else None.

    Examples
    --------
    >>> constant_element(da.full((10**6, 10**6), 2.5))
    array(2.5)
    >>> constant_element(da.zeros(5) + 1) is None
    True
    """
    layers = _dask_compat.layers_of(arr)
    return constant_of(layers.get(arr.name), arr.ndim) if len(layers) == 1 else None


def aligned_to(arr: da.Array, chunks: tuple[int, ...]) -> da.Array:
    """Give an array blocks that are made of whole frame chunks, as `aligned_sizes` has them.

    A NumPy array by itself is cut into the new blocks; anything else is rechunked, which reads
    frames in the new blocks where that costs little.
    """
    wanted = aligned_sizes(arr.chunks, chunks, arr.dtype.itemsize)
    if wanted == arr.chunks:
        return arr
    source = numpy_source(arr)
    return arr.rechunk(wanted) if source is None else array_in_blocks(source, wanted)


def aligned_sizes(sizes: Chunks, chunks: tuple[int, ...], itemsize: int) -> Chunks:
    """Choose lengths of dask blocks made of whole frame chunks, about as large as the given ones.

    Axes are chosen together: blocks that are long along one axis, for chunks that are long along
    another, would otherwise become as large as the array. Blocks have dask's ``array.chunk-size``
    at most, unless the largest of `sizes` or a single chunk has more.
    """
    wanted = tuple(_aligned_axis(*axis) for axis in zip(sizes, chunks, strict=True))
    shape = tuple(map(sum, sizes))
    if not math.prod(shape):
        return wanted
    chunk = math.prod(min(c, n) for c, n in zip(chunks, shape, strict=True))
    bound = max(array_chunk_nbytes() // itemsize, chunk, math.prod(map(max, sizes)))
    bounded, longest = list(wanted), [max(axis) for axis in wanted]
    # the first axes are cut: what is contiguous in the blocks stays so
    for axis, (n, c) in enumerate(zip(shape, chunks, strict=True)):
        room = bound // (math.prod(longest) // longest[axis])
        if longest[axis] > room:
            # as few blocks, but all of about the same size
            count = -(-n // (max(1, room // c) * c))
            bounded[axis] = steps(n, -(-n // (count * c)) * c)
            longest[axis] = max(bounded[axis])
    return tuple(bounded)


def _aligned_axis(sizes: tuple[int, ...], chunk: int) -> tuple[int, ...]:
    edges = list(itertools.accumulate(sizes))[:-1]
    aligned = [edge for edge in edges if edge % chunk == 0]
    if aligned == edges:
        return sizes
    total = sum(sizes)
    step = max(1, round(max(sizes) / chunk)) * chunk
    # the edges of a region lie between those of blocks that line up
    merged = tuple(after - at for at, after in itertools.pairwise([0, *aligned, total]))
    return merged if max(merged) <= step else steps(total, step)
