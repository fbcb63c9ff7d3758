"""The pass of a reshape: what is contiguous in C order stays so, whatever the shape."""

from __future__ import annotations

import math

from b2nd_dask.format.grid import Grid
from b2nd_dask.frame.rechunk.one_pass import Budget, OnePass

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
    share = int(budget.nbytes / budget.threads * _FLAT_SHARE)
    chunks = flat_box(shape, min(_FLAT_CHUNK, share) // itemsize)
    chunk = math.prod(chunks) * itemsize
    batches = 2 * budget.read_batch + budget.write_batch
    scratch = batches + 4 * chunk
    lanes = min(budget.threads, int(budget.nbytes // (scratch + 2 * chunk)))
    if not lanes:
        # the chunks grow with the memory
        growing = batches / (1 - 6 * _FLAT_SHARE / budget.threads)
        least = max(min(growing, batches + 6 * _FLAT_CHUNK), batches + 6 * itemsize)
        raise budget.too_little(f"for a reshape to {shape}", least)
    room = int((budget.nbytes / lanes - scratch) / 2 / itemsize)
    box = flat_box(shape, room)
    region = tuple(
        n if length == n else length // c * c
        for n, length, c in zip(shape, box, chunks, strict=True)
    )
    return Grid(shape, chunks, chunks, itemsize), OnePass(
        region, lanes, 0.0, budget.nbytes, verifies=True, decodes=1.0
    )


def flat_box(shape: tuple[int, ...], room: int) -> tuple[int, ...]:
    """The largest box of so many elements that is contiguous in C order."""
    sizes = [1] * len(shape)
    for axis in reversed(range(len(shape))):
        sizes[axis] = min(shape[axis], max(1, room))
        room //= sizes[axis]
        if sizes[axis] < shape[axis]:
            break
    return tuple(sizes)
