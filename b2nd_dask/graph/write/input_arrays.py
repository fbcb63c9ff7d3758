"""What `to_b2nd` is given, as a dask array without a copy; and whether that holds one value."""

from __future__ import annotations

import itertools
import uuid
from collections.abc import Iterable
from typing import Any

import dask.array as da
import numpy as np
from dask.array.core import normalize_chunks
from dask.base import tokenize
from numpy.typing import NDArray

from b2nd_dask.frame.array import Frame, reference_of
from b2nd_dask.frame.opened_array import is_opened_array
from b2nd_dask.frame.write.new_frame import check_storable
from b2nd_dask.graph import _dask_compat
from b2nd_dask.graph.read.blocks import BlockArgument, Chunks, dask_array
from b2nd_dask.graph.read.from_b2nd import array_of, from_b2nd
from b2nd_dask.graph.write.mapped import MappedArray, mapped_array

Source = NDArray[Any] | MappedArray


def as_dask(arr: Any, *, named: bool, snapshot: bool) -> da.Array:
    """Make a dask array of anything array-like, block by block where it has chunks.

    Parameters
    ----------
    arr : object
        What a user passes to `to_b2nd`.
    named, snapshot : bool
        As for `from_numpy`.

    Raises
    ------
    TypeError
        A dtype that a frame cannot hold, or a masked array.
    ValueError
        An array of unknown shape.
    """
    if isinstance(arr, Frame):
        return array_of(reference_of(arr), None)
    if not hasattr(arr, "dtype"):
        arr = np.asarray(arr)
    if not isinstance(arr, np.ndarray) and isinstance(getattr(arr, "data", None), np.ndarray):
        arr = arr.data  # of a labelled array of xarray, which may be a mapped file
    # before dask, which has no chunks for such arrays
    _check_elements(arr)
    if is_opened_array(arr) or getattr(arr, "ndim", None) is None:
        # of what is no array at all, from_b2nd says so
        return from_b2nd(arr)
    array: da.Array
    if isinstance(arr, np.ndarray):
        array = from_numpy(arr, named=named, snapshot=snapshot)
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


def from_numpy(elements: NDArray[Any], *, named: bool, snapshot: bool) -> da.Array:
    """Cut a NumPy array into blocks of about dask's ``array.chunk-size``.

    Parameters
    ----------
    elements : ndarray
        A `numpy.memmap` is read from its file, block by block, by the tasks.
    named : bool
        Whether equal arrays get the same name; that reads all elements, or the time of a file's
        last change.
    snapshot : bool
        Whether elements are copied, so that they may be changed before the array is computed. Files
        are never copied.
    """
    source: Source | None = mapped_array(elements)
    if source is None:
        # of subclasses only the elements
        source = np.array(elements) if snapshot else np.asarray(elements)
    # of an empty array dask would divide by the number of elements
    wanted = "auto" if elements.size else source.shape
    sizes: Chunks = normalize_chunks(wanted, source.shape, dtype=source.dtype)
    token = _token(source, sizes) if named else uuid.uuid4().hex
    return array_in_blocks(source, sizes, f"array-b2nd-{token}")


class ArrayBlocks(BlockArgument):  # type: ignore[misc]
    """The argument of each block's task: a view of an array, or a reference to part of a file.

    A task that is sent to another process takes its own block along, not the array.
    """

    def __init__(self, source: Source, chunks: Chunks) -> None:
        super().__init__(chunks)
        self.source = source
        self._slices = _dask_compat.ArraySliceDep(chunks)

    def __getitem__(self, block: tuple[int, ...]) -> Source:
        return part_of(self.source, self._slices[block])


def array_in_blocks(source: Source, sizes: Chunks, name: str | None = None) -> da.Array:
    """Make a dask array of blocks of the given lengths, by default with a name of its own."""
    name = name or f"array-b2nd-{uuid.uuid4().hex}"
    return dask_array(source, sizes, name, lambda: (np.asarray, ArrayBlocks(source, sizes)))


def part_of(source: Source, region: tuple[slice, ...]) -> Source:
    """A view of a part of an array."""
    # with the ellipsis a 0-d array stays an array
    index: tuple[Any, ...] = (*region, ...)
    return source[region] if isinstance(source, MappedArray) else source[index]


def _token(source: Source, sizes: Chunks) -> str:
    """Token of the elements, block by block: dask copies arrays that are not contiguous."""
    if isinstance(source, MappedArray):
        parts: list[Any] = [source]
    else:
        parts = [tokenize(part_of(source, region)) for region in _regions(sizes)]
    token: str = tokenize(sizes, parts)
    return token


def _regions(sizes: Chunks) -> Iterable[tuple[slice, ...]]:
    """Slices of each block, in C order."""
    stops = [list(itertools.accumulate(axis)) for axis in sizes]
    return itertools.product(*(list(map(slice, (0, *ends[:-1]), ends)) for ends in stops))


def constant_element(arr: da.Array) -> NDArray[Any] | None:
    """The element of an array that `da.zeros`, `da.full` or the like has made.

    Returns
    -------
    ndarray or None
        0-d; None for any other array, also if it is constant.

    Examples
    --------
    >>> constant_element(da.full((10**6, 10**6), 2.5))
    array(2.5)
    >>> constant_element(da.zeros(5) + 1) is None
    True
    """
    shape_dep = _dask_compat.optional("ArrayChunkShapeDep")
    maker = _dask_compat.optional("_broadcast_trick_inner")
    if shape_dep is None or maker is None or _dask_compat.is_planned() or len(arr.dask.layers) != 1:
        return None
    layer = arr.dask.layers.get(arr.name)
    deps = _dask_compat.block_arguments(layer)
    func = _dask_compat.block_function(layer)
    shapes = all(isinstance(dep, shape_dep) for dep in deps)
    if not shapes or _innermost(func) is not _innermost(maker):
        return None
    element: NDArray[Any] = np.asarray(func((1,) * arr.ndim)).reshape(())
    return element


def _innermost(func: Any) -> Any:
    """The function in partials and curried functions."""
    while hasattr(func, "func"):
        func = func.func
    return func
