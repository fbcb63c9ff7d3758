"""Rechunks by passes: `rechunk` of a frame, and the intermediate frames of any bounded write.

A job is one pass: its tasks read regions and write a frame.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import dask.array as da
import numpy as np
from dask.base import tokenize
from dask.delayed import Delayed

from b2nd_dask.format.grid import Grid, steps
from b2nd_dask.frame.access import open_b2nd
from b2nd_dask.frame.array import Frame, reference_of
from b2nd_dask.frame.joined import Readable
from b2nd_dask.frame.members.listing import sources_of
from b2nd_dask.frame.members.writable import target_of
from b2nd_dask.frame.rechunk.one_pass import LEAST_BATCH, Budget, OnePass
from b2nd_dask.frame.rechunk.passes import (
    MOST_CHUNK,
    copying_pass,
    flat_pass,
    log_passes,
    plan_passes,
)
from b2nd_dask.frame.rechunk.work import (
    FlatSource,
    IntermediateFrame,
    RegionSource,
    StoredChunks,
    View,
    begin_intermediate,
    open_view,
    rechunk_region,
)
from b2nd_dask.frame.reference import FrameReference
from b2nd_dask.frame.write.new_frame import FramePlan, halved
from b2nd_dask.frame.write.records import ChunkRecords
from b2nd_dask.frame.write.transaction import Transaction
from b2nd_dask.graph.read.blocks import BlockRead, Chunks, regions_of
from b2nd_dask.graph.read.from_b2nd import array_of
from b2nd_dask.graph.read.sizes import by_axis, own_or_auto
from b2nd_dask.graph.resources import available, nbytes_of
from b2nd_dask.graph.write.options import WriteOptions, check_mode, new_plan
from b2nd_dask.graph.write.to_b2nd import new_frame, run_job
from b2nd_dask.graph.write.write_tasks import Job, WriteJob, opening, task_of, with_concurrency
from b2nd_dask.storage import Location, Staging

#: Default of `max_mem`: this share of the memory, and at most so many bytes per thread.
_SHARE, _MOST_OF_THREAD = 1 / 4, 512 << 20
#: Compressed bytes of one read from a store, if the memory allows.
_REMOTE_BATCH = 64 << 20


def rechunk(
    src: Any,
    dst: Any,
    *,
    chunks: Any,
    blocks: Any = None,
    cparams: Any = None,
    max_mem: int | float | str | None = None,
    mode: str = "w-",
    meta: Mapping[str, Any] | str | None = "keep",
    vlmeta: Mapping[str, Any] | str | None = "keep",
    contiguous: bool = True,
    storage_options: Mapping[str, Any] | None = None,
    compute: bool = True,
    resume: bool = False,
    fsync: bool = True,
    stats: bool | None = None,
) -> da.Array | Delayed:
    """Write a frame with other chunks to a new frame, within a memory limit; all or nothing.

    Each task reads a region of whole new chunks, decodes only the blocks that it touches, and
    compresses it. If regions that fit into the memory would decode blocks too often, the elements
    go through an intermediate frame in the staging area beside `dst`. Unchanged chunks are copied
    without decoding.

    Parameters
    ----------
    src : str, os.PathLike, bytes, blosc2.NDArray or Frame
        As for `open_b2nd`. For several frames, pass the array of `from_b2nd` to `to_b2nd` with
        `max_mem`.
    dst : str or os.PathLike
        Path of the new frame, or an fsspec URL. May be the source frame itself.
    chunks : int or tuple of int
        Elements of a chunk along each axis, or another value that dask's ``rechunk`` accepts.
    blocks, contiguous, compute, resume, fsync
        As for `to_b2nd`.
    cparams, meta, vlmeta, stats
        As for `to_b2nd`; defaults are those of `src`, with statistics if it has them.
    max_mem : int or str, optional
        Bytes of memory, or a text such as ``"512MB"``, for the work in all threads and processes
        together, beyond their memory while idle. By default a quarter of the memory, at most
        512 MiB per thread.
    mode : {"w-", "w"}
        Whether an existing frame is replaced, as for `to_b2nd`.
    storage_options : mapping, optional
        For the fsspec filesystems of URLs. Open a source with other options by `open_b2nd`.

    Returns
    -------
    dask.array.Array or dask.delayed.Delayed
        The new frame, opened by `from_b2nd`; or a Delayed that computes to its path or URL.

    Raises
    ------
    FileExistsError
        The target exists, and `mode` does not replace it.
    ValueError
        `max_mem` is too small for any plan (the message gives the minimum), or chunks, blocks or
        metadata do not fit; or `src` is a list or a pattern.
    ChecksumError, CorruptChunkError
        A chunk of `src` is damaged; `dst` is unchanged.
    StaleFrameError
        `src` changed during the rechunk.

    Examples
    --------
    >>> import pathlib, tempfile
    >>> import dask.array as da
    >>> folder = pathlib.Path(tempfile.mkdtemp())
    >>> maps = da.to_b2nd(da.ones((60, 90, 180), chunks=(1, 90, 180)), folder / "maps.b2nd")
    >>> series = rechunk(
    ...     folder / "maps.b2nd", folder / "series.b2nd", chunks=(60, 10, 20), max_mem="64MB"
    ... )
    >>> series.chunksize
    (60, 10, 20)
    """
    check_mode(mode)
    location = target_of(dst, storage_options, contiguous=contiguous)
    frame = _opened(src, storage_options)
    source = reference_of(frame)
    array = array_of(source, own_or_auto(source.grid.nchunks))
    chunks = by_axis(chunks, source.ndim)
    if isinstance(chunks, tuple | list) and len(chunks) == source.ndim:
        # other axes keep their chunks, as in dask's `rechunk`
        axes = zip(chunks, source.chunks, strict=True)
        chunks = tuple(max(1, own) if size is None else size for size, own in axes)
    options = WriteOptions(
        mode=mode,
        chunks=chunks,
        blocks=blocks,
        cparams=frame.cparams if cparams is None else cparams,
        meta=meta,
        vlmeta=vlmeta,
        contiguous=contiguous,
        stats=source.parsed.statistics is not None if stats is None else stats,
        resume=resume,
        fsync=fsync,
        max_mem=max_mem,
        compute=compute,
    )
    plan = new_plan(array, options)
    if blocks is None and plan.grid.chunks == source.chunks:
        plan = new_plan(array, replace(options, blocks=source.blocks))
    target = new_frame(location, plan, source, options)
    return run_job(_rechunk_job(source, target, options), location, compute=compute)


def _rechunk_job(source: FrameReference, target: Transaction, options: WriteOptions) -> RechunkJob:
    """Plan the passes from a source frame to a new frame."""
    plan = target.plan
    budget = budget_of(options.max_mem, target.staging, is_remote=source.is_remote)
    frames = IntermediateFrames(target, budget)
    if source.grid.nchunks and not _can_copy_chunks(source, plan):
        return frames.rechunked(frames.elements_of(source, View.whole(source.shape)), "rechunk")
    made = frames.task("source", StoredChunks(source))
    elements = Elements(made, source.grid, source.dtype)
    return RechunkJob(target, frames.opened, elements, copying_pass(plan.grid, budget))


def _opened(src: Any, storage_options: Mapping[str, Any] | None) -> Frame:
    if isinstance(src, Frame):
        return src
    if isinstance(src, list | tuple) or sources_of(src, storage_options) is not None:
        raise ValueError(
            f"src={src!r} means several frames, and rechunk takes one: pass "
            "from_b2nd(src).rechunk(chunks) to to_b2nd(..., dst, max_mem=)"
        )
    # the options belong to the target's store: a local source gets none
    remote = isinstance(src, str) and Location.of(src).is_url
    return open_b2nd(src, storage_options=storage_options if remote else None)


def _can_copy_chunks(source: FrameReference, plan: FramePlan) -> bool:
    """Whether the stored chunks of the source can be copied to the new frame."""
    parsed = source.parsed
    return (
        source.grid == plan.grid
        and source.dtype == plan.dtype
        and parsed.header.compression == plan.compression
        and (source.parsed.statistics is not None or not plan.stats)
    )


def budget_of(max_mem: Any, staging: Staging, *, is_remote: bool) -> Budget:
    """Divide the user's memory limit among threads and buffers; errors as for `nbytes_of`."""
    resources = available()
    if max_mem is None:
        most = min(resources.memory * _SHARE, resources.threads * _MOST_OF_THREAD)
    else:
        most = nbytes_of(max_mem)
    most_batch = _REMOTE_BATCH if is_remote else LEAST_BATCH
    return Budget(most, max(1, resources.threads), staging.batch_nbytes, most_batch)


class Elements(NamedTuple):
    """Readable elements of frames, in the order of the target's axes."""

    made: Delayed
    """The task that returns the `Source`."""
    grid: Grid
    dtype: np.dtype[Any]


@dataclass(frozen=True, eq=False)
class RechunkJob(Job):
    """The pass that writes elements of frames to a frame with other chunks."""

    source: Elements
    pass_plan: OnePass

    def graph(self) -> Delayed:
        """The graph of `Job.graph`: tasks that write regions, and the commit."""
        made, name = self.source.made, self.name("write")
        sizes = tuple(map(steps, self.pass_plan.target.shape, self.pass_plan.region))
        missing, known = self.missing(sizes, (0,) * len(sizes))
        work = {
            (name, *at): (rechunk_region, made.key, region, self.opened.key)
            for at, region in zip(np.ndindex(missing.shape), regions_of(sizes), strict=True)
            if missing[at]
        }
        tasks = with_concurrency(work, self.pass_plan.concurrency)
        return self.committed({**made.dask, **tasks}, list(work), known)


class IntermediateFrames:
    """The intermediate frames of a write: each is written once, before it is read.

    `budget` is the memory that remains beside the planned tasks. With `for_functions`, functions
    read some of these frames, and run again if the write is retried.
    """

    def __init__(self, target: Transaction, budget: Budget, *, for_functions: bool = False) -> None:
        self._target, self._staging = target, target.staging
        self.task = partial(task_of, target.staging.label)
        self.budget = budget
        self._for_functions = for_functions
        # also the target's: a second task would recreate the staging area after a failure
        self.opened = opening(target)
        # by name and grid: the frame and its commit
        self._written: dict[tuple[str, Grid], tuple[IntermediateFrame, Delayed]] = {}

    def elements_of(self, frame: Readable, view: View) -> Elements:
        """The elements of a view of the user's frames."""
        part = BlockRead.of(frame, view.window)
        view = replace(view, window=part.axes)
        reads = RegionSource(part.source, view, self.budget.read_batch)
        return Elements(self.task("source", reads), view.grid_of(part.source.grid), frame.dtype)

    def rechunked(self, source: Elements, name: str) -> RechunkJob:
        """Make the job that rechunks elements to the target; `name` is the name of its passes."""
        source, pass_plan = self._to_last_pass(source, self._target.plan.grid, name)
        return RechunkJob(self._target, self.opened, source, pass_plan)

    def written(self, array: da.Array, view: View | None = None) -> Elements:
        """Write an array to an intermediate frame; return a view's elements, by default all."""
        # a length that divides all blocks but the last
        chunks = tuple(math.gcd(*axis[:-1]) or max(1, axis[0]) for axis in array.chunks)
        grid = Grid(array.shape, chunks, chunks, array.dtype.itemsize)
        make = partial(WriteJob, elements=array, origin=(0,) * array.ndim)
        return self._once(array.name, grid, array.dtype, make, view)

    def reshaped(self, source: Elements, shape: tuple[int, ...], name: str, view: View) -> Elements:
        """Write elements in another shape, by ranges in C order; return the elements of a view."""
        pass_plan = flat_pass(shape, source.grid.itemsize, self.budget)
        self.budget = self.budget.without(pass_plan.graph_nbytes)
        task = FlatSource, source.made.key, source.grid.shape, shape
        flat = self.task("flat", task, source.made)
        make = partial(RechunkJob, source=source._replace(made=flat), pass_plan=pass_plan)
        return self._once(name, pass_plan.target, source.dtype, make, view)

    def in_chunks(self, source: Elements, chunks: Chunks, name: str) -> Elements:
        """Rechunk elements to an intermediate frame whose chunks are these blocks."""
        sizes = halved([max(axis) for axis in chunks], source.grid.itemsize, MOST_CHUNK)
        grid = Grid(source.grid.shape, sizes, sizes, source.grid.itemsize)

        def make(intermediate: Transaction, opened: Delayed) -> RechunkJob:
            return RechunkJob(intermediate, opened, *self._to_last_pass(source, grid, name))

        return self._once(name, grid, source.dtype, make)

    def _to_last_pass(self, source: Elements, grid: Grid, name: str) -> tuple[Elements, OnePass]:
        """The last pass to a frame and its source; earlier passes write intermediate frames."""
        passes = plan_passes(source.grid, grid, self.budget)
        log_passes(self._staging.label, passes)
        for number, pass_plan in enumerate(passes.steps[:-1]):
            make = partial(RechunkJob, source=source, pass_plan=pass_plan)
            source = self._once(f"{name}-{number}", pass_plan.target, source.dtype, make)
        return source, passes.steps[-1]

    def _once(
        self,
        name: str,
        grid: Grid,
        dtype: np.dtype[Any],
        make: Callable[..., Job],
        view: View | None = None,
    ) -> Elements:
        """The elements of a view of an intermediate frame; one job writes it for all views."""
        if (name, grid) not in self._written:
            key = tokenize(self._staging.key, name, grid)[:16]
            intermediate = IntermediateFrame.of(self._staging, grid, dtype, key)
            task = (begin_intermediate, intermediate, self.opened.key, self._for_functions)
            opened = self.task("open", task, self.opened)
            if intermediate.staging.resumable and intermediate.is_published():
                nothing = ChunkRecords.of_special(intermediate.plan.row)
                commit = Job(intermediate, opened).committed({}, [], nothing)
            else:
                commit = make(intermediate, opened).graph()
            self._written[name, grid] = intermediate, commit
        intermediate, commit = self._written[name, grid]
        view = view or View.whole(grid.shape)
        read = open_view, intermediate, view, self.budget.read_batch, commit.key
        made = self.task("source", read, commit)
        return Elements(made, view.grid_of(intermediate.plan.grid), dtype)
