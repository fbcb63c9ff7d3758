"""Plan the passes of a rechunk, with intermediate frames if needed; of a copy and a reshape."""

from __future__ import annotations

import itertools
import logging
import math
import operator
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from b2nd_dask.format.grid import Grid, contiguous_box
from b2nd_dask.frame.rechunk.one_pass import (
    BASE_NBYTES,
    PER_KEY,
    PER_RECORD,
    PER_TASK,
    Budget,
    OnePass,
    best_pass,
    shown,
)
from b2nd_dask.frame.write.new_frame import halved

Box = tuple[slice, ...]

logger = logging.getLogger("b2nd_dask")

#: Most intermediate frames of a plan.
MOST_INTERMEDIATE = 2
#: Most bytes of a chunk of an intermediate frame: reads and writes buffer whole chunks.
MOST_CHUNK = 16 << 20
#: Seconds per byte of compression into an intermediate frame, by the model of `one_pass`.
_INTERMEDIATE = 1 / 0.4e9
#: A plan with another intermediate frame must take less than this fraction of the time.
_SAVED = 0.85
#: Fractions of a thread's memory to try for the regions on both sides of an intermediate frame.
_REGION_SHARES = (0.8, 0.4, 0.2)
#: Bytes of chunks that one task copies as stored.
_COPIED_AT_ONCE = 64 << 20
#: Bytes of the chunks of a reshape, and their largest fraction of a region.
_FLAT_CHUNK, _FLAT_SHARE = 4 << 20, 1 / 4
#: Number of lengths of ranges to compare.
_FLAT_LENGTHS = 200


class PassPlan(NamedTuple):
    """The passes from a frame to its target, in order."""

    steps: tuple[OnePass, ...]
    seconds: float
    """Modelled time, for comparisons."""

    @property
    def nbytes(self) -> float:
        """Memory of the largest pass, and of the graph."""
        running = max(step.nbytes - step.graph_nbytes for step in self.steps)
        # one graph has the tasks of all passes
        return running + sum(step.graph_nbytes for step in self.steps)


#: No plan; all others take less time.
_NO_PLAN = PassPlan((), math.inf)


def plan_passes(source: Grid, target: Grid, budget: Budget) -> PassPlan:
    """Plan the passes of a rechunk within a memory limit.

    Both grids have the same shape, which is not empty. For a transpose, the source's axes are in
    the order of the target's. Raises ValueError if the memory is too small for any plan; the
    message states the least sufficient memory.

    Examples
    --------
    Maps with large blocks as time series, with little memory:

    >>> maps = Grid((2000, 600, 600), chunks=(1, 600, 600), blocks=(1, 300, 600), itemsize=4)
    >>> series = Grid(maps.shape, chunks=(2000, 5, 10), blocks=(2000, 1, 10), itemsize=4)
    >>> plan = plan_passes(maps, series, Budget(64e6, 2, write_batch=1 << 20))
    >>> len(plan.steps)
    2
    """
    best = _NO_PLAN
    for count in range(MOST_INTERMEDIATE + 1):
        found = (
            _plan(source, (*between, target), budget)
            for between in _between(source, target, budget, count)
        )
        better = (plan for plan in found if plan.seconds < best.seconds * _SAVED)
        best = min(better, key=lambda plan: plan.seconds, default=best)
    if best is _NO_PLAN:
        raise budget.too_little(
            f"for new chunks {target.chunks} of {shown(target.chunk_nbytes)} from chunks "
            f"{source.chunks} of {shown(source.chunk_nbytes)} in blocks {source.blocks}: a task "
            "holds a few new chunks, and the blocks of the old chunks that they overlap",
            lambda more: best_pass(source, target, more).nbytes,
            "choose smaller chunks=",
        )
    return best


def _plan(source: Grid, targets: tuple[Grid, ...], budget: Budget) -> PassPlan:
    """Plan the passes from each frame to the next, if they fit."""
    nbytes = math.prod(source.shape) * source.itemsize
    records = sum(target.nchunks for target in targets) * PER_RECORD
    steps: tuple[OnePass, ...] = ()
    for target in targets:
        step = best_pass(source, target, budget.without(records - target.nchunks * PER_RECORD))
        if not step.concurrency:
            return _NO_PLAN
        source, steps = target, (*steps, step)
    seconds = sum(step.seconds for step in steps)
    seconds += sum(nbytes * _INTERMEDIATE / step.concurrency for step in steps[:-1])
    plan = PassPlan(steps, seconds)
    return plan if plan.nbytes <= budget.nbytes else _NO_PLAN


def _between(source: Grid, target: Grid, budget: Budget, count: int) -> Iterator[tuple[Grid, ...]]:
    """Iterate over lists of intermediate frames, with chunks inside large regions of both passes.

    From pass to pass, regions change by equal factors along each axis, from those that suit the
    source to those that suit the target.
    """
    shape, found = source.shape, set[tuple[tuple[int, ...], ...]]()
    for share, axis in itertools.product(_REGION_SHARES, range(max(1, len(shape)))):
        room = budget.nbytes / budget.threads * share / source.itemsize
        last = _box(shape, target.chunks, room, axis)
        # whole chunks; a region that is longer than the last one does not help
        limit = tuple(map(max, last, map(min, shape, source.chunks)))
        first = _box(limit, source.chunks, room, axis)
        regions = [
            [_interpolate(*ends, number / max(1, count)) for ends in zip(first, last, strict=True)]
            for number in range(count + 1)
        ]
        shared = (tuple(map(min, *pair)) for pair in itertools.pairwise(regions))
        found.add(tuple(halved(chunks, source.itemsize, MOST_CHUNK) for chunks in shared))
    for frames in sorted(found):
        yield tuple(Grid(shape, chunks, chunks, source.itemsize) for chunks in frames)


def _box(shape: tuple[int, ...], unit: tuple[int, ...], room: float, first: int) -> tuple[int, ...]:
    """Compute a box of whole units of at most `room` elements, as long as possible along `first`.

    Then it is extended along the other axes, from the last to the first.
    """
    box = list(map(min, shape, unit))
    for axis in sorted(range(len(shape)), key=lambda axis: (axis != first, -axis)):
        n, least = shape[axis], box[axis]
        most = int(room / (math.prod(box) // least))
        box[axis] = n if most >= n else max(least, most // least * least)
    return tuple(box)


def _interpolate(first: int, last: int, part: float) -> int:
    """Interpolate geometrically between two lengths, to a multiple of the shorter one."""
    short, long = sorted((first, last))
    return short * round(math.pow(long / short, part if first < last else 1 - part))


def log_passes(label: str, passes: PassPlan) -> None:
    """Log the plan."""
    for number, step in enumerate(passes.steps, 1):
        logger.info(
            "%s: pass %d of %d reads regions %s, %d at once, for chunks %s; each block is decoded "
            "%.2f times, and %.0f MiB of memory are enough",
            label,
            number,
            len(passes.steps),
            step.region,
            step.concurrency,
            step.target.chunks,
            step.decodes,
            step.nbytes / 2**20,
        )


def copying_pass(grid: Grid, budget: Budget) -> OnePass:
    """Plan the pass that copies stored chunks.

    Raises ValueError if the memory is too small.
    """

    def each(given: Budget) -> int:
        return 2 * given.read_batch + given.write_batch + 3 * grid.chunk_nbytes

    concurrency = int(budget.concurrency(each(budget)))
    if not concurrency:
        raise budget.too_little(f"to copy chunks of {shown(grid.chunk_nbytes)}", each)
    # an empty array has no chunks
    counts = tuple(max(1, count) for count in grid.counts)
    box = contiguous_box(counts, _COPIED_AT_ONCE // max(1, grid.chunk_nbytes))
    region = tuple(n * max(1, c) for n, c in zip(box, grid.chunks, strict=True))
    # time and memory are not given, since no other pass is compared
    return OnePass(grid, region, concurrency)


def flat_pass(shape: tuple[int, ...], itemsize: int, budget: Budget) -> OnePass:
    """Choose chunks and regions of a reshape that are ranges in C order.

    A range that is contiguous in C order stays so in any shape. Raises ValueError if the memory is
    too small.

    Examples
    --------
    >>> step = flat_pass((1000, 200), 4, Budget(16e6, 2, write_batch=1 << 20))
    >>> step.target.chunks, step.region
    ((162, 200), (648, 200))
    """
    fitting = [step for step in _flat_candidates(shape, itemsize, budget) if step.concurrency]
    if not fitting:
        raise budget.too_little(
            f"for a reshape to {shape}",
            lambda more: min(step.nbytes for step in _flat_candidates(shape, itemsize, more)),
        )
    return max(fitting, key=lambda step: (step.concurrency, math.prod(step.region)))


def _flat_candidates(shape: tuple[int, ...], itemsize: int, budget: Budget) -> Iterator[OnePass]:
    """Iterate over longer and longer ranges, with as many concurrent tasks as the memory allows."""
    for room in np.geomspace(1, math.prod(shape), _FLAT_LENGTHS).astype(int).tolist():
        box = contiguous_box(shape, room)
        chunks = contiguous_box(shape, int(min(_FLAT_CHUNK / itemsize, room * _FLAT_SHARE)))
        grid = Grid(shape, chunks, chunks, itemsize)
        region = tuple(
            n if length == n else length // c * c
            for n, length, c in zip(shape, box, chunks, strict=True)
        )
        regions = math.prod(-(-n // length) for n, length in zip(shape, region, strict=True))
        graph = regions * PER_KEY + grid.nchunks * PER_RECORD
        # the region, the elements of one read, their compressed bytes, and the decoded ones
        each = 4 * (math.prod(region) * itemsize + grid.chunk_nbytes) + PER_TASK
        each += 2 * budget.read_batch + budget.write_batch
        base = graph + BASE_NBYTES
        concurrency = int(budget.concurrency(each, base))
        nbytes = base + max(1, concurrency) * each
        yield OnePass(grid, region, concurrency, nbytes, graph)


def flat_boxes(
    start: int, stop: int, shape: tuple[int, ...]
) -> Iterator[tuple[Box, tuple[int, int]]]:
    """Divide a range of elements in C order into boxes, each with its part of the range.

    Examples
    --------
    >>> for box, part in flat_boxes(3, 21, (4, 6)):
    ...     print([(along.start, along.stop) for along in box], part)
    [(0, 1), (3, 6)] (0, 3)
    [(1, 3), (0, 6)] (3, 15)
    [(3, 4), (0, 3)] (15, 18)
    """
    at = start
    # elements of whole rows along the last 0, 1, ... axes
    rows = list(itertools.accumulate(reversed(shape), operator.mul, initial=1))
    while at < stop:
        # the largest rows that start here and end inside the range
        whole, row = max((k, n) for k, n in enumerate(rows) if at % n == 0 and at + n <= stop)
        cell = [int(i) for i in np.unravel_index(at, shape)] if shape else []
        first, count = len(shape) - whole, 1
        box = [slice(i, i + 1) for i in cell[:first]] + [slice(0, n) for n in shape[first:]]
        if first:
            along = first - 1
            count = min(shape[along] - cell[along], (stop - at) // row)
            box[along] = slice(cell[along], cell[along] + count)
        yield tuple(box), (at - start, at - start + count * row)
        at += count * row
