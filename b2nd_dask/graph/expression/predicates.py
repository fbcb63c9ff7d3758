"""Predicates on statistics of chunks: where a program is constant or false, whatever is read.

A read is pruned by them: chunks whose elements cannot change what is computed are not read.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray

from b2nd_dask.format.statistics import ChunkStatistics
from b2nd_dask.frame.read.answers import Predicate
from b2nd_dask.frame.reference import FrameReference
from b2nd_dask.graph.expression.derived import ranges_of
from b2nd_dask.graph.expression.nodes import Elemwise, Literal, Node, Read
from b2nd_dask.graph.expression.program import Program, compile_tree, same_leaf


def is_constant(
    program: Program, statistics: ChunkStatistics, counts: NDArray[np.int64]
) -> NDArray[np.bool_]:
    """In which chunks a program has one result, whatever their elements are.

    Parameters
    ----------
    counts : ndarray of int64
        Elements of each chunk.
    """
    ranges = ranges_of(program, statistics, counts)
    constant = False if ranges is None else ranges[-1].is_constant
    return np.broadcast_to(constant, len(counts)) & statistics.known


def is_false(
    program: Program, statistics: ChunkStatistics, counts: NDArray[np.int64]
) -> NDArray[np.bool_]:
    """In which chunks a program is false, whatever their elements are; as `is_constant`."""
    ranges = ranges_of(program, statistics, counts)
    false = False if ranges is None or not ranges[-1].is_boolean else ~np.asarray(ranges[-1].high)
    return np.broadcast_to(false, len(counts)) & statistics.known


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


#: Predicates that all must hold; none where something does not depend on the read. Each once:
#: results that are used several times would be asked as often, level by level.
_All = dict[Predicate, None]


def predicate_of(tree: Node) -> Predicate | None:
    """What prunes the read of a tree; None where nothing does."""
    compiled = compile_tree(tree) if isinstance(tree, Elemwise) else None
    if compiled is None or any(isinstance(each, Read) for each in compiled.inputs):
        return None
    source = compiled.read.source
    if not isinstance(source, FrameReference) or not source.has_statistics:
        return None
    needed = _Pruning(compiled.read).of(tree)
    return _combined(needed) if needed else None


def _combined(needed: _All) -> Predicate:
    return next(iter(needed)) if len(needed) == 1 else Combined(np.logical_and, tuple(needed))


class _Pruning:
    """Predicates of the nodes of a tree, in which one may be used several times."""

    def __init__(self, read: Read) -> None:
        self._read = read
        self._known: dict[int, _All | None] = {}

    def of(self, node: Node | Literal) -> _All | None:
        """When elements of the read do not change a node; None: they always may."""
        if isinstance(node, Read):
            return None if same_leaf(node, self._read) else {}
        if not isinstance(node, Elemwise):
            return {}
        if id(node) not in self._known:
            program = _program_on(node, self._read)
            self._known[id(node)] = (
                self._of_args(node) if program is None else {partial(is_constant, program): None}
            )
        return self._known[id(node)]

    def _of_args(self, node: Elemwise) -> _All | None:
        rest: _All | None = {}
        for part in map(self.of, node.args):
            rest = None if part is None or rest is None else rest | part
        if not node.filters:
            return rest
        elements, mask = node.args
        # an element that the mask drops must depend on none at another index
        chosen = false_mask(mask, self._read) if isinstance(mask, Elemwise) else None
        if chosen is None or not self._is_elementwise(elements) or rest == {}:
            return rest
        either = chosen if rest is None else Combined(np.logical_or, (chosen, _combined(rest)))
        return {either: None}

    def _is_elementwise(self, node: Node | Literal) -> bool:
        if isinstance(node, Read):
            return same_leaf(node, self._read)
        return isinstance(node, Elemwise) and _program_on(node, self._read) is not None


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
