"""`to_b2nd` within a stated memory: dask's rechunks, transposes and reshapes become passes.

What they read is a frame, or is written to an intermediate frame first, in its own blocks. So no
task ever needs more than blocks that it reads or writes. Functions between them keep the blocks
that dask gave them.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import dask.array as da
import numpy as np
from dask.base import tokenize
from dask.highlevelgraph import HighLevelGraph

from b2nd_dask.format.grid import Grid
from b2nd_dask.frame.read.decode_cost import decodes_per_block
from b2nd_dask.frame.rechunk.between import Between, open_between, source_between
from b2nd_dask.frame.rechunk.flat import flat_pass
from b2nd_dask.frame.rechunk.passes import PassPlan, Step, bounded_chunks, plan_passes
from b2nd_dask.frame.rechunk.source import Box, FlatSource, RegionSource
from b2nd_dask.frame.rechunk.work import verified_nbytes
from b2nd_dask.frame.write.commit import commit
from b2nd_dask.frame.write.idempotent import OpenedStaging, open_staging
from b2nd_dask.frame.write.records import read_journals
from b2nd_dask.graph import _dask_compat
from b2nd_dask.graph.read.blocks import Chunks, writable
from b2nd_dask.graph.write.align import aligned_sizes
from b2nd_dask.graph.write.rechunk.budget import budget_of
from b2nd_dask.graph.write.rechunk.job import LaterSource, RechunkJob, boxes_of
from b2nd_dask.graph.write.rechunk.layers import (
    array_at,
    chunks_of,
    dtype_of,
    frame_of,
    inputs_of,
    largest_block,
    nbytes_of_layer,
    ndim_of,
    reshaped_from,
    view_of,
)
from b2nd_dask.graph.write.rechunk.rechunk import in_order, log_passes
from b2nd_dask.graph.write.running import Job
from b2nd_dask.graph.write.write_tasks import WriteJob, named, new_token

#: Blocks that a task of functions is taken to hold: what it reads, temporary results, what it
#: compresses.
_BLOCKS_OF_TASK = 4
#: Bytes of arrays in the graph that dask itself may rechunk.
_SMALL = 1 << 20


def bounded_job(job: WriteJob, max_mem: Any) -> Job:
    """Make a job that writes the same elements within a stated memory.

    Raises
    ------
    ValueError
        There is no plan for the array, with the layer that is in the way, or the memory is too
        small.
    """
    if not _dask_compat.has_layers() or not isinstance(job.elements.dask, HighLevelGraph):
        raise ValueError(
            "max_mem= needs dask arrays of layers, which this dask, or its option "
            "array.query-planning, does not have: leave max_mem= out"
        )
    return _Plan(job, max_mem).job()


class _Source(NamedTuple):
    """Elements that regions are read from, in the order of the target's axes."""

    reads: RegionSource | LaterSource
    grid: Grid
    dtype: np.dtype[Any]
    stored: int
    """Bytes to verify, as for `plan_passes`."""


class _Plan:
    """What is planned for one array."""

    def __init__(self, job: WriteJob, max_mem: Any) -> None:
        self._write = job
        self._array = job.elements
        self._layers = job.elements.dask
        frames = [frame_of(self._layers, name) for name in self._layers.layers]
        is_remote = any(frame is not None and frame.is_remote for frame in frames)
        self._budget = budget_of(max_mem, job.staging, is_remote=is_remote)
        self._opening = named("open", new_token(job.staging.label))
        self._reads_again = self._has_functions_above_views()

    def job(self) -> Job:
        """The job of the last step, with all others in its graph."""
        array, plan = self._array, self._write.plan
        if not plan.grid.nchunks:
            return self._write
        if self._is_view(array.name) or frame_of(self._layers, array.name) is not None:
            return self._rechunked(self._source(array.name, array.shape))
        elements = self._replaced(array)
        self._check_blocks(elements)
        sizes = aligned_sizes(array.chunks, plan.grid.chunks, array.dtype.itemsize)
        if sizes == array.chunks:
            return self._write._replace(elements=elements)
        return self._rechunked(self._written(elements, tuple(range(array.ndim))))

    def _rechunked(self, source: _Source) -> RechunkJob:
        job = self._write
        if source.grid.shape != job.plan.grid.shape:
            raise self._not_understood(self._array.name)
        passes = plan_passes(source.grid, job.plan.grid, source.stored, self._budget)
        log_passes(job.staging.label, passes)
        return RechunkJob(source.reads, passes, self._budget.threads, job.plan, job.staging)

    def _has_functions_above_views(self) -> bool:
        """Whether functions read what is moved, which run again where the write does."""
        return any(
            self._is_view(below)
            for name in self._layers.layers
            for below, _ in inputs_of(self._layers, name) or ()
            if not self._is_view(name)
        )

    def _is_view(self, name: str) -> bool:
        """Whether the elements of a layer are those of another, in other blocks or shape."""
        view = view_of(self._layers, name, ndim_of(self._layers, name))
        moved = view.is_rechunked or frame_of(self._layers, view.base) is not None
        return (moved and view.base != name) or reshaped_from(self._layers, view.base) is not None

    def _source(self, name: str, shape: tuple[int, ...] | None) -> _Source:
        """What has the elements of a layer that is a view; its shape where it is known."""
        view = view_of(self._layers, name, ndim_of(self._layers, name))
        frame = frame_of(self._layers, view.base)
        if frame is not None:
            reads = RegionSource(frame, view.order, self._budget.read_batch)
            grid = in_order(frame.grid, view.order)
            return _Source(reads, grid, frame.dtype, verified_nbytes(frame))
        if reshaped_from(self._layers, view.base) is not None:
            sizes = chunks_of(self._layers, name)
            if shape is None and sizes is not None:
                shape = tuple(map(sum, sizes))
            if shape is None:
                raise self._not_understood(view.base)
            below = [0] * len(shape)
            for axis, n in zip(view.order, shape, strict=True):
                below[axis] = n
            return self._reshaped(view.base, tuple(below), view.order)
        sizes = chunks_of(self._layers, view.base)
        if sizes is None:
            raise self._not_understood(view.base)
        dtype = dtype_of(self._layers, view.base)
        if dtype is None:
            raise ValueError(
                f"max_mem= needs the dtype of the layer {view.base}, which the graph does not say: "
                "pass dtype= where its function is called, as to map_blocks, or leave max_mem= out"
            )
        base = self._replaced(array_at(self._array, view.base, sizes, dtype))
        self._check_blocks(base)
        return self._written(base, view.order)

    def _written(self, array: da.Array, order: tuple[int, ...]) -> _Source:
        """Write an array of which nothing has to be moved to an intermediate frame."""
        chunks = tuple(_common(sizes) for sizes in array.chunks)
        grid = Grid(array.shape, chunks, chunks, array.dtype.itemsize)
        between = self._between(grid, array.dtype, array.name)
        job = WriteJob(
            array, (0,) * array.ndim, between.plan, between.staging, commit, token=self._token()
        )
        return self._later(between, job, order)

    def _reshaped(
        self,
        name: str,
        shape: tuple[int, ...],
        order: tuple[int, ...],
    ) -> _Source:
        """Write an array of another shape to an intermediate frame, in ranges of its C order."""
        below = reshaped_from(self._layers, name)
        source = self._source(str(below), None)
        if math.prod(source.grid.shape) != math.prod(shape):
            raise self._not_understood(name)
        grid, way = flat_pass(shape, source.grid.itemsize, self._budget)
        reads: FlatSource | LaterSource
        if isinstance(source.reads, LaterSource):
            key = named("flat", self._token())
            flat = {key: (FlatSource, source.reads.key, source.grid.shape, shape)}
            reads = source.reads._replace(graph=source.reads.graph | flat, key=key)
        else:
            reads = FlatSource(source.reads, source.grid.shape, shape)
        passes = PassPlan((Step(grid, way),), 0.0)
        between = self._between(grid, source.dtype, name)
        plan, staging = between.plan, between.staging
        job = RechunkJob(reads, passes, 1, plan, staging, self._token())
        return self._later(between, job, order)

    def _between(self, grid: Grid, dtype: np.dtype[Any], name: str) -> Between:
        staging = self._write.staging
        return Between.of(staging, grid, dtype, tokenize(staging.key, name, grid)[:16])

    def _token(self) -> str:
        """End of the names of tasks; they are shown as those of the target."""
        return new_token(self._write.staging.label)

    def _later(
        self, between: Between, job: WriteJob | RechunkJob, order: tuple[int, ...]
    ) -> _Source:
        """Tasks that write an intermediate frame, and one that opens it."""
        most = self._budget.read_batch
        grid = in_order(between.plan.grid, order)
        if job.staging.resumable and between.is_done():
            return _Source(source_between(between, most, order), grid, between.plan.dtype, 0)
        staged = None
        if job.staging.resumable:
            staged = read_journals(between.staging, between.plan.grid.nchunks)
        written = job.graph(staged)
        opening, key = named("open", job.token), named("source", job.token)
        graph: dict[Any, Any] = dict(written.__dask_graph__())
        graph |= {
            self._opening: (open_staging, self._write.plan, self._write.staging),
            opening: (open_between, between, self._opening, self._reads_again),
            key: (_opened, between, most, order, written.key, opening),
        }
        return _Source(LaterSource(graph, key, most), grid, between.plan.dtype, 0)

    def _replaced(self, array: da.Array) -> da.Array:
        """The same array, of which all views are read from frames."""
        reads: dict[str, dict[Any, Any]] = {}
        self._replace(array.name, array.chunks, reads)
        if not reads:
            return array
        below = {name: layer for name, layer in array.dask.layers.items() if name not in reads}
        layers: dict[str, Any] = {**below, **reads}
        dependencies = {
            name: set() if name in reads else array.dask.dependencies[name] for name in layers
        }
        graph = HighLevelGraph(layers, dependencies).cull_layers([array.name])
        return da.Array(graph, array.name, array.chunks, dtype=array.dtype)

    def _replace(self, name: str, chunks: Chunks, reads: dict[str, dict[Any, Any]]) -> None:
        """Find the views below a layer, and add the tasks that read them."""
        if name in reads:
            return
        if self._is_view(name):
            if self._is_small(name, chunks):
                return
            reads[name] = self._reading(name, chunks)
            return
        inputs = inputs_of(self._layers, name)
        if inputs is None:
            if self._layers.dependencies[name]:
                raise self._not_understood(name)
            return
        for below, axes in inputs:
            if frame_of(self._layers, below) is not None:
                continue
            known = chunks_of(self._layers, below)
            if known is None:
                if None in axes:
                    raise self._not_understood(below)
                known = tuple(chunks[axis] for axis in axes if axis is not None)
            self._replace(below, known, reads)

    def _is_small(self, name: str, chunks: Chunks) -> bool:
        """Whether a view is one of a small array that the graph holds, which dask may move."""
        base = view_of(self._layers, name, len(chunks)).base
        held = _dask_compat.block_function(self._layers.layers[base]) is None
        nbytes = nbytes_of_layer(self._layers, base)
        return held and not self._layers.dependencies[base] and nbytes <= _SMALL

    def _reading(self, name: str, chunks: Chunks) -> dict[Any, Any]:
        """Tasks that read the blocks of a view."""
        shape = tuple(map(sum, chunks))
        source = self._source(name, shape)
        numbers = list(np.ndindex(*map(len, chunks)))
        known = {key[1:] for key in self._layers.layers[name].get_output_keys() if key[0] == name}
        if source.grid.shape != shape or known != set(numbers):
            raise self._not_understood(name)
        if source.stored or decodes_per_block(source.grid, chunks) > 1:
            source = self._in_chunks(source, chunks, name)
        if isinstance(source.reads, LaterSource):
            graph, key = dict(source.reads.graph), source.reads.key
        else:
            key = named("source", self._token())
            graph = {key: source.reads}
        for at, region in zip(numbers, boxes_of(chunks), strict=True):
            graph[(name, *at)] = (_read, key, region)
        return graph

    def _in_chunks(self, source: _Source, chunks: Chunks, name: str) -> _Source:
        """Rechunk a source to an intermediate frame that has blocks as chunks."""
        sizes = bounded_chunks(tuple(max(axis) for axis in chunks), source.grid.itemsize)
        grid = Grid(source.grid.shape, sizes, sizes, source.grid.itemsize)
        between = self._between(grid, source.dtype, name)
        passes = plan_passes(source.grid, grid, source.stored, self._budget)
        log_passes(self._write.staging.label, passes)
        lanes = self._budget.threads
        plan, staging = between.plan, between.staging
        job = RechunkJob(source.reads, passes, lanes, plan, staging, self._token())
        return self._later(between, job, tuple(range(len(sizes))))

    def _check_blocks(self, array: da.Array) -> None:
        """Raise ValueError where blocks of functions need more memory than there is."""
        block = largest_block(array.chunks) * array.dtype.itemsize
        least = block * _BLOCKS_OF_TASK * self._budget.threads
        if least > self._budget.nbytes:
            raise ValueError(
                f"max_mem={int(self._budget.nbytes)} bytes are too few for blocks of {block} bytes "
                f"in {self._budget.threads} threads, in the layer {array.name}: {least} are the "
                "least that would do; give more, read the frame in smaller blocks (chunks= of "
                "from_b2nd), or compute in fewer threads"
            )

    def _not_understood(self, name: str) -> ValueError:
        return ValueError(
            f"max_mem= cannot bound the memory of the layer {name}: only rechunks, transposes and "
            "reshapes of frames are planned, with functions of single blocks before, between and "
            "behind them; write the array below that layer to a frame first, or leave max_mem= out"
        )


def _opened(
    between: Between,
    most_nbytes: int,
    order: tuple[int, ...],
    published: str,
    opened: OpenedStaging,
) -> RegionSource | None:
    """Task that opens an intermediate frame when it is there."""
    return None if opened.is_skipped else source_between(between, most_nbytes, order)


def _read(source: RegionSource, region: Box) -> Any:
    """Task that reads a block; functions may change it in place."""
    return writable(source.read(region))


def _common(sizes: tuple[int, ...]) -> int:
    """The longest chunk of which blocks of these lengths are made."""
    return math.gcd(*sizes[:-1]) if len(sizes) > 1 else max(1, sizes[0])
