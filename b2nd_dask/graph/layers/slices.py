"""Layers that cut an array by slices of step 1: one task a block, which tell of the slices."""

from __future__ import annotations

import itertools
import operator
from collections.abc import Mapping
from typing import Any, NamedTuple

from b2nd_dask.graph._dask_compat import Alias, Task, TaskRef, chunk
from b2nd_dask.graph.read.blocks import Chunks

#: Functions that index their first argument by their second.
GETTERS = frozenset({chunk.getitem, operator.getitem})


class Cut(NamedTuple):
    """A layer of which each block is a part of one block of another layer."""

    source: str
    window: tuple[range, ...]
    """What it has of each axis of the source."""
    shape: tuple[int, ...]
    """Of the source."""
    sizes: Chunks
    """Lengths of its blocks."""


def cut_of(layer: Mapping[Any, Any], name: str, source: str, sizes: Chunks) -> Cut | None:
    """Parse a layer; None unless it cuts another, of these blocks, by slices of step 1."""
    ends = [list(itertools.accumulate(along, initial=0)) for along in sizes]
    axes: list[dict[int, tuple[int, int]]] = [{} for _ in ends]
    for key, task in layer.items():
        taken = _taken(task, len(ends))
        if taken is None:
            return None
        block, parts = taken
        if not isinstance(key, tuple) or (key[0], len(key), block[0]) != (name, len(block), source):
            return None
        for known, at, own, part, along in zip(axes, key[1:], block[1:], parts, ends, strict=True):
            bounds = _bounds(part, along[own], along[own + 1])
            if bounds is None or known.setdefault(at, bounds) != bounds:
                return None
    pieces = [[known[at] for at in sorted(known)] for known in axes]
    if any(sorted(known) != list(range(max(1, len(known)))) for known in axes) or any(
        one[1] != after[0] for along in pieces for one, after in itertools.pairwise(along)
    ):
        return None
    return Cut(
        source,
        tuple(range(along[0][0], along[-1][1]) for along in pieces),
        tuple(map(sum, sizes)),
        tuple(tuple(stop - start for start, stop in along) for along in pieces),
    )


def _taken(task: Any, ndim: int) -> tuple[tuple[Any, ...], tuple[Any, ...]] | None:
    """The key of the block that a task takes a part of, and the part along each axis."""
    source: Any
    parts: Any
    if type(task) is Alias:
        source, parts = task.target, (slice(None),) * ndim
    elif type(task) is Task and any(task.func is one for one in GETTERS) and len(task.args) == 2:
        reference, parts = task.args
        source = reference.key if type(reference) is TaskRef else None
    else:
        return None
    fits = isinstance(source, tuple) and isinstance(parts, tuple)
    return (source, parts) if fits and len(source) - 1 == len(parts) == ndim else None


def _bounds(part: Any, first: int, last: int) -> tuple[int, int] | None:
    """First and last element of a slice of a block between two positions; None of others."""
    if not isinstance(part, slice) or part.step not in (None, 1):
        return None
    start, stop = part.start or 0, last - first if part.stop is None else part.stop
    return None if start < 0 or stop < start else (first + start, min(first + stop, last))
