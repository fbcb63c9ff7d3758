"""One pass of a rechunk: the region that each task reads and writes, within a memory limit."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator
from typing import NamedTuple

from b2nd_dask.format.grid import Grid
from b2nd_dask.frame.read.buffers import MAX_SCRATCH_NBYTES

#: Ratio of the elements of successive candidate regions.
_GROWTH = 1.2
#: Of regions within this factor of the shortest time, the one with the least memory is chosen.
_ABOUT = 1.03

# Seconds, measured with one thread; only their ratios matter.
_DECODE = 1 / 1.5e9
"""Per byte that is decoded and copied into the region."""
_VISIT = 150e-6
"""Per chunk that a task reads from."""
_TASK = 2e-3

#: Least compressed bytes to read at once; and their fraction of a thread's memory, if reads are
#: expensive.
LEAST_BATCH, _BATCH_SHARE = 1 << 20, 1 / 16
#: Bytes of the objects of a read for each touched chunk.
_PER_CHUNK = 2048
#: Bytes of a running task beside its buffers.
PER_TASK = 1 << 20
#: Bytes that are independent of the tasks: memory that the allocator keeps, and loaded code.
ALWAYS = 2 << 20
#: Bytes per task of the graph, running or not, with its result.
PER_KEY = 5000
#: Bytes per chunk of the target, in the results of tasks and in the commit.
PER_RECORD = 500


class TooLittleMemoryError(ValueError):
    """A plan needs more memory than the limit.

    `asked` and `least` are the limit and the least sufficient memory, in bytes; `what` is the
    purpose of the memory, `advice` other remedies.
    """

    def __init__(self, asked: float, least: float, what: str, advice: str) -> None:
        # pickling needs all arguments
        super().__init__(asked, least, what, advice)
        self.asked, self.least, self.what, self.advice = asked, least, what, advice

    def __str__(self) -> str:
        return (
            f'max_mem="{shown(self.asked, up=False)}" is too little {self.what}. '
            f'Pass max_mem="{shown(self.least)}" or more, which is the minimum'
        ) + (f"; or {self.advice}" if self.advice else "")


class Budget(NamedTuple):
    """The limits of a pass."""

    nbytes: float
    """Bytes of memory for all concurrent tasks and the graph."""
    threads: int
    """Number of threads that run tasks."""
    write_batch: int
    """Compressed bytes to stage at once."""
    most_batch: int = LEAST_BATCH
    """Most compressed bytes to read at once."""
    taken: float = 0.0
    """Bytes beside `nbytes` that the rest of the graph takes."""

    @property
    def read_batch(self) -> int:
        """Compressed bytes to read at once; they grow with the total memory."""
        share = int((self.nbytes + self.taken) / self.threads * _BATCH_SHARE)
        return min(self.most_batch, max(LEAST_BATCH, share))

    def without(self, taken: float) -> Budget:
        """The remaining budget if the rest of the graph takes `taken` more bytes."""
        return self._replace(nbytes=self.nbytes - taken, taken=self.taken + taken)

    def concurrency(self, each: float, always: float = 0.0) -> int:
        """Compute how many tasks of `each` bytes may run at once, with `always` bytes for all."""
        return max(0, min(self.threads, int((self.nbytes - always) // each)))

    def too_little(
        self, what: str, least: Callable[[Budget], float], advice: str = ""
    ) -> TooLittleMemoryError:
        """Build the error for a plan that needs more memory; it states purpose and remedy.

        For `what` and `advice` see `TooLittleMemoryError`. `least` computes the least sufficient
        memory, for batches as large as the budget allows.
        """
        more = self
        # batches grow by less than the added memory, so this ends
        while (needed := least(more)) > more.nbytes:
            more = more._replace(nbytes=needed)
        return TooLittleMemoryError(self.nbytes + self.taken, needed + self.taken, what, advice)


def shown(nbytes: float, *, up: bool = True) -> str:
    """Format a number of bytes with three digits, as `max_mem` accepts it.

    It is rounded up by default. Rounding down never shows a larger number as an equal one.

    Examples
    --------
    >>> shown(12_310_000), shown(12_310_000, up=False), shown(999), shown(2.1e9)
    ('12.4MB', '12.3MB', '999B', '2100MB')
    """
    step = 10 ** max(0, len(str(int(nbytes))) - 3)
    rounded = (math.ceil if up else math.floor)(nbytes / step) * step
    units = ((10**6, "MB"), (1000, "kB"), (1, "B"))
    factor, unit = next((f, u) for f, u in units if rounded >= f or f == 1)
    return f"{rounded / factor:.12g}{unit}"


class OnePass(NamedTuple):
    """One pass from a source frame to a target frame."""

    target: Grid
    """Shape and chunks of the written frame."""
    region: tuple[int, ...]
    """Elements along each axis: whole chunks of the target, except at the array's edge."""
    concurrency: int
    """Number of tasks that may run at once; 0 if the memory is too small for one."""
    nbytes: float = 0.0
    """Memory of the concurrent tasks, at least of one, and of the graph."""
    graph_nbytes: float = 0.0
    """Memory of the graph."""
    seconds: float = 0.0
    """Modelled time beyond that of every pass, for comparisons."""
    decodes: float = 1.0
    """How often a block is decoded on average."""


def best_pass(source: Grid, target: Grid, budget: Budget) -> OnePass | None:
    """Choose the region with the least time, for two non-empty frames of the same shape.

    None if the memory is too small for a single task.

    Examples
    --------
    >>> maps = Grid((100, 400, 400), chunks=(1, 400, 400), blocks=(1, 100, 100), itemsize=4)
    >>> series = Grid(maps.shape, chunks=(100, 10, 10), blocks=(100, 10, 10), itemsize=4)
    >>> found = best_pass(maps, series, Budget(64e6, 2, write_batch=1 << 20))
    >>> found.region, found.decodes
    ((100, 100, 400), 1.0)
    """
    ways = [way for way in _ways(source, target, budget) if way.concurrency]
    about = min((way.seconds for way in ways), default=0.0) * _ABOUT
    near = (way for way in ways if way.seconds <= about)
    return min(near, key=lambda way: way.nbytes, default=None)


def least_nbytes(source: Grid, target: Grid, budget: Budget) -> float:
    """Compute the least memory for one pass; within the budget if the budget suffices."""
    return min(way.nbytes for way in _ways(source, target, budget))


def _ways(source: Grid, target: Grid, budget: Budget) -> Iterator[OnePass]:
    """Iterate over passes with growing regions, each extended along another axis first.

    The regions do not depend on the memory, so more memory always suffices, too.
    """
    unit = tuple(map(min, target.chunks, source.shape))
    found = {
        grown(source, unit, room, axis): None
        for room in rooms(math.prod(unit), math.prod(source.shape))
        for axis in range(max(1, source.ndim))
    }
    return (_way(source, target, region, budget) for region in found)


def _way(source: Grid, target: Grid, region: tuple[int, ...], budget: Budget) -> OnePass:
    """Estimate a pass with as many concurrent tasks as the memory allows."""
    axes = map(_touched, source.shape, region, source.chunks, source.blocks)
    # for an array without axes all are 1
    counts = zip((1,) * 6, *axes, strict=True)
    regions, chunks, blocks, all_blocks, most_chunks, most_blocks = map(math.prod, counts)
    # compressed and decoded bytes of touched blocks; gathered, compressed and staged chunks
    reading = 2 * budget.read_batch + 3 * most_blocks * source.block_nbytes
    writing = budget.write_batch + 4 * target.chunk_nbytes
    buffers = reading + writing + most_chunks * _PER_CHUNK + PER_TASK
    graph = regions * PER_KEY + target.nchunks * PER_RECORD
    # a thread keeps the buffers of its earlier tasks
    kept = min(buffers, MAX_SCRATCH_NBYTES)
    always = graph + ALWAYS + budget.threads * kept
    each = math.prod(region) * source.itemsize + buffers - kept
    concurrency = budget.concurrency(each, always)
    running = max(1, concurrency)
    work = blocks * source.block_nbytes * _DECODE + chunks * _VISIT + regions * _TASK
    # at the end fewer tasks remain than may run at once
    seconds = work * math.ceil(regions / running) / regions
    nbytes = always + running * each
    decodes = blocks / all_blocks
    return OnePass(target, region, concurrency, nbytes, graph, seconds, decodes)


def _touched(size: int, length: int, chunk: int, block: int) -> tuple[int, ...]:
    """Along one axis: regions, their chunks and blocks in all, blocks, and the most per region."""
    regions, chunks = -(-size // length), -(-size // chunk)
    in_chunk = -(-min(size, chunk) // block)
    blocks = size // chunk * -(-chunk // block) + -(-(size % chunk) // block)
    # regions that start inside a cell, which the previous region touches, too
    cut_chunks = regions - 1 - (size - 1) // math.lcm(length, chunk)
    cut_blocks = regions - 1 - (size - 1) // math.lcm(length, _whole_blocks(chunk, block))
    most_chunks = min(chunks, _most(length, chunk, cut_chunks > 0))
    most_blocks = min(in_chunk, _most(length, block, cut_blocks > 0))
    return regions, chunks + cut_chunks, blocks + cut_blocks, blocks, most_chunks, most_blocks


def _whole_blocks(chunk: int, block: int) -> int:
    """Compute the largest distance between block ends; blocks restart in each chunk."""
    return chunk if chunk % block else block


def _most(length: int, cell: int, is_cut: bool) -> int:
    """Compute the most cells that a region touches; `is_cut`: some regions start inside a cell."""
    return (length - 2) // cell + 2 if is_cut else -(-length // cell)


def rooms(least: int, most: int) -> Iterator[int]:
    """Iterate over numbers of elements from `least` to `most`, both included."""
    room = float(least)
    while room < most:
        yield int(room)
        room *= _GROWTH
    yield most


def grown(grid: Grid, unit: tuple[int, ...], room: float, first: int) -> tuple[int, ...]:
    """Compute a box of whole units of at most `room` elements, extended along axis `first` first.

    Other axes follow in the order of the fraction of a block that a unit covers, smallest first. No
    axis exceeds a block while another is shorter than one. Boxes end at block ends if possible.
    """
    parts = [u / b for u, b in zip(unit, grid.blocks, strict=True)]
    order = sorted(range(len(unit)), key=lambda axis: (axis != first, parts[axis], -axis))
    blocks = [-(-b // u) * u for b, u in zip(grid.blocks, unit, strict=True)]
    box = list(unit)
    for most, axis in itertools.product((blocks, grid.shape), order):
        left = min(most[axis], int(room / (math.prod(box) // box[axis])))
        cell = _whole_blocks(grid.chunks[axis], grid.blocks[axis])
        box[axis] = max(box[axis], _longest(grid.shape[axis], unit[axis], cell, left))
    return tuple(box)


def _longest(size: int, unit: int, cell: int, most: int) -> int:
    """Return the whole axis or a length in whole units, which ends at cell ends if possible."""
    if most >= size:
        return size
    both = math.lcm(unit, cell)
    step = both if both <= most else unit
    return most // step * step
