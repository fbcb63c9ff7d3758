"""The job of a write, what goes where in the frame; its tasks: blocks, merged records, commit."""

from __future__ import annotations

import math
import uuid
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import dask.array as da
import numpy as np
from dask.delayed import Delayed
from dask.highlevelgraph import HighLevelGraph
from dask.optimization import cull
from numpy.typing import NDArray

from b2nd_dask.format.grid import Grid
from b2nd_dask.frame.reference import FrameReference
from b2nd_dask.frame.write.casts import checked_cast, fits
from b2nd_dask.frame.write.commit import commit_frame
from b2nd_dask.frame.write.idempotent import (
    OpenedStaging,
    finish_once,
    open_staging,
    write_block_once,
)
from b2nd_dask.frame.write.new_frame import pack_entries
from b2nd_dask.frame.write.others import ChunkBox, UpdateBase
from b2nd_dask.frame.write.records import ChunkRecords, merge_records
from b2nd_dask.frame.write.update import commit_update, content_of, update_plan, update_staging
from b2nd_dask.frame.write.writer import FramePlan, constant_records
from b2nd_dask.graph import _dask_compat
from b2nd_dask.graph.task_names import of_frame
from b2nd_dask.graph.write.align import aligned_to
from b2nd_dask.graph.write.checked_cast import converted
from b2nd_dask.graph.write.input_arrays import constant_element
from b2nd_dask.graph.write.patch import append_patch, region_patch
from b2nd_dask.graph.write.resume import (
    finished_key,
    log_reused,
    resume_key,
    unstaged_blocks,
    update_call,
    update_key,
)
from b2nd_dask.storage import Location, Staging, staging_for

#: Tables of records that one task merges.
FAN_IN = 32


class WriteJob(NamedTuple):
    """Elements, where they go in which frame, and the function that publishes it."""

    elements: da.Array
    """In any blocks."""
    origin: tuple[int, ...]
    """Index of the first element in the frame; the corner of a chunk."""
    plan: FramePlan
    staging: Staging
    finish: Callable[[ChunkRecords, FramePlan, Any], str]
    """Makes a frame of the staged chunks, and returns its path or URL."""
    open: Callable[[FramePlan, Any], OpenedStaging] = open_staging
    """Makes or finds the staging area."""
    token: str = ""
    """End of the names of tasks; by default a new one of the frame that is written."""

    def graph(self, staged: ChunkRecords | None) -> Delayed:
        """Build the tasks; see `write_graph`."""
        return write_graph(self, staged)


def new_job(
    array: da.Array,
    location: Location,
    plan: FramePlan,
    *,
    replace: bool,
    resume: bool,
    fsync: bool,
) -> WriteJob:
    """Make the job of writing a new frame; raise OSError where the target cannot be written."""
    origin = (0,) * array.ndim
    state = "w" if replace else "w-"
    staging = staging_for(
        location,
        sparse=plan.sparse,
        replace=replace,
        header_len=len(plan.header()),
        resume_key=resume_key(array, origin, plan, location.label, state) if resume else None,
        fsync=fsync,
    )
    return WriteJob(array, origin, plan, staging, commit_frame)


def update_job(
    array: da.Array,
    location: Location,
    frame: FrameReference,
    region: Any,
    append_axis: int | None,
    *,
    resume: bool,
    fsync: bool,
    entries: Mapping[str, Any] | None = None,
) -> WriteJob:
    """Make the job of changing a frame.

    Parameters
    ----------
    frame : FrameReference
        The frame as it is now.
    region, append_axis
        As for `to_b2nd`.
    resume : bool
        Whether to go on with what another run has staged.
    fsync : bool
        Whether the change is on the disk when it is published.
    entries : mapping, optional
        Entries of vlmeta that change together with the elements.

    Raises
    ------
    ValueError
        The array does not fit the region or the axis.
    UnsupportedFrameError
        The frame cannot be changed in place.
    """
    array = converted(array, frame.dtype)
    # raises where the frame cannot be changed in place, before anything of it is read
    staging = update_staging(location, frame.parsed, fsync=fsync)
    call = update_call(array, (region, append_axis), location.label) if resume else ""
    if resume and (key := finished_key(location, call)) is not None:
        plan = update_plan(frame.parsed, frame.shape)
        staging = update_staging(location, frame.parsed, resume_key=key, fsync=fsync)
        return WriteJob(array, (0,) * frame.ndim, plan, staging, commit_frame)
    # others may update it while the old elements of cut chunks are read
    followed = frame.following()
    if region is not None:
        patch = region_patch(array, followed, region)
    else:
        patch = append_patch(array, followed, int(append_axis or 0))
    plan = update_plan(frame.parsed, patch.shape)
    if resume:
        content = content_of(location, frame, patch.cut_chunks(frame.parsed.grid))
        key = update_key(call, patch.corner, plan, content)
        staging = update_staging(location, frame.parsed, resume_key=key, fsync=fsync)
    box = ChunkBox.of(patch.origin, patch.elements.shape, plan.grid)
    base = UpdateBase.of(frame.parsed, box, carries=patch.elements is not patch.new)
    packed = pack_entries(entries, compressed=True)
    finish = partial(commit_update, base=base, entries=packed)
    return WriteJob(patch.elements, patch.origin, plan, staging, finish)


def write_graph(job: WriteJob, staged: ChunkRecords | None = None) -> Delayed:
    """Build the tasks that write an array: blocks, merged records, commit.

    Parameters
    ----------
    staged : ChunkRecords, optional
        Chunks that are staged already. A block is not computed if all its chunks are among them.

    Returns
    -------
    dask.delayed.Delayed
        Computes to the frame's path or URL.
    """
    blocks = _blocks_of(job, staged)
    tasks = _planned_blocks(blocks) if _dask_compat.is_planned() else _optimized([blocks])
    return _with_commit(blocks, tasks)


def write_graphs(jobs: Sequence[WriteJob]) -> list[Delayed]:
    """Build the tasks that write several frames, so that what they share is computed once."""
    if _dask_compat.is_planned():
        return [write_graph(job) for job in jobs]
    each = [_blocks_of(job, None) for job in jobs]
    # together: by itself each would fuse what it shares with others into tasks of its own
    tasks = _optimized(each) if each else {}
    return [_with_commit(blocks, tasks) for blocks in each]


class _Blocks(NamedTuple):
    """The blocks of a job that are written."""

    job: WriteJob
    array: da.Array
    token: str
    missing: NDArray[np.bool_]
    """Whether a block is to be computed."""
    known: Mapping[Any, Any]
    """Tasks of what is known already."""

    @property
    def opening(self) -> str:
        """Key of the task that opens the staging area."""
        return named("open", self.token)

    @property
    def keys(self) -> list[Any]:
        """Keys of the tasks that write blocks."""
        name = named("write", self.token)
        return [(name, *at) for at in np.ndindex(self.missing.shape) if self.missing[at]]


def _blocks_of(job: WriteJob, staged: ChunkRecords | None) -> _Blocks:
    """Tell which blocks are to be computed."""
    array = aligned_to(job.elements, job.plan.grid.chunks)
    token = job.token or new_token(job.staging.label)
    missing, extra = np.ones(array.numblocks, bool), {}
    grid = job.plan.grid
    known = _special_records(job.elements, job.origin, grid) if staged is None else staged
    if known is not None:
        missing, reused = unstaged_blocks(array.chunks, job.origin, grid, known)
        extra = {named("known", token): reused}
    if staged is not None:
        nchunks = math.prod(-(-n // c) for n, c in zip(array.shape, grid.chunks, strict=True))
        log_reused(job.staging.label, len(reused.rows), nchunks)
    return _Blocks(job, array, token, missing, extra)


def _with_commit(blocks: _Blocks, tasks: Mapping[Any, Any]) -> Delayed:
    """Add what opens the staging area, merges records and publishes the frame."""
    job, opening, name = blocks.job, blocks.opening, named("commit", blocks.token)
    tasks = {**tasks, **blocks.known}
    # before any block is written, and only when the graph is computed
    tasks[opening] = (job.open, job.plan, job.staging)
    top = merge_tree([*blocks.keys, *blocks.known], named("merge", blocks.token), tasks)
    tasks[name] = (finish_once, job.finish, top, job.plan, opening)
    return Delayed(name, HighLevelGraph.from_collections(name, tasks))


def _special_records(arr: da.Array, origin: tuple[int, ...], grid: Grid) -> ChunkRecords | None:
    """Record the chunks of a constant array that need no data; None where blocks are computed."""
    element = constant_element(arr)
    if element is None or 0 in arr.shape:
        return None
    return constant_records(element, origin, arr.shape, grid)


def new_token(label: str) -> str:
    """Make the end of the names of the tasks that write a frame; `label` is its path or URL.

    It is unique: a scheduler that knows a name would take the task that it knows.
    """
    return of_frame(label, uuid.uuid4().hex)


def named(step: str, token: str) -> str:
    """Name the tasks of a step of a write."""
    return step + token


def _records_of(blocks: _Blocks) -> da.Array:
    """An array of records, of which the task of each block reads, computes and writes it."""
    arr, job, opening = blocks.array, blocks.job, blocks.opening
    first: Any = {opening: (job.open, job.plan, job.staging)}
    # a Delayed instead of the array would not fuse
    opened = Delayed(opening, HighLevelGraph.from_collections(opening, first))
    common: dict[str, Any] = {
        "origin": job.origin,
        "plan": job.plan,
        "opened": opened,
        "name": named("write", blocks.token),
        "dtype": object,
        "meta": np.empty((0,) * arr.ndim, object),
    }
    if not _dask_compat.has_layers():
        # where dask lacks what layers of our own are made of
        map_blocks: Any = da.map_blocks
        mapped: da.Array = map_blocks(_write_mapped, arr, **common)
        return mapped
    indices = tuple(range(arr.ndim))
    slices = _dask_compat.ArraySliceDep(arr.chunks)
    records: da.Array = da.blockwise(
        write_task, indices, arr, indices, slices, indices, align_arrays=False, **common
    )
    return records


def _optimized(each: Sequence[_Blocks]) -> dict[Any, Any]:
    """Optimize the tasks of the blocks that are to be computed."""
    records = [_records_of(blocks) for blocks in each]
    graph = HighLevelGraph.merge(*(array.__dask_graph__() for array in records))
    keys = [key for blocks in each for key in [*blocks.keys, blocks.opening]]
    # a collection need not have an optimizer
    optimize = getattr(records[0], "__dask_optimize__", lambda graph, keys: graph)
    return dict(optimize(graph, keys))


def _write_mapped(block: Any, block_info: Any = None, **job: Any) -> ChunkRecords:
    """`write_task` for `map_blocks`, which says where a block lies."""
    region = tuple(slice(*ends) for ends in block_info[0]["array-location"])
    return write_task(block, region, **job)


def _planned_blocks(blocks: _Blocks) -> dict[Any, Any]:
    """As `_optimized`, where dask's option array.query-planning makes arrays expressions."""
    job, opening, missing = blocks.job, blocks.opening, blocks.missing
    expression: Any = blocks.array
    planned = expression.optimize()
    slices = _dask_compat.ArraySliceDep(blocks.array.chunks)
    name = named("write", blocks.token)
    writes = {
        (name, *at): (write_task, key, slices[at], job.origin, job.plan, opening)
        for at, key in zip(np.ndindex(missing.shape), _flat(planned.__dask_keys__()), strict=True)
        if missing[at]
    }
    graph, _ = cull({**planned.__dask_graph__(), **writes, opening: job.staging}, list(writes))
    return dict(graph)


def write_task(
    block: Any,
    region: tuple[slice, ...],
    origin: tuple[int, ...],
    plan: FramePlan,
    opened: OpenedStaging,
) -> ChunkRecords:
    """Write one block, which may be read-only; `region` is its position in the dask array."""
    name = f"{opened.staging.label}: the block at {tuple(axis.start for axis in region)}"
    check_block(block, name, tuple(axis.stop - axis.start for axis in region), plan.dtype)
    corner = tuple(start + axis.start for start, axis in zip(origin, region, strict=True))
    return write_block_once(checked_cast(block, plan.dtype, name), corner, plan, opened)


def check_block(block: Any, name: str, shape: tuple[int, ...], wanted: np.dtype[Any]) -> None:
    """Check that a block has the shape and dtype that the dask array promises."""
    if np.shape(block) != shape:
        raise ValueError(
            f"{name} has the shape {np.shape(block)}, the array "
            f"promises {shape}; where a function changes shapes, pass chunks= to map_blocks"
        )
    if isinstance(block, np.ma.MaskedArray):
        raise TypeError(
            f"{name} is a masked array, and a frame has no masks: pass da.ma.filled(x, value)"
        )
    dtype = np.asarray(block).dtype
    if not fits(dtype, wanted):
        raise TypeError(
            f"{name} has the dtype {dtype}, the array promises "
            f"{wanted}; where a function changes dtypes, pass dtype= to map_blocks"
        )


def merge_tree(keys: list[Any], name: str, tasks: dict[Any, Any]) -> Any:
    """Add tasks that merge records `FAN_IN` at a time, and return the key of the last."""
    level = 0
    while len(keys) > 1 or level == 0:
        groups = [keys[at : at + FAN_IN] for at in range(0, len(keys), FAN_IN)] or [[]]
        merged = [(name, level, i) for i in range(len(groups))]
        tasks.update(
            {key: (merge_records, group) for key, group in zip(merged, groups, strict=True)}
        )
        keys, level = merged, level + 1
    return keys[0]


def _flat(keys: Any) -> list[Any]:
    return [key for part in keys for key in _flat(part)] if isinstance(keys, list) else [keys]
