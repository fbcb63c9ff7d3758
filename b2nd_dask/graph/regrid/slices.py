"""Layers that cut an array by slices of step 1: one task a block, which tell of the slices."""

from __future__ import annotations

import itertools
import operator
from collections.abc import Sequence
from typing import Any, NamedTuple

from b2nd_dask.graph._dask_compat import Alias, Task, TaskRef, chunk
from b2nd_dask.graph.read.blocks import Chunks

_GETTERS = (chunk.getitem, operator.getitem)


class NotRegriddableError(Exception):
    """A graph that cannot be repeated on other blocks, or should not be."""


class _Piece(NamedTuple):
    """What one block along an axis takes of a block of the source."""

    block: int
    start: int
    stop: int | None
    """None at the end of the block."""

    def window(self, ends: Sequence[int]) -> tuple[int, int]:
        """Where it lies in the source."""
        first, last = ends[self.block : self.block + 2]
        stop = last if self.stop is None else min(first + self.stop, last)
        return first + self.start, stop


class Cut(NamedTuple):
    """A layer of which each block is a part of one block of another layer."""

    source: str
    axes: tuple[tuple[_Piece, ...], ...]

    def windows(self, ends: Sequence[Sequence[int]]) -> list[tuple[int, int]]:
        """First and last element of the source along each axis; `ends` are those of its blocks.

        Raises
        ------
        NotRegriddableError
            The pieces do not follow each other.
        """
        return [
            (pieces[0].window(along)[0], pieces[0].window(along)[0] + sum(lengths))
            for pieces, along, lengths in zip(self.axes, ends, self.lengths(ends), strict=True)
        ]

    def lengths(self, ends: Sequence[Sequence[int]]) -> Chunks:
        """Lengths of the blocks along each axis; raises as `windows`."""
        windows = [
            [piece.window(along) for piece in pieces]
            for pieces, along in zip(self.axes, ends, strict=True)
        ]
        for along in windows:
            if any(a[1] != b[0] for a, b in itertools.pairwise(along)):
                raise NotRegriddableError(f"of {self.source} more than a slice of step 1 is taken")
        return tuple(tuple(stop - start for start, stop in along) for along in windows)


def cut_of(layer: Any, name: str, ndim: int) -> Cut:
    """Parse a layer; raise NotRegriddableError unless it cuts another by slices of step 1."""
    sources: set[str] = set()
    axes: list[dict[int, _Piece]] = [{} for _ in range(ndim)]
    for key, task in dict(layer or {}).items():
        source, parts = _taken(task, ndim)
        sources.add(source[0])
        pieces = [
            _Piece(block, *_bounds(part)) for block, part in zip(source[1:], parts, strict=True)
        ]
        for known, block, piece in zip(axes, key[1:], pieces, strict=True):
            if known.setdefault(block, piece) != piece:
                raise NotRegriddableError(f"{name} is no grid of slices")
    if len(sources) != 1 or any(sorted(known) != list(range(len(known))) for known in axes):
        raise NotRegriddableError(f"{name} is no grid of slices")
    return Cut(sources.pop(), tuple(tuple(known[i] for i in range(len(known))) for known in axes))


def _taken(task: Any, ndim: int) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    """The key of the block that a task takes a part of, and the part along each axis."""
    source: Any
    parts: Any
    if type(task) is Alias:
        source, parts = task.target, (slice(None),) * ndim
    elif type(task) is Task and task.func in _GETTERS and len(task.args) == 2:
        reference, parts = task.args
        source = reference.key if type(reference) is TaskRef else None
    else:
        raise NotRegriddableError(f"{task!r:.100} is no slice")
    fits = isinstance(source, tuple) and isinstance(parts, tuple)
    if not fits or not len(source) - 1 == len(parts) == ndim:
        raise NotRegriddableError(f"{task!r:.100} has other axes than what it slices")
    return source, parts


def _bounds(part: Any) -> tuple[int, int | None]:
    if not isinstance(part, slice) or part.step not in (None, 1):
        raise NotRegriddableError(f"{part} is no slice of step 1")
    start, stop = part.start or 0, part.stop
    if start < 0 or (stop is not None and stop < start):
        raise NotRegriddableError(f"{part} counts from the end")
    return start, stop
