"""`rechunk`: copy a frame to a frame with other chunks, within a memory limit."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import dask.array as da
from dask.delayed import Delayed

from b2nd_dask.format.grid import Grid
from b2nd_dask.frame.access import open_b2nd
from b2nd_dask.frame.array import Frame, reference_of
from b2nd_dask.frame.members.listing import sources_of
from b2nd_dask.frame.members.writable import target_of
from b2nd_dask.frame.rechunk.one_pass import Budget, OnePass, shown
from b2nd_dask.frame.rechunk.work import StoredChunks, View
from b2nd_dask.frame.reference import FrameReference
from b2nd_dask.frame.write.new_frame import FramePlan
from b2nd_dask.frame.write.transaction import Transaction
from b2nd_dask.graph.read.from_b2nd import array_of
from b2nd_dask.graph.read.sizes import by_axis, own_or_auto
from b2nd_dask.graph.write.options import WriteOptions, check_mode, new_plan
from b2nd_dask.graph.write.rechunk_job import (
    Elements,
    IntermediateFrames,
    RechunkJob,
    budget_of,
)
from b2nd_dask.graph.write.to_b2nd import new_frame, run_job
from b2nd_dask.storage import Location

#: Bytes of chunks that one task copies as stored.
_COPIED_AT_ONCE = 64 << 20


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
    if isinstance(chunks, Mapping):
        chunks = tuple(map(by_axis(chunks, source.ndim).get, range(source.ndim)))
    if isinstance(chunks, tuple | list) and len(chunks) == source.ndim:
        # other axes keep their chunks, as in dask's `rechunk`
        axes = zip(chunks, source.chunks, strict=True)
        chunks = tuple(own if size is None else size for size, own in axes)
    options = WriteOptions(
        mode=mode,
        chunks=chunks,
        blocks=blocks,
        cparams=frame.cparams if cparams is None else cparams,
        meta=meta,
        vlmeta=vlmeta,
        contiguous=contiguous,
        stats=source.statistics is not None if stats is None else stats,
        resume=resume,
        fsync=fsync,
        max_mem=max_mem,
        compute=compute,
    )
    plan = new_plan(array, options)
    if blocks is None and plan.grid.chunks == source.chunks:
        plan = new_plan(array, replace(options, blocks=source.blocks))
    target = new_frame(location, plan, source, options)
    job = _rechunk_job(source, target, options)
    return run_job(job, location, compute=compute)


def _rechunk_job(source: FrameReference, target: Transaction, options: WriteOptions) -> RechunkJob:
    """Plan the passes from a source frame to a new frame."""
    plan = target.plan
    budget = budget_of(options.max_mem, target.staging, is_remote=source.is_remote)
    frames = IntermediateFrames(target, budget)
    if source.grid.nchunks and not _stays(source, plan):
        return frames.rechunked(frames.elements_of(source, View.whole(source.shape)), "rechunk")
    made = frames.task("source", StoredChunks(source))
    elements = Elements(made, source.grid, source.dtype)
    way = _copying_pass(plan.grid, budget)
    return RechunkJob(transaction=target, source=elements, way=way)


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


def _stays(source: FrameReference, plan: FramePlan) -> bool:
    """Whether the stored chunks of both frames have the same bytes."""
    parsed = source.parsed
    return (
        source.grid == plan.grid
        and source.dtype == plan.dtype
        and parsed.header.compression == plan.compression
        and (source.statistics is not None or not plan.stats)
    )


def _copying_pass(grid: Grid, budget: Budget) -> OnePass:
    """The pass that copies stored chunks; its regions are ranges of chunk numbers."""

    def each(given: Budget) -> int:
        return 2 * given.read_batch + given.write_batch + 3 * grid.chunk_nbytes

    concurrency = budget.concurrency(each(budget))
    if not concurrency:
        raise budget.too_little(f"to copy chunks of {shown(grid.chunk_nbytes)}", each)
    # time and memory are 0, since no other pass is compared; the grid has one axis: chunk numbers
    numbers = Grid((grid.nchunks,), (1,), (1,), 1)
    region = (max(1, _COPIED_AT_ONCE // max(1, grid.chunk_nbytes)),)
    return OnePass(numbers, region, concurrency, 0.0, 0.0, 0.0, decodes=0.0)
