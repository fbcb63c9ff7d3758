"""One pass of a rechunk: the region that each task reads and writes, within a memory limit."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from b2nd_dask.format.grid import Grid
from b2nd_dask.frame.read.buffers import MAX_SCRATCH_NBYTES
from b2nd_dask.frame.read.plan import block_number

#: About the number of regions to compare.
_REGIONS = 30_000
#: Among regions within this factor of the shortest time, the one with the least memory is best.
_TOLERANCE = 1.03

# Seconds, measured with one thread; only their ratios matter.
_DECODE = 1 / 1.5e9
"""Per byte that is decoded and copied into the region."""
_VISIT = 150e-6
"""Per chunk that a task reads from."""
_TASK = 2e-3

#: Least compressed bytes to read at once; and their fraction of a thread's memory, if requests are
#: expensive.
LEAST_BATCH, _BATCH_SHARE = 1 << 20, 1 / 16
#: Bytes of the objects of a read for each touched chunk.
_PER_CHUNK = 2048
#: Bytes of a running task beside its buffers.
PER_TASK = 1 << 20
#: Bytes that are independent of the tasks: memory that the allocator keeps, and loaded code.
BASE_NBYTES = 2 << 20
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
    """Bytes that the rest of the graph takes, not included in `nbytes`."""

    @property
    def read_batch(self) -> int:
        """Compressed bytes to read at once; they grow with the total memory."""
        share = int((self.nbytes + self.taken) / self.threads * _BATCH_SHARE)
        return min(self.most_batch, max(LEAST_BATCH, share))

    def without(self, taken: float) -> Budget:
        """The remaining budget if the rest of the graph takes `taken` more bytes."""
        return self._replace(nbytes=self.nbytes - taken, taken=self.taken + taken)

    def concurrency(
        self, each: float | NDArray[Any], base: float | NDArray[Any] = 0.0
    ) -> NDArray[np.int64]:
        """Compute how many tasks of `each` bytes may run at once, with `base` bytes for all."""
        count = np.floor_divide(self.nbytes - base, each)
        return np.clip(count, 0, self.threads).astype(np.int64)

    def too_little(
        self, what: str, least: Callable[[Budget], float], advice: str = ""
    ) -> TooLittleMemoryError:
        """Build the error for a plan that needs more memory.

        For `what` and `advice` see `TooLittleMemoryError`. `least` computes the memory that a plan
        needs, with batches as large as a budget allows.
        """
        more = self
        # batches grow by less than the added memory, so this ends
        while (needed := least(more)) > more.nbytes:
            more = more._replace(nbytes=needed)
        return TooLittleMemoryError(self.nbytes + self.taken, needed + self.taken, what, advice)


def shown(nbytes: float, *, up: bool = True) -> str:
    """Format a number of bytes with three digits, as `max_mem` accepts it.

    It is rounded up by default; rounded down, the text never states more than the number.

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
    """Modelled time without the parts that all passes share, for comparisons."""
    decodes: float = 1.0
    """How often a block is decoded on average."""


def best_pass(source: Grid, target: Grid, budget: Budget) -> OnePass:
    """Choose the region with the least time, for two non-empty frames of the same shape.

    If the memory is too small for a single task, the one with the least memory.

    Examples
    --------
    >>> maps = Grid((100, 400, 400), chunks=(1, 400, 400), blocks=(1, 100, 100), itemsize=4)
    >>> series = Grid(maps.shape, chunks=(100, 10, 10), blocks=(100, 10, 10), itemsize=4)
    >>> found = best_pass(maps, series, Budget(64e6, 2, write_batch=1 << 20))
    >>> found.region, found.decodes
    ((100, 100, 400), 1.0)
    """
    lengths, fields = _candidates(source, target, budget)
    seconds = np.where(fields["concurrency"] > 0, fields["seconds"], np.inf)
    is_near = seconds <= seconds.min() * _TOLERANCE
    best = np.unravel_index(np.argmin(np.where(is_near, fields["nbytes"], np.inf)), seconds.shape)
    region = tuple(int(along[at]) for along, at in zip(lengths, best[1:], strict=True))
    return OnePass(target, region, **{name: column[best].item() for name, column in fields.items()})


def _candidates(
    source: Grid, target: Grid, budget: Budget
) -> tuple[list[NDArray[np.int64]], dict[str, NDArray[Any]]]:
    """Compute lengths of regions along each axis, and fields of `OnePass` for all combinations.

    As many tasks run at once as the memory allows. The lengths do not depend on the memory, so if
    some memory suffices, more does, too.
    """
    free = sum(chunk < n for n, chunk in zip(source.shape, target.chunks, strict=True))
    count = max(2, int(_REGIONS ** (1 / max(1, free))))
    sides = zip(source.shape, target.chunks, source.chunks, source.blocks, strict=True)
    lengths = [_lengths(*axis, count) for axis in sides]
    axes = map(_touched, source.shape, lengths, source.chunks, source.blocks)
    # one more axis, for arrays without axes
    columns = zip(np.ones((7, 1)), *axes, strict=True)
    elements, regions, chunks, blocks, all_blocks, most_chunks, most_blocks = (
        math.prod(np.ix_(*column)) for column in columns
    )
    # compressed and decoded bytes of touched blocks; gathered, compressed and staged chunks
    reading = 2 * budget.read_batch + 3 * most_blocks * source.block_nbytes
    writing = budget.write_batch + 4 * target.chunk_nbytes
    buffers = reading + writing + most_chunks * _PER_CHUNK + PER_TASK
    graph = regions * PER_KEY + target.nchunks * PER_RECORD
    # a thread keeps the buffers of its earlier tasks
    kept = np.minimum(buffers, MAX_SCRATCH_NBYTES)
    base = graph + BASE_NBYTES + budget.threads * kept
    each = elements * source.itemsize + buffers - kept
    concurrency = budget.concurrency(each, base)
    running = np.maximum(1, concurrency)
    work = blocks * source.block_nbytes * _DECODE + chunks * _VISIT + regions * _TASK
    return lengths, {
        "concurrency": concurrency,
        "nbytes": base + running * each,
        "graph_nbytes": graph,
        # at the end fewer tasks remain than may run at once
        "seconds": work * np.ceil(regions / running) / regions,
        "decodes": blocks / all_blocks,
    }


def _lengths(size: int, unit: int, chunk: int, block: int, count: int) -> NDArray[np.int64]:
    """Choose lengths of regions along an axis: whole units, if possible up to block ends."""
    if unit >= size:
        return np.array([size])
    lengths = np.geomspace(unit, size, count).astype(np.int64)
    both = math.lcm(unit, _whole_blocks(chunk, block))
    steps = np.where(lengths >= both, both, unit)
    return np.unique(np.where(lengths < size, lengths // steps * steps, size))


def _whole_blocks(chunk: int, block: int) -> int:
    """Compute the largest distance between block ends; blocks restart in each chunk."""
    return chunk if chunk % block else block


def _touched(
    size: int, lengths: NDArray[np.int64], chunk: int, block: int
) -> tuple[NDArray[np.int64], ...]:
    """Count chunks and blocks that regions of some lengths touch along one axis.

    Returns the elements of a region; the number of regions, of their chunks and of their blocks;
    the blocks of the axis; and the most chunks and blocks of a region.
    """
    regions = -(-size // lengths)
    chunks, blocks = -(-size // chunk), block_number(size - 1, chunk, block) + 1
    cut_chunks, most_chunks = _cut(regions, lengths, chunk, chunk)
    cut_blocks, most_blocks = _cut(regions, lengths, block, _whole_blocks(chunk, block))
    most_blocks = np.minimum(most_blocks, -(-min(size, chunk) // block))
    most = np.minimum(most_chunks, chunks), most_blocks
    return lengths, regions, chunks + cut_chunks, blocks + cut_blocks, np.array([blocks]), *most


def _cut(
    regions: NDArray[np.int64], lengths: NDArray[np.int64], cell: int, distance: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Count regions that start inside a cell, and the most cells that a region touches.

    Cell ends are known at multiples of `distance`.
    """
    behind = regions - 1
    cut = behind - behind // (distance // np.gcd(lengths, distance))
    return cut, np.where(cut > 0, (lengths - 2) // cell + 2, -(-lengths // cell))
