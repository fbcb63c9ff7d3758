"""Rules by which sources absorb elementwise calls and reductions above them.

Elementwise work becomes part of the source. A reduction folds into it: its tasks reduce blocks
while they read them, and `dask_array` combines the results.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from functools import cached_property, partial
from typing import Any

import numpy as np

from b2nd_dask.graph._dask_compat import funcname, getargspec
from b2nd_dask.graph.array_expr import compat
from b2nd_dask.graph.array_expr.source import (
    Argument,
    Dependents,
    FrameExpr,
    ReadingExpr,
    TaskMaker,
    source_of,
    unfused,
)
from b2nd_dask.graph.expression.chunk_steps import Fold, fold_of
from b2nd_dask.graph.expression.elementwise import UNKNOWN, parse_call, unwrapped
from b2nd_dask.graph.expression.nodes import MAX_NODES, Elemwise, Literal, Node, size_of, with_nodes
from b2nd_dask.graph.optimize.optimizer import active_rules
from b2nd_dask.graph.optimize.reductions import ReducedRead
from b2nd_dask.graph.read.blocks import Chunks, broadcast_chunks
from b2nd_dask.graph.resources import merge_limit
from b2nd_dask.graph.task_names import reading_name

_NAMES: Any = compat.rule_names()
# if dask_array has changed, no rule needs the class below
_Reduction: Any = getattr(_NAMES, "Reduction", object)

#: Prefix of names of sources that only one reduction reads.
_ALONE = "alone"


def absorb_call(source: FrameExpr, parent: Any, dependents: Dependents) -> Any:
    """Replace an elementwise call and its sources by one source; other arguments become inputs."""
    found = _with_call(parent, dependents)
    if isinstance(found, str) and _is_broadcast(source, parent):
        return unfused(source, parent)
    return found


def _with_call(parent: Any, dependents: Dependents) -> FrameExpr | str:
    call = call_of(parent)
    if call is None:
        return "it is not known to be elementwise, or the blocks do not line up"
    func, kwargs, is_filter = call
    args: list[Node | Literal] = []
    for arg in parent.elemwise_args:
        if compat.rule_names().is_scalar_for_elemwise(arg):
            args.append(Literal(arg))
        elif _is_absorbed(arg, parent, dependents):
            args.append(arg.top)
        else:
            # a filter needs a mask of the elements' shape
            args.append((None if is_filter else constant_of(arg)) or Argument.of(arg))
    arrays = [arg for arg in args if not isinstance(arg, Literal)]
    if all(isinstance(arg, Argument) for arg in arrays):
        return "other expressions need its arguments, too"
    if size_of(args) > MAX_NODES:
        return "they are too many functions together"
    chunks = None if is_filter else parent.chunks
    if not is_filter and broadcast_chunks(arg.chunks or () for arg in arrays) != chunks:
        return "a constant array makes the result longer"
    top = Elemwise(func, tuple(args), kwargs, chunks, ("",))
    return source_of(top, parent.dtype)


def absorb_input(source: FrameExpr, parent: FrameExpr, dependents: Dependents) -> Any:
    """Absorb an input that is a source into the source above it."""
    if _is_broadcast(source, parent):
        return unfused(source, parent)
    if not _is_absorbed(source, parent, dependents):
        return "other expressions need it, too"

    def own(node: Node) -> Node:
        is_source = isinstance(node, Argument) and node.name == source._name
        return source.top if is_source else node

    top = with_nodes(parent.top, own)
    return parent.with_top(top) if top.size <= MAX_NODES else "they are too many functions together"


def _is_absorbed(arg: Any, parent: Any, dependents: Dependents) -> bool:
    """Whether a call absorbs an argument: a source that nothing else reads."""
    if type(arg) is not FrameExpr or arg.top.filters or _is_broadcast(arg, parent):
        return False
    return is_read_once(arg, dependents)


def _is_broadcast(source: FrameExpr, parent: Any) -> bool:
    """Whether several blocks need one block of a source, which is then read once for all."""
    return bool(math.prod(source.numblocks) < math.prod(parent.numblocks))


def call_of(expression: Any) -> tuple[Any, Mapping[str, Any], bool] | None:
    """Parse an expression as `parse_call` does; None also if its blocks do not align."""
    names = compat.rule_names()
    if type(expression) is not names.Elemwise or expression.where is not True:
        return None
    if expression.out is not None:
        return None
    args = expression.elemwise_args
    known = [arg if names.is_scalar_for_elemwise(arg) else UNKNOWN for arg in args]
    named = {name: compat.dask_original(value) for name, value in expression.kwargs.items()}
    call = parse_call(compat.dask_original(expression.func), known, named)
    if call is None:
        return None
    func, kwargs, is_filter = call
    if is_filter:
        # the enforced dtype is the elements' dtype
        func, kwargs = unwrapped(func, kwargs)[0], {}
    arrays = [arg for arg, value in zip(args, known, strict=True) if value is UNKNOWN]
    blocks: list[Any] = [getattr(arg, "chunks", None) for arg in arrays]
    if None in blocks or np.isnan(expression.size):
        return None
    if is_filter:
        line_up = all(own == expression.chunks for own in blocks)
    else:
        line_up = broadcast_chunks(blocks) == expression.chunks
    return (func, kwargs, is_filter) if line_up else None


def constant_of(expression: Any) -> Literal | None:
    """The element of an array of `dask_array.full` or the like; None for other arrays."""
    names = compat.rule_names()
    if not isinstance(expression, names.BroadcastTrick) or isinstance(expression, names.Empty):
        return None
    element = np.asarray(expression._wrapped_func((1,) * expression.ndim)).reshape(())
    return None if element.dtype.hasobject else Literal(element)


def is_read_once(source: FrameExpr, dependents: Dependents) -> bool:
    """Whether one elementwise expression dominates all others above a source.

    Then only this expression reads the source: all paths from the source to results, and to work
    that is not elementwise, lead through it.
    """
    seen: dict[str, set[str]] = {}

    def dominators(node: Any) -> set[str]:
        """The elementwise expressions on all paths up from a node, itself included."""
        if node._name not in seen:
            seen[node._name] = set()
            if len(seen) <= MAX_NODES and (type(node) is FrameExpr or call_of(node) is not None):
                above = list(map(dominators, users_of(node, dependents)))
                seen[node._name] = {node._name}.union(set.intersection(*above) if above else ())
        return seen[node._name]

    return len(users_of(source, dependents)) <= 1 or len(dominators(source)) > 1


def users_of(expression: Any, dependents: Dependents) -> list[Any]:
    """The dependents of an expression that still exist, each once."""
    alive = (reference() for reference in dependents.get(expression._name, ()))
    return list({user._name: user for user in alive if user is not None}.values())


def fold_in(source: FrameExpr, parent: Any, dependents: Dependents) -> FrameReduction | str | None:
    """The reduction that folds into a source; None or a reason if it does not fold.

    A reduction answered from statistics folds even if other expressions need the blocks.
    """
    if isinstance(parent, FrameReduction):
        return None
    # a user's subclass may do anything
    if type(parent)._lower is not _Reduction._lower:
        return "its class makes its own tasks"
    found = _reduced_read(source, parent)
    if isinstance(found, str):
        return found
    others = source._other_dependents(parent, dependents)
    if not others:
        return FrameReduction(*parent.operands)
    if not (_is_combined(found.fold, parent) and found.is_answered(merge_limit(found.read.nbytes))):
        return f"it is needed by {', '.join(others)}"
    alone = source_of(source.top, source.dtype, _ALONE)
    return FrameReduction(alone, *parent.operands[1:])


def _fold_of(reduction: Any) -> Fold | None:
    """The chunk step of a reduction; None if it does not run chunk by chunk."""
    axis = tuple(reduction.axis)
    if reduction.weights is not None or reduction.output_size != 1 or len(set(axis)) != len(axis):
        return None
    func = compat.dask_original(_with_dtype(reduction.chunk, reduction))
    return fold_of(func, {"axis": axis, "keepdims": True})


def _reduced_read(source: Any, reduction: Any) -> ReducedRead | str:
    """The read of a reduction of a source; the reason if its chunk step does not fold."""
    fold = _fold_of(reduction)
    if fold is None or type(source) is not FrameExpr or source.top.filters:
        return "its chunk step does not run chunk by chunk, or depends on the blocks"
    return ReducedRead.of(source.top, replace(fold, prunes="statistics" in active_rules()))


def _is_combined(fold: Fold, reduction: Any) -> bool:
    """Whether a chunk step over several blocks may replace dask's combining of their results."""
    aggregate = _with_dtype(reduction.aggregate, reduction)
    steps = (
        compat.dask_original(partial(step, axis=fold.axis, keepdims=True))
        for step in (reduction.combine or aggregate, aggregate)
    )
    return all(fold.is_combined_by(step, concatenated=reduction.concatenate) for step in steps)


def _with_dtype(func: Any, reduction: Any) -> Any:
    """A step of a reduction with the dtype that `dask_array` passes to it."""
    dtype = reduction.operand("dtype") or float
    return partial(func, dtype=dtype) if "dtype" in getargspec(func).args else func


class FrameReduction(_Reduction):  # type: ignore[misc]
    """A reduction that folds into the source when it is lowered; until then slices pass it."""

    def _lower(self) -> Any:
        found = _reduced_read(self.array, self)
        if isinstance(found, str):
            return super()._lower()
        if _is_combined(found.fold, self):
            # small neighbouring blocks share a task
            merges = "merge_blocks" in active_rules()
            found = found.merged(merge_limit(found.read.nbytes), merges=merges)
        axis, dtype = self.axis, self.operand("dtype") or float
        name = self.operand("name")
        leaf = ReducedExpr(
            self.array.tree, _fold_of(self), found.read.chunks, dtype,
            name or funcname(self.chunk), *self.array.inputs,
        )  # fmt: skip
        meta = self.meta
        if meta is None:
            chunk, below = _with_dtype(self.chunk, self), self.array
            meta = _NAMES.compute_meta(chunk, below.dtype, below._meta, axis=axis, keepdims=True)
        return _NAMES._build_tree_reduce_expr(
            leaf, _with_dtype(self.aggregate, self), axis, self.keepdims, dtype, self.split_every,
            self.combine, name, self.concatenate, meta,
        )  # fmt: skip


class ReducedExpr(ReadingExpr):
    """The chunk step of a reduction, run on blocks while they are read."""

    _parameters = ("tree", "fold", "grid", "dtype", "prefix")

    @cached_property
    def _name(self) -> str:
        return reading_name(f"{self.prefix}-{self.deterministic_token}", self.label)

    @cached_property
    def chunks(self) -> Chunks:
        """Blocks with one element along the reduced axes."""
        return tuple(
            (1,) * len(along) if i in self.fold.axis else along for i, along in enumerate(self.grid)
        )

    def _maker(self, *, prunes: bool) -> TaskMaker:
        fold = replace(self.fold, prunes=prunes)
        return ReducedRead(self.compiled, fold).in_blocks(self.grid).task
