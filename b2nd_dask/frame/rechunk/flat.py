"""The pass of a reshape: what is contiguous in C order stays so, whatever the shape."""

from __future__ import annotations

import math

from b2nd_dask.format.grid import Grid, contiguous_box
from b2nd_dask.frame.rechunk.one_pass import ALWAYS, PER_KEY, PER_TASK, Budget, OnePass

#: Bytes of chunks.
_FLAT_CHUNK = 4 << 20
#: And the part of the memory of a task that they have at most.
_FLAT_SHARE = 1 / 16


def flat_pass(shape: tuple[int, ...], itemsize: int, budget: Budget) -> tuple[Grid, OnePass]:
    """Choose chunks and regions that are ranges in C order, for an array of another shape before.

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
