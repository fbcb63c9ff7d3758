"""Reductions of sources: tasks that reduce blocks while they read them; `dask_array` combines."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property, partial
from typing import Any

from dask.typing import Key

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
from b2nd_dask.graph.optimize.lower import ReadBlocks, block_of, reducing_task
from b2nd_dask.graph.optimize.optimizer import active_rules
from b2nd_dask.graph.optimize.reductions import ReducedRead, merge_limit
from b2nd_dask.graph.read.blocks import Chunks
from b2nd_dask.graph.task_names import reading_name
from b2nd_dask.graph.tasks.block_read import BlockReduction

_NAMES: Any = compat.rule_names()
# where dask_array has changed, no rule needs the class below
_Reduction: Any = getattr(_NAMES, "Reduction", object)

#: Begins the names of sources that one reduction reads on its own.
_ALONE = "alone"


def reduced(
    source: FrameExpr, parent: Any, dependents: Dependents, rules: Sequence[str]
) -> FrameReduction | str | None:
    """The reduction that folds into a source.

    Where statistics answer all, it does not matter what else reads the blocks.
    """
    if isinstance(parent, FrameReduction):
        return None
    # the user's own subclass may do anything
    if type(parent)._lower is not _Reduction._lower:
        return "it makes tasks of its own"
    found = _Folded.of(source, parent, asks="statistics" in rules)
    if isinstance(found, str):
        return found
    others = source._other_dependents(parent, dependents)
    if not others:
        return FrameReduction(*parent.operands)
    if not (found.is_combined and found.read.is_answered(merge_limit(found.read.read.nbytes))):
        return f"it is needed by {', '.join(others)}"
    alone = source_of(source.top, source.dtype, source.chunks, _ALONE)
    return FrameReduction(alone, *parent.operands[1:])


class _Folded:
    """A reduction whose chunk step folds into the read of a source."""

    def __init__(self, fold: Fold, read: ReducedRead, reduction: Any) -> None:
        self.fold = fold
        self.read = read
        self._reduction = reduction

    @classmethod
    def of(cls, source: Any, reduction: Any, *, asks: bool) -> _Folded | str:
        """Parse a reduction of a source; the reason where its chunk step does not fold."""
        otherwise = "its chunk step does not run chunk by chunk, or counts on the blocks"
        if type(source) is not FrameExpr or reduction.weights is not None:
            return otherwise
        axis = tuple(reduction.axis)
        func = compat.dask_original(_with_dtype(reduction.chunk, reduction))
        fold = fold_of(func, {"axis": axis, "keepdims": True})
        if fold is None or reduction.output_size != 1 or len(set(axis)) != len(axis):
            return otherwise
        if source.top.chunks is None:
            return otherwise
        read = ReducedRead.of(source.top, fold, asks=asks)
        return read if isinstance(read, str) else cls(fold, read, reduction)

    @property
    def is_combined(self) -> bool:
        """Whether one result for several blocks may replace the steps that combine theirs."""
        reduction = self._reduction
        aggregate = _with_dtype(reduction.aggregate, reduction)
        known = {"axis": self.fold.axis, "keepdims": True}
        steps = (
            compat.dask_original(partial(f, **known))
            for f in (reduction.combine or aggregate, aggregate)
        )
        return all(
            self.fold.is_combined_by(Combining(step.func, step.keywords, reduction.concatenate))
            for step in steps
        )

    def merged(self) -> Chunks:
        """The blocks that tasks reduce: small neighbours share one."""
        read: Read = self.read.read
        rules = active_rules()
        limit: float = merge_limit(read.nbytes)
        if "statistics" in rules and self.is_combined and self.read.is_answered(int(limit)):
            limit = math.inf
        elif not ("merge_blocks" in rules and self.read.is_mergeable and self.is_combined):
            return read.chunks
        return merged_blocks(read.chunks, self.fold.axis, read.source.dtype.itemsize, limit)


def merged_blocks(chunks: Chunks, axis: Sequence[int], itemsize: int, limit: float) -> Chunks:
    """Join neighbouring blocks along some axes, up to a number of bytes.

    Examples
    --------
    >>> merged_blocks(((2, 2), (5, 5, 5)), (1,), itemsize=8, limit=160)
    ((2, 2), (10, 5))
    """
    sizes = list(chunks)
    for i in reversed(axis):
        others = math.prod(max(along, default=0) for n, along in enumerate(sizes) if n != i)
        most = limit / max(1, others * itemsize)
        joined = [0]
        for length in sizes[i]:
            if joined[-1] and joined[-1] + length > most:
                joined.append(0)
            joined[-1] += length
        sizes[i] = tuple(joined)
    return tuple(sizes)


def _with_dtype(func: Any, reduction: Any) -> Any:
    """A step of a reduction, as `dask_array` calls it."""
    dtype = reduction.operand("dtype") or float
    return partial(func, dtype=dtype) if "dtype" in getargspec(func).args else func


class FrameReduction(_Reduction):  # type: ignore[misc]
    """A reduction whose chunk step folds into the read below; slices still pass through it."""

    def _lower(self) -> Any:
        found = _Folded.of(self.array, self, asks="statistics" in active_rules())
        if isinstance(found, str):
            return super()._lower()
        axis, dtype = self.axis, self.operand("dtype") or float
        name = self.operand("name")
        leaf = ReducedExpr(
            self.array.tree, found.fold.func, found.fold.axis, found.merged(), dtype,
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

    _parameters = ("tree", "func", "axis", "grid", "dtype", "prefix")

    @cached_property
    def _name(self) -> str:
        return reading_name(f"{self.prefix}-{self.deterministic_token}", self.label)

    @cached_property
    def chunks(self) -> Chunks:
        """One element for each block along the axes that are reduced."""
        return tuple(
            (1,) * len(along) if i in self.axis else along for i, along in enumerate(self.grid)
        )

    def _maker(self, *, asks: bool) -> TaskMaker:
        fold = fold_of(self.func, {"axis": self.axis, "keepdims": True})
        assert fold is not None  # noqa: S101
        read, program, leaves = self.compiled
        reads = ReadBlocks(replace(read, chunks=self.grid))
        step = BlockReduction(fold, program, asks)

        def make(key: Key, block: tuple[int, ...]) -> Any:
            inputs = (block_of(leaf, block) for leaf in leaves)
            return reducing_task(key, read, reads.axes_of(block), step, inputs)

        return make
