"""Private names of xarray, each with its use here.

xarray may change any of them. Then it makes the arrays itself: results are correct, but reads have
no pushdown of selections and reductions.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from b2nd_dask.graph._dask_compat import resolved

#: Parameters by module and name.
NAMES = {
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


@cache
def names() -> Any:
    """The private names as attributes; raise `NameChangedError` if one has changed."""
    return resolved("xarray", NAMES)
