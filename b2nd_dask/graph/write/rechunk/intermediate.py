"""Intermediate frames of a write within a stated memory, and what regions are read from."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import dask.array as da
import numpy as np
from dask.base import tokenize

from b2nd_dask.format.grid import Grid
from b2nd_dask.frame.joined import JoinedReference, Readable
from b2nd_dask.frame.rechunk.between import Between, open_between, source_between
from b2nd_dask.frame.rechunk.flat import flat_pass
from b2nd_dask.frame.rechunk.one_pass import Budget
from b2nd_dask.frame.rechunk.passes import (
    PassPlan,
    Step,
    bounded_chunks,
    log_passes,
    plan_passes,
)
from b2nd_dask.frame.rechunk.source import FlatSource, RegionSource
from b2nd_dask.frame.rechunk.work import verified_nbytes
from b2nd_dask.frame.write.commit import commit
from b2nd_dask.frame.write.idempotent import OpenedStaging, open_staging
from b2nd_dask.frame.write.records import read_journals
from b2nd_dask.graph.layers.layers import View
from b2nd_dask.graph.read.blocks import Chunks
from b2nd_dask.graph.write.rechunk.job import LaterSource, RechunkJob
from b2nd_dask.graph.write.write_tasks import WriteJob, named, new_token


class Elements(NamedTuple):
    """Elements that regions are read from, in the order of the target's axes."""

    reads: RegionSource | LaterSource
    grid: Grid
    dtype: np.dtype[Any]
    stored: int = 0
    """Bytes to verify, as for `plan_passes`."""
    is_cut: bool = False
    """Whether the elements begin or end inside of chunks, which are verified by themselves."""


def elements_of(frame: Readable, view: View, most_nbytes: int) -> Elements:
    """The elements of a view of frames."""
    window = view.window
    if window is not None and isinstance(frame, JoinedReference):
        frame, window = frame.part_of_axes(window)
    view = view._replace(window=window)
    grid, stored = frame.grid, verified_nbytes(frame)
    seen = _seen(grid, view)
    if window is not None:
        stored = math.ceil(stored * math.prod(seen.shape) / math.prod(grid.shape))
    is_cut = window is not None and any(
        along.start % c or (along.stop % c and along.stop != n)
        for along, n, c in zip(window, grid.shape, grid.chunks, strict=True)
    )
    reads = RegionSource(frame, view.order, most_nbytes, window)
    return Elements(reads, seen, frame.dtype, stored, is_cut)


def passes_to(grid: Grid, source: Elements, budget: Budget, label: str) -> PassPlan:
    """Plan the passes from elements to a new frame, and log them."""
    passes = plan_passes(source.grid, grid, source.stored, budget)
    if source.is_cut:
        first, *others = passes.steps
        verifying = first._replace(way=first.way._replace(verifies=True))
        passes = passes._replace(steps=(verifying, *others))
    log_passes(label, passes)
    return passes


class IntermediateFrames:
    """Those of one write: each is written before it is read.

    Parameters
    ----------
    reads_again : bool
        Whether functions read some of them, which run again where the write does.
    """

    def __init__(self, write: WriteJob, budget: Budget, *, reads_again: bool) -> None:
        self._write = write
        self._budget = budget
        self._reads_again = reads_again
        self._opening = named("open", new_token(write.staging.label))

    def written(self, array: da.Array, view: View) -> Elements:
        """Write an array of which nothing has to be moved; `view` is that of the array."""
        chunks = tuple(_common(sizes) for sizes in array.chunks)
        grid = Grid(array.shape, chunks, chunks, array.dtype.itemsize)
        between = self._between(grid, array.dtype, array.name)
        job = WriteJob(
            array, (0,) * array.ndim, between.plan, between.staging, commit, token=self.token()
        )
        return self._later(between, job, view)

    def reshaped(self, source: Elements, shape: tuple[int, ...], view: View) -> Elements:
        """Write elements in another shape, in ranges of their C order."""
        grid, way = flat_pass(shape, source.grid.itemsize, self._budget)
        reads: FlatSource | LaterSource
        if isinstance(source.reads, LaterSource):
            key = named("flat", self.token())
            flat = {key: (FlatSource, source.reads.key, source.grid.shape, shape)}
            reads = source.reads._replace(graph=source.reads.graph | flat, key=key)
        else:
            reads = FlatSource(source.reads, source.grid.shape, shape)
        passes = PassPlan((Step(grid, way),), 0.0)
        between = self._between(grid, source.dtype, view.base)
        plan, staging = between.plan, between.staging
        job = RechunkJob(reads, passes, 1, plan, staging, self.token())
        return self._later(between, job, view)

    def in_chunks(self, source: Elements, chunks: Chunks, name: str) -> Elements:
        """Rechunk elements to a frame that has blocks as chunks."""
        sizes = bounded_chunks(tuple(max(axis) for axis in chunks), source.grid.itemsize)
        grid = Grid(source.grid.shape, sizes, sizes, source.grid.itemsize)
        between = self._between(grid, source.dtype, name)
        passes = passes_to(grid, source, self._budget, self._write.staging.label)
        lanes = self._budget.threads
        plan, staging = between.plan, between.staging
        job = RechunkJob(source.reads, passes, lanes, plan, staging, self.token())
        return self._later(between, job, View(name, tuple(range(len(sizes)))))

    def token(self) -> str:
        """End of the names of tasks; they are shown as those of the target."""
        return new_token(self._write.staging.label)

    def _between(self, grid: Grid, dtype: np.dtype[Any], name: str) -> Between:
        staging = self._write.staging
        return Between.of(staging, grid, dtype, tokenize(staging.key, name, grid)[:16])

    def _later(self, between: Between, job: WriteJob | RechunkJob, view: View) -> Elements:
        """Tasks that write an intermediate frame, and one that opens it."""
        most, order, window = self._budget.read_batch, view.order, view.window
        grid, dtype = _seen(between.plan.grid, view), between.plan.dtype
        if job.staging.resumable and between.is_done():
            return Elements(source_between(between, most, order, window), grid, dtype)
        staged = None
        if job.staging.resumable:
            staged = read_journals(between.staging, between.plan.grid.nchunks)
        written = job.graph(staged)
        opening, key = named("open", job.token), named("source", job.token)
        graph: dict[Any, Any] = dict(written.__dask_graph__())
        graph |= {
            self._opening: (open_staging, self._write.plan, self._write.staging),
            opening: (open_between, between, self._opening, self._reads_again),
            key: (_opened, between, most, order, window, written.key, opening),
        }
        return Elements(LaterSource(graph, key, most), grid, dtype)


def _seen(grid: Grid, view: View) -> Grid:
    """The grid of a view, by which passes are planned: it begins where a chunk does."""
    shape, blocks = grid.shape, grid.blocks
    if view.window is not None:
        shape = tuple(map(len, view.window))
        # where it does not, a region may touch one more block of each chunk, but not more than all
        blocks = tuple(
            c if along.start % c and (along.start % b or c % b) else b
            for along, c, b in zip(view.window, grid.chunks, grid.blocks, strict=True)
        )
    shape, chunks, blocks = (
        tuple(along[axis] for axis in view.order) for along in (shape, grid.chunks, blocks)
    )
    return Grid(shape, chunks, blocks, grid.itemsize)


def _opened(
    between: Between,
    most_nbytes: int,
    order: tuple[int, ...],
    window: tuple[range, ...] | None,
    published: str,
    opened: OpenedStaging,
) -> RegionSource | None:
    """Task that opens an intermediate frame when it is there."""
    return None if opened.is_skipped else source_between(between, most_nbytes, order, window)


def _common(sizes: tuple[int, ...]) -> int:
    """The longest chunk of which blocks of these lengths are made."""
    return math.gcd(*sizes[:-1]) if len(sizes) > 1 else max(1, sizes[0])
