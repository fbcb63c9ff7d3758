"""The passes of a rechunk: one, or several with intermediate frames between them; of a reshape."""

from __future__ import annotations

import itertools
import logging
import math
from collections.abc import Iterator
from typing import NamedTuple

from b2nd_dask.format.grid import Grid, contiguous_box
from b2nd_dask.frame.rechunk.one_pass import (
    ALWAYS,
    PER_KEY,
    PER_TASK,
    Budget,
    OnePass,
    best_pass,
    shown,
)
from b2nd_dask.frame.write.new_frame import halved

logger = logging.getLogger("b2nd_dask")

#: Intermediate frames that a plan may have.
MOST_INTERMEDIATE = 2
#: Chunks of intermediate frames have at least so many bytes, where the array has: smaller ones
#: take longer than their elements.
_LEAST_CHUNK = 1 << 16
#: And at most so many: reads and writes need buffers of a chunk.
_MOST_CHUNK = 16 << 20
#: Seconds for a byte that is compressed into an intermediate frame, by the model of `one_pass`.
_INTERMEDIATE = 1 / 0.4e9
#: Seconds for a chunk of an intermediate frame.
_CHUNK = 100e-6
#: Another intermediate frame must save this part of the time.
_SAVED = 0.85
#: The part of the memory that the buffers of one task may fill with a region.
_REGION_SHARE = 0.8
#: Bytes of the chunks of a reshape.
_FLAT_CHUNK = 4 << 20
#: And the part of the memory of a task that they have at most.
_FLAT_SHARE = 1 / 16


class Step(NamedTuple):
    """One pass, and the chunks of the frame that it writes."""

    target: Grid
    way: OnePass


class PassPlan(NamedTuple):
    """The passes from a frame to its target, in order."""

    steps: tuple[Step, ...]
    seconds: float
    """By the model; to be compared."""

    @property
    def nbytes(self) -> float:
        """Memory of the pass that takes the most."""
        running = max(step.way.nbytes - step.way.graph_nbytes for step in self.steps)
        # one graph has the tasks of all passes
        return running + sum(step.way.graph_nbytes for step in self.steps)


def plan_passes(source: Grid, target: Grid, stored: int, budget: Budget) -> PassPlan:
    """Plan the passes of a rechunk within a stated memory.

    Parameters
    ----------
    source, target : Grid
        Of one shape, which is not empty. For a transpose the source's axes are in the order of the
        target's.
    stored : int
        Compressed bytes of the source that have to be verified; 0 without checksums.

    Raises
    ------
    ValueError
        The memory is too small for any plan; the message says the least that would do.

    Examples
    --------
    Maps with large blocks as time series, with little memory:

    >>> maps = Grid((2000, 600, 600), chunks=(1, 600, 600), blocks=(1, 300, 600), itemsize=4)
    >>> series = Grid(maps.shape, chunks=(2000, 5, 10), blocks=(2000, 1, 10), itemsize=4)
    >>> plan = plan_passes(maps, series, 0, Budget(64e6, 2, 1 << 20, 1 << 20))
    >>> len(plan.steps)
    2
    """
    best = _best(source, target, stored, budget, MOST_INTERMEDIATE)
    if best is None:
        raise budget.too_little(
            f"for new chunks {target.chunks} of {shown(target.chunk_nbytes)} out of chunks "
            f"{source.chunks} of {shown(source.chunk_nbytes)} in blocks {source.blocks}: a task "
            "holds a few new chunks, and what they touch of the old ones",
            lambda more: _best(source, target, stored, more, 1) is not None,
            "choose smaller chunks=",
        )
    return best


def _best(
    source: Grid, target: Grid, stored: int, budget: Budget, most_count: int
) -> PassPlan | None:
    best = _alone(source, target, stored, budget)
    nbytes = math.prod(source.shape) * source.itemsize
    for count in range(1, most_count + 1):
        # what the array takes that is compressed once more
        if best is not None and best.seconds <= count * nbytes * _INTERMEDIATE / budget.threads:
            break
        found = _through(source, target, stored, budget, count)
        if found is not None and (best is None or found.seconds < best.seconds * _SAVED):
            best = found
        if found is not None and count == 1 and all(s.way.decodes < 2 for s in found.steps):
            break
    return best


def _alone(source: Grid, target: Grid, stored: int, budget: Budget) -> PassPlan | None:
    way = best_pass(source, target, stored, budget)
    return None if way is None else PassPlan((Step(target, way),), way.seconds)


def _through(
    source: Grid, target: Grid, stored: int, budget: Budget, count: int
) -> PassPlan | None:
    """The best plan with so many intermediate frames; None where there is none."""
    best: PassPlan | None = None
    for chunks in _intermediate_chunks(source, target, budget):
        grid = Grid(source.shape, chunks, chunks, source.itemsize)
        last = _alone(grid, target, 0, budget)
        if last is None or (best is not None and last.seconds >= best.seconds):
            continue
        first = (
            _alone(source, grid, stored, budget)
            if count == 1
            else _through(source, grid, stored, budget, count - 1)
        )
        if first is None or PassPlan((*first.steps, *last.steps), 0.0).nbytes > budget.nbytes:
            continue
        nbytes = math.prod(source.shape) * source.itemsize
        lanes = min(budget.threads, first.steps[-1].way.lanes)
        written = (nbytes * _INTERMEDIATE + grid.nchunks * _CHUNK) / lanes
        seconds = first.seconds + last.seconds + written
        if best is None or seconds < best.seconds:
            best = PassPlan((*first.steps, *last.steps), seconds)
    return best


def _intermediate_chunks(source: Grid, target: Grid, budget: Budget) -> Iterator[tuple[int, ...]]:
    """Shapes of chunks that lie both in large regions of the source and of the target."""
    room = budget.nbytes / budget.threads * _REGION_SHARE / source.itemsize
    shape = source.shape
    firsts = [*_grown(shape, source.chunks, room), *_grown(shape, source.blocks, room)]
    lasts = list(_grown(shape, target.chunks, room))
    found = dict.fromkeys(
        bounded_chunks(tuple(map(min, first, last)), source.itemsize)
        for first, last in itertools.product(firsts, lasts)
    )
    least = min(_LEAST_CHUNK, math.prod(shape) * source.itemsize)
    yield from (c for c in found if math.prod(c) * source.itemsize >= least)


def bounded_chunks(chunks: tuple[int, ...], itemsize: int) -> tuple[int, ...]:
    """Halve chunks along their longest axes until they are small enough."""
    return halved(chunks, itemsize, _MOST_CHUNK)


def _grown(shape: tuple[int, ...], unit: tuple[int, ...], room: float) -> Iterator[tuple[int, ...]]:
    """Boxes of whole units with at most so many elements, as long as can be along one axis first.

    Also half and a quarter as large: the chunks between two large boxes may be too large.
    """
    start = tuple(min(n, u) for n, u in zip(shape, unit, strict=True))
    if math.prod(start) > room:
        return
    for axis, part in itertools.product(range(max(1, len(shape))), (1, 2, 4)):
        box = list(start)
        # this axis, then from the last to the first
        for along in sorted(range(len(shape)), key=lambda a: (a != axis, -a)):
            most = int(room / part // (math.prod(box) // box[along]) // unit[along])
            box[along] = min(shape[along], max(1, most) * unit[along])
        yield tuple(box)


def log_passes(label: str, passes: PassPlan) -> None:
    """Log what is planned."""
    for number, step in enumerate(passes.steps, 1):
        logger.info(
            "%s: pass %d of %d reads regions %s, %d at once, for chunks %s; each block is decoded "
            "%.2f times, and %.0f MiB of memory are enough",
            label,
            number,
            len(passes.steps),
            step.way.region,
            step.way.lanes,
            step.target.chunks,
            step.way.decodes,
            step.way.nbytes / 2**20,
        )


def flat_pass(shape: tuple[int, ...], itemsize: int, budget: Budget) -> tuple[Grid, OnePass]:
    """Choose chunks and regions that are ranges in C order, for an array of another shape before.

    What is contiguous in C order stays so, whatever the shape.

    Raises
    ------
    ValueError
        The memory is too small.

    Examples
    --------
    >>> grid, way = flat_pass((1000, 200), 4, Budget(16e6, 2, 1 << 20, 1 << 20))
    >>> grid.chunks, way.region
    ((625, 200), (1000, 200))
    """
    chunks, lanes, room = _flat_chunks(shape, itemsize, budget)
    if not lanes:
        raise budget.too_little(
            f"for a reshape to {shape}", lambda more: _flat_chunks(shape, itemsize, more)[1] > 0
        )
    box = contiguous_box(shape, room)
    region = tuple(
        n if length == n else length // c * c
        for n, length, c in zip(shape, box, chunks, strict=True)
    )
    regions = math.prod(-(-n // length) for n, length in zip(shape, region, strict=True))
    return Grid(shape, chunks, chunks, itemsize), OnePass(
        region, lanes, 0.0, budget.nbytes, regions * PER_KEY, verifies=True, decodes=1.0
    )


def _flat_chunks(
    shape: tuple[int, ...], itemsize: int, budget: Budget
) -> tuple[tuple[int, ...], int, int]:
    """Chunks, how many tasks may run at once, and elements of the region of each."""
    share = int(budget.nbytes / budget.threads * _FLAT_SHARE)
    chunks = contiguous_box(shape, min(_FLAT_CHUNK, share) // itemsize)
    chunk = math.prod(chunks) * itemsize
    scratch = 2 * budget.read_batch + budget.write_batch + 4 * chunk + PER_TASK
    # regions that end where chunks do are at least half as long, and there are twice as many
    graph = 2 * math.prod(shape) * itemsize * PER_KEY
    for lanes in range(budget.threads, 0, -1):
        left = budget.nbytes - lanes * scratch - ALWAYS
        # a region, what is read of it at once, that compressed, and decoded; the graph of all:
        # 4 * lanes * room + graph / room = left
        root = left**2 - 16 * lanes * graph
        if left > 0 <= root and (room := (left + math.sqrt(root)) / (8 * lanes)) >= chunk:
            return chunks, lanes, int(room / itemsize)
    return chunks, 0, 0
