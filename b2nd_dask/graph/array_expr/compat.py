"""The names of `dask_array` that are no documented API: all that the package uses.

They are compared with what they were in version 0.7.1, which they were checked with. Where one has
changed, frames become expressions that absorb nothing.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from functools import cache, partial
from types import SimpleNamespace
from typing import Any

from b2nd_dask.graph import _dask_compat
from b2nd_dask.graph._dask_compat import DaskChangedError, PrivateName, parameters_of

#: Operands of expressions, and parameters of functions, by module and name.
NAMES = {
    # what expressions that read are, and what makes an array of an expression
    "io._base": {"IO": ""},
    "_new_collection": {"new_collection": "expr"},
    # what `compute()` and `persist()` add, who needs an expression, and who counts on its blocks
    "_expr": {
        "FinalizeComputeArray": "arr",
        "RootAlias": "array, name",
        "ArrayExpr._other_dependents": "self, parent, dependents",
        "ArrayExpr._preserve_grid_contract": "self, parent, result, dependents",
    },
    # functions of blocks, elementwise work, and which of its arguments have no blocks
    "_blockwise": {
        "Blockwise": (
            "func, out_ind, name, token, dtype, adjust_chunks, new_axes, align_arrays, "
            "concatenate, _meta_provided, kwargs"
        ),
        "Elemwise": "op, dtype, name, where, out, _user_kwargs",
    },
    "_core_utils": {"is_scalar_for_elemwise": "arg"},
    # what makes an array of a graph
    "core": {"from_graph": "layer, _meta, chunks, keys, name, dependencies, rename"},
    # what moves elements
    "_rechunk": {"Rechunk": "array, _chunks, threshold, block_size_limit, balance, method"},
    "manipulation._expand": {"ExpandDims": "array, axes"},
    "manipulation._reshape": {"Reshape": "array, _shape"},
    "manipulation._transpose": {"Transpose": "array, axes"},
    "slicing._basic": {"SliceSlicesIntegers": "array, index, allow_getitem_optimization"},
    # arrays of one repeated element
    "creation._ones_zeros": dict.fromkeys(
        ("BroadcastTrick", "Empty"), "shape, dtype, chunks, meta, kwargs, name"
    ),
    # reductions, how partial results combine, and what kind of array these are
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
#: Without these there are no expressions of ours; without the others they absorb nothing.
_OF_SOURCES = ("IO", "new_collection")
#: Functions that `dask_array` has copied from `dask.array`: its module, the one in
#: `_dask_compat`, and their names.
_COPIES = (
    ("_core_utils", "core", "_enforce_dtype"),
    ("_chunk", "chunk", "astype getitem"),
    (
        "reductions._common",
        "reductions",
        "_nanmax_skip _nanmin_skip chunk_max chunk_min mean_agg mean_chunk mean_combine moment_agg "
        "moment_chunk moment_combine nannumel numel",
    ),
)


def resolved(*chosen: str) -> Any:
    """The chosen names, or all, by their last parts; `DaskChangedError` if one has changed."""
    wanted = [
        PrivateName(f"dask_array.{module}", name, parameters, library="dask-array")
        for module, names in NAMES.items()
        for name, parameters in names.items()
        if name in chosen or not chosen
    ]
    return SimpleNamespace(**{each.name.rpartition(".")[2]: each.resolve() for each in wanted})


@cache
def source_names() -> Any:
    """What sources need of `dask_array`, as attributes; `DaskChangedError` if changed."""
    return resolved(*_OF_SOURCES)


@cache
def rule_names() -> Any:
    """What rules need of `dask_array`, as attributes; None where it has changed."""
    try:
        return resolved()
    except DaskChangedError as error:
        _dask_compat.warn_once("b2nd_dask leaves expressions to dask_array", error)
        return None


@cache
def _originals() -> dict[Callable[..., Any], Callable[..., Any]]:
    """The functions of `dask.array` that those of `dask_array` are copies of."""
    found: dict[Any, Any] = {}
    for module, namespace, names in _COPIES:
        own = getattr(_dask_compat, namespace)
        copies = importlib.import_module(f"dask_array.{module}")
        pairs = [(getattr(copies, name, None), getattr(own, name)) for name in names.split()]
        found |= {copy: known for copy, known in pairs if _alike(copy, known)}
    return found


def _alike(copy: Any, known: Any) -> bool:
    return callable(copy) and callable(known) and parameters_of(copy) == parameters_of(known)


def dask_original(func: Any) -> Any:
    """The function of `dask.array` that a function, or what a partial calls, is a copy of."""
    if isinstance(func, partial):
        keywords = {name: dask_original(value) for name, value in func.keywords.items()}
        return partial(dask_original(func.func), *map(dask_original, func.args), **keywords)
    try:
        return _originals().get(func, func)
    except TypeError:  # of a value that cannot be hashed
        return func
