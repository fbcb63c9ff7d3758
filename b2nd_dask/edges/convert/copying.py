"""Blocks from dask arrays to targets that take regions, with bounded memory."""

from __future__ import annotations

import math
from collections.abc import Callable
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from typing import Any

import dask.array as da
import numpy as np

from b2nd_dask.edges.convert.lazy import Budget, Region, block_of, regions, unit_of
from b2nd_dask.edges.convert.options import Options
from b2nd_dask.edges.datasets.tree import Member, Tree


class Copier:
    """Copies the arrays of a tree block by block, and tells how many blocks are done of all.

    Parameters
    ----------
    check : callable, optional
        Called after each block: raises what the target has noted.
    """

    def __init__(
        self, tree: Tree, options: Options, check: Callable[[], None] | None = None
    ) -> None:
        self._options, self._check = options, check
        self._done = 0
        self._total = sum(
            math.prod(-(-n // m) for n, m in zip(each.array.shape, self._sizes(each), strict=True))
            for _, each in tree.walk()
        )

    def _sizes(self, member: Member) -> tuple[int, ...]:
        """Elements of a block: no region ends within a chunk, which threads would share."""
        array = member.array
        unit = self._options.chunks_of(array.shape, unit_of(array))
        return block_of(array.shape, unit, array.dtype.itemsize, self._options.budget.block)

    def copy(self, member: Member, target: Any) -> None:
        """Assign all regions of a target: ``target[region] = elements``."""
        array, sizes = member.array, self._sizes(member)
        workers = self._options.budget.workers(math.prod(sizes) * array.dtype.itemsize)

        def copy(region: Region) -> None:
            # in this thread: their number is the bound of memory
            elements = array[region].compute(scheduler="synchronous")
            target[region if region else ...] = np.asarray(elements)

        with ThreadPoolExecutor(workers) as pool:
            waiting: set[Future[None]] = set()
            for region in regions(array.shape, sizes):
                if len(waiting) >= workers:
                    done, waiting = wait(waiting, return_when=FIRST_COMPLETED)
                    self._finish(done)
                waiting.add(pool.submit(copy, region))
            self._finish(waiting)

    def _finish(self, futures: set[Future[None]]) -> None:
        for future in futures:
            future.result()
            self._done += 1
            if self._check is not None:
                self._check()
            if self._options.progress is not None:
                self._options.progress(self._done, self._total)


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
    # a frame by itself has no path
    alone = next(iter(found.values())) if len(found) == 1 else None
    for path, member in source.walk():
        other = found.get(path, alone)
        member = member if stored is None else stored(member, path)
        if other is None or other.array.shape != member.array.shape:
            raise ValueError(f"{written.label}: {path!r} was not written as it is in the source")
        sizes = block_of(member.array.shape, None, member.array.dtype.itemsize, budget.block)
        for region in regions(member.array.shape, sizes):
            first, second = da.compute(member.array[region], other.array[region])
            if not _same(np.asarray(first), np.asarray(second)):
                raise ValueError(f"{written.label}: elements of {path!r} differ at {region}")


def _same(first: Any, second: Any) -> bool:
    """Whether elements are equal, NaN and NaT to themselves."""
    if first.dtype.names:
        return bool(first.tobytes() == second.astype(first.dtype).tobytes())
    floats = first.dtype.kind in "fcmM" and second.dtype.kind in "fcmM"
    return bool(np.array_equal(first, second, equal_nan=floats))
