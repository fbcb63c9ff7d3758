"""Absorption of expressions into the source below: one rule for each class of expressions."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

from b2nd_dask.graph._dask_compat import warn_once
from b2nd_dask.graph.array_expr import compat
from b2nd_dask.graph.array_expr.rules import absorb_call, absorb_input, fold_in, users_of
from b2nd_dask.graph.array_expr.source import Dependents, FrameExpr, ReadAtOnce, source_of, unfused
from b2nd_dask.graph.expression.nodes import Selection
from b2nd_dask.graph.optimize.at_once import at_once
from b2nd_dask.graph.optimize.optimizer import SettingError, active_rules
from b2nd_dask.graph.read.blocks import Chunks

logger = logging.getLogger("b2nd_dask")


class Rule(NamedTuple):
    """The rule for expressions of one class above a source."""

    apply: Callable[[FrameExpr, Any, Dependents], Any]
    """Returns the replacement, or the reason why the expression stays; None if it is folded."""
    switch: str | None
    """Its name in `optimizer.RULE_NAMES`; None if right results depend on it."""
    alone: bool = False
    """Whether it applies only if the source has no other dependent."""


@cache
def rule_table() -> dict[type, Rule]:
    """The rules by class of expressions; all reductions share one."""
    names = compat.rule_names()
    return {
        FrameExpr: Rule(absorb_input, "elementwise"),
        names.Elemwise: Rule(absorb_call, "elementwise"),
        names.Reduction: Rule(fold_in, "reductions"),
        names.SliceSlicesIntegers: Rule(_absorb_slice, "slices"),
        names.Transpose: Rule(_absorb_transpose, "slices", alone=True),
        names.ExpandDims: Rule(_absorb_new_axes, "slices", alone=True),
        names.Rechunk: Rule(_absorb_rechunk, "new_blocks", alone=True),
        names.RootAlias: Rule(_absorb_alias, "read_at_once"),
        names.FinalizeComputeArray: Rule(_absorb_result, "read_at_once", alone=True),
        names.Blockwise: Rule(_keep_apart, None, alone=True),
    }


def absorbed(source: FrameExpr, parent: Any, dependents: Dependents) -> Any:
    """The replacement of an expression above a source; None if the expression stays.

    The reason is logged at DEBUG. Returns None also if the rule raises an exception other than
    `SettingError`, or if `dask_array` has changed.
    """
    names, kind = compat.rule_names(), type(parent)
    if names is None:
        return None
    rule = rule_table().get(names.Reduction if issubclass(kind, names.Reduction) else kind)
    try:
        found = _applied(rule, source, parent, dependents)
    except SettingError:
        raise
    except Exception as error:  # noqa: BLE001 - in any case the expression itself is right
        warn_once("b2nd_dask leaves an expression to dask_array", error)
        return None
    above = f"{kind.__name__} {parent._name}"
    if isinstance(found, str):
        logger.debug("%s does not absorb %s: %s", source._name, above, found)
        return None
    if found is not None and rule is not None:
        name = f"the rule {rule.switch}" if rule.switch else "a rule that is always on"
        logger.debug("%s absorbs %s: %s, by %s", source._name, above, found._name, name)
    return found


def _applied(rule: Rule | None, source: FrameExpr, parent: Any, dependents: Dependents) -> Any:
    """The replacement by a rule, or the reason why the expression stays; None if it is folded."""
    rules = active_rules()
    if rule is None:
        return "no rule supports it"
    if rule.switch not in (None, *rules):
        return f"the rule {rule.switch} is off"
    if rule.alone and (others := source._other_dependents(parent, dependents)):
        return f"it is needed by {', '.join(others)}"
    found = rule.apply(source, parent, dependents)
    if found is None or isinstance(found, str):
        return found
    kept = source._preserve_grid_contract(parent, found, dependents)
    return "an expression above it depends on its blocks" if kept is None else kept


def lowered_in_blocks(source: FrameExpr, chunks: Chunks) -> FrameExpr | None:
    """Read in other blocks during the lowering of an expression; None if `dask_array` rechunks.

    A source in a store stays: other expressions may read the same elements.
    """
    names = compat.rule_names()
    if names is None:
        return None
    if source.tree.compiled.is_remote:
        logger.debug("%s is not read in new blocks: chunks of a store are read once", source._name)
        return None
    # the dependents are unknown during lowering
    found: FrameExpr | None = absorbed(source, names.Rechunk(source, chunks), {})
    return found


def _selected(source: FrameExpr, selection: Selection) -> FrameExpr | str:
    """The source of selected elements; a reason if the node does not accept the selection."""
    top = source.top.accept(selection, "")
    if top is None:
        return "the read does not support it"
    return source_of(top, source.dtype, source.prefix)


def _absorb_slice(source: FrameExpr, parent: Any, dependents: Dependents) -> FrameExpr | str:
    """Read only the slice, if all dependents are slices with no more elements than the source."""
    others = source._other_dependents(parent, dependents)
    if not all(isinstance(other, type(parent)) for other in others.values()):
        return f"it is needed by {', '.join(others)}"
    if others and sum(other.size for other in (parent, *others.values())) > source.size:
        return f"it has fewer elements than this slice together with {', '.join(others)}"
    index = (*parent.index, *(slice(None),) * (source.ndim - len(parent.index)))
    entries = tuple(range(n)[i] for n, i in zip(source.shape, index, strict=True))
    return _selected(source, Selection.of_index(entries, parent.chunks))


def _absorb_transpose(source: FrameExpr, parent: Any, _: Any) -> FrameExpr | str:
    axes = tuple(parent.axes)
    return _selected(source, Selection.of_all(source.chunks, parent.chunks, axes))


def _absorb_new_axes(source: FrameExpr, parent: Any, _: Any) -> FrameExpr | str:
    own = iter(range(source.ndim))
    axes = tuple(None if axis in parent.axes else next(own) for axis in range(parent.ndim))
    return _selected(source, Selection.of_all(source.chunks, parent.chunks, axes))


def _absorb_rechunk(source: FrameExpr, parent: Any, _: Any) -> FrameExpr | str:
    if parent.method == "p2p":
        return "the user chose to move its elements between workers"
    return _read_in_blocks(source, parent.chunks)


def _read_in_blocks(source: FrameExpr, chunks: Chunks) -> FrameExpr | str:
    if chunks == source.chunks:
        return source
    found = _selected(source, Selection.of_all(source.chunks, chunks))
    if not isinstance(found, str):
        return found
    if any(along.step != 1 for each in source.tree.compiled.reads for along in each.positions):
        return "it skips elements, or reverses them"
    return "in such blocks chunks would be decoded too often"


def _absorb_alias(source: FrameExpr, parent: Any, dependents: Dependents) -> FrameExpr | str:
    """Drop the alias by which `persist()` finds the blocks, if only `compute()` needs them."""
    if set(map(type, users_of(parent, dependents))) == {compat.rule_names().FinalizeComputeArray}:
        return source
    return "its blocks are found by their names"


def _absorb_result(source: FrameExpr, parent: Any, _: Any) -> ReadAtOnce | str:
    """Read a result of `compute()` by one task, instead of one task per block and a join."""
    found = at_once(source.top)
    if found is None:
        return "tasks of blocks read it faster, or need less memory"
    _compiled, threads = found
    return ReadAtOnce(source.tree, source.dtype, parent.chunks, threads)


def _keep_apart(source: FrameExpr, parent: Any, _: Any) -> Any:
    """Keep the read of blocks apart from a function that takes lists of blocks.

    The lists run along axes that the result does not have. If dask-array 0.7.1 fuses the read, it
    passes one block in place of a list.
    """
    labels = {label for own in parent.args[1::2] if own is not None for label in own}
    if parent.concatenate or labels <= set(parent.out_ind):
        return "it is a function of blocks, which dask_array fuses with the read"
    return unfused(source, parent)
