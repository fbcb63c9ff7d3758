"""`plan` and its result: numbers and a text."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from dask.base import is_dask_collection

from b2nd_dask.frame.info import decimal, lengths_text
from b2nd_dask.graph import _dask_compat
from b2nd_dask.lazy import lazy

#: More frames than this are shown together as one.
_MOST_SHOWN = 10


@dataclass(frozen=True)
class _FrameFields:
    """A frame: its location, and its grid of chunks and blocks."""

    path: str
    """Path, or URL without secrets."""
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    chunk_shape: tuple[int, ...]
    block_shape: tuple[int, ...]


@dataclass(frozen=True)
class _Counts:
    """Counts of the reads from one frame, or from all frames of a computation."""

    reads: int
    """Number of regions that tasks read."""
    chunks: int
    """Number of chunks with data that are read, in whole or in part."""
    blocks: int
    """Number of blocks to decode; a block counts each time it is decoded."""
    constants: int
    """Visits of chunks that the index marks as zeros, NaN or never written; not read."""
    fetch_nbytes: int
    """Compressed bytes to fetch from the file or store; intermediate frames count as
    uncompressed."""
    decode_nbytes: int
    """Bytes to decode, including the padding of blocks."""


def total_of(frames: Iterable[_Counts]) -> dict[str, int]:
    """The sums of the counts of frames, by field."""
    every = list(frames)
    return {each.name: sum(getattr(one, each.name) for one in every) for each in fields(_Counts)}


@dataclass(frozen=True)
class FrameReads(_Counts, _FrameFields):
    """The reads of a computation from one frame."""

    visits: int
    """Number of pairs of a region and a chunk with data that it reads."""
    is_intermediate: bool = False
    """Whether the computation itself writes the frame first. Its compression is unknown: bytes to
    fetch, and chunks without data, count as uncompressed."""

    def __str__(self) -> str:
        return _text(self.path, _rows_of_frames([self]))


@dataclass(frozen=True)
class Target(_FrameFields):
    """A frame that a computation writes."""

    chunks: int
    """Number of chunks of the whole frame."""
    contiguous: bool
    """Whether the frame is one file."""
    is_intermediate: bool = False
    """Whether the computation reads the frame again and then removes it."""

    def __str__(self) -> str:
        return _text(self.path, _rows_of_target(self))


@dataclass(frozen=True)
class Plan(_Counts):
    """The cost estimate of a computation; made by `plan`. Its counts are those of all frames."""

    tasks: int
    """Number of tasks of the optimized graph."""
    frames: tuple[FrameReads, ...]
    """The reads from each frame; text and table sum up more than ten frames."""
    targets: tuple[Target, ...]
    """The written frames."""
    writing_tasks: int
    """Number of tasks that write a block."""
    peak_nbytes: int
    """Maximum bytes of one task that reads frames: its block, results of functions of the
    block, and scratch buffers. As many tasks run concurrently as there are threads; results of
    other tasks that wait are not counted."""

    _repr_html_ = lazy("b2nd_dask.edges.display.pages", "plan_html")

    def __repr__(self) -> str:
        return "\n\n".join(itertools.starmap(_text, sections(self)))


def plan(*collections: Any) -> Plan:
    """Estimate the cost of dask collections before they are computed.

    The graph is optimized as in `dask.compute`. The rest follows from the offset indices of the
    frames, and no chunk is read. The lengths of compressed blocks are stored in the chunks, so all
    blocks of a chunk count as equally long. Answers of statistics to whole reductions do not count;
    chunks that a mask or ``where`` may prune (``x[x > t]``) do, since they need memory.

    Parameters
    ----------
    *collections : dask collection
        Arrays, also of `dask_array`, objects of xarray, results of
        ``to_b2nd(..., compute=False)``; computed together.

    Returns
    -------
    Plan
        Prints as text, shows as a table in a notebook, and has numbers as attributes. Excluded are
        the costs of opening frames and of sources other than frames.

    Raises
    ------
    TypeError
        An argument is no dask collection.
    NotImplementedError
        Arrays are expressions: dask's ``array.query-planning`` is on.

    Examples
    --------
    >>> import blosc2, numpy as np
    >>> from b2nd_dask import from_b2nd
    >>> x = from_b2nd(blosc2.asarray(np.arange(10_000).reshape(100, 100), chunks=(10, 100)))
    >>> found = plan(x[:50].sum())
    >>> found.chunks, found.decode_nbytes
    (5, 40000)
    """
    for number, collection in enumerate(collections):
        if not is_dask_collection(collection):
            raise TypeError(
                f"argument {number} is a {type(collection).__name__}, not a dask collection: pass "
                "a result of from_b2nd or to_b2nd(..., compute=False) that is not computed yet"
            )
    if _dask_compat.has_query_planning():
        raise NotImplementedError(
            "plan does not support graphs that dask makes with array.query-planning: set "
            "DASK_ARRAY__QUERY_PLANNING=False before dask.array is imported"
        )
    # imported here: only plans need these private names of dask
    from b2nd_dask.graph.plan.walk import plan_of

    return plan_of(collections)


Rows = list[tuple[str, str]]


def sections(estimate: Plan) -> list[tuple[str, Rows]]:
    """Titles of the sections of a plan, and the rows of each."""
    targets = [(f"writes {target.path}", _rows_of_target(target)) for target in estimate.targets]
    frames = _shown_frames(estimate.frames)
    return [("Plan", _rows_of_plan(estimate)), *frames, *targets]


def _rows_of_plan(estimate: Plan) -> Rows:
    rows = [("tasks", f"{estimate.tasks:,}")]
    if estimate.frames:
        rows += _rows_of_bytes(estimate, estimate.frames)
        rows.append(("peak of a task", decimal(estimate.peak_nbytes)))
    else:
        rows.append(("frames", "none is read; the cost of other sources is unknown"))
    if estimate.targets:
        rows.insert(1, ("writing tasks", f"{estimate.writing_tasks:,}"))
    return rows


def _shown_frames(frames: Sequence[FrameReads]) -> list[tuple[str, Rows]]:
    """A title and rows for each frame, or for all together if there are many."""
    if len(frames) <= _MOST_SHOWN:
        return [(f"reads {frame.path}", _rows_of_frames([frame])) for frame in frames]
    title = f"reads {len(frames):,} frames, from {frames[0].path} to {frames[-1].path}"
    return [(title, _rows_of_frames(frames))]


def _rows_of_frames(frames: Sequence[FrameReads]) -> Rows:
    """Rows of the reads from frames together; the attributes of a plan list each frame."""
    grids = {tuple(_grid(frame)) for frame in frames}
    sizes = {math.prod(frame.block_shape) * frame.dtype.itemsize for frame in frames}
    counts = _Counts(**total_of(frames))
    often = sum(frame.visits for frame in frames) / counts.chunks if counts.chunks else 1
    return [
        *(grids.pop() if len(grids) == 1 else [("arrays", f"of {len(grids):,} kinds")]),
        ("chunks read", f"{counts.chunks:,}" + f", {often:.1f} times each" * (often > 1)),
        ("blocks", f"{counts.blocks:,}" + f" of {decimal(max(sizes))}" * (len(sizes) == 1)),
        ("constants", f"{counts.constants:,}, not read"),
        *_rows_of_bytes(counts, frames),
    ]


def _rows_of_target(target: Target) -> Rows:
    layout = "contiguous" if target.contiguous else "sparse"
    return [*_grid(target), ("number of chunks", f"{target.chunks:,}, {layout}")]


def _rows_of_bytes(counts: _Counts, frames: Sequence[FrameReads]) -> Rows:
    unknown = ", with intermediate frames counted as uncompressed"
    fetch = decimal(counts.fetch_nbytes) + unknown * any(f.is_intermediate for f in frames)
    return [("fetch", fetch), ("decode", decimal(counts.decode_nbytes))]


def _grid(frame: FrameReads | Target) -> Rows:
    array = f"{lengths_text(frame.shape)} {frame.dtype}" + ", intermediate" * frame.is_intermediate
    cells = f"{lengths_text(frame.chunk_shape)}, in blocks of {lengths_text(frame.block_shape)}"
    return [("array", array), ("chunks", cells)]


def _text(title: str, rows: Rows) -> str:
    width = max(len(name) for name, _ in rows)
    return "\n".join([title, *(f"  {name:<{width}}  {value}" for name, value in rows)])
