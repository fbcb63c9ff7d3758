"""Under which condition the elements of a read cannot change what a task computes."""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from b2nd_dask.format.statistics import ChunkStatistics
from b2nd_dask.frame.read.settled import Settles
from b2nd_dask.graph._dask_compat import chunk
from b2nd_dask.graph.optimize.calls.elementwise import (
    BoundWork,
    ElementwiseWork,
    elementwise_work_of,
    unwrapped,
)
from b2nd_dask.graph.optimize.calls.expression import Call, Node, Read, is_among
from b2nd_dask.graph.optimize.calls.outcomes import is_false, is_settled

#: Functions that take the elements at which a mask is true.
CHOOSING = frozenset({operator.getitem, chunk.getitem})


@dataclass(frozen=True, eq=False)
class Told:
    """What `is_settled` or `is_false` tells of work on the elements."""

    ask: Callable[[BoundWork, ChunkStatistics, NDArray[np.int64]], NDArray[np.bool_]]
    work: BoundWork

    def __call__(self, statistics: ChunkStatistics, counts: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Tell for each chunk."""
        return self.ask(self.work, statistics, counts)


@dataclass(frozen=True, eq=False)
class Combined:
    """Conditions that must all hold, or one of which must."""

    combine: np.ufunc
    conditions: tuple[Settles, ...]

    def __call__(self, statistics: ChunkStatistics, counts: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Tell for each chunk."""
        found = [condition(statistics, counts) for condition in self.conditions]
        told: NDArray[np.bool_] = np.broadcast_to(self.combine.reduce(found), len(counts))
        return told


#: Of a result that the read has no part in.
ALWAYS = Combined(np.logical_and, ())


def condition_of(node: Node, read: Read) -> Settles | None:
    """Find the condition under which elements of a read do not change a result; None: never."""
    return _Conditions(read).of(node)


class _Conditions:
    """Conditions of the nodes of an expression, in which one may be used several times."""

    def __init__(self, read: Read) -> None:
        self._read = read
        self._known: dict[int, Settles | None] = {}

    def of(self, node: Node) -> Settles | None:
        """As `condition_of`."""
        if isinstance(node, Read):
            return None if node == self._read else ALWAYS
        if not isinstance(node, Call):
            return ALWAYS
        if id(node) not in self._known:
            self._known[id(node)] = self._of_call(node)
        return self._known[id(node)]

    def _of_call(self, node: Call) -> Settles | None:
        work = _work_on(node, self._read)
        if work is None:
            return self._of_any(node)
        # values of dependencies are not known before they are computed
        if work.dependencies or not work.steps:
            return None
        return Told(is_settled, BoundWork(work, {}, self._read.region.frame.dtype))

    def _of_any(self, node: Call) -> Settles | None:
        """The condition of a call of any function, by those of its arguments."""
        parts = [self.of(arg) for arg in node.args]
        if any(isinstance(value, Read | Call) for value in node.kwargs.values()):
            return None
        func, _ = unwrapped(node.func, node.kwargs)
        if is_among(func, CHOOSING) and len(parts) == 2 and self._keeps_places(node.args[0]):
            chosen = never_chosen(node.args[1], self._read)
            if chosen is not None:
                rest = _all(parts)
                return chosen if rest is None else Combined(np.logical_or, (chosen, rest))
        return _all(parts)

    def _keeps_places(self, node: Node) -> bool:
        """Whether each element depends on that at its place in the read alone, or on none.

        Of a cumulative sum, an element that a mask chooses depends on others that it does not.
        """
        work = _work_on(node, self._read)
        # dependencies may broadcast to more axes
        return self.of(node) is ALWAYS if work is None else not work.dependencies


def _all(parts: list[Settles | None]) -> Settles | None:
    # each once: results that are used several times would be asked as often, level by level
    needed: dict[Settles, None] = {}
    for part in parts:
        if part is None:
            return None
        if isinstance(part, Combined) and part.combine is np.logical_and:
            needed |= dict.fromkeys(part.conditions)
        else:
            needed[part] = None
    if not needed:
        return ALWAYS
    return next(iter(needed)) if len(needed) == 1 else Combined(np.logical_and, tuple(needed))


def never_chosen(mask: Node, read: Read) -> Settles | None:
    """The condition under which a mask is false everywhere."""
    work = _work_on(mask, read)
    if work is None or work.dependencies or not work.steps:
        return None
    return Told(is_false, BoundWork(work, {}, read.region.frame.dtype))


def _work_on(node: Node, read: Read) -> ElementwiseWork | None:
    found = elementwise_work_of(node)
    return found[1] if found is not None and found[0] == read else None
