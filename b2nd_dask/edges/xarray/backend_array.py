"""Arrays of frames in xarray: read lazily by an index, or as dask arrays for ``chunks=``.

An indexing operation reads only its selection, without a task. For ``chunks=`` xarray makes dask
arrays by `DaskManager.from_array`: each task indexes xarray's lazy array, which is opaque to dask.
This module makes the same array by `from_b2nd` and dask's own functions. This gives pushdown of
selections and reductions, skips special chunks, and derives names from the version of the frame.
Unknown cases are left to xarray, all of them if one of its private names has changed: results are
correct, but reads have no pushdown. `dask_array` is supported in the same way after
``dask_array.xarray.register()`` has registered its manager.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import operator
import sys
from functools import partial
from typing import Any

import numpy as np
from dask.base import tokenize
from xarray.backends import BackendArray
from xarray.core import indexing

from b2nd_dask.errors import UnsupportedFrameError
from b2nd_dask.format.manifest import Geogrid
from b2nd_dask.frame.array import Frame, reference_of
from b2nd_dask.frame.read.positions import read_outer, read_pointwise
from b2nd_dask.graph._dask_compat import NameChangedError, parameters_of, private_names, warn_once
from b2nd_dask.graph.read.blocks import readings
from b2nd_dask.graph.read.from_b2nd import from_b2nd, is_expression

logger = logging.getLogger("b2nd_dask")

#: Private names of xarray, which may change any of them: parameters by module and name.
_NAMES = {
    # its from_array makes the dask array of a variable
    "namedarray.daskmanager": {"DaskManager": ""},
    "core.indexing": {
        # the argument of from_array
        "ImplicitToExplicitIndexingAdapter": "array, indexer_cls",
        # wrap each variable of an opened dataset; the second is the cache of values
        "CopyOnWriteArray": "array",
        "MemoryCachedArray": "array",
        # holds lazy selections
        "LazilyIndexedArray": "array, key",
        # wraps the arrays of several directories
        "DaskIndexingAdapter": "array",
    },
    # decode lazily: any function, the byte order, booleans
    "coding.common": {"_ElementwiseFunctionArray": "array, func, dtype"},
    "coding.variables": {
        "NativeEndiannessArray": "array",
        "BoolTypeArray": "array",
        # functions that mask and unpack numbers: elementwise, so reads can apply them
        "_apply_mask": "data, encoded_fill_values, decoded_fill_value, dtype",
        "_scale_offset_decoding": "data, scale_factor, add_offset, dtype",
    },
}
#: Arguments without an effect here: reads need no lock, and frames are small in graphs.
_KNOWN = frozenset({"name", "inline_array", "lock", "meta"})
_LEFT = "b2nd_dask leaves the chunks of datasets to xarray"
#: Kinds of dtype for which dask's functions decode exactly like xarray's.
_NUMBERS = "iuf"


def presented(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """The dtype in which xarray gets the elements of a frame.

    Texts and records have the native byte order: xarray's own cast to that order makes texts four
    times as long, and fails for records.
    """
    return dtype.newbyteorder("=") if dtype.kind in "UV" else dtype


class FrameArray(BackendArray):
    """A frame behind xarray's lazy indexing.

    Immutable. Safe in threads; pickles as a reference to one version of the frame.
    """

    def __init__(self, frame: Frame) -> None:
        self.frame = frame
        self.shape = frame.shape
        self.dtype = presented(frame.dtype)

    def __dask_tokenize__(self) -> tuple[Any, ...]:
        return ("b2nd_dask.FrameArray", self.frame)

    async def async_getitem(self, key: indexing.ExplicitIndexer) -> Any:
        """Read in a thread, for xarray's asynchronous loading."""
        return await asyncio.to_thread(self.__getitem__, key)

    def __getitem__(self, key: indexing.ExplicitIndexer) -> Any:
        return self._elements(key).astype(self.dtype, copy=False)

    def _elements(self, key: indexing.ExplicitIndexer) -> Any:
        index, axes = key.tuple, [*map(range, self.shape)]
        if isinstance(key, indexing.BasicIndexer):
            return np.asarray(self.frame[index])
        if isinstance(key, indexing.VectorizedIndexer):
            return read_pointwise(reference_of(self.frame), index, axes)
        ints = tuple(n for n, k in enumerate(index) if not (isinstance(k, slice) or np.ndim(k)))
        lists = [[k] if n in ints else k for n, k in enumerate(index)]
        return np.squeeze(read_outer(self._read, self.frame, lists, axes), ints)

    def _read(self, axes: tuple[range, ...]) -> Any:
        return self.frame[tuple(map(_slice, axes))]


def _slice(axis: range) -> slice:
    """The positions of a range, also of a descending one, as a slice."""
    return slice(axis.start, axis.stop if axis.stop >= 0 else None, axis.step) if axis else slice(0)


class GeogridArray(FrameArray):
    """A variable packed by xarray-blosc2: integers, maybe as differences along the last axis.

    For differences a read starts at the first element of a row and ends at the last selected one.
    """

    def __init__(self, frame: Frame, how: Geogrid) -> None:
        super().__init__(frame)
        self._how = how
        self.dtype = np.dtype(how.dtype)

    def __dask_tokenize__(self) -> tuple[Any, ...]:
        return ("b2nd_dask.GeogridArray", super().__dask_tokenize__(), repr(self._how))

    def _elements(self, key: indexing.ExplicitIndexer) -> Any:
        outer = indexing.IndexingSupport.OUTER
        return indexing.explicit_indexing_adapter(key, self.shape, outer, self._outer)

    def _outer(self, key: tuple[Any, ...]) -> Any:
        how = self._how
        if not how.row_diff or not self.shape:
            elements = super()._elements(indexing.OuterIndexer(key))
        else:
            *others, last = key
            chosen = np.arange(self.shape[-1])[last]
            until = np.max(chosen, initial=-1) + 1
            packed = super()._elements(indexing.OuterIndexer((*others, slice(0, until))))
            # in the packed dtype, where sums wrap around like the differences
            elements = np.cumsum(packed, -1, dtype=packed.dtype)[..., chosen]
        return elements.astype(np.float64) * how.scale_factor + how.add_offset


@functools.cache
def _names() -> Any:
    """The private names of xarray; raise `NameChangedError` if one has changed."""
    return private_names("xarray", _NAMES)


class _UnknownError(Exception):
    """An array without a frame, or with an unknown kind of selection or decoding."""


def install() -> None:
    """Wrap `from_array` of the managers, once; warn instead if xarray has changed."""
    try:
        manager = _names().DaskManager
    except NameChangedError as error:
        warn_once(_LEFT, error)
        return
    _install_in(manager, "dask")
    # loaded only if the user has registered it
    manager = getattr(sys.modules.get("dask_array._xarray"), "DaskArrayExprManager", None)
    if hasattr(manager, "from_array"):
        _install_in(manager, "dask-array")


def _install_in(manager: Any, array_type: str) -> None:
    own = manager.from_array
    if hasattr(own, "xarray_own"):
        return
    if parameters_of(own) != "self, data, chunks, **kwargs":
        warn_once(f"{_LEFT}: from_array of {manager.__name__} has changed", None)
        return

    @functools.wraps(own)
    def from_array(self: Any, data: Any, chunks: Any, **kwargs: Any) -> Any:
        bottom = _bottom_of(data)
        if bottom is None:
            return own(self, data, chunks, **kwargs)
        if not kwargs.get("lock") and kwargs.keys() <= _KNOWN:
            try:
                array = _converted(data.array, chunks, array_type)
            except (_UnknownError, UnsupportedFrameError) as unknown:
                logger.debug("left to xarray: %s", unknown)
            else:
                if array.shape == data.shape and array.dtype == data.dtype:
                    return array
                logger.debug("left to xarray: %s %s", array, data)
        if kwargs.get("name"):
            # xarray's name depends on the time of the path, not on the version of the frame
            kwargs["name"] = f"{kwargs['name']}-{tokenize(bottom, data.shape)}"
        return own(self, data, chunks, **kwargs)

    from_array.xarray_own = own  # type: ignore[attr-defined]
    manager.from_array = from_array


def _bottom_of(data: Any) -> Any:
    """The innermost array of xarray's lazy array, if it is one of this engine; else None."""
    combined = _names().DaskIndexingAdapter
    if not isinstance(data, _names().ImplicitToExplicitIndexingAdapter):
        return None
    lazy, ends = data.array, (BackendArray, combined)
    while isinstance(lazy, indexing.ExplicitlyIndexed) and not isinstance(lazy, ends):
        lazy = getattr(lazy, "array", None)
    if isinstance(lazy, combined):
        # arrays of expressions come from combined frames
        reads = is_expression(lazy.array) or next(readings(lazy.array.dask), None) is not None
        return lazy.array if reads else None
    return lazy if isinstance(lazy, FrameArray) else None


def _converted(lazy: Any, chunks: Any, array_type: str) -> Any:
    """Convert xarray's lazy array to a dask array; other arguments as for `from_b2nd`."""
    own, kind = _names(), type(lazy)
    if kind is FrameArray:
        return from_b2nd(lazy.frame, chunks=chunks, array_type=array_type).astype(lazy.dtype)
    if kind is own.DaskIndexingAdapter:
        return lazy.array if chunks is None else lazy.array.rechunk(chunks)
    if kind in (own.CopyOnWriteArray, own.MemoryCachedArray):
        return _converted(lazy.array, chunks, array_type)
    if kind is own.LazilyIndexedArray:
        return _selected(lazy, chunks, array_type)
    if kind in (own.NativeEndiannessArray, own.BoolTypeArray):
        return _converted(lazy.array, chunks, array_type).astype(lazy.dtype)
    if kind is own._ElementwiseFunctionArray:
        return _decoded(_converted(lazy.array, chunks, array_type), lazy.func, lazy.dtype)
    raise _UnknownError(kind.__name__)


def _selected(lazy: Any, chunks: Any, array_type: str) -> Any:
    """Convert a lazy selection of an inner array."""
    parts = {
        axis: part
        for axis, (part, n) in enumerate(zip(lazy.key.tuple, lazy.array.shape, strict=True))
        if not isinstance(part, slice) or range(n)[part] != range(n)
    }
    if not parts:
        return _converted(lazy.array, chunks, array_type)
    array = _converted(lazy.array, None, array_type)
    # arrays of positions select along one axis each
    for axis in sorted(parts, reverse=True):
        array = array[(*[slice(None)] * axis, parts[axis])]
    return array if chunks is None else array.rechunk(chunks)


def _decoded(array: Any, func: Any, dtype: np.dtype[Any]) -> Any:
    """Apply a decoding function of xarray, if possible by functions that reads can apply."""
    known = isinstance(func, partial) and not func.args
    if known and array.dtype.kind in _NUMBERS and dtype.kind in _NUMBERS:
        if func.func is _names()._apply_mask:
            return _masked(array, **func.keywords)
        if func.func is _names()._scale_offset_decoding:
            return _scaled(array, **func.keywords)
    return array.map_blocks(func, dtype=dtype, meta=np.empty((0,) * array.ndim, dtype))


def _masked(array: Any, encoded_fill_values: Any, decoded_fill_value: Any, dtype: Any) -> Any:
    """`xarray.coding.variables._apply_mask` by functions that reads can apply."""
    cast = array.astype(dtype)
    are_missing = (cast == value for value in sorted(encoded_fill_values, key=repr))
    condition = functools.reduce(operator.or_, are_missing)
    # NumPy calls the function of the library that made the array
    return np.where(condition, cast.dtype.type(decoded_fill_value), cast)


def _scaled(array: Any, scale_factor: Any, add_offset: Any, dtype: Any) -> Any:
    """`xarray.coding.variables._scale_offset_decoding` by functions that reads can apply."""
    cast = array.astype(dtype)
    # like xarray, which multiplies and adds in place, keep the dtype of the array
    if scale_factor is not None:
        cast = (cast * scale_factor).astype(cast.dtype)
    if add_offset is not None:
        cast = (cast + add_offset).astype(cast.dtype)
    return cast
