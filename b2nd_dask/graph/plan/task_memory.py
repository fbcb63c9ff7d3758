"""The most that a task holds: what it reads, what it makes of that, what it compresses."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from b2nd_dask.frame.read.read_cost import ChunkRange, ReadCosts, Region
from b2nd_dask.frame.read.reduce import group_nbytes
from b2nd_dask.graph.plan.reads import ReadFrame

if TYPE_CHECKING:
    from b2nd_dask.graph.plan.walk import FoundTask, FoundWrite


class TaskMemory:
    """Bytes that tasks hold: a row for each read, from which the rows of tasks follow."""

    def __init__(self, tasks: list[FoundTask], targets: list[FoundWrite]) -> None:
        self._tasks = tasks
        self._targets = targets
        reads = [read for task in tasks for read in task.reads]
        self._task_of = np.repeat(np.arange(len(tasks)), [len(task.reads) for task in tasks])
        self._work = np.array([read.held for read in reads], float)
        self._streamed = np.array([read.is_streamed for read in reads], bool)
        self._copied = np.array([read.is_copied for read in reads], bool)
        self._results = np.array([read.results for read in reads], float)
        rows = np.zeros((6, len(reads)))
        #: Of the piece that takes the most.
        self._buffers, self._elements, self._at_once = rows[:3]
        #: Of all pieces.
        self._nbytes, self._count, self._fetched = rows[3:]

    def add(
        self, frame: ReadFrame, regions: Sequence[Region], rows: list[int], costs: ReadCosts
    ) -> None:
        """Add what is read of a frame; `rows` are the numbers of the reads."""
        grid = frame.grid
        count = np.array([_count(region) for region in regions], float)
        nbytes = count * grid.itemsize
        streamed = self._streamed[rows]
        group = group_nbytes(grid)
        most = np.where(costs.largest > 0, np.maximum(costs.largest, group), 0)
        at_once = np.where(streamed, np.minimum(most, nbytes), nbytes)
        buffers = costs.buffers + np.where(costs.direct & ~streamed, 0, costs.largest)
        # what is decoded in another order than that of the elements is copied, and what is gathered
        in_place = (costs.largest == grid.chunk_nbytes) & grid.chunk_is_c_order
        copied = ~in_place | (group > 0)
        elements = np.where(streamed, at_once * copied, nbytes)
        np.maximum.at(self._buffers, rows, buffers)
        np.maximum.at(self._elements, rows, elements)
        np.maximum.at(self._at_once, rows, at_once)
        np.add.at(self._nbytes, rows, nbytes)
        np.add.at(self._count, rows, count)
        np.add.at(self._fetched, rows, costs.fetched)

    @property
    def peak(self) -> int:
        """The most of all tasks."""
        whole = self._copied & ~self._streamed
        # the array that pieces are copied to, and a piece, or what work makes of the array
        alone = self._elements + self._at_once * self._work + self._results
        copied = self._nbytes + np.maximum(self._elements, self._nbytes * self._work)
        working = self._sum(self._buffers + np.where(whole, copied, alone))
        buffers = self._sum(self._buffers + np.where(whole, self._elements, 0))
        fetched, block = self._sum(self._fetched), np.zeros(len(self._tasks))
        np.maximum.at(block, self._task_of, self._count)
        peaks = [working]
        for target in self._targets:
            held = _writing(target, block, fetched) + buffers
            peaks.append(np.where(self._writing_to(target), held, 0))
        return int(np.max(np.concatenate(peaks), initial=0))

    def _sum(self, values: NDArray[np.float64]) -> NDArray[np.float64]:
        """The sum of the reads of each task."""
        total = np.zeros(len(self._tasks))
        np.add.at(total, self._task_of, values)
        return total

    def _writing_to(self, target: FoundWrite) -> NDArray[np.bool_]:
        """Whether each task writes to a frame, or may do so."""
        known = {id(one.plan) for one in self._targets}
        return np.array(
            [t.writes and (id(t.plan) not in known or t.plan is target.plan) for t in self._tasks],
            bool,
        )


def _count(region: Region) -> int:
    """Elements of an array of a region; none of chunks that are not decoded."""
    return 0 if isinstance(region, ChunkRange) else math.prod(map(len, region))


def _writing(
    target: FoundWrite, block: NDArray[np.float64], fetched: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Bytes that writing blocks takes, of so many elements made of so many compressed bytes."""
    grid = target.plan.grid
    block = block * target.plan.dtype.itemsize
    # a chunk in the order of its blocks, unless it is the block; and as many bytes for its
    # compressed ones, which are about as long as they were
    direct = (block <= grid.chunk_nbytes) & grid.chunk_is_c_order
    chunk = grid.chunk_nbytes * np.where(direct, 1, 2)
    # chunks that are copied as they are stored
    chunk = np.where((block == 0) & (fetched > 0), 0, chunk)
    one: NDArray[np.float64] = fetched * np.minimum(1, grid.chunk_nbytes / np.maximum(block, 1))
    encoded = np.minimum(fetched, np.maximum(target.staging.batch_nbytes, one))
    held: NDArray[np.float64] = block + chunk + encoded
    return held
