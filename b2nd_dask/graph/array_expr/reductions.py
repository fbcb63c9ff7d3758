"""Reductions of sources: tasks that reduce blocks while they read them; `dask_array` combines."""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property, partial
from typing import Any

from b2nd_dask.graph._dask_compat import funcname, getargspec
from b2nd_dask.graph.array_expr import compat
from b2nd_dask.graph.array_expr.source import (
    Dependents,
    FrameExpr,
    ReadingExpr,
    TaskMaker,
    source_of,
)
from b2nd_dask.graph.expression.chunk_steps import Combining, Fold, fold_of
from b2nd_dask.graph.expression.nodes import Read
from b2nd_dask.graph.optimize.optimizer import active_rules
from b2nd_dask.graph.optimize.reductions import ReducedRead, merge_limit
from b2nd_dask.graph.read.blocks import Chunks
from b2nd_dask.graph.task_names import reading_name

_NAMES: Any = compat.rule_names()
# where dask_array has changed, no rule needs the class below
_Reduction: Any = getattr(_NAMES, "Reduction", object)

#: Begins the names of sources that one reduction reads on its own.
_ALONE = "alone"


def reduced(source: FrameExpr, parent: Any, dependents: Dependents) -> FrameReduction | str | None:
    """The reduction that folds into a source.

    Where statistics answer all, it does not matter what else reads the blocks.
    """
    if isinstance(parent, FrameReduction):
        return None
    # the user's own subclass may do anything
    if type(parent)._lower is not _Reduction._lower:
        return "it makes tasks of its own"
    found = _reduced_read(source, parent)
    if isinstance(found, str):
        return found
    others = source._other_dependents(parent, dependents)
    if not others:
        return FrameReduction(*parent.operands)
    if not (_is_combined(found.fold, parent) and found.is_answered(merge_limit(found.read.nbytes))):
        return f"it is needed by {', '.join(others)}"
    alone = source_of(source.top, source.dtype, source.chunks, _ALONE)
    return FrameReduction(alone, *parent.operands[1:])


def _fold_of(reduction: Any) -> Fold | None:
    """The chunk step of a reduction; None where that does not run chunk by chunk."""
    axis = tuple(reduction.axis)
    if reduction.weights is not None or reduction.output_size != 1 or len(set(axis)) != len(axis):
        return None
    func = compat.dask_original(_with_dtype(reduction.chunk, reduction))
    return fold_of(func, {"axis": axis, "keepdims": True})


def _reduced_read(source: Any, reduction: Any) -> ReducedRead | str:
    """What a reduction of a source reads; the reason where its chunk step does not fold."""
    fold = _fold_of(reduction)
    if fold is None or type(source) is not FrameExpr or source.top.filters:
        return "its chunk step does not run chunk by chunk, or counts on the blocks"
    return ReducedRead.of(source.top, fold, asks="statistics" in active_rules())


def _is_combined(fold: Fold, reduction: Any) -> bool:
    """Whether one result for several blocks may replace the steps that combine theirs."""
    aggregate = _with_dtype(reduction.aggregate, reduction)
    steps = (
        compat.dask_original(partial(step, axis=fold.axis, keepdims=True))
        for step in (reduction.combine or aggregate, aggregate)
    )
    return all(
        fold.is_combined_by(Combining(step.func, step.keywords, reduction.concatenate))
        for step in steps
    )


def _merged(found: ReducedRead, reduction: Any) -> Chunks:
    """The blocks that tasks reduce: small neighbours share one."""
    read: Read = found.read
    if _is_combined(found.fold, reduction):
        merges = "merge_blocks" in active_rules()
        read = found.merged(merge_limit(read.nbytes), merges=merges).read
    return read.chunks


def _with_dtype(func: Any, reduction: Any) -> Any:
    """A step of a reduction, as `dask_array` calls it."""
    dtype = reduction.operand("dtype") or float
    return partial(func, dtype=dtype) if "dtype" in getargspec(func).args else func


class FrameReduction(_Reduction):  # type: ignore[misc]
    """A reduction whose chunk step folds into the read below; slices still pass through it."""

    def _lower(self) -> Any:
        found = _reduced_read(self.array, self)
        if isinstance(found, str):
            return super()._lower()
        axis, dtype = self.axis, self.operand("dtype") or float
        name = self.operand("name")
        leaf = ReducedExpr(
            self.array.tree, _fold_of(self), _merged(found, self), dtype,
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
    """The chunk step of a reduction, of the blocks that are read."""

    _parameters = ("tree", "fold", "grid", "dtype", "prefix")

    @cached_property
    def _name(self) -> str:
        return reading_name(f"{self.prefix}-{self.deterministic_token}", self.label)

    @cached_property
    def chunks(self) -> Chunks:
        """One element for each block along the axes that are reduced."""
        return tuple(
            (1,) * len(along) if i in self.fold.axis else along for i, along in enumerate(self.grid)
        )

    def _maker(self, *, asks: bool) -> TaskMaker:
        compiled = self.compiled
        read = replace(compiled.read, chunks=self.grid)
        found = ReducedRead(compiled._replace(read=read), self.fold, asks=asks)
        return found.task
