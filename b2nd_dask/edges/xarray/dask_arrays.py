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
from xarray.backends import BackendArray
from xarray.core import indexing

from b2nd_dask.edges.xarray._xarray_compat import names
from b2nd_dask.edges.xarray.backend_array import FrameArray
from b2nd_dask.errors import UnsupportedFrameError
from b2nd_dask.graph._dask_compat import NameChangedError, parameters_of, warn_once
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
    except NameChangedError as error:
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
        bottom = _bottom_of(data)
        if bottom is None:
            return own(self, data, chunks, **kwargs)
        if not kwargs.get("lock") and kwargs.keys() <= _KNOWN:
            try:
                array = _converted(data.array, chunks, library)
            except (_UnknownError, UnsupportedFrameError) as unknown:
                logger.debug("left to xarray: %s", unknown)
            else:
                if array.shape == data.shape and array.dtype == data.dtype:
                    return array
                logger.debug("left to xarray: %s %s", array, data)
        if kwargs.get("name"):
            # xarray's name depends on the time of the path, not on the version of the frame
            kwargs["name"] = f"{kwargs['name']}-{tokenize(bottom)}"
        return own(self, data, chunks, **kwargs)

    from_array.xarray_own = own  # type: ignore[attr-defined]
    manager.from_array = from_array


def _bottom_of(data: Any) -> Any:
    """The innermost array of xarray's lazy array, if it is one of this engine; else None."""
    combined = names().DaskIndexingAdapter
    if not isinstance(data, names().ImplicitToExplicitIndexingAdapter):
        return None
    lazy, ends = data.array, (BackendArray, combined)
    while isinstance(lazy, indexing.ExplicitlyIndexed) and not isinstance(lazy, ends):
        lazy = getattr(lazy, "array", None)
    if isinstance(lazy, combined):
        # arrays of expressions come from combined frames
        reads = is_expression(lazy.array) or next(readings(lazy.array.dask), None) is not None
        return lazy.array if reads else None
    return lazy if isinstance(lazy, FrameArray) else None


def _converted(lazy: Any, chunks: Any, library: ModuleType) -> Any:
    """Convert xarray's lazy array to a dask array; `chunks` as for `from_b2nd`."""
    own, kind = names(), type(lazy)
    if kind is FrameArray:
        return _read(lazy, chunks, library)
    if kind is own.DaskIndexingAdapter:
        return lazy.array if chunks is None else lazy.array.rechunk(chunks)
    if kind in (own.CopyOnWriteArray, own.MemoryCachedArray):
        return _converted(lazy.array, chunks, library)
    if kind is own.LazilyIndexedArray:
        return _selected(lazy, chunks, library)
    if kind in (own.NativeEndiannessArray, own.BoolTypeArray):
        return _converted(lazy.array, chunks, library).astype(lazy.dtype)
    if kind is own._ElementwiseFunctionArray:
        return _decoded(_converted(lazy.array, chunks, library), lazy.func, lazy.dtype, library)
    raise _UnknownError(kind.__name__)


def _selected(lazy: Any, chunks: Any, library: ModuleType) -> Any:
    """Convert a lazy selection of an inner array."""
    parts = {
        axis: part
        for axis, (part, n) in enumerate(zip(lazy.key.tuple, lazy.array.shape, strict=True))
        if not isinstance(part, slice) or range(n)[part] != range(n)
    }
    if not parts:
        return _converted(lazy.array, chunks, library)
    array = _converted(lazy.array, None, library)
    # arrays of positions select along one axis each
    for axis in sorted(parts, reverse=True):
        array = array[(*[slice(None)] * axis, parts[axis])]
    return array.rechunk(chunks)


def _decoded(array: Any, func: Any, dtype: np.dtype[Any], library: ModuleType) -> Any:
    """Apply a decoding function of xarray, if possible by functions that reads can apply."""
    known = isinstance(func, partial) and not func.args
    if known and array.dtype.kind in _NUMBERS and dtype.kind in _NUMBERS:
        if func.func is names()._apply_mask:
            return _masked(array, library, **func.keywords)
        if func.func is names()._scale_offset_decoding:
            return _scaled(array, **func.keywords)
    meta = np.empty((0,) * array.ndim, dtype)
    return library.map_blocks(func, array, dtype=dtype, meta=meta)


def _read(lazy: FrameArray, chunks: Any, library: ModuleType) -> Any:
    """The frame as a dask array."""
    whole = lazy.shape == lazy.frame.shape
    array_type = "dask" if library is da else "dask-array"
    array = from_b2nd(lazy.frame, chunks=chunks if whole else None, array_type=array_type)
    array = array.astype(lazy.dtype)
    if whole:
        return array
    if not lazy.shape:
        return array[0]
    return array[tuple(map(slice, lazy.shape))].rechunk({} if chunks is None else chunks)


def _masked(
    array: Any, library: ModuleType, encoded_fill_values: Any, decoded_fill_value: Any, dtype: Any
) -> Any:
    """`xarray.coding.variables._apply_mask` by functions that reads can apply."""
    cast = array.astype(dtype)
    are_missing = (cast == value for value in sorted(encoded_fill_values, key=repr))
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
