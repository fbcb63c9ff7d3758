"""One pass of a rechunk: the region that each task reads and writes, within a stated memory."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator
from typing import NamedTuple

from b2nd_dask.format.grid import Grid
from b2nd_dask.frame.read.buffers import MAX_SCRATCH_NBYTES

#: Of regions that are compared, the next larger one has so many times the elements.
_GROWTH = 1.2
#: Of regions that take about as long, the one that takes the least memory is chosen.
_ABOUT = 1.03

# Seconds, measured with one thread; only their ratios matter.
_DECODE = 1 / 1.5e9
"""For a byte that is decoded and copied to the region."""
_VISIT = 150e-6
"""For each chunk that a task reads from."""
_TASK = 2e-3

#: Chunks that are verified, and those that stay as they are, are taken so many bytes at a time.
VERIFIED_AT_ONCE = 64 << 20
#: Compressed bytes that are read at once, at least; the part of the memory of a thread that they
#: are, where reads cost more.
LEAST_BATCH, _BATCH_SHARE = 1 << 20, 1 / 16
#: Bytes of the objects that a read makes for each chunk that it touches.
_PER_CHUNK = 2048
#: Bytes that a running task takes beside its buffers.
PER_TASK = 1 << 20
#: Bytes that the work takes whatever its tasks are: what the allocator keeps, code that is loaded.
ALWAYS = 2 << 20
#: Bytes that each task of the graph takes, whether it runs or not, and what it returns.
PER_KEY = 5000
#: Bytes that each chunk of the target takes in what tasks return, and in what the commit makes.
PER_RECORD = 500


class TooLittleMemoryError(ValueError):
    """A plan needs more memory than was stated.

    Parameters
    ----------
    asked, least : float
        Bytes that were stated, and that would do.
    what, advice : str
        What the memory is for, and what else would help.
    """

    def __init__(self, asked: float, least: float, what: str, advice: str) -> None:
        # all of them, which a pickle needs
        super().__init__(asked, least, what, advice)
        self.asked, self.least, self.what, self.advice = asked, least, what, advice

    def __str__(self) -> str:
        return (
            f'max_mem="{shown(self.asked, up=False)}" is too little {self.what}. '
            f'Pass max_mem="{shown(self.least)}" or more, which is the least that would do'
        ) + (f"; or {self.advice}" if self.advice else "")


class Budget(NamedTuple):
    """What a pass may take."""

    nbytes: float
    """Of memory: of all tasks that run at once, and of the graph."""
    threads: int
    """That run tasks."""
    write_batch: int
    """Compressed bytes that are staged at once."""
    most_batch: int = LEAST_BATCH
    """Compressed bytes that are read at once, at most."""
    taken: float = 0.0
    """Bytes beside `nbytes` that the rest of the graph takes."""

    @property
    def read_batch(self) -> int:
        """Compressed bytes that are read at once: more where there is more memory in all."""
        share = int((self.nbytes + self.taken) / self.threads * _BATCH_SHARE)
        return min(self.most_batch, max(LEAST_BATCH, share))

    def without(self, taken: float) -> Budget:
        """What is left where the rest of the graph takes so many bytes more."""
        return self._replace(nbytes=self.nbytes - taken, taken=self.taken + taken)

    def concurrency(self, each: float, always: float = 0.0) -> int:
        """How many tasks may run at once that take so many bytes each, beside some for all."""
        return max(0, min(self.threads, int((self.nbytes - always) // each)))

    def too_little(
        self, what: str, least: Callable[[Budget], float], advice: str = ""
    ) -> TooLittleMemoryError:
        """The error where a plan needs more memory: for what, and how to give it.

        Parameters
        ----------
        what, advice : str
            As for `TooLittleMemoryError`.
        least : callable
            The least that would do, if batches are as large as a budget allows.
        """
        more = self
        # batches grow by less than the memory that is added, so this ends
        while (needed := least(more)) > more.nbytes:
            more = more._replace(nbytes=needed)
        return TooLittleMemoryError(self.nbytes + self.taken, needed + self.taken, what, advice)


def shown(nbytes: float, *, up: bool = True) -> str:
    """Show a number of bytes with three digits, as `max_mem` takes it.

    Parameters
    ----------
    up : bool
        Whether it is rounded up; else down, so that a larger number never looks the same.

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
    """How one frame becomes another."""

    target: Grid
    """Shape and chunks of the frame that it writes."""
    region: tuple[int, ...]
    """Elements along each axis: whole chunks of the target, cut at the array's edge."""
    concurrency: int
    """How many tasks may run at once; 0 where not even one may."""
    seconds: float
    """What it takes beyond what every pass takes, by the model; to be compared."""
    nbytes: float
    """Memory of all tasks that run at once, or of one, and of the graph."""
    graph_nbytes: float
    """Memory of the graph alone."""
    verifies: bool
    """Whether chunks are read in parts, so that their checksums need a look of their own."""
    decodes: float
    """How often a block is decoded, on average."""


def best_pass(source: Grid, target: Grid, budget: Budget) -> OnePass | None:
    """Choose the region that takes the least time, of two frames of one shape with elements.

    None where not even one task fits into the memory.

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
    """The least memory for one pass, where the budget is too small; else no more than it has."""
    return min(way.nbytes for way in _ways(source, target, budget))


def _ways(source: Grid, target: Grid, budget: Budget) -> Iterator[OnePass]:
    """Passes of larger and larger regions, each as long as can be along another axis first.

    The regions do not depend on the memory: more of it is never too little.
    """
    unit = tuple(map(min, target.chunks, source.shape))
    found = {
        grown(source, unit, room, axis): None
        for room in rooms(math.prod(unit), math.prod(source.shape))
        for axis in range(max(1, source.ndim))
    }
    return (_way(source, target, region, budget) for region in found)


def _way(source: Grid, target: Grid, region: tuple[int, ...], budget: Budget) -> OnePass:
    """What it takes where as many tasks as the memory allows run at once."""
    axes = map(_touched, source.shape, region, source.chunks, source.blocks)
    # of an array without axes all are 1
    counts = zip((1,) * 6, *axes, strict=True)
    regions, chunks, blocks, all_blocks, most_chunks, most_blocks = map(math.prod, counts)
    partial = chunks > source.nchunks
    # compressed and decoded bytes of what is touched; chunks that are gathered, compressed, staged
    reading = 2 * budget.read_batch + 3 * most_blocks * source.block_nbytes
    writing = budget.write_batch + 4 * target.chunk_nbytes
    buffers = reading + writing + most_chunks * _PER_CHUNK + PER_TASK
    checks = math.ceil(source.nchunks * source.chunk_nbytes / VERIFIED_AT_ONCE)
    graph = (regions + checks * partial) * PER_KEY + target.nchunks * PER_RECORD
    # a thread keeps buffers of the tasks that it ran
    kept = min(buffers, MAX_SCRATCH_NBYTES)
    always = graph + ALWAYS + budget.threads * kept
    each = math.prod(region) * source.itemsize + buffers - kept
    concurrency = budget.concurrency(each, always)
    running = max(1, concurrency)
    work = blocks * source.block_nbytes * _DECODE + chunks * _VISIT + regions * _TASK
    # the last tasks are fewer than may run at once
    seconds = work * math.ceil(regions / running) / regions
    nbytes = always + running * each
    decodes = blocks / all_blocks
    return OnePass(target, region, concurrency, seconds, nbytes, graph, partial, decodes)


def _touched(size: int, length: int, chunk: int, block: int) -> tuple[int, ...]:
    """Along one axis: regions, chunks and blocks of all of them, blocks, and the most of one."""
    regions, chunks = -(-size // length), -(-size // chunk)
    in_chunk = -(-min(size, chunk) // block)
    blocks = size // chunk * -(-chunk // block) + -(-(size % chunk) // block)
    # regions that begin inside of a cell, which the one before touches as well
    cut_chunks = regions - 1 - (size - 1) // math.lcm(length, chunk)
    cut_blocks = regions - 1 - (size - 1) // math.lcm(length, _whole_blocks(chunk, block))
    most_chunks = min(chunks, _most(length, chunk, cut_chunks > 0))
    most_blocks = min(in_chunk, _most(length, block, cut_blocks > 0))
    return regions, chunks + cut_chunks, blocks + cut_blocks, blocks, most_chunks, most_blocks


def _whole_blocks(chunk: int, block: int) -> int:
    """How far apart ends of blocks lie at most, which restart in each chunk."""
    return chunk if chunk % block else block


def _most(length: int, cell: int, is_cut: bool) -> int:
    """Cells that a region touches at most, by whether some begin inside of one."""
    return (length - 2) // cell + 2 if is_cut else -(-length // cell)


def rooms(least: int, most: int) -> Iterator[int]:
    """Numbers of elements between two, with both."""
    room = float(least)
    while room < most:
        yield int(room)
        room *= _GROWTH
    yield most


def grown(grid: Grid, unit: tuple[int, ...], room: float, first: int) -> tuple[int, ...]:
    """A box of whole units with at most so many elements, as long as can be along one axis first.

    Then along those where a unit is the smallest part of a block of the grid; and nowhere longer
    than a block while it is shorter elsewhere. Where they can, boxes end where blocks do.
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
    """The whole axis, or whole units, which end where cells do if so many are not too long."""
    if most >= size:
        return size
    both = math.lcm(unit, cell)
    step = both if both <= most else unit
    return most // step * step
