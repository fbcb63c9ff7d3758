"""The names of dask that are no documented API: all that the package uses, and why.

dask may rename or change them in any release. So each is looked up when it is first needed, and
compared with what it was in the versions that it was checked with; a name that is missing, or takes
other arguments, raises `DaskChangedError`. Without them the optimizer leaves graphs to dask, and
frames are read and written by documented functions alone. A function that is only compared with
those of tasks is another matter: without it the optimizer takes the tasks that call it for ones of
the user's. No other module imports such a name.
"""

from __future__ import annotations

import importlib
import inspect
import logging
import warnings
from dataclasses import dataclass
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

import numpy as np

from b2nd_dask.errors import level_of_caller

if TYPE_CHECKING:
    from dask._expr import FinalizeCompute
    from dask._task_spec import (
        Alias,
        DataNode,
        GraphNode,
        List,
        NestedContainer,
        Task,
        TaskRef,
        _execute_subgraph,
        _identity_cast,
        cull,
    )
    from dask.array import _shuffle, chunk, core, reductions
    from dask.array.core import _concatenate2, _enforce_dtype, getter
    from dask.base import collections_to_expr
    from dask.blockwise import blockwise
    from dask.core import flatten, toposort
    from dask.layers import ArrayBlockwiseDep, ArraySliceDep
    from dask.system import CPU_COUNT
    from dask.utils import M, parse_bytes
    from distributed.system import MEMORY_LIMIT

__all__ = [
    "CPU_COUNT",
    "MEMORY_LIMIT",
    "Alias",
    "ArrayBlockwiseDep",
    "ArraySliceDep",
    "DataNode",
    "FinalizeCompute",
    "GraphNode",
    "List",
    "M",
    "NestedContainer",
    "Task",
    "TaskRef",
    "_concatenate2",
    "_enforce_dtype",
    "_execute_subgraph",
    "_identity_cast",
    "_shuffle",
    "blockwise",
    "chunk",
    "collections_to_expr",
    "core",
    "cull",
    "flatten",
    "getter",
    "parse_bytes",
    "reductions",
    "toposort",
]

#: The first and the last version of dask that all names were checked with.
CHECKED_WITH = ("2026.1.1", "2026.8.0")

_VERSION = version("dask")

logger = logging.getLogger("b2nd_dask")


class DaskChangedError(ImportError):
    """A name of dask is missing, or is not what it was."""


@dataclass(frozen=True)
class DaskName:
    """A name of dask, and what it was in the versions that it was checked with."""

    module: str
    name: str
    parameters: str
    """Names of its parameters; ``"numpy"`` for NumPy's function of that name. The type of what
    cannot be called."""
    reason: str

    @property
    def is_compared(self) -> bool:
        """Whether the functions of tasks are only compared with it."""
        return self.module in _NAMESPACES.values() and self.reason in _COMPARED

    def resolve(self) -> Any:
        """Look the name up.

        Raises
        ------
        DaskChangedError
            It is missing, or is not what it was.
        """
        where = f"{self.module}.{self.name}"
        try:
            found = getattr(importlib.import_module(self.module), self.name)
            now = self._described(found)
        except Exception as error:  # a module may refuse a name by any, a warning among them
            raise DaskChangedError(f"dask {_VERSION} has no {where}") from error
        if now != self.parameters:
            raise DaskChangedError(
                f"{where} of dask {_VERSION} is not ({self.parameters}), but ({now})"
            )
        return found

    def _described(self, found: Any) -> str:
        if self.parameters == "numpy":
            return "numpy" if found is getattr(np, self.name) else "other than NumPy"
        if not callable(found):
            return type(found).__name__
        try:
            parameters = inspect.signature(found).parameters.values()
        except (TypeError, ValueError):
            return "unknown"
        return ", ".join(str(p).partition(":")[0].partition("=")[0].strip() for p in parameters)


_SPEC, _CORE = "dask._task_spec", "dask.array.core"
_CHUNK, _REDUCTIONS = "dask.array.chunk", "dask.array.reductions"
_COLLECTED = "puts blocks together: its result shares no memory with them"
_SELECTED = "selects from a block: its result may share memory with it"
_READ = "reads a block"
_REDUCED = "the chunk step of reductions, for reduction pushdown"
_EXTREME = "names the reduction that a search for a position belongs to"
_COMBINED = "the step that combines results of chunk steps, which merged blocks do not need"
_COUNTED = "how means add and count elements"
#: Why names are used that functions of tasks are only compared with.
_COMPARED = (_COLLECTED, _SELECTED, _READ, _REDUCED, _EXTREME, _COMBINED)

NAMES = tuple(
    DaskName(*row)
    for row in (
        # tasks: documented is only that a graph maps keys to them
        (_SPEC, "Alias", "key, target", "a task that is a second name of another"),
        (_SPEC, "DataNode", "key, value", "a value in a fused task"),
        (_SPEC, "GraphNode", "", "what all tasks are"),
        (_SPEC, "List", "*args, **kwargs", "a list of results as an argument"),
        (_SPEC, "NestedContainer", "*args, **kwargs", "a collection of results as an argument"),
        (_SPEC, "Task", "key, func, *args, _data_producer, **kwargs", "a call of a function"),
        (_SPEC, "TaskRef", "key", "the result of a task as an argument"),
        (
            _SPEC,
            "_execute_subgraph",
            "inner_dsk, outkey, inkeys, *dependencies",
            "the function of a fused task, whose arguments are the tasks in it",
        ),
        (_SPEC, "_identity_cast", "*args, typ", "the function of collections of results"),
        (_SPEC, "cull", "dsk, keys", "drops tasks without dependents from a fused task"),
        # what dask calls in the tasks of arrays: it is known by identity
        ("dask.array._shuffle", "_getitem", "obj, index", _SELECTED),
        ("dask.array._shuffle", "concatenate_arrays", "arrs, sorter, axis", _COLLECTED),
        (_CHUNK, "all", "numpy", _REDUCED),
        (_CHUNK, "any", "numpy", _REDUCED),
        (_CHUNK, "argmin", "a, axis, out, keepdims", "how dask wraps searches for a position"),
        (_CHUNK, "astype", "x, astype_dtype, **kwargs", "the elementwise cast"),
        (_CHUNK, "getitem", "obj, index", _SELECTED),
        (_CHUNK, "max", "numpy", _COMBINED),
        (_CHUNK, "min", "numpy", _COMBINED),
        (_CHUNK, "nanprod", "numpy", _REDUCED),
        (_CHUNK, "nansum", "numpy", _COUNTED),
        (_CHUNK, "prod", "numpy", _REDUCED),
        (_CHUNK, "sum", "numpy", _COUNTED),
        (_CORE, "_concatenate2", "arrays, axes", "concatenates results before they are combined"),
        (_CORE, "_enforce_dtype", "*args, **kwargs", "calls an elementwise function and casts"),
        (_CORE, "_vindex_slice_and_transpose", "block, points, axis", _SELECTED),
        (_CORE, "concatenate3", "arrays", _COLLECTED),
        (_CORE, "concatenate_shaped", "arrays, shape", _COLLECTED),
        (_CORE, "finalize", "results", "makes the result of compute()"),
        (_CORE, "getter", "a, b, asarray, lock", "reads a block, also in layers of ours"),
        (_CORE, "getter_inline", "a, b, asarray, lock", _READ),
        (_CORE, "getter_nofancy", "a, b, asarray, lock", _READ),
        (_REDUCTIONS, "_nanargmax", "x, axis, **kwargs", _EXTREME),
        (_REDUCTIONS, "_nanargmin", "x, axis, **kwargs", _EXTREME),
        (_REDUCTIONS, "_nanmax_skip", "x_chunk, axis, keepdims", _REDUCED),
        (_REDUCTIONS, "_nanmin_skip", "x_chunk, axis, keepdims", _REDUCED),
        (_REDUCTIONS, "arg_chunk", "func, argfunc, x, axis, offset_info", _REDUCED),
        (_REDUCTIONS, "chunk_max", "x, axis, keepdims", _REDUCED),
        (_REDUCTIONS, "chunk_min", "x, axis, keepdims", _REDUCED),
        (_REDUCTIONS, "mean_agg", "pairs, dtype, axis, computing_meta, **kwargs", _COMBINED),
        (_REDUCTIONS, "mean_chunk", "x, sum, numel, dtype, computing_meta, **kwargs", _REDUCED),
        (
            _REDUCTIONS,
            "mean_combine",
            "pairs, sum, numel, dtype, axis, computing_meta, **kwargs",
            _COMBINED,
        ),
        (
            _REDUCTIONS,
            "moment_agg",
            "pairs, order, ddof, dtype, sum, axis, computing_meta, **kwargs",
            _COMBINED,
        ),
        (
            _REDUCTIONS,
            "moment_chunk",
            "A, order, sum, numel, dtype, computing_meta, implicit_complex_dtype, **kwargs",
            _REDUCED,
        ),
        (
            _REDUCTIONS,
            "moment_combine",
            "pairs, order, ddof, dtype, sum, axis, computing_meta, **kwargs",
            _COMBINED,
        ),
        (_REDUCTIONS, "nannumel", "x, **kwargs", _COUNTED),
        (_REDUCTIONS, "numel", "x, **kwargs", _COUNTED),
        ("dask.utils", "M", "MethodCache", "makes the function that reshapes blocks"),
        # layers of one task a block: they carry the frame once, whatever the number of blocks
        (
            "dask.blockwise",
            "blockwise",
            "func, output, output_indices, *arrind_pairs, numblocks, concatenate, new_axes, "
            "dependencies, _data_producer, **kwargs",
            "makes such a layer",
        ),
        (
            "dask.blockwise",
            "Blockwise",
            "output, output_indices, task, indices, numblocks, concatenate, new_axes, "
            "output_blocks, annotations, io_deps",
            "is such a layer, whose io_deps are the arguments of its blocks",
        ),
        (
            "dask.layers",
            "ArrayBlockwiseDep",
            "chunks",
            "an argument that each block has its own of",
        ),
        ("dask.layers", "ArrayChunkShapeDep", "chunks", "the argument of blocks of constants"),
        ("dask.layers", "ArraySliceDep", "chunks", "the slices of each block"),
        (
            "dask.array.wrap",
            "_broadcast_trick_inner",
            "func, shape, meta, *args, **kwargs",
            "makes the blocks of constant arrays, which are written without a task for each",
        ),
        # helpers
        ("dask.array", "array_expr_enabled", "", "whether arrays are expressions, not layers"),
        ("dask._expr", "FinalizeCompute", "*args, _determ_token, **kwargs", "what `compute` adds"),
        ("dask.base", "collections_to_expr", "collections, optimize_graph", "what it adds that to"),
        ("dask.core", "flatten", "seq, container", "nested lists of output keys"),
        ("dask.core", "toposort", "dsk, dependencies", "tasks behind those that they depend on"),
        ("dask.utils", "parse_bytes", "s", "dask's array.chunk-size as a number"),
        ("dask.system", "CPU_COUNT", "int", "threads of dask's own schedulers"),
        ("distributed.system", "MEMORY_LIMIT", "int", "what the machine or container leaves"),
    )
)

_BY_NAME = {(entry.module, entry.name): entry for entry in NAMES}
#: Modules whose names would say little alone: `chunk.sum`.
_NAMESPACES = {name: f"dask.array.{name}" for name in ("_shuffle", "chunk", "core", "reductions")}
_DIRECT = {
    entry.name: entry
    for entry in NAMES
    if entry.module not in _NAMESPACES.values() or entry.module == _CORE
}
#: What `optional` has found: it is asked for at every read.
_OPTIONAL: dict[str, Any] = {}
WITHOUT_LAYERS = "b2nd_dask leaves the reading of a frame to dask.array.from_array"
_LAYERS = ("ArrayBlockwiseDep", "ArraySliceDep", "blockwise", "getter")


class _Namespace:
    """A module of dask, of which only the names in `NAMES` can be used."""

    def __init__(self, module: str) -> None:
        self._module = module

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        if (self._module, name) not in _BY_NAME:
            raise AttributeError(f"{self._module}.{name} has no row in `NAMES` of this module")
        entry = _BY_NAME[self._module, name]
        try:
            found = entry.resolve()
        except DaskChangedError as error:
            if not entry.is_compared:
                raise
            warn_once(f"b2nd_dask leaves tasks of {name} as dask has made them", error)
            found = object()  # the function of no task
        setattr(self, name, found)
        return found


def __getattr__(name: str) -> Any:
    if name in _NAMESPACES:
        found: Any = _Namespace(_NAMESPACES[name])
    elif name in _DIRECT:
        found = _DIRECT[name].resolve()
    else:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = found
    return found


def resolve_all() -> None:
    """Look up the names that are needed; `DaskChangedError` where one is missing or changed."""
    for entry in NAMES:
        if not entry.is_compared:
            entry.resolve()


def optional(name: str) -> Any:
    """One of the direct names, or None where it is missing or changed."""
    if name not in _OPTIONAL:
        try:
            _OPTIONAL[name] = __getattr__(name)
        except DaskChangedError:
            logger.debug("dask has changed", exc_info=True)
            _OPTIONAL[name] = None
    return _OPTIONAL[name]


def has_layers() -> bool:
    """Whether graphs of layers can be built: none where dask's arrays are expressions."""
    return not is_planned() and None not in map(optional, _LAYERS)


def block_arguments(layer: Any) -> list[Any]:
    """List the arguments of a layer that each block has its own of; none for other layers."""
    return list(getattr(layer, "io_deps", {}).values())


def block_function(layer: Any) -> Any:
    """Return the function that a layer calls for each of its blocks; None for other layers."""
    return getattr(getattr(layer, "task", None), "func", None)


def planned_source(array: Any) -> Any:
    """Return what the expression of an array reads, if it does nothing else; None for others."""
    expression = getattr(array, "expr", None)
    plain = type(expression).__name__ == "FromArray"
    return getattr(expression, "array", None) if plain else None


def planned_nodes(array: Any) -> list[Any]:
    """List the expression of an array and all operands below it, each once."""
    nodes, found = [getattr(array, "expr", None)], {}
    while nodes:
        node = nodes.pop()
        if id(node) not in found:
            found[id(node)] = node
            nodes += getattr(node, "operands", [])
    return list(found.values())


def schedulers() -> list[Any]:
    """List the schedulers of distributed that run in this process."""
    from distributed import Scheduler

    return list(getattr(Scheduler, "_instances", ()))


def warn_without_layers() -> None:
    """Warn that a frame is read without layers because dask has changed."""
    try:
        for name in _LAYERS:
            __getattr__(name)
    except DaskChangedError as error:
        warn_once(WITHOUT_LAYERS, error)


def is_planned() -> bool:
    """Whether dask's arrays are expressions (``array.query-planning``), not graphs of layers."""
    enabled = optional("array_expr_enabled")
    try:
        return enabled is not None and bool(enabled())
    except Exception:
        logger.debug("dask has changed", exc_info=True)
        return False


class _Warned:
    """Whether this process has warned already."""

    done = False


def warn_once(what: str, error: BaseException | None) -> None:
    """Warn, once a process, that something is left to dask; log the traceback at DEBUG."""
    logger.debug("%s", what, exc_info=error)
    if _Warned.done:
        return
    _Warned.done = True
    reason = f": {type(error).__name__}: {error}" if error else ""
    warnings.warn(
        f"{what}{reason}. Results are right, but may take longer and need more memory. b2nd_dask "
        f"was checked with dask {' to '.join(CHECKED_WITH)}, this is {_VERSION}. The "
        'logger "b2nd_dask" has the traceback at level DEBUG; this warning is not repeated in '
        "this process",
        RuntimeWarning,
        stacklevel=level_of_caller(),
    )
