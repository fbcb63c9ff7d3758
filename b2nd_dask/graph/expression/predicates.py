"""Predicates on statistics of chunks: where a program is constant or false, whatever is read.

A read is pruned by them: chunks whose elements cannot change what is computed are not read.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from b2nd_dask.format.statistics import ChunkStatistics
from b2nd_dask.frame.read.pruning import Predicate
from b2nd_dask.frame.reference import FrameReference
from b2nd_dask.graph._dask_compat import chunk
from b2nd_dask.graph.expression.elementwise import unwrapped
from b2nd_dask.graph.expression.nodes import Elemwise, Literal, Node, Read
from b2nd_dask.graph.expression.program import (
    Operand,
    Program,
    Result,
    compile_tree,
    same_leaf,
)
from b2nd_dask.graph.expression.ranges import Range, anything_of, cast, result_of

logger = logging.getLogger("b2nd_dask")
_T = TypeVar("_T")


def is_constant(
    program: Program, statistics: ChunkStatistics, counts: NDArray[np.int64]
) -> NDArray[np.bool_]:
    """In which chunks a program has one result, whatever their elements are.

    Parameters
    ----------
    counts : ndarray of int64
        Elements of each chunk.
    """
    top = _range_of_top(program, statistics, counts)
    constant = False if top is None else top.is_constant
    return np.broadcast_to(constant, len(counts)) & statistics.known


def is_false(
    program: Program, statistics: ChunkStatistics, counts: NDArray[np.int64]
) -> NDArray[np.bool_]:
    """In which chunks a program is false, whatever their elements are; as `is_constant`."""
    top = _range_of_top(program, statistics, counts)
    false = False if top is None or not top.is_boolean else ~np.asarray(top.high)
    return np.broadcast_to(false, len(counts)) & statistics.known


def or_unknown(evaluate: Callable[[], _T], unknown: _T) -> _T:
    """Evaluate rules on statistics; return `unknown` where one raises an exception.

    An error of the user's own program is raised when the elements are read.
    """
    try:
        with np.errstate(all="ignore"):
            return evaluate()
    except Exception:
        logger.debug("a rule for statistics raised an exception", exc_info=True)
        return unknown


@dataclass(frozen=True, eq=False)
class Combined:
    """The conjunction or the disjunction of some predicates."""

    combine: np.ufunc
    parts: tuple[Predicate, ...]

    def __call__(self, statistics: ChunkStatistics, counts: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Whether it holds for each chunk."""
        found = [part(statistics, counts) for part in self.parts]
        holds: NDArray[np.bool_] = np.broadcast_to(self.combine.reduce(found), len(counts))
        return holds


#: The predicate of what does not depend on the read.
ALWAYS = Combined(np.logical_and, ())


def predicate_of(tree: Node) -> Predicate | None:
    """What prunes the read of a tree; None where nothing does."""
    compiled = compile_tree(tree) if isinstance(tree, Elemwise) else None
    if compiled is None or any(isinstance(each, Read) for each in compiled.inputs):
        return None
    source = compiled.read.source
    if not isinstance(source, FrameReference) or not source.has_statistics:
        return None
    predicate = _Pruning(compiled.read).of(tree)
    return None if predicate is ALWAYS else predicate


class _Pruning:
    """Predicates of the nodes of a tree, in which one may be used several times."""

    def __init__(self, read: Read) -> None:
        self._read = read
        self._known: dict[int, Predicate | None] = {}

    def of(self, node: Node | Literal) -> Predicate | None:
        """The predicate under which elements of the read do not change a node; None: never."""
        if isinstance(node, Read):
            return None if same_leaf(node, self._read) else ALWAYS
        if not isinstance(node, Elemwise):
            return ALWAYS
        if id(node) not in self._known:
            program = _program_on(node, self._read)
            self._known[id(node)] = (
                self._of_args(node) if program is None else partial(is_constant, program)
            )
        return self._known[id(node)]

    def _of_args(self, node: Elemwise) -> Predicate | None:
        parts = [self.of(arg) for arg in node.args]
        rest = _all_of(parts)
        if not node.filters:
            return rest
        elements, mask = node.args
        # an element that the mask drops must depend on none at another index
        chosen = false_mask(mask, self._read) if isinstance(mask, Elemwise) else None
        if chosen is None or not self._is_elementwise(elements):
            return rest
        return chosen if rest is None else Combined(np.logical_or, (chosen, rest))

    def _is_elementwise(self, node: Node | Literal) -> bool:
        if isinstance(node, Read):
            return same_leaf(node, self._read)
        return isinstance(node, Elemwise) and _program_on(node, self._read) is not None


def _all_of(parts: list[Predicate | None]) -> Predicate | None:
    # each once: results that are used several times would be asked as often, level by level
    needed: dict[Predicate, None] = {}
    for part in parts:
        if part is None:
            return None
        if isinstance(part, Combined) and part.combine is np.logical_and:
            needed |= dict.fromkeys(part.parts)
        else:
            needed[part] = None
    if not needed:
        return ALWAYS
    return next(iter(needed)) if len(needed) == 1 else Combined(np.logical_and, tuple(needed))


def false_mask(mask: Node, read: Read) -> Predicate | None:
    """The predicate under which a mask is false everywhere."""
    program = _program_on(mask, read)
    return None if program is None else partial(is_false, program)


def _program_on(node: Node, read: Read) -> Program | None:
    """What a tree computes of the elements of a read and of values alone."""
    if isinstance(node, Elemwise) and node.filters:
        return None
    found = compile_tree(node)
    if found is None or not same_leaf(found.read, read) or found.inputs or not found.program.steps:
        return None
    return found.program


def _range_of_top(
    program: Program, statistics: ChunkStatistics, counts: NDArray[np.int64]
) -> Range | None:
    if not statistics.has_range:
        return None
    has_nan, has_others = statistics.nans > 0, statistics.nans < counts
    elements = Range(statistics.least, statistics.greatest, has_nan, has_others, False)
    return or_unknown(lambda: _range_of(program, elements), None)


def _range_of(program: Program, elements: Range) -> Range:
    values = {0: elements}

    def value(operand: Operand) -> Range:
        if isinstance(operand, Result):
            return values[operand.number]
        assert isinstance(operand, Literal), "it has no inputs"  # noqa: S101
        return _of_scalar(operand.value)

    for number, step in enumerate(program.steps, start=1):
        func, keywords = unwrapped(step.func, step.keywords)
        values[number] = _call(func, [value(arg) for arg in step.args], keywords)
    return value(program.top)


def _call(func: Any, args: list[Range], keywords: Mapping[str, Any]) -> Range:
    others = {name: value for name, value in keywords.items() if name != "enforce_dtype"}
    if func is chunk.astype:
        found = cast(args[0], np.dtype(others["astype_dtype"]))
    else:
        found = None if others else result_of(func, args)
    if found is not None and found.low is not None and "enforce_dtype" in keywords:
        found = cast(found, np.dtype(keywords["enforce_dtype"]))
    return found or anything_of(args)


def _of_scalar(value: Any) -> Range:
    if np.asarray(value).dtype.kind not in "biufmM":
        return Range(None, None, True, True, True)
    is_nan = bool(value != value)
    return Range(value, value, is_nan, not is_nan, True)
