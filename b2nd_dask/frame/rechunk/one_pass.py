"""One pass of a rechunk: the region that each task reads and writes, within a stated memory."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import reduce
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from b2nd_dask.format.grid import Grid
from b2nd_dask.frame.read.buffers import MAX_SCRATCH_NBYTES
from b2nd_dask.frame.rechunk.axis import Choices, choices

#: Shapes of regions that are compared.
_MOST_SHAPES = 200_000
#: Of shapes that take about as long, the one that takes the least memory is chosen.
_ABOUT = 1.03

#: Chunks that are verified, and those that stay as they are, are taken so many bytes at a time.
VERIFIED_AT_ONCE = 64 << 20

# Seconds, measured with one thread; only their ratios matter.
_DECODE = 1 / 1.5e9
"""For a byte that is decoded and copied to the region."""
_VISIT = 150e-6
"""For each chunk of which a task reads some."""
_TASK = 2e-3
_VERIFY = 1 / 3.0e9
"""For a stored byte that is read to be verified."""

#: Compressed bytes that are read at once, at least; the part of the memory of a thread that they
#: are, where reads cost more.
LEAST_BATCH, _BATCH_SHARE = 1 << 20, 1 / 16
#: How near to the least memory an error comes.
_NEAR = 1.01
#: Bytes of the objects that a read makes for each chunk that it touches.
_PER_CHUNK = 2048
#: Bytes that a running task takes beside its buffers.
PER_TASK = 1 << 20
#: Bytes that the work takes whatever its tasks are: what the allocator keeps, code that is loaded.
ALWAYS = 2 << 20
#: Bytes that each task of the graph takes, whether it runs or not, and what it returns.
PER_KEY = 5000
#: Bytes that each chunk of the target takes in what tasks return, and in what the commit makes.
_PER_RECORD = 500


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
        self.asked, self.least, self.what, self.advice = asked, least, what, advice
        problem = f'max_mem="{shown(asked, up=False)}" is too little {what}'
        remedy = f'Pass max_mem="{shown(least)}" or more, which is the least that would do'
        super().__init__(f"{problem}. {remedy}" + (f"; or {advice}" if advice else ""))

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.asked, self.least, self.what, self.advice)


class Budget(NamedTuple):
    """What a pass may take."""

    nbytes: float
    """Of memory: of all tasks that run at once, and of the graph."""
    threads: int
    """That run tasks."""
    read_batch: int
    """Compressed bytes that are read at once."""
    write_batch: int
    """Compressed bytes that are staged at once."""
    most_batch: int = 0
    """Where `read_batch` grows with the memory, the most that it becomes."""
    taken: float = 0.0
    """Bytes beside `nbytes` that the rest of the graph takes."""

    def without(self, taken: float) -> Budget:
        """What is left where the rest of the graph takes so many bytes more."""
        return self.of(self.nbytes - taken)._replace(taken=self.taken + taken)

    def of(self, nbytes: float) -> Budget:
        """The same with other memory."""
        batch = int(nbytes / self.threads * _BATCH_SHARE)
        batch = (
            max(LEAST_BATCH, min(self.most_batch, batch)) if self.most_batch else self.read_batch
        )
        return self._replace(nbytes=nbytes, read_batch=batch)

    def too_little(
        self, what: str, suffices: Callable[[Budget], bool], advice: str = ""
    ) -> TooLittleMemoryError:
        """The error where a plan needs more memory: for what, and how to give it.

        Parameters
        ----------
        what, advice : str
            As for `TooLittleMemoryError`.
        suffices : callable
            Whether there is a plan with some memory.
        """
        low = high = max(1.0, self.nbytes)
        while not suffices(self.of(high)):
            low, high = high, 2 * high
        while high > low * _NEAR:
            middle = math.sqrt(low * high)
            low, high = (low, middle) if suffices(self.of(middle)) else (middle, high)
        # as it is shown, which is what the user passes: with a little more there may be no plan
        while not suffices(self.of(_three_digits(high + self.taken, math.ceil) - self.taken)):
            high *= _NEAR
        return TooLittleMemoryError(self.nbytes + self.taken, high + self.taken, what, advice)


def _three_digits(nbytes: float, rounding: Callable[[float], int]) -> int:
    step: int = 10 ** max(0, len(str(int(nbytes))) - 3)
    return rounding(nbytes / step) * step


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
    rounded = _three_digits(nbytes, math.ceil if up else math.floor)
    units = ((10**6, "MB"), (1000, "kB"), (1, "B"))
    factor, unit = next((f, u) for f, u in units if rounded >= f or f == 1)
    return f"{rounded / factor:.12g}{unit}"


class OnePass(NamedTuple):
    """How one frame becomes another."""

    region: tuple[int, ...]
    """Elements along each axis: whole chunks of the target, cut at the array's edge."""
    lanes: int
    """How many tasks may run at once."""
    seconds: float
    """What it takes beyond what every pass takes, by the model; to be compared."""
    nbytes: float
    """Memory of all tasks that run at once, and of the graph."""
    graph_nbytes: float
    """Memory of the graph alone."""
    verifies: bool
    """Whether chunks are read in parts, so that their checksums need a look of their own."""
    decodes: float
    """How often a block is decoded, on average."""


class _Shapes(NamedTuple):
    """Columns for all shapes of a region that are compared."""

    regions: NDArray[np.float64]
    work: NDArray[np.float64]
    """Seconds of all tasks together."""
    decoded: NDArray[np.float64]
    """Blocks."""
    partial: NDArray[np.bool_]
    region_nbytes: NDArray[np.float64]
    scratch_nbytes: NDArray[np.float64]
    graph_nbytes: NDArray[np.float64]
    """Of the tasks that do not run, and of what they return."""


def best_pass(source: Grid, target: Grid, stored: int, budget: Budget) -> OnePass | None:
    """Choose the region that takes the least time within the memory.

    Parameters
    ----------
    source, target : Grid
        Of one shape, which is not empty.
    stored : int
        Compressed bytes of the source that have to be verified; 0 without checksums.

    Returns
    -------
    OnePass or None
        None where not even single chunks of the target fit.

    Examples
    --------
    >>> maps = Grid((100, 400, 400), chunks=(1, 400, 400), blocks=(1, 100, 100), itemsize=4)
    >>> series = Grid(maps.shape, chunks=(100, 10, 10), blocks=(100, 10, 10), itemsize=4)
    >>> found = best_pass(maps, series, 0, Budget(64e6, 2, 1 << 20, 1 << 20))
    >>> found.region, found.decodes
    ((100, 100, 400), 1.0)
    """
    axes = _axes(source, target)
    shapes = _shapes(axes, source, target, stored, budget)
    best: tuple[float, int, int] | None = None
    lanes = budget.threads
    while lanes:
        found = _fastest(shapes, lanes, budget)
        if found is not None and (best is None or found[0] < best[0]):
            best = (*found, lanes)
        lanes //= 2
    return None if best is None else _chosen(best, axes, shapes, budget)


def _axes(source: Grid, target: Grid) -> list[Choices]:
    most = max(3, int(_MOST_SHAPES ** (1 / max(1, source.ndim))))
    return [
        choices(n, unit, chunk, block, most)
        for n, unit, chunk, block in zip(
            source.shape, target.chunks, source.chunks, source.blocks, strict=True
        )
    ]


def _shapes(
    axes: Sequence[Choices], source: Grid, target: Grid, stored: int, budget: Budget
) -> _Shapes:
    visits, decoded = _product(axes, "chunks"), _product(axes, "blocks")
    regions = _product(axes, "regions")
    partial = visits > source.nchunks
    touched = _product(axes, "most_blocks") * source.block_nbytes
    work = decoded * source.block_nbytes * _DECODE + visits * _VISIT + regions * _TASK
    work += np.where(partial, stored * _VERIFY, 0.0)
    # compressed and decoded bytes of what is touched; chunks that are gathered, compressed, staged
    reading = 2 * budget.read_batch + 3 * touched + _product(axes, "most_chunks") * _PER_CHUNK
    writing = budget.write_batch + 4 * target.chunk_nbytes
    return _Shapes(
        regions,
        work,
        decoded,
        partial,
        _product(axes, "length") * source.itemsize,
        reading + writing + PER_TASK,
        (regions + _checks(source) * partial) * PER_KEY + target.nchunks * _PER_RECORD,
    )


def _checks(source: Grid) -> int:
    """About how many tasks verify the chunks of a frame."""
    return math.ceil(source.nchunks * source.chunk_nbytes / VERIFIED_AT_ONCE)


def _product(axes: Sequence[Choices], column: str) -> NDArray[np.float64]:
    """Multiply a column along all axes, for each shape."""
    columns = [getattr(axis, column) for axis in axes]
    products: NDArray[np.float64] = reduce(np.multiply.outer, columns, np.ones((), np.float64))
    return products


def _memory(shapes: _Shapes, lanes: int, budget: Budget) -> NDArray[np.float64]:
    """Bytes of all tasks that run at once; each thread keeps buffers of the tasks that it ran."""
    idle = max(0, budget.threads - lanes)
    kept = np.minimum(shapes.scratch_nbytes, MAX_SCRATCH_NBYTES)
    busy = lanes * (shapes.region_nbytes + shapes.scratch_nbytes)
    total: NDArray[np.float64] = busy + idle * kept + shapes.graph_nbytes + ALWAYS
    return total


def _fastest(shapes: _Shapes, lanes: int, budget: Budget) -> tuple[float, int] | None:
    """Seconds and number of the best shape where so many tasks run at once."""
    memory = _memory(shapes, lanes, budget)
    # the last tasks leave some lanes idle
    rounds = np.ceil(shapes.regions / lanes) / shapes.regions
    seconds = np.where(memory <= budget.nbytes, shapes.work * rounds, math.inf)
    least = float(seconds.min())
    if math.isinf(least):
        return None
    near = np.where(seconds <= least * _ABOUT, memory, math.inf)
    return least, int(near.argmin())


def _chosen(
    best: tuple[float, int, int],
    axes: Sequence[Choices],
    shapes: _Shapes,
    budget: Budget,
) -> OnePass:
    seconds, number, lanes = best
    at = np.unravel_index(number, shapes.work.shape) if axes else ()
    # the longest region is the whole axis
    blocks = math.prod(float(axis.blocks[-1]) for axis in axes)
    return OnePass(
        tuple(int(axis.length[i]) for axis, i in zip(axes, at, strict=True)),
        lanes,
        seconds,
        float(_memory(shapes, lanes, budget).flat[number]),
        float(shapes.graph_nbytes.flat[number]),
        bool(shapes.partial.flat[number]),
        float(shapes.decoded.flat[number]) / blocks,
    )
