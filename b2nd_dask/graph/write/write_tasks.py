"""The tasks of a write: blocks, merged records, and the commit that publishes the frame."""

from __future__ import annotations

import itertools
import logging
import math
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import dask.array as da
import numpy as np
from dask.base import optimize as dask_optimize
from dask.delayed import Delayed
from dask.highlevelgraph import HighLevelGraph
from dask.optimization import cull
from numpy.typing import NDArray

from b2nd_dask.frame.read.buffers import BOX_NBYTES
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
from b2nd_dask.graph.read.blocks import Chunks, constant_of, regions_of
from b2nd_dask.graph.resources import available
from b2nd_dask.graph.task_names import of_frame
from b2nd_dask.graph.write.chunk_sizes import aligned_to
from b2nd_dask.storage import Staging
from b2nd_dask.system import usable_cores

logger = logging.getLogger("b2nd_dask")

#: Number of record tables that one task merges.
FAN_IN = 32


def task_of(label: str, step: str, task: Any, *behind: Any) -> Delayed:
    """A single task, or a value, with its dependencies.

    Its name shows the step and the frame at the path or URL `label`. It is unique, since a
    scheduler would reuse a task with a known name.
    """
    name = step + of_frame(label, uuid.uuid4().hex)
    return Delayed(name, HighLevelGraph.from_collections(name, {name: task}, behind))


def opening(transaction: Transaction) -> Delayed:
    """The task that starts a write: before any block, and only when the graph is computed."""
    return task_of(transaction.staging.label, "open", (begin, transaction))


@dataclass(frozen=True, eq=False)
class Job:
    """A planned write that makes its graph; names of tasks are a step and a common suffix."""

    transaction: Transaction
    opened: Delayed
    """The task that starts the transaction."""
    dropped: str = field(default="", kw_only=True)
    """A warning about metadata that the frame loses, or empty."""

    def graph(self) -> Delayed:
        """The tasks; they compute to the frame's path, and reuse staged chunks."""
        raise NotImplementedError

    def name(self, step: str) -> str:
        """Name a step."""
        return step + str(self.opened.key).removeprefix("open")

    def missing(
        self, chunks: Chunks, origin: tuple[int, ...], constant: ChunkRecords | None = None
    ) -> tuple[NDArray[np.bool_], ChunkRecords]:
        """Find the blocks to compute, and the records of all other blocks.

        `chunks` are the lengths of the blocks, which consist of whole frame chunks; `origin` is the
        index of the first element in the frame. The records are those of earlier runs, or without
        `resume` those of constant chunks.
        """
        missing = np.ones(tuple(map(len, chunks)), bool)
        plan, staging, known = self.transaction.plan, self.transaction.staging, constant
        grid = plan.grid
        if staging.resumable:
            manifests = read_manifests(staging).values()
            known = staged_records(manifests, staging, plan.row, grid.nchunks)
        if known is None:
            return missing, ChunkRecords.of_special(plan.row)
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
        return missing, ChunkRecords(known.parts, rows)

    def committed(
        self, tasks: Mapping[Any, Any], keys: Sequence[Any], known: ChunkRecords
    ) -> Delayed:
        """Add tasks that merge records, `FAN_IN` tables each, and the commit.

        `keys` are the tasks of records, `known` are all other records.
        """
        graph, level = {**tasks, **self.opened.dask}, 0
        if not keys or len(known.rows):
            keys = [*keys, self.name("known")]
            graph[keys[-1]] = known
        while len(keys) > 1 or level == 0:
            groups = [list(keys[at : at + FAN_IN]) for at in range(0, len(keys), FAN_IN)]
            keys = [(self.name("merge"), level, i) for i in range(len(groups))]
            graph |= {key: (merge_records, group) for key, group in zip(keys, groups, strict=True)}
            level += 1
        key = self.name("commit")
        graph[key] = commit, self.opened.key, keys[0]
        return Delayed(key, HighLevelGraph.from_collections(key, graph))


@dataclass(frozen=True, eq=False)
class WriteJob(Job):
    """The write of an array to a position in the frame."""

    elements: da.Array
    """The array, in any blocks."""
    origin: tuple[int, ...]
    """Element index of the array's first element in the frame; the corner of a chunk."""
    groups: bool = False
    """Whether a task may read and write several small chunks, which takes more memory."""

    def graph(self) -> Delayed:
        """As `Job.graph`."""
        return write_graphs([self])[0]


def _chunk_ranges(sizes: tuple[int, ...], start: int, chunk: int) -> list[slice]:
    edges = itertools.accumulate(sizes, initial=start)
    return [slice(a // chunk, -(-b // chunk)) for a, b in itertools.pairwise(edges)]


def with_concurrency(
    work: dict[Any, tuple[Any, ...]], concurrency: int
) -> dict[Any, tuple[Any, ...]]:
    """Let each task depend on the task `concurrency` positions earlier: no more run at once.

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


def constant_element(arr: da.Array) -> NDArray[Any] | None:
    """The 0-d element of an array made by `da.zeros`, `da.full` and the like; else None.

    Examples
    --------
    >>> constant_element(da.full((10**6, 10**6), 2.5))
    array(2.5)
    >>> constant_element(da.zeros(5) + 1) is None
    True
    """
    return constant_of(_dask_compat.only_layer(arr), arr.ndim)


class _Blocks(NamedTuple):
    """The blocks of an array that a job computes, and the records of all others."""

    job: WriteJob
    array: da.Array
    """The array in blocks of whole frame chunks."""
    keys: list[tuple[Any, ...]]
    """Keys of the tasks that compute and write blocks."""
    known: ChunkRecords


def _blocks_of(job: WriteJob) -> _Blocks:
    plan, origin = job.transaction.plan, job.origin
    array = aligned_to(job.elements, plan.grid.chunks, groups=job.groups)
    no_constant = job.transaction.staging.resumable or 0 in array.shape
    element = None if no_constant else constant_element(job.elements)
    # records of constant chunks, which need no data
    made = None
    if element is not None:
        chunks = ChunkBox.of(origin, array.shape, plan.grid).chunks(plan.grid)
        made = constant_records(element, chunks, plan)
    is_missing, known = job.missing(array.chunks, origin, made)
    keys = [(job.name("write"), *at) for at in np.argwhere(is_missing).tolist()]
    return _Blocks(job, array, keys, known)


def write_graphs(jobs: Sequence[WriteJob]) -> list[Delayed]:
    """Build the tasks that write several frames; compute what they share once."""
    each = list(map(_blocks_of, jobs))
    # Optimized together, since each write alone would fuse shared tasks into its own. Writes that
    # compute no block are left out: dask would leave some of their layers whole in the graph.
    computing = [blocks for blocks in each if blocks.keys]
    optimized = _fused if _dask_compat.has_layers() else _appended
    tasks = optimized(computing, _threads_of_a_task(computing)) if computing else {}
    return [blocks.job.committed(tasks, blocks.keys, blocks.known) for blocks in each]


def _threads_of_a_task(each: Sequence[_Blocks]) -> int:
    """Threads to compress a large chunk: more than one if there are fewer tasks than threads."""
    if not any(blocks.job.transaction.plan.grid.chunk_nbytes > BOX_NBYTES for blocks in each):
        return 1
    return max(1, min(available().threads, usable_cores()) // sum(len(b.keys) for b in each))


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
        name=blocks.job.name("write"),
        dtype=object,
        meta=np.empty((0,) * arr.ndim, object),
        origin=blocks.job.origin,
        # a Delayed in place of the array would not fuse
        opened=blocks.job.opened,
        threads=threads,
    )
    return records


def _fused(each: Sequence[_Blocks], threads: int) -> dict[Any, Any]:
    """Optimize the blocks to compute together with the tasks that write them."""
    records = [_records_of(blocks, threads) for blocks in each]
    graph = HighLevelGraph.merge(*(array.__dask_graph__() for array in records))
    keys = [key for blocks in each for key in [*blocks.keys, *blocks.job.opened.dask]]
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
    planning = _dask_compat.has_query_planning()
    arrays = [array.optimize() for array in arrays] if planning else dask_optimize(*arrays)
    for blocks, array in zip(each, arrays, strict=True):
        tasks |= {**array.__dask_graph__(), **blocks.job.opened.dask}
        common = blocks.job.origin, blocks.job.opened.key, threads
        regions = dict(zip(np.ndindex(array.numblocks), regions_of(array.chunks), strict=True))
        for key in blocks.keys:
            writes[key] = (write_task, (array.name, *key[1:]), regions[key[1:]], *common)
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
