"""`plan`: add up what the tasks of a graph read, decode, hold and write."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from dask.base import is_dask_collection, optimize

from b2nd_dask.frame.read.read_cost import ReadCosts
from b2nd_dask.frame.reference import FrameReference
from b2nd_dask.graph.plan.report import FrameReads, Plan, Target

if TYPE_CHECKING:
    from b2nd_dask.graph.plan.walk import FoundRead, FoundTask, FoundWrite


def plan(*collections: Any) -> Plan:
    """Say what computing dask collections takes, before anything is computed.

    The graph is optimized as `dask.compute` would. The offset indices of the frames say the rest:
    no chunk is read. How long the compressed blocks of a chunk are stands in the chunk, so that
    they count as equal parts of it.

    Parameters
    ----------
    *collections : dask collection
        Arrays, objects of xarray, what ``to_b2nd(..., compute=False)`` returns; computed together.

    Returns
    -------
    Plan
        To print, or to look at in a notebook; its attributes are numbers. What opening frames takes
        is left out, and so is what other sources than frames take.

    Raises
    ------
    TypeError
        An argument is no dask collection.

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
                f"argument {number} is no dask collection, but a {type(collection).__name__}: plan "
                "what is not computed yet, as from_b2nd and to_b2nd(..., compute=False) return it"
            )
    # it knows the tasks of the optimizer, which needs private names of dask
    from b2nd_dask.graph.plan.walk import is_run, tasks_of, writes_of

    graph = _optimized(collections)
    tasks = list(tasks_of(graph))
    targets = writes_of(graph)
    reads, peak = _read(tasks, targets)
    writing = sum(task.writes for task in tasks)
    return Plan(
        tasks=sum(map(is_run, graph.values())),
        frames=reads,
        targets=tuple(_target(target) for target in targets),
        writing_tasks=writing,
        peak_nbytes=peak,
    )


def _optimized(collections: Iterable[Any]) -> Mapping[Any, Any]:
    graph: dict[Any, Any] = {}
    # those that are optimized together share one graph
    seen: set[int] = set()
    for collection in optimize(*collections):
        found = collection.__dask_graph__()
        if id(found) not in seen:
            seen.add(id(found))
            graph.update(found)
    return graph


@dataclass
class _OfFrame:
    """The reads of one frame, and the numbers of their tasks."""

    frame: FrameReference
    reads: list[FoundRead] = field(default_factory=list)
    tasks: list[int] = field(default_factory=list)


def _by_frame(tasks: list[FoundTask]) -> list[_OfFrame]:
    groups: dict[Any, _OfFrame] = {}
    known: dict[int, _OfFrame] = {}
    for number, task in enumerate(tasks):
        for read in task.reads:
            # by identity, since tokens take long; tasks keep the references
            if id(read.frame) not in known:
                token = read.frame.__dask_tokenize__()
                known[id(read.frame)] = groups.setdefault(token, _OfFrame(read.frame))
            group = known[id(read.frame)]
            group.reads.append(read)
            group.tasks.append(number)
    return list(groups.values())


def _read(tasks: list[FoundTask], targets: list[FoundWrite]) -> tuple[tuple[FrameReads, ...], int]:
    """What is read of each frame, and the most that a task holds."""
    memory = _Memory(tasks, targets)
    frames = []
    for group in _by_frame(tasks):
        costs = group.frame.read_costs([read.region for read in group.reads])
        memory.add(group, costs)
        frames.append(_of_frame(group.frame, costs))
    return tuple(frames), memory.peak


class _Memory:
    """Bytes that tasks hold, a row for each."""

    def __init__(self, tasks: list[FoundTask], targets: list[FoundWrite]) -> None:
        self._targets = targets
        self._writes = np.array([task.writes for task in tasks], bool)
        self._working, self._buffers, self._block, self._fetched = np.zeros((4, len(tasks)))

    def add(self, group: _OfFrame, costs: ReadCosts) -> None:
        """Add the reads of a frame, with the work on their elements."""
        grid, rows = group.frame.grid, group.tasks
        count = np.array([math.prod(map(len, read.region)) for read in group.reads], float)
        nbytes = count * grid.itemsize
        work = np.array([read.held for read in group.reads])
        streamed = np.array([read.is_streamed for read in group.reads], bool)
        at_once = np.where(streamed, np.minimum(costs.largest, nbytes), nbytes)
        buffers = costs.buffers + np.where(costs.direct & ~streamed, 0, costs.largest)
        # what is decoded in another order than that of the elements is copied
        copied = streamed & ((costs.largest < grid.chunk_nbytes) | (not grid.chunk_is_c_order))
        elements = np.where(streamed, at_once * copied, nbytes)
        np.add.at(self._working, rows, buffers + elements + at_once * work)
        np.add.at(self._buffers, rows, buffers)
        np.add.at(self._fetched, rows, costs.fetched)
        np.maximum.at(self._block, rows, count)

    @property
    def peak(self) -> int:
        """The most of all tasks."""
        peaks = [self._working]
        for target in self._targets:
            grid = target.plan.grid
            block = self._block * target.plan.dtype.itemsize
            # a chunk in the order of its blocks, unless it is the block; and as many bytes for its
            # compressed ones, which are about as long as they were
            direct = (block <= grid.chunk_nbytes) & grid.chunk_is_c_order
            chunk = grid.chunk_nbytes * np.where(direct, 1, 2)
            one = self._fetched * np.minimum(1, grid.chunk_nbytes / np.maximum(block, 1))
            encoded = np.clip(self._fetched, None, np.maximum(target.staging.batch_nbytes, one))
            peaks.append(np.where(self._writes, self._buffers + block + chunk + encoded, 0))
        return int(np.max(peaks, initial=0))


def _of_frame(frame: FrameReference, costs: ReadCosts) -> FrameReads:
    grid = frame.grid
    return FrameReads(
        path=frame.location.label,
        shape=grid.shape,
        dtype=frame.dtype,
        chunk_shape=grid.chunks,
        block_shape=grid.blocks,
        reads=len(costs.visits),
        chunks=int(costs.touched.sum()),
        visits=int(costs.visits.sum()),
        blocks=int(costs.blocks.sum()),
        constants=int(costs.constants.sum()),
        fetch_nbytes=round(costs.fetched.sum()),
        decode_nbytes=int(costs.decoded.sum()),
    )


def _target(found: FoundWrite) -> Target:
    grid = found.plan.grid
    return Target(
        path=found.staging.label,
        shape=grid.shape,
        dtype=found.plan.dtype,
        chunk_shape=grid.chunks,
        block_shape=grid.blocks,
        chunks=grid.nchunks,
        contiguous=not found.plan.sparse,
    )
