"""Names of xarray that are not public, each with the reason why it is needed.

xarray may change any of them: then `names` raises `XarrayChangedError`, and arrays are made by
xarray's own way, which reads right, but without pushing selections and reductions into the reads.
"""

from __future__ import annotations

import importlib
import inspect
import warnings
from functools import cache
from types import SimpleNamespace
from typing import Any


class XarrayChangedError(Exception):
    """A name of xarray is not there, or is not what it was."""


_INDEXING = "xarray.core.indexing"
_VARIABLES = "xarray.coding.variables"

#: Modules and names, with the parameters of the call, which must be the same.
NAMES = {
    # its from_array makes the dask array of a variable
    ("xarray.namedarray.daskmanager", "DaskManager"): "",
    # what it is given
    (_INDEXING, "ImplicitToExplicitIndexingAdapter"): "array indexer_cls",
    # wrap each variable of an opened dataset, the second where values are kept once read
    (_INDEXING, "CopyOnWriteArray"): "array",
    (_INDEXING, "MemoryCachedArray"): "array",
    # holds selections that are not read yet
    (_INDEXING, "LazilyIndexedArray"): "array key",
    # wraps the arrays of several directories
    (_INDEXING, "DaskIndexingAdapter"): "array",
    # decode lazily: any function, the byte order, booleans
    ("xarray.coding.common", "_ElementwiseFunctionArray"): "array func dtype",
    (_VARIABLES, "NativeEndiannessArray"): "array",
    (_VARIABLES, "BoolTypeArray"): "array",
    # functions that mask and unpack numbers: elementwise work that reads can do
    (_VARIABLES, "_apply_mask"): "data encoded_fill_values decoded_fill_value dtype",
    (_VARIABLES, "_scale_offset_decoding"): "data scale_factor add_offset dtype",
}


@cache
def names() -> Any:
    """The names, as attributes.

    Raises
    ------
    XarrayChangedError
        One of them has changed.
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
    """Tell that datasets are read without pushdown."""
    warnings.warn(
        f"b2nd_dask leaves the chunks of datasets to xarray, whose internals have changed: {error}",
        stacklevel=2,
    )
