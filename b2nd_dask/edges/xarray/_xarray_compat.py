"""Private names of xarray, each with its use here.

xarray may change any of them. Then `names` raises `XarrayChangedError`, and xarray makes the arrays
itself: results are correct, but reads have no pushdown of selections and reductions.
"""

from __future__ import annotations

import importlib
import inspect
import warnings
from functools import cache
from types import SimpleNamespace
from typing import Any


class XarrayChangedError(Exception):
    """A private name of xarray is missing or has changed."""


_INDEXING = "xarray.core.indexing"
_VARIABLES = "xarray.coding.variables"

#: Modules and names, with the expected parameters of the call; "" is not checked.
NAMES = {
    # its from_array makes the dask array of a variable
    ("xarray.namedarray.daskmanager", "DaskManager"): "",
    # the argument of from_array
    (_INDEXING, "ImplicitToExplicitIndexingAdapter"): "array indexer_cls",
    # wrap each variable of an opened dataset; the second is the cache of values
    (_INDEXING, "CopyOnWriteArray"): "array",
    (_INDEXING, "MemoryCachedArray"): "array",
    # holds lazy selections
    (_INDEXING, "LazilyIndexedArray"): "array key",
    # wraps the arrays of several directories
    (_INDEXING, "DaskIndexingAdapter"): "array",
    # decode lazily: any function, the byte order, booleans
    ("xarray.coding.common", "_ElementwiseFunctionArray"): "array func dtype",
    (_VARIABLES, "NativeEndiannessArray"): "array",
    (_VARIABLES, "BoolTypeArray"): "array",
    # functions that mask and unpack numbers: elementwise, so reads can apply them
    (_VARIABLES, "_apply_mask"): "data encoded_fill_values decoded_fill_value dtype",
    (_VARIABLES, "_scale_offset_decoding"): "data scale_factor add_offset dtype",
}


@cache
def names() -> Any:
    """The private names as attributes.

    Raises XarrayChangedError if a name is missing or has changed.
    """
    found = {}
    for (module, name), parameters in NAMES.items():
        try:
            found[name] = getattr(importlib.import_module(module), name)
            signature = inspect.signature(found[name])
        except (ImportError, AttributeError, ValueError, TypeError) as error:
            raise XarrayChangedError(f"{module}.{name}: {error}") from error
        if parameters and " ".join(signature.parameters) != parameters:
            raise XarrayChangedError(f"{module}.{name}{signature}")
    return SimpleNamespace(**found)


@cache
def warn_once(error: str) -> None:
    """Warn that datasets are read without pushdown."""
    warnings.warn(
        f"b2nd_dask leaves the chunks of datasets to xarray, whose internals have changed: {error}",
        stacklevel=2,
    )
