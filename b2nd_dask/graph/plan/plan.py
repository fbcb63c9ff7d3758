"""`plan`: add up what the tasks of a graph read, decode, hold and write."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from dask.base import is_dask_collection
from dask.optimization import cull

from b2nd_dask.frame.read.read_cost import ReadCosts, Region
from b2nd_dask.graph import _dask_compat
from b2nd_dask.graph.plan.reads import FoundRead, PlannedFrame, ReadFrame
from b2nd_dask.graph.plan.report import FrameReads, Plan, Target
from b2nd_dask.graph.plan.task_memory import TaskMemory

if TYPE_CHECKING:
    from b2nd_dask.graph.plan.walk import FoundTask, FoundWrite


def plan(*collections: Any) -> Plan:
    """Say what computing dask collections takes, before anything is computed.

    The graph is optimized as `dask.compute` would. The offset indices of the frames say the rest:
    no chunk is read. How long the compressed blocks of a chunk are stands in the chunk, so that
    they count as equal parts of it. What statistics tell of whole reductions does not count; chunks
    that a mask or ``where`` may not need (``x[x > t]``) do, as they take memory in any case.

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
                f"argument {number} is no dask collection, but a {type(collection).__name__}: plan "
                "what is not computed yet, as from_b2nd and to_b2nd(..., compute=False) return it"
            )
    if _dask_compat.is_planned():
        raise NotImplementedError(
            "plan does not know the tasks that dask makes with array.query-planning: set "
            "DASK_ARRAY__QUERY_PLANNING=False before dask.array is imported"
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
    """The tasks that `compute` runs, with those that put the blocks of a result together."""
    # looked up here: without these names of dask all but plans is there
    expression: Any = _dask_compat.FinalizeCompute(_dask_compat.collections_to_expr(collections))
    optimized = expression.optimize()
    # dask leaves tasks in the graph that no result needs, and no scheduler runs
    graph, _ = cull(dict(optimized.__dask_graph__()), optimized.__dask_keys__())
    return graph  # type: ignore[no-any-return]


@dataclass
class _OfFrame:
    """What is read of one frame, and the numbers of the reads that it belongs to."""

    frame: ReadFrame
    regions: list[Region] = field(default_factory=list)
    reads: list[int] = field(default_factory=list)


def _by_frame(reads: Iterable[FoundRead]) -> list[_OfFrame]:
    groups: dict[Any, _OfFrame] = {}
    known: dict[int, _OfFrame] = {}
    for number, read in enumerate(reads):
        for frame, region in read.pieces:
            # by identity, since tokens take long; reads keep the references
            if id(frame) not in known:
                token = frame.__dask_tokenize__()
                known[id(frame)] = groups.setdefault(token, _OfFrame(frame))
            group = known[id(frame)]
            group.regions.append(region)
            group.reads.append(number)
    return list(groups.values())


def _read(tasks: list[FoundTask], targets: list[FoundWrite]) -> tuple[tuple[FrameReads, ...], int]:
    """What is read of each frame, and the most that a task holds."""
    memory = TaskMemory(tasks, targets)
    frames = []
    for group in _by_frame(read for task in tasks for read in task.reads):
        costs = group.frame.read_costs(group.regions)
        memory.add(group.frame, group.regions, group.reads, costs)
        frames.append(_of_frame(group.frame, costs))
    return tuple(frames), memory.peak


def _of_frame(frame: ReadFrame, costs: ReadCosts) -> FrameReads:
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
        is_intermediate=isinstance(frame, PlannedFrame),
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
        is_intermediate=found.is_intermediate,
    )
