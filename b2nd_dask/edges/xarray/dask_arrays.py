"""Dask arrays for ``chunks=``: made by `from_b2nd` instead of xarray.

xarray makes dask arrays by `DaskManager.from_array`: each task indexes xarray's lazy array, which
is opaque to dask. This module makes the same array by `from_b2nd` and dask's own functions. This
gives pushdown of selections and reductions, skips special chunks, and derives names from the
version of the frame. Unknown cases are left to xarray. `dask_array` is supported in the same way
after ``dask_array.xarray.register()`` has registered its manager.
"""

from __future__ import annotations

import functools
import logging
import operator
import sys
from functools import partial
from types import ModuleType
from typing import Any

import dask.array as da
import numpy as np
from dask.base import tokenize

from b2nd_dask.edges.xarray._xarray_compat import names
from b2nd_dask.edges.xarray.backend_array import FrameArray, GeogridArray
from b2nd_dask.errors import UnsupportedFrameError
from b2nd_dask.graph._dask_compat import DaskChangedError, parameters_of, warn_once
from b2nd_dask.graph.read.blocks import readings
from b2nd_dask.graph.read.from_b2nd import from_b2nd, is_expression

logger = logging.getLogger("b2nd_dask")

#: Arguments without an effect here: reads need no lock, and frames are small in graphs.
_KNOWN = frozenset({"name", "inline_array", "lock", "meta"})
_LEFT = "b2nd_dask leaves the chunks of datasets to xarray"
#: Kinds of dtype for which dask's functions decode exactly like xarray's.
_NUMBERS = "iuf"


class _UnknownError(Exception):
    """An array without a frame, or with an unknown kind of selection or decoding."""


def install() -> None:
    """Wrap `from_array` of the managers, once; warn instead if xarray has changed."""
    try:
        manager = names().DaskManager
    except DaskChangedError as error:
        warn_once(_LEFT, error)
        return
    _install_in(manager, da)
    expressions = sys.modules.get("dask_array")
    # loaded only if the user has registered it
    manager = getattr(sys.modules.get("dask_array._xarray"), "DaskArrayExprManager", None)
    if expressions is not None and hasattr(manager, "from_array"):
        _install_in(manager, expressions)


def _install_in(manager: Any, library: ModuleType) -> None:
    own = manager.from_array
    if hasattr(own, "xarray_own"):
        return
    if parameters_of(own) != "self, data, chunks, **kwargs":
        warn_once(f"{_LEFT}: from_array of {manager.__name__} has changed", None)
        return

    @functools.wraps(own)
    def from_array(self: Any, data: Any, chunks: Any, **kwargs: Any) -> Any:
        frames = _Converter(names(), library)
        bottom = frames.bottom_of(data)
        if bottom is None:
            return own(self, data, chunks, **kwargs)
        if not kwargs.get("lock") and kwargs.keys() <= _KNOWN:
            found = _array_of(frames, data, chunks)
            if found is not None:
                return found
        if kwargs.get("name"):
            # xarray's name depends on the time of the path, not on the version of the frame
            kwargs["name"] = f"{kwargs['name']}-{tokenize(bottom)}"
        return own(self, data, chunks, **kwargs)

    from_array.xarray_own = own  # type: ignore[attr-defined]
    manager.from_array = from_array


def _array_of(frames: _Converter, data: Any, chunks: Any) -> Any:
    """The array by `from_b2nd`; None if xarray must make it."""
    try:
        array = frames.convert(data.array, chunks)
    except (_UnknownError, UnsupportedFrameError) as unknown:
        logger.debug("left to xarray: %s", unknown)
        return None
    if array.shape != data.shape or array.dtype != data.dtype:
        logger.debug("left to xarray: %s %s", array, data)
        return None
    return array


class _Converter:
    """Converts xarray's lazy arrays to dask arrays."""

    def __init__(self, names: Any, library: ModuleType) -> None:
        self._names = names
        self._library = library
        self._wrappers = (names.CopyOnWriteArray, names.MemoryCachedArray)
        self._casts = (names.NativeEndiannessArray, names.BoolTypeArray)
        self._decoded = names._ElementwiseFunctionArray

    def bottom_of(self, data: Any) -> Any:
        """The innermost array, if it is one of this engine; else None."""
        if not isinstance(data, self._names.ImplicitToExplicitIndexingAdapter):
            return None
        lazy = data.array
        layers = (*self._wrappers, *self._casts, self._decoded, self._names.LazilyIndexedArray)
        while type(lazy) in layers:
            lazy = lazy.array
        if type(lazy) is self._names.DaskIndexingAdapter:
            # arrays of expressions come from combined frames
            reads = is_expression(lazy.array) or next(readings(lazy.array.dask), None) is not None
            return lazy.array if reads else None
        return lazy if isinstance(lazy, FrameArray | GeogridArray) else None

    def convert(self, lazy: Any, chunks: Any) -> Any:
        """Convert a lazy array; `chunks` as for `from_b2nd`."""
        kind = type(lazy)
        if kind is FrameArray:
            return _read(lazy, chunks, self._library)
        if kind is self._names.DaskIndexingAdapter:
            return lazy.array if chunks is None else lazy.array.rechunk(chunks)
        if kind in self._wrappers:
            return self.convert(lazy.array, chunks)
        if kind is self._names.LazilyIndexedArray:
            return self._selected(lazy, chunks)
        if kind in self._casts:
            return self.convert(lazy.array, chunks).astype(lazy.dtype)
        if kind is self._decoded:
            return self._decode(self.convert(lazy.array, chunks), lazy.func, lazy.dtype)
        raise _UnknownError(kind.__name__)

    def _selected(self, lazy: Any, chunks: Any) -> Any:
        """Convert a lazy selection of an inner array."""
        key = lazy.key.tuple
        whole = slice(None)
        sizes = lazy.array.shape
        if all(
            isinstance(k, slice) and range(n)[k] == range(n)[whole]
            for k, n in zip(key, sizes, strict=True)
        ):
            return self.convert(lazy.array, chunks)
        array = self.convert(lazy.array, None)
        # arrays of positions select along one axis each
        for axis in reversed(range(len(key))):
            if not isinstance(key[axis], slice) or key[axis] != whole:
                array = array[(*[whole] * axis, key[axis])]
        return array.rechunk(chunks)

    def _decode(self, array: Any, func: Any, dtype: np.dtype[Any]) -> Any:
        """Apply a decoding function of xarray."""
        known = isinstance(func, partial) and not func.args
        numbers = array.dtype.kind in _NUMBERS and dtype.kind in _NUMBERS
        if known and numbers and func.func is self._names._apply_mask:
            return _masked(array, self._library, **func.keywords)
        if known and numbers and func.func is self._names._scale_offset_decoding:
            return _scaled(array, **func.keywords)
        meta = np.empty((0,) * array.ndim, dtype)
        return self._library.map_blocks(func, array, dtype=dtype, meta=meta)


def _read(lazy: FrameArray, chunks: Any, library: ModuleType) -> Any:
    """The frame as a dask array."""
    array_type = "dask" if library is da else "dask-array"

    def read(**chunks: Any) -> Any:
        return from_b2nd(lazy.frame, array_type=array_type, **chunks).astype(lazy.dtype)

    if lazy.shape == lazy.frame.shape:
        return read(chunks=chunks)
    if len(lazy.shape) < lazy.frame.ndim:
        return read()[0]
    committed = tuple(slice(0, n) for n in lazy.shape)
    return read()[committed].rechunk({} if chunks is None else chunks)


def _masked(
    array: Any, library: ModuleType, encoded_fill_values: Any, decoded_fill_value: Any, dtype: Any
) -> Any:
    """`xarray.coding.variables._apply_mask` by functions that reads can apply."""
    cast = array.astype(dtype)
    are_missing = [cast == value for value in sorted(encoded_fill_values, key=repr)]
    if not are_missing:
        return cast
    condition = functools.reduce(operator.or_, are_missing)
    return library.where(condition, cast.dtype.type(decoded_fill_value), cast)


def _scaled(array: Any, scale_factor: Any, add_offset: Any, dtype: Any) -> Any:
    """`xarray.coding.variables._scale_offset_decoding` by functions that reads can apply."""
    cast = array.astype(dtype)
    # like xarray, which multiplies and adds in place, keep the dtype of the array
    if scale_factor is not None:
        cast = (cast * scale_factor).astype(cast.dtype)
    if add_offset is not None:
        cast = (cast + add_offset).astype(cast.dtype)
    return cast
