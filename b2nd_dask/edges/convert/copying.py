"""Blocks from a dask array to a target that takes regions, with bounded memory."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from typing import Any

import dask.array as da
import numpy as np

from b2nd_dask.edges.convert.lazy import Budget, block_of, unit_of
from b2nd_dask.edges.convert.options import Options
from b2nd_dask.edges.datasets.tree import Member, Tree
from b2nd_dask.edges.progress import Progress

Region = tuple[slice, ...]


def regions(shape: tuple[int, ...], sizes: tuple[int, ...]) -> Iterator[Region]:
    """Cut a shape into regions, in C order."""
    axes = [
        [slice(start, min(start + size, n)) for start in range(0, n, size)]
        for size, n in zip(sizes, shape, strict=True)
    ]
    return itertools.product(*axes)


class Counter:
    """Blocks that are done, for a progress bar of all arrays of a tree."""

    def __init__(self, progress: Progress | None, total: int) -> None:
        self._progress, self._done, self._total = progress, 0, total

    def step(self) -> None:
        """Count a block."""
        self._done += 1
        if self._progress is not None:
            self._progress(min(self._done, self._total), self._total)


def copy_blocks(
    array: da.Array,
    target: Any,
    unit: tuple[int, ...],
    budget: Budget,
    counter: Counter,
    *,
    together: bool = True,
) -> None:
    """Assign all regions of a target.

    Parameters
    ----------
    target : object
        With ``target[region] = elements``.
    unit : tuple of int
        Chunks of the target: no region ends within one, so that threads never share one.
    together : bool
        Whether several threads may write.
    """
    sizes = block_of(array.shape, unit, array.dtype.itemsize, budget.block)
    nbytes = math.prod(sizes) * array.dtype.itemsize
    workers = budget.workers(nbytes) if together else 1

    def copy(region: Region) -> None:
        # in this thread, where there are several: their number is the bound of memory
        how = {"scheduler": "synchronous"} if together else {}
        elements = np.asarray(array[region].compute(**how))
        target[region if region else ...] = elements

    with ThreadPoolExecutor(workers) as pool:
        waiting: set[Future[None]] = set()
        for region in regions(array.shape, sizes):
            if len(waiting) >= workers:
                done, waiting = wait(waiting, return_when=FIRST_COMPLETED)
                _finish(done, counter)
            waiting.add(pool.submit(copy, region))
        _finish(waiting, counter)


def _finish(futures: set[Future[None]], counter: Counter) -> None:
    for future in futures:
        future.result()
        counter.step()


def blocks_of(array: da.Array, unit: tuple[int, ...], budget: Budget) -> int:
    """How many regions `copy_blocks` will copy."""
    sizes = block_of(array.shape, unit, array.dtype.itemsize, budget.block)
    return math.prod(-(-n // size) for n, size in zip(array.shape, sizes, strict=True))


def blocks_of_tree(tree: Tree, options: Options) -> int:
    """How many regions `copy_blocks` will copy of all arrays, with the chunks of the target."""
    arrays = [member.array for _, member in tree.walk()]
    units = [options.chunks_of(array.shape, unit_of(array)) for array in arrays]
    return sum(
        blocks_of(array, unit, options.budget) for array, unit in zip(arrays, units, strict=True)
    )


def compare(
    source: Tree,
    written: Tree,
    budget: Budget,
    stored: Callable[[Member, str], Member] | None = None,
) -> None:
    """Compare all elements of two trees.

    Parameters
    ----------
    stored : callable, optional
        Makes of an array of the source the one that the target stores.

    Raises
    ------
    ValueError
        An element differs, or an array is missing.
    """
    found = dict(written.walk())
    for path, member in source.walk():
        other = found.get(path) or written.single()
        member = member if stored is None else stored(member, path)
        if other is None or other.array.shape != member.array.shape:
            raise ValueError(f"{written.label}: {path!r} was not written as it is in the source")
        sizes = block_of(member.array.shape, None, member.array.dtype.itemsize, budget.block)
        for region in regions(member.array.shape, sizes):
            first, second = member.array[region].compute(), other.array[region].compute()
            if not same(np.asarray(first), np.asarray(second)):
                raise ValueError(f"{written.label}: elements of {path!r} differ at {region}")


def same(first: Any, second: Any) -> bool:
    """Whether elements are equal, NaN and NaT to themselves."""
    if first.dtype.kind in "fcmM" and second.dtype.kind in "fcmM":
        return bool(np.array_equal(first, second, equal_nan=True))
    if first.dtype.names:
        return bool(first.tobytes() == second.astype(first.dtype).tobytes())
    return bool(np.array_equal(first, second))
