"""Under which condition the elements of a read cannot change what a task computes."""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import dataclass
from functools import reduce

import numpy as np
from numpy.typing import NDArray

from b2nd_dask.format.statistics import ChunkStatistics
from b2nd_dask.graph._dask_compat import chunk
from b2nd_dask.graph.optimize.calls.elementwise import BoundWork, elementwise_work_of, unwrapped
from b2nd_dask.graph.optimize.calls.expression import Call, Node, Read, is_among
from b2nd_dask.graph.optimize.calls.ranges import is_false, is_settled

#: Functions that take the elements at which a mask is true.
CHOOSING = frozenset({operator.getitem, chunk.getitem})


@dataclass(frozen=True, eq=False)
class Condition:
    """When chunks are settled, as `frame.read.settled.Settles`."""

    leaves: tuple[tuple[Callable[..., NDArray[np.bool_]], BoundWork], ...]
    """What is asked of work on the elements; any of the answers, or all, settle a chunk."""
    combine: np.ufunc = np.logical_and
    parts: tuple[Condition, ...] = ()

    def __call__(self, statistics: ChunkStatistics, counts: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Tell for each chunk."""
        found = [ask(work, statistics, counts) for ask, work in self.leaves]
        found += [part(statistics, counts) for part in self.parts]
        told: NDArray[np.bool_] = reduce(self.combine, found)
        return told


#: A result that the read has no part in.
_ALWAYS = Condition(())


def condition_of(node: Node, read: Read) -> Condition | None:
    """Find the condition under which elements of a read do not change a result; None: never."""
    if isinstance(node, Read):
        return None if node == read else _ALWAYS
    if not isinstance(node, Call):
        return _ALWAYS
    found = elementwise_work_of(node)
    if found is not None and found[0] == read:
        # values of dependencies are not known before they are computed
        if found[1].dependencies or not found[1].steps:
            return None
        return Condition(((is_settled, BoundWork(found[1], {}, read.region.frame.dtype)),))
    return _of_arguments(node, read)


def _of_arguments(node: Call, read: Read) -> Condition | None:
    """The condition of a call of any function, by those of its arguments."""
    parts = [condition_of(arg, read) for arg in node.args]
    if any(isinstance(value, Read | Call) for value in node.kwargs.values()):
        return None
    func, _ = unwrapped(node.func, node.kwargs)
    if is_among(func, CHOOSING) and len(parts) == 2 and _keeps_places(node.args[0], read):
        chosen = never_chosen(node.args[1], read)
        if chosen is not None:
            rest = _all(parts)
            return chosen if rest is None else Condition((), np.logical_or, (chosen, rest))
    return _all(parts)


def _keeps_places(node: Node, read: Read) -> bool:
    """Whether each element of a result depends on the one at its place in a read alone, or on none.

    Of a cumulative sum, an element that a mask chooses depends on others that it does not.
    """
    found = elementwise_work_of(node)
    if found is not None and found[0] == read:
        # dependencies may broadcast to more axes
        return not found[1].dependencies
    return condition_of(node, read) is _ALWAYS


def _all(parts: list[Condition | None]) -> Condition | None:
    needed = [part for part in parts if part is not None and part is not _ALWAYS]
    if None in parts:
        return None
    return Condition((), np.logical_and, tuple(needed)) if needed else _ALWAYS


def never_chosen(mask: Node, read: Read) -> Condition | None:
    """The condition under which a mask is false everywhere."""
    found = elementwise_work_of(mask)
    if found is None or found[0] != read or found[1].dependencies or not found[1].steps:
        return None
    return Condition(((is_false, BoundWork(found[1], {}, read.region.frame.dtype)),))
