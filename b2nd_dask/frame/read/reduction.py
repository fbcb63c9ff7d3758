"""A reduction, as those who read chunks see it: functions of elements and of statistics."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from b2nd_dask.format.statistics import ChunkStatistics
from b2nd_dask.frame.read.partial_results import Accumulation, PartialResult

PerChunk = Mapping[str, NDArray[Any]]
"""Fields of a partial result, with one value for each chunk."""


@dataclass(frozen=True, eq=False)
class Answers:
    """What a reduction makes of some chunks; arrays have one value for each chunk."""

    constants: list[tuple[NDArray[Any], NDArray[np.bool_]]] = field(default_factory=list)
    """0-d elements that may stand for each element of a chunk, and for those of which chunks."""
    classes: list[tuple[NDArray[Any], NDArray[np.int64]]] = field(default_factory=list)
    """0-d elements, and for how many elements of a whole chunk they may stand; 0 where that is not
    known."""
    totals: tuple[PerChunk, NDArray[np.bool_]] | None = None
    """Partial results of whole chunks, and of which chunks they are known."""


class Ask(Protocol):
    """A reduction that statistics may answer."""

    def __call__(self, statistics: ChunkStatistics, counts: NDArray[np.int64]) -> Answers:
        """Answer for each chunk; `counts` are their numbers of elements."""


@dataclass(frozen=True)
class Reduction:
    """What to reduce: the axes, one function of elements, and how its results accumulate."""

    axis: tuple[int, ...]
    """In ascending order."""
    accumulation: Accumulation
    partial_result: Callable[[NDArray[Any]], PartialResult]
    """Of a box of elements; where all axes are reduced they come in any order and shape."""
    ask: Ask | None = None
    """What tells the results of chunks from their statistics, where that is possible."""


def of_one(element: NDArray[Any], ndim: int, how: Reduction) -> PartialResult:
    """The partial result of a single element."""
    return how.partial_result(element.reshape((1,) * ndim))
