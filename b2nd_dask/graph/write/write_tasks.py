"""The tasks of a write: blocks, merged records, and the commit that publishes the frame."""

from __future__ import annotations

import itertools
import logging
import math
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import dask.array as da
import numpy as np
from dask.base import optimize as dask_optimize
from dask.delayed import Delayed
from dask.highlevelgraph import HighLevelGraph
from dask.optimization import cull
from numpy.typing import NDArray

from b2nd_dask.format.grid import Grid
from b2nd_dask.frame.read.buffers import BOX_NBYTES
from b2nd_dask.frame.write.new_frame import FramePlan
from b2nd_dask.frame.write.records import (
    ChunkBox,
    ChunkRecords,
    merge_records,
    read_manifests,
    staged_records,
)
from b2nd_dask.frame.write.transaction import Transaction, begin, commit
from b2nd_dask.frame.write.writer import checked_cast, constant_records, fits, write_block
from b2nd_dask.graph import _dask_compat
from b2nd_dask.graph.read.blocks import Chunks, regions_of
from b2nd_dask.graph.resources import available
from b2nd_dask.graph.task_names import of_frame
from b2nd_dask.graph.write.input_arrays import aligned_to, constant_element
from b2nd_dask.storage import Staging
from b2nd_dask.system import usable_cores

logger = logging.getLogger("b2nd_dask")

#: Number of record tables that one task merges.
FAN_IN = 32


@dataclass(frozen=True, eq=False, kw_only=True)
class Job:
    """A planned write that makes its graph."""

    transaction: Transaction
    opened: Delayed | None = None
    """The task that starts the transaction; default: `Transaction.begin`."""
    dropped: str = ""
    """A warning about metadata that the frame loses, or empty."""

    @property
    def plan(self) -> FramePlan:
        """The plan of the frame."""
        return self.transaction.plan

    @property
    def staging(self) -> Staging:
        """The staging area of its chunks."""
        return self.transaction.staging

    def graph(self) -> Delayed:
        """The tasks; they compute to the frame's path, and reuse staged chunks."""
        raise NotImplementedError


@dataclass(frozen=True, eq=False, kw_only=True)
class WriteJob(Job):
    """The write of an array to a position in the frame."""

    elements: da.Array
    """The array, in any blocks."""
    origin: tuple[int, ...]
    """Element index of the array's first element in the frame; the corner of a chunk."""

    def graph(self) -> Delayed:
        """As `Job.graph`."""
        return write_graphs([self])[0]


def task_of(label: str, step: str, task: Any, *behind: Any) -> Delayed:
    """A single task, or a value, with its dependencies.

    Its name shows a step of the frame at the path or URL `label`. The name is unique, since a
    scheduler would reuse a task with a known name.
    """
    name = step + of_frame(label, uuid.uuid4().hex)
    return Delayed(name, HighLevelGraph.from_collections(name, {name: task}, behind))


class Tasks:
    """The tasks of a job so far; their names consist of a step and a common suffix."""

    def __init__(self, job: Job) -> None:
        self.job = job
        # runs before any block is written, and only when the graph is computed
        begins, opened = (begin, job.transaction), job.opened
        self.opened = task_of(job.staging.label, "open", begins) if opened is None else opened
        self.opening = str(self.opened.key)
        self.graph: dict[Any, Any] = dict(self.opened.dask)

    def name(self, step: str) -> str:
        """Name a step."""
        return step + self.opening.removeprefix("open")

    def add(self, step: str, task: Any) -> str:
        """Add a single task, or a value."""
        name = self.name(step)
        self.graph[name] = task
        return name

    def missing(
        self, chunks: Chunks, origin: tuple[int, ...], grid: Grid, made: ChunkRecords | None = None
    ) -> tuple[NDArray[np.bool_], list[str]]:
        """Find the blocks to compute, and the keys of the records of all other blocks.

        `chunks` are the lengths of the blocks, which consist of whole frame chunks. Chunks staged
        by earlier runs have records; a write without `resume` takes `made`. `origin` is
        the index of the first element in the frame.
        """
        missing = np.ones(tuple(map(len, chunks)), bool)
        plan, staging = self.job.plan, self.job.staging
        known = made
        if staging.resumable:
            manifests = read_manifests(staging).values()
            known = staged_records(manifests, staging, plan.row, plan.grid.nchunks)
        if known is None:
            return missing, []
        is_known, reused = np.zeros(grid.counts, bool), np.zeros(grid.counts, bool)
        is_known.reshape(-1)[known.rows["chunk"]] = True
        axes = [_chunk_ranges(*axis) for axis in zip(chunks, origin, grid.chunks, strict=True)]
        for block, cells in zip(np.ndindex(missing.shape), itertools.product(*axes), strict=True):
            if is_known[cells].all():
                missing[block], reused[cells] = False, True
        rows = known.rows[reused.reshape(-1)[known.rows["chunk"]]]
        if staging.resumable:
            # an axis of length 0 has no blocks
            total = math.prod(axis[-1].stop - axis[0].start if axis else 0 for axis in axes)
            log_reused(staging, len(rows), total)
        return missing, [self.add("known", ChunkRecords(known.parts, rows))]

    def committed(self, keys: Sequence[Any]) -> Delayed:
        """Merge records, `FAN_IN` tables per task, and commit."""
        name, level = self.name("merge"), 0
        keys = keys or [self.add("nothing", ChunkRecords.of_special(self.job.plan.row))]
        while len(keys) > 1 or level == 0:
            groups = [list(keys[at : at + FAN_IN]) for at in range(0, len(keys), FAN_IN)]
            keys = [(name, level, i) for i in range(len(groups))]
            self.graph |= {
                key: (merge_records, group) for key, group in zip(keys, groups, strict=True)
            }
            level += 1
        key = self.add("commit", (commit, self.opening, keys[0]))
        return Delayed(key, HighLevelGraph.from_collections(key, self.graph))


def _chunk_ranges(sizes: tuple[int, ...], start: int, chunk: int) -> list[slice]:
    edges = itertools.accumulate(sizes, initial=start)
    return [slice(a // chunk, -(-b // chunk)) for a, b in itertools.pairwise(edges)]


def with_concurrency(
    work: dict[Any, tuple[Any, ...]], concurrency: int
) -> dict[Any, tuple[Any, ...]]:
    """Let each task depend on the task `concurrency` places earlier: no more run at once.

    This bounds the memory of all tasks on every scheduler: none starts a task before its
    dependencies are done, whatever its number of threads.
    """
    keys = list(work)
    return {
        key: (*task, keys[i - concurrency]) if i >= concurrency else task
        for i, (key, task) in enumerate(work.items())
    }


def log_reused(staging: Staging, reused: int, nchunks: int) -> None:
    """Log how many chunks of a write are reused."""
    logger.info("%s: %d of %d chunks are reused", staging.label, reused, nchunks)


class _Blocks(Tasks):
    """The tasks of a job that writes the blocks of an array."""

    def __init__(self, job: WriteJob) -> None:
        super().__init__(job)
        self.origin, grid, shape = job.origin, job.plan.grid, job.elements.shape
        self.array = aligned_to(job.elements, grid.chunks)
        no_constant = job.staging.resumable or 0 in shape
        element = None if no_constant else constant_element(job.elements)
        # records of constant chunks, which need no data
        made = None
        if element is not None:
            chunks = ChunkBox.of(job.origin, shape, grid).chunks(grid)
            made = constant_records(element, chunks, job.plan)
        is_missing, self.known = self.missing(self.array.chunks, job.origin, grid, made)
        self.at = [tuple(at) for at in np.argwhere(is_missing).tolist()]
        """Indices of the blocks that are computed."""
        name = self.name("write")
        self.keys = [(name, *at) for at in self.at]


def write_graphs(jobs: Sequence[WriteJob]) -> list[Delayed]:
    """Build the tasks that write several frames; compute what they share once."""
    each = list(map(_Blocks, jobs))
    # Optimized together, since each alone would fuse shared tasks into its own. Without writes that
    # compute no block: dask would leave some of their layers whole in the graph.
    computing = [blocks for blocks in each if blocks.keys]
    optimized = _fused if _dask_compat.has_layers() else _appended
    tasks = optimized(computing, _threads_of_a_task(computing)) if computing else {}
    for blocks in each:
        blocks.graph = {**tasks, **blocks.graph}
    return [blocks.committed([*blocks.keys, *blocks.known]) for blocks in each]


def _threads_of_a_task(each: Sequence[_Blocks]) -> int:
    """Threads to compress a large chunk: more than one if there are fewer tasks than threads."""
    if not any(blocks.job.plan.grid.chunk_nbytes > BOX_NBYTES for blocks in each):
        return 1
    threads = min(available().threads, usable_cores())
    return max(1, threads // sum(len(blocks.keys) for blocks in each))


def _records_of(blocks: _Blocks, threads: int) -> da.Array:
    """An array of records; the task of each block computes the block and writes it."""
    arr = blocks.array
    indices = tuple(range(arr.ndim))
    records: da.Array = da.blockwise(
        write_task,
        indices,
        arr,
        indices,
        _dask_compat.ArraySliceDep(arr.chunks),
        indices,
        align_arrays=False,
        name=blocks.name("write"),
        dtype=object,
        meta=np.empty((0,) * arr.ndim, object),
        origin=blocks.origin,
        # a Delayed in place of the array would not fuse
        opened=blocks.opened,
        threads=threads,
    )
    return records


def _fused(each: Sequence[_Blocks], threads: int) -> dict[Any, Any]:
    """Optimize the blocks to compute together with the tasks that write them."""
    records = [_records_of(blocks, threads) for blocks in each]
    graph = HighLevelGraph.merge(*(array.__dask_graph__() for array in records))
    keys = [key for blocks in each for key in [*blocks.keys, *blocks.opened.dask]]
    # a dask collection may lack an optimizer
    optimize = getattr(records[0], "__dask_optimize__", lambda graph, keys: graph)
    return dict(optimize(graph, keys))


def _appended(each: Sequence[_Blocks], threads: int) -> dict[Any, Any]:
    """Optimize the blocks, then add the tasks that write them.

    For dask's option array.query-planning, which makes arrays expressions, and for a dask without
    the classes of our own layers.
    """
    tasks, writes = dict[Any, Any](), dict[Any, Any]()
    arrays: Any = [blocks.array for blocks in each]
    # dask.optimize does not lower all expressions
    is_planned = _dask_compat.is_planned()
    arrays = [array.optimize() for array in arrays] if is_planned else dask_optimize(*arrays)
    for blocks, array in zip(each, arrays, strict=True):
        tasks |= {**array.__dask_graph__(), **blocks.graph}
        common = blocks.origin, blocks.opening, threads
        regions = dict(zip(np.ndindex(array.numblocks), regions_of(array.chunks), strict=True))
        for key, at in zip(blocks.keys, blocks.at, strict=True):
            writes[key] = (write_task, (array.name, *at), regions[at], *common)
    graph, _ = cull({**tasks, **writes}, list(writes))
    return dict(graph)


def write_task(
    block: Any,
    region: tuple[slice, ...],
    origin: tuple[int, ...],
    opened: Transaction,
    threads: int,
) -> ChunkRecords:
    """Write one block, which may be read-only; `region` is its region of the dask array."""
    name = f"{opened.staging.label}: the block at {tuple(axis.start for axis in region)}"
    shape = tuple(axis.stop - axis.start for axis in region)
    corner = tuple(start + axis.start for start, axis in zip(origin, region, strict=True))
    plan, staging = opened.plan, opened.staging
    elements = checked_block(block, name, shape, plan.dtype)
    return opened.stage(lambda: write_block(elements, corner, plan, staging, threads))


def checked_block(
    block: Any, name: str, shape: tuple[int, ...], wanted: np.dtype[Any]
) -> NDArray[Any]:
    """Cast a block; its shape and dtype must be those of the dask array."""
    if np.shape(block) != shape:
        raise ValueError(
            f"{name} has the shape {np.shape(block)}, but the array has blocks of "
            f"{shape} here; if a function changes shapes, pass chunks= to map_blocks"
        )
    if isinstance(block, np.ma.MaskedArray):
        raise TypeError(
            f"{name} is a masked array, and a frame has no masks: pass da.ma.filled(x, value)"
        )
    dtype = np.asarray(block).dtype
    if not fits(dtype, wanted):
        raise TypeError(
            f"{name} has the dtype {dtype}, but the array has the dtype "
            f"{wanted}; if a function changes dtypes, pass dtype= to map_blocks"
        )
    return checked_cast(block, wanted, name)
