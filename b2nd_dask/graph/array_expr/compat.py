"""All private names of `dask_array` that the package uses.

Their parameters are compared with those of version 0.7.1. If a name has changed, frames become
expressions that absorb nothing.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from functools import cache, partial
from typing import Any

from b2nd_dask.graph import _dask_compat
from b2nd_dask.graph._dask_compat import NameChangedError, parameters_of, private_names

#: Operands of expressions, and parameters of functions, by module and name.
NAMES = {
    # the base of reading expressions, and the array of an expression
    "io._base": {"IO": ""},
    "_new_collection": {"new_collection": "expr"},
    # additions of `compute()` and `persist()`, dependents, and contracts on blocks
    "_expr": {
        "FinalizeComputeArray": "arr",
        "RootAlias": "array, name",
        "ArrayExpr._other_dependents": "self, parent, dependents",
        "ArrayExpr._preserve_grid_contract": "self, parent, result, dependents",
    },
    # functions of blocks, elementwise work, and its arguments without blocks
    "_blockwise": {
        "Blockwise": (
            "func, out_ind, name, token, dtype, adjust_chunks, new_axes, align_arrays, "
            "concatenate, _meta_provided, kwargs"
        ),
        "Elemwise": "op, dtype, name, where, out, _user_kwargs",
    },
    "_core_utils": {"is_scalar_for_elemwise": "arg"},
    # arrays from a graph
    "core": {"from_graph": "layer, _meta, chunks, keys, name, dependencies, rename"},
    # moves
    "_rechunk": {"Rechunk": "array, _chunks, threshold, block_size_limit, balance, method"},
    "manipulation._expand": {"ExpandDims": "array, axes"},
    "manipulation._reshape": {"Reshape": "array, _shape"},
    "manipulation._transpose": {"Transpose": "array, axes"},
    "slicing._basic": {"SliceSlicesIntegers": "array, index, allow_getitem_optimization"},
    # constant arrays
    "creation._ones_zeros": dict.fromkeys(
        ("BroadcastTrick", "Empty"), "shape, dtype, chunks, meta, kwargs, name"
    ),
    # reductions, the combination of partial results, and the kind of their array
    "reductions._reduction": {
        "Reduction": (
            "array, chunk, aggregate, axis, keepdims, dtype, split_every, combine, name, "
            "concatenate, output_size, meta, weights"
        ),
        "_build_tree_reduce_expr": (
            "x, aggregate, axis, keepdims, dtype, split_every, combine, name, concatenate, "
            "reduced_meta"
        ),
    },
    "_utils": {"compute_meta": "func, _dtype, *args, **kwargs"},
}
#: Names that our expressions need to exist; without the other names they absorb nothing.
_OF_SOURCES = ("IO", "new_collection")
#: Modules of `dask_array` with copies of functions of `dask.array`, by the originals' namespaces in
#: `_dask_compat`.
_COPIES = {"chunk": "_chunk", "core": "_core_utils", "reductions": "reductions._common"}


def names_of(*chosen: str) -> Any:
    """The chosen names, or all, as attributes; raise `NameChangedError` if one has changed."""
    return private_names("dask-array", NAMES, *chosen)


@cache
def source_names() -> Any:
    """Names for sources, as attributes; raise `NameChangedError` if one has changed."""
    return names_of(*_OF_SOURCES)


@cache
def rule_names() -> Any:
    """Names for rules, as attributes; None if one has changed."""
    try:
        return names_of()
    except NameChangedError as error:
        _dask_compat.warn_once("b2nd_dask leaves expressions to dask_array", error)
        return None


@cache
def _originals() -> dict[Callable[..., Any], Callable[..., Any]]:
    """The functions of `dask.array`, by their copies in `dask_array`."""
    found: dict[Any, Any] = {}
    for namespace, module in _COPIES.items():
        copies = importlib.import_module(f"dask_array.{module}")
        for name, own in vars(getattr(_dask_compat, namespace)).items():
            copy = getattr(copies, name, None)
            if callable(copy) and callable(own) and parameters_of(copy) == parameters_of(own):
                found[copy] = own
    return found


def dask_original(func: Any) -> Any:
    """The original in `dask.array` of a copied function, also inside a partial."""
    if isinstance(func, partial):
        keywords = {name: dask_original(value) for name, value in func.keywords.items()}
        return partial(dask_original(func.func), *map(dask_original, func.args), **keywords)
    try:
        return _originals().get(func, func)
    except TypeError:  # an unhashable value
        return func
