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
from typing import Any, NamedTuple


class XarrayChangedError(Exception):
    """A name of xarray is not there, or is not what it was."""


class _Name(NamedTuple):
    module: str
    name: str
    parameters: tuple[str, ...]
    """Of the call, which must be the same."""
    reason: str


_INDEXING = "xarray.core.indexing"
_VARIABLES = "xarray.coding.variables"

NAMES = tuple(
    _Name(module, name, tuple(parameters.split()), reason)
    for module, name, parameters, reason in (
        (
            "xarray.namedarray.daskmanager",
            "DaskManager",
            "",
            "its from_array makes the dask array of a variable",
        ),
        (_INDEXING, "ImplicitToExplicitIndexingAdapter", "array indexer_cls", "what it is given"),
        (_INDEXING, "CopyOnWriteArray", "array", "wraps each variable of an opened dataset"),
        (_INDEXING, "MemoryCachedArray", "array", "likewise, where values are kept once read"),
        (_INDEXING, "LazilyIndexedArray", "array key", "holds selections that are not read yet"),
        (_INDEXING, "DaskIndexingAdapter", "array", "wraps the arrays of several directories"),
        ("xarray.coding.common", "_ElementwiseFunctionArray", "array func dtype", "decodes lazily"),
        (_VARIABLES, "NativeEndiannessArray", "array", "decodes the byte order"),
        (_VARIABLES, "BoolTypeArray", "array", "decodes booleans"),
        (
            _VARIABLES,
            "_apply_mask",
            "data encoded_fill_values decoded_fill_value dtype",
            "the function that masks: elementwise work that reads can do",
        ),
        (
            _VARIABLES,
            "_scale_offset_decoding",
            "data scale_factor add_offset dtype",
            "the function that unpacks numbers, likewise",
        ),
    )
)


@cache
def names() -> Any:
    """The names, as attributes.

    Raises
    ------
    XarrayChangedError
        One of them has changed.
    """
    found = {}
    for module, name, parameters, _ in NAMES:
        try:
            found[name] = getattr(importlib.import_module(module), name)
            signature = inspect.signature(found[name])
        except (ImportError, AttributeError, ValueError, TypeError) as error:
            raise XarrayChangedError(f"{module}.{name}: {error}") from error
        if parameters and tuple(signature.parameters) != parameters:
            raise XarrayChangedError(f"{module}.{name}{signature}")
    own = inspect.signature(found["DaskManager"].from_array)
    if tuple(own.parameters) != ("self", "data", "chunks", "kwargs"):
        raise XarrayChangedError(f"xarray.namedarray.daskmanager.DaskManager.from_array{own}")
    return SimpleNamespace(**found)


@cache
def warn_once(error: str) -> None:
    """Tell that datasets are read without pushdown."""
    warnings.warn(
        f"b2nd_dask leaves the chunks of datasets to xarray, whose internals have changed: {error}",
        stacklevel=2,
    )
