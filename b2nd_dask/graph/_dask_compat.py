"""All private names of dask that the package uses.

dask may rename or change them in any release. Each name is resolved at its first use, and its
parameters are compared with those of the checked versions. A missing or changed name raises
`NameChangedError`: the optimizer then leaves graphs to dask, and frames are read and written by
documented functions alone. No other module imports such a name.
"""

from __future__ import annotations

import importlib
import inspect
import logging
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.metadata import version
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np

from b2nd_dask.errors import level_of_caller

if TYPE_CHECKING:
    # type annotations cannot use `__getattr__`
    from dask._task_spec import Alias as Alias
    from dask._task_spec import DataNode as DataNode
    from dask._task_spec import GraphNode as GraphNode
    from dask._task_spec import List as List
    from dask._task_spec import NestedContainer as NestedContainer
    from dask._task_spec import Task as Task
    from dask._task_spec import TaskRef as TaskRef

#: The first and the last checked version of dask.
CHECKED_WITH = ("2025.12.0", "2026.8.0")
#: Parameters by module and name, as returned by `parameters_of`; ``"numpy"`` for NumPy's function
#: of that name.
_NEEDED = {
    # tasks: dask documents only that a graph maps keys to them
    "dask._task_spec": {
        "Alias": "key, target",
        "DataNode": "key, value",
        "GraphNode": "",
        "List": "*args, **kwargs",
        "NestedContainer": "*args, **kwargs",
        "Task": "key, func, *args, _data_producer, **kwargs",
        "TaskRef": "key",
        "_execute_subgraph": "inner_dsk, outkey, inkeys, *dependencies",
        "_identity_cast": "*args, typ",
        "convert_legacy_graph": "dsk, all_keys",
    },
    # casts, and the sums and counts of means
    "dask.array.chunk": {
        "astype": "x, astype_dtype, **kwargs",
        "nansum": "numpy",
        "sum": "numpy",
    },
    "dask.array.reductions": {"nannumel": "x, **kwargs", "numel": "x, **kwargs"},
    "dask.array.core": {
        "_concatenate2": "arrays, axes",
        "_enforce_dtype": "*args, **kwargs",
        "finalize": "results",
        "getter": "a, b, asarray, lock",
    },
    "dask.utils": {
        "M": "MethodCache",
        "funcname": "func",
        "getargspec": "func",
        "parse_bytes": "s",
    },
    # layers with one task per block, and their per-block arguments
    "dask.blockwise": {
        "Blockwise": (
            "output, output_indices, task, indices, numblocks, concatenate, new_axes, "
            "output_blocks, annotations, io_deps"
        ),
        "blockwise": (
            "func, output, output_indices, *arrind_pairs, numblocks, concatenate, new_axes, "
            "dependencies, _data_producer, **kwargs"
        ),
    },
    "dask.layers": {
        "ArrayBlockwiseDep": "chunks",
        "ArrayChunkShapeDep": "chunks",
        "ArraySliceDep": "chunks",
    },
    "dask.array.wrap": {"_broadcast_trick_inner": "func, shape, meta, *args, **kwargs"},
    # additions of `compute`, output keys, options, and resources of the machine
    "dask._expr": {"FinalizeCompute": "expr"},
    "dask.base": {"collections_to_expr": "collections, optimize_graph"},
    "dask.core": {"flatten": "seq, container"},
    "dask.array": {"array_expr_enabled": ""},
    "dask.system": {"CPU_COUNT": "int"},
    "distributed.system": {"MEMORY_LIMIT": "int"},
}
#: Functions that the optimizer only recognizes in tasks. If one is missing, it treats tasks that
#: call it as calls of a user function.
_COMPARED = {
    "dask.array._shuffle": {
        "_getitem": "obj, index",
        "concatenate_arrays": "arrs, sorter, axis",
    },
    "dask.array.chunk": {
        "getitem": "obj, index",
        **dict.fromkeys(("all", "any", "max", "min", "nanprod", "prod"), "numpy"),
    },
    "dask.array.core": {
        "_vindex_slice_and_transpose": "block, points, axis",
        "concatenate3": "arrays",
        "concatenate_shaped": "arrays, shape",
        "getter_inline": "a, b, asarray, lock",
        "getter_nofancy": "a, b, asarray, lock",
    },
    "dask.array.reductions": {
        "_nanmax_skip": "x_chunk, axis, keepdims",
        "_nanmin_skip": "x_chunk, axis, keepdims",
        "chunk_max": "x, axis, keepdims",
        "chunk_min": "x, axis, keepdims",
        "mean_agg": "pairs, dtype, axis, computing_meta, **kwargs",
        "mean_chunk": "x, sum, numel, dtype, computing_meta, **kwargs",
        "mean_combine": "pairs, sum, numel, dtype, axis, computing_meta, **kwargs",
        "moment_agg": "pairs, order, ddof, dtype, sum, axis, computing_meta, **kwargs",
        "moment_chunk": (
            "A, order, sum, numel, dtype, computing_meta, implicit_complex_dtype, **kwargs"
        ),
        "moment_combine": "pairs, order, ddof, dtype, sum, axis, computing_meta, **kwargs",
    },
}
_VERSION = version("dask")

logger = logging.getLogger("b2nd_dask")


class NameChangedError(ImportError):
    """A private name of dask, or of another library, is missing or has changed."""


@dataclass(frozen=True)
class PrivateName:
    """A private name of a library, with its parameters in the checked versions."""

    module: str
    name: str
    """The name; for a method ``Class.method``."""
    parameters: str
    is_compared: bool = False
    """Whether the name only serves to recognize functions in tasks."""
    library: str = "dask"
    """The distribution that has the module."""

    def resolve(self) -> Any:
        """Look the name up; raise `NameChangedError` if it is missing or has changed."""
        try:
            found: Any = importlib.import_module(self.module)
            for part in self.name.split("."):
                found = getattr(found, part)
            if self.parameters == "numpy":
                now = "numpy" if found is getattr(np, self.name) else "other than NumPy"
            else:
                now = parameters_of(found)
        except Exception as error:  # the lookup may raise any exception, even a warning
            raise self._changed("is missing") from error
        if now != self.parameters:
            raise self._changed(f"has changed: expected ({self.parameters}), found ({now})")
        return found

    def or_placeholder(self) -> Any:
        """Resolve the name; a changed name of `_COMPARED` becomes an object unequal to any."""
        try:
            return self.resolve()
        except NameChangedError as error:
            if not self.is_compared:
                raise
            warn_once(f"b2nd_dask leaves tasks of {self.name} as dask has made them", error)
            return object()

    def _changed(self, what: str) -> NameChangedError:
        installed = f"{self.library} {version(self.library)}"
        return NameChangedError(f"{self.name} of {installed}, in {self.module}, {what}")


def parameters_of(found: Any) -> str:
    """Parameters of a function, operands of an expression, or the type of another object."""
    if not callable(found):
        return type(found).__name__
    operands = getattr(found, "_parameters", None)
    if operands is not None:
        return ", ".join(operands)
    try:
        parameters = inspect.signature(found).parameters.values()
    except (TypeError, ValueError):
        return "unknown"
    return ", ".join(str(p).partition(":")[0].partition("=")[0].strip() for p in parameters)


def private_names(library: str, table: Mapping[str, Mapping[str, str]], *chosen: str) -> Any:
    """Resolve private names of another library; return them as attributes of a namespace.

    The table has the parameters by module and name. Without `chosen` all names are resolved. Raises
    `NameChangedError` if one is missing or has changed.
    """
    package = library.replace("-", "_")
    wanted = [
        PrivateName(f"{package}.{module}", name, parameters, library=library)
        for module, names in table.items()
        for name, parameters in names.items()
        if name in chosen or not chosen
    ]
    return SimpleNamespace(**{each.name.rpartition(".")[2]: each.resolve() for each in wanted})


NAMES = tuple(
    PrivateName(module, name, parameters, is_compared)
    for table, is_compared in ((_NEEDED, False), (_COMPARED, True))
    for module, names in table.items()
    for name, parameters in names.items()
)
#: Modules that stay as namespaces, since their names alone are unclear: `chunk.sum`.
_NAMESPACES = {name: f"dask.array.{name}" for name in ("_shuffle", "chunk", "core", "reductions")}
_DIRECT = {
    entry.name: entry
    for entry in NAMES
    if entry.module == "dask.array.core" or entry.module not in _NAMESPACES.values()
}
#: The names that graphs of layers need.
_LAYERS = ("ArrayBlockwiseDep", "ArraySliceDep", "blockwise", "getter")


def __getattr__(name: str) -> Any:
    if name in _NAMESPACES:
        entries = [entry for entry in NAMES if entry.module == _NAMESPACES[name]]
        found: Any = SimpleNamespace(**{entry.name: entry.or_placeholder() for entry in entries})
    elif name in _DIRECT:
        found = _DIRECT[name].resolve()
    else:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = found
    return found


def resolve_all() -> None:
    """Look up all needed names; raise `NameChangedError` if one is missing or has changed."""
    for entry in NAMES:
        if not entry.is_compared:
            entry.resolve()


@cache
def optional(name: str) -> Any:
    """The object of a name in `_DIRECT`; None if it is missing or has changed."""
    try:
        return __getattr__(name)
    except NameChangedError:
        logger.debug("dask has changed", exc_info=True)
        return None


def has_layers() -> bool:
    """Whether graphs of layers can be built; false if dask's arrays are expressions."""
    return not has_query_planning() and None not in map(optional, _LAYERS)


def require_layers() -> None:
    """Look up the names for layers; raise `NameChangedError` if one is missing or changed."""
    for name in _LAYERS:
        if name not in globals():
            __getattr__(name)


def only_layer(array: Any) -> Any:
    """The layer of an array that has only one; None for other arrays and for expressions."""
    layers = {} if has_query_planning() else getattr(array.dask, "layers", {})
    return layers.get(array.name) if len(layers) == 1 else None


def block_arguments(layer: Any) -> list[Any]:
    """List the per-block arguments of a layer; none for layers without them."""
    return list(getattr(layer, "io_deps", {}).values())


def collection_annotation(layer: Any, name: str) -> Any:
    """The annotation of a layer's array by dask, such as its chunks; None without one."""
    return (getattr(layer, "collection_annotations", None) or {}).get(name)


def block_function(layer: Any) -> Any:
    """The function that a layer calls for each block; None for other layers."""
    return getattr(getattr(layer, "task", None), "func", None)


def task_dict(layer: Any) -> dict[Any, Any] | None:
    """The tasks of a layer that stores them as a dict; None for other layers."""
    tasks = getattr(layer, "mapping", None)
    return tasks if isinstance(tasks, dict) else None


def schedulers() -> list[Any]:
    """List the schedulers of distributed that run in this process."""
    from distributed import Scheduler

    return list(getattr(Scheduler, "_instances", ()))


def has_query_planning() -> bool:
    """Whether dask's arrays are expressions (``array.query-planning``), not graphs of layers."""
    enabled = optional("array_expr_enabled")
    return enabled is not None and bool(enabled())


class _Warned:
    """Whether this process has already warned."""

    done = False


def warn_once(what: str, error: BaseException | None) -> None:
    """Warn, once per process, that dask does work of this package; log the traceback at DEBUG."""
    logger.debug("%s", what, exc_info=error)
    if _Warned.done:
        return
    _Warned.done = True
    reason = f": {type(error).__name__}: {error}" if error else ""
    warnings.warn(
        f"{what}{reason}. Results are right, but may take longer and need more memory. b2nd_dask "
        f"was checked with dask {' to '.join(CHECKED_WITH)}; the installed version is {_VERSION}. "
        'The logger "b2nd_dask" logs the traceback at level DEBUG. This warning appears once in '
        "a process",
        RuntimeWarning,
        stacklevel=level_of_caller(),
    )
