"""What a source absorbs of the expression above it: one rule for each class of expressions."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

from b2nd_dask.graph._dask_compat import warn_once
from b2nd_dask.graph.array_expr import compat
from b2nd_dask.graph.array_expr.rules import inlined, joined, reduced
from b2nd_dask.graph.array_expr.source import (
    Dependents,
    FrameExpr,
    ReadAtOnce,
    source_of,
    unfused,
)
from b2nd_dask.graph.expression.nodes import Node, Selection
from b2nd_dask.graph.optimize.at_once import at_once
from b2nd_dask.graph.optimize.optimizer import SettingError, active_rules
from b2nd_dask.graph.read.blocks import Chunks

logger = logging.getLogger("b2nd_dask")


class Rule(NamedTuple):
    """What becomes of an expression of one class above a source."""

    apply: Callable[[FrameExpr, Any, Dependents], Any]
    """Returns the expression in its place, or the reason why it stays; None of our own."""
    switch: str | None
    """Which of `optimizer.RULE_NAMES` has it; None where it is needed for right results."""
    alone: bool = False
    """Whether it applies only where nothing else needs the source."""


@cache
def rule_table() -> dict[type, Rule]:
    """The rules, by classes of expressions; subclasses of reductions have theirs, too."""
    names = compat.rule_names()
    return {
        FrameExpr: Rule(inlined, "elementwise"),
        names.Elemwise: Rule(joined, "elementwise"),
        names.Reduction: Rule(reduced, "reductions"),
        names.SliceSlicesIntegers: Rule(_sliced, "slices"),
        names.Transpose: Rule(_transposed, "slices", alone=True),
        names.ExpandDims: Rule(_expanded, "slices", alone=True),
        names.Rechunk: Rule(_rechunked, "new_blocks", alone=True),
        names.RootAlias: Rule(_unnamed, "read_at_once"),
        names.FinalizeComputeArray: Rule(_read_at_once, "read_at_once", alone=True),
        names.Blockwise: Rule(_given_lists, None, alone=True),
    }


def absorbed(source: FrameExpr, parent: Any, dependents: Dependents) -> Any:
    """The expression that replaces one above a source; None where that stays."""

    def found_by(rule: Rule) -> Any:
        if rule.alone and (others := source._other_dependents(parent, dependents)):
            return f"it is needed by {', '.join(others)}"
        found = rule.apply(source, parent, dependents)
        if found is None or isinstance(found, str):
            return found
        kept = source._preserve_grid_contract(parent, found, dependents)
        return "what is above counts on its blocks" if kept is None else kept

    above = f"{type(parent).__name__} {parent._name}"
    return _decided(source, above, _rule_for(type(parent)), found_by)


def lowered_in_blocks(source: FrameExpr, chunks: Chunks) -> FrameExpr | None:
    """Read in other blocks when an expression is lowered; None where `dask_array` moves elements.

    Others may read the same elements then: what is read from a store is read once.
    """

    def found_by(_: Rule) -> FrameExpr | str:
        if source.tree.compiled.read.source.is_remote:
            return "what is read from a store is read once"
        return _read_in_blocks(source, chunks)

    kind = getattr(compat.rule_names(), "Rechunk", None)
    found: FrameExpr | None = _decided(source, "new blocks", _rule_for(kind), found_by)
    return found


def _rule_for(kind: Any) -> Rule | None:
    """The rule for a class of expressions; none where `dask_array` has changed."""
    names = compat.rule_names()
    if names is None:
        return None
    return rule_table().get(names.Reduction if issubclass(kind, names.Reduction) else kind)


def _decided(
    source: FrameExpr, above: str, rule: Rule | None, found_by: Callable[[Rule], Any]
) -> Any:
    """What a rule finds; None, and a line at DEBUG, where it names a reason to do nothing.

    It is None, too, where a rule fails.

    Raises
    ------
    ValueError
        A setting of this package means nothing.
    """
    found: Any
    try:
        rules = active_rules()
        if rule is None:
            found = "no rule knows it"
        elif rule.switch not in (None, *rules):
            found = f"the rule {rule.switch} is off"
        else:
            found = found_by(rule)
    except SettingError:
        raise
    except Exception as error:  # noqa: BLE001 - whatever it is, the expression is right as it is
        warn_once("b2nd_dask leaves an expression to dask_array", error)
        return None
    if isinstance(found, str):
        logger.debug("%s does not absorb %s: %s", source._name, above, found)
        return None
    if found is not None and rule is not None:
        name = f"the rule {rule.switch}" if rule.switch else "a rule that is always on"
        logger.debug("%s absorbs %s: %s, by %s", source._name, above, found._name, name)
    return found


def _moved(source: FrameExpr, top: Node | None, chunks: Chunks) -> FrameExpr | str:
    """The source of the node that its own has become; None refuses."""
    if top is None:
        return "its elements cannot be read so"
    return source_of(top, source.dtype, chunks, source.prefix)


def _sliced(source: FrameExpr, parent: Any, dependents: Dependents) -> FrameExpr | str:
    """Read a slice alone; or several, if nothing else is needed and they are no more together."""
    others = source._other_dependents(parent, dependents)
    if not all(isinstance(other, type(parent)) for other in others.values()):
        return f"it is needed by {', '.join(others)}"
    if others and sum(other.size for other in (parent, *others.values())) > source.size:
        return f"it has fewer elements than this slice together with {', '.join(others)}"
    index = (*parent.index, *(slice(None),) * (source.ndim - len(parent.index)))
    entries = tuple(range(n)[i] for n, i in zip(source.shape, index, strict=True))
    selection = Selection(entries, parent.chunks)
    return _moved(source, source.top.accept_slice(selection, ""), parent.chunks)


def _transposed(source: FrameExpr, parent: Any, _: Any) -> FrameExpr | str:
    return _moved(source, source.top.accept_transpose(tuple(parent.axes), ""), parent.chunks)


def _expanded(source: FrameExpr, parent: Any, _: Any) -> FrameExpr | str:
    own = iter(map(range, source.shape))
    entries = tuple(None if axis in parent.axes else next(own) for axis in range(parent.ndim))
    selection = Selection(entries, parent.chunks)
    return _moved(source, source.top.accept_slice(selection, ""), parent.chunks)


def _rechunked(source: FrameExpr, parent: Any, _: Any) -> FrameExpr | str:
    if parent.method == "p2p":
        return "the user wants its elements moved between workers"
    return _read_in_blocks(source, parent.chunks)


def _read_in_blocks(source: FrameExpr, chunks: Chunks) -> FrameExpr | str:
    if chunks == source.chunks:
        return source
    top = source.top.accept_rechunk(chunks, "")
    if top is not None:
        return source_of(top, source.dtype, chunks, source.prefix)
    if any(along.step != 1 for each in source.tree.compiled.reads for along in each.positions):
        return "it leaves out elements, or reverses them"
    return "in such blocks chunks would be decoded too often"


def _unnamed(source: FrameExpr, parent: Any, dependents: Dependents) -> FrameExpr | str:
    """Drop the names under which `persist()` finds blocks where `compute()` joins them."""
    above = [reference() for reference in dependents.get(parent._name, ())]
    if {type(each) for each in above if each is not None} != {
        compat.rule_names().FinalizeComputeArray
    }:
        return "its blocks are found by their names"
    return source


def _read_at_once(source: FrameExpr, parent: Any, _: Any) -> ReadAtOnce | str:
    """Read what `compute()` returns by one task, in place of one for each block and their join."""
    found = at_once(source.top, asks=False)
    if found is None:
        return "tasks of blocks read it faster, or need less memory"
    return ReadAtOnce(source.tree, source.dtype, parent.chunks, found.threads)


def _given_lists(source: FrameExpr, parent: Any, _: Any) -> Any:
    """Keep the tasks of blocks apart from a function that is given lists of them.

    Those are blocks along axes that its result does not have. In fused tasks dask-array 0.7.1 gives
    a block in place of a list.
    """
    labels = {label for own in parent.args[1::2] if own is not None for label in own}
    if parent.concatenate or labels <= set(parent.out_ind):
        return "it is a function of blocks, which dask_array fuses with the read"
    return unfused(source, parent)
