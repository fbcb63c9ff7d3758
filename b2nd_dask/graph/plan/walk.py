"""Find what the tasks of an optimized graph read of frames, and which frames they write."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping
from functools import partial
from typing import Any, NamedTuple

from b2nd_dask.format.grid import parse_selection
from b2nd_dask.frame.array import Frame, reference_of
from b2nd_dask.frame.joined import JoinedReference, Readable
from b2nd_dask.frame.rechunk.intermediate_frame import open_intermediate
from b2nd_dask.frame.write.idempotent import open_staging
from b2nd_dask.frame.write.parts import open_part
from b2nd_dask.frame.write.writer import FramePlan
from b2nd_dask.graph._dask_compat import (
    Alias,
    DataNode,
    GraphNode,
    Task,
    TaskRef,
    _execute_subgraph,
    core,
)
from b2nd_dask.graph.optimize.calls.arg_reductions import Search
from b2nd_dask.graph.optimize.calls.elementwise import BoundWork
from b2nd_dask.graph.optimize.rules.index_pushdown import Window, index_block
from b2nd_dask.graph.optimize.rules.pushdown import kind_of, value_of
from b2nd_dask.graph.optimize.rules.read_at_once import read_at_once
from b2nd_dask.graph.optimize.rules.reduction_pushdown import BlockReduction, reduce_block
from b2nd_dask.graph.plan.memory import (
    held_by_reduction,
    held_by_search,
    held_by_work,
    held_in,
    results_of,
)
from b2nd_dask.graph.plan.reads import FoundRead, Recorder, found_read
from b2nd_dask.graph.plan.rechunks import (
    RECHUNK_TASKS,
    Source,
    Sources,
    box_of,
    call_of,
    index_of,
)
from b2nd_dask.graph.read.blocks import ConstantRegion, FrameRegion
from b2nd_dask.graph.write.rechunk.job import verify_task
from b2nd_dask.graph.write.write_tasks import write_task
from b2nd_dask.storage import Staging

_READERS = (core.getter, core.getter_inline, core.getter_nofancy)


class FoundWrite(NamedTuple):
    """A frame that tasks write."""

    plan: FramePlan
    staging: Staging
    is_intermediate: bool = False
    """Whether the same graph reads it, and the end removes it."""


class FoundTask(NamedTuple):
    """What one task does with frames."""

    reads: list[FoundRead]
    writes: bool
    plan: FramePlan | None = None
    """Of the frame that it writes to, where the task itself says so."""


class _Site(NamedTuple):
    """A call that reads a frame, in a task."""

    func: Any
    source: Any
    """Region, reference or source of a rechunk."""
    index: Any
    rest: tuple[Any, ...]
    """The other arguments."""
    plan: FramePlan | None = None
    """Of the frame that a task of a rechunk writes to."""


def tasks_of(graph: Mapping[Any, Any]) -> Iterator[FoundTask]:
    """What each task of a graph does with frames; nothing of those that do nothing with them."""
    walk = _Walk(graph)
    for node in graph.values():
        found = walk.task(node)
        if found.reads or found.writes:
            yield found


def writes_of(graph: Mapping[Any, Any]) -> list[FoundWrite]:
    """Frames that are written, each once."""
    found: dict[Any, FoundWrite] = {}
    for node in graph.values():
        func, args = call_of(node)
        opening = func.func if isinstance(func, partial) else func
        if opening in (open_staging, open_part):
            write = FoundWrite(*(value_of(arg) for arg in args[:2]))
        elif opening is open_intermediate:
            intermediate = value_of(args[0])
            write = FoundWrite(intermediate.plan, intermediate.staging, is_intermediate=True)
        else:
            continue
        # tasks of several steps open the same area
        found.setdefault((write.staging.label, write.staging.key), write)
    return list(found.values())


def is_run(node: Any) -> bool:
    """Whether a node of a graph is a task that a scheduler runs."""
    if isinstance(node, GraphNode):
        return not isinstance(node, DataNode)
    return isinstance(node, tuple) and bool(node) and callable(node[0])


class _Place(NamedTuple):
    """A read in the tasks of a layer."""

    site: _Site
    """In the first of them."""
    source_at: int | None
    """Which of the task's arguments is the source; None where it is the same in all."""
    index_at: int | None

    def in_task(self, given: list[Any]) -> _Site:
        """The read in another task."""
        source = self.site.source if self.source_at is None else given[self.source_at]
        index = self.site.index if self.index_at is None else given[self.index_at]
        return self.site._replace(source=source, index=index)


class _Walk:
    def __init__(self, graph: Mapping[Any, Any]) -> None:
        self._graph = graph
        self._known_held: dict[tuple[Any, ...], float] = {}
        # with a task of each, since identities are part of the keys
        self._layers: dict[Hashable, tuple[Any, list[_Place], bool, float]] = {}
        self._sources = Sources(self._node)

    def task(self, node: Any) -> FoundTask:
        """What a task of the graph does."""
        func, _ = call_of(node)
        if not callable(func):
            return FoundTask([], writes=False)
        if func is _execute_subgraph:
            return self._fused(node)
        sites, writes = self._sites(node, {})
        reads = [read for site in sites for read in self._reads(site, 0.0)]
        plans = [site.plan for site in sites if site.plan is not None]
        return FoundTask(reads, writes, plans[0] if plans else None)

    def _fused(self, node: Task) -> FoundTask:
        inner, out, names, *values = node.args
        layer = id(inner), out, names, *map(kind_of, values)
        given = [value_of(value) for value in values]
        if layer not in self._layers:
            sites, writes = self._sites(node, {})
            places = [
                _Place(site, _position(site.source, given), _position(site.index, given))
                for site in sites
            ]
            self._layers[layer] = node, places, writes, self._held(node, sites)
        _, places, writes, held = self._layers[layer]
        reads = [read for place in places for read in self._reads(place.in_task(given), held)]
        return FoundTask(reads, writes)

    def _held(self, node: Task, sites: list[_Site]) -> float:
        """What work in a fused task holds: alike for the same functions of the same dtypes."""
        functions = (id(getattr(task, "func", None)) for task in node.args[0].values())
        work = *functions, *(_frame_of(site.source).dtype for site in sites)
        if work not in self._known_held:
            self._known_held[work] = held_in(node)
        return self._known_held[work]

    def _sites(self, node: Any, scope: Mapping[Any, Any]) -> tuple[list[_Site], bool]:
        """The reads in a task, and whether one of its calls writes a block."""
        if isinstance(node, list | tuple) and not callable(call_of(node)[0]):
            args: tuple[Any, ...] = tuple(node)
            func = None
        elif not isinstance(node, Task | tuple):
            return [], False
        elif isinstance(node, Task) and node.func is _execute_subgraph:
            inner, _, names, *values = node.args
            inside = {n: self._known(v, scope) for n, v in zip(names, values, strict=True)}
            func, args, scope = None, tuple(inner.values()), {**scope, **inside}
        else:
            func, args = call_of(node)
            site = self._site(func, args, scope)
            if site is not None:
                return [site], site.plan is not None
            args += tuple(getattr(node, "kwargs", {}).values())
        sites, writes = [], func is write_task
        for arg in args:
            more, more_writes = self._sites(arg, scope)
            sites += more
            writes = writes or more_writes
        return sites, writes

    def _site(self, func: Any, args: tuple[Any, ...], scope: Mapping[Any, Any]) -> _Site | None:
        if func in (reduce_block, index_block) or func in _READERS:
            source, index, *rest = (self._known(arg, scope) for arg in args)
            if isinstance(source, FrameRegion | ConstantRegion | Readable | Frame):
                return _Site(func, source, index, tuple(rest))
        elif func is read_at_once:
            source, axes = (self._known(arg, scope) for arg in args[:2])
            return _Site(func, source, axes, ())
        elif func in RECHUNK_TASKS:
            return self._rechunk_site(func, args, scope)
        elif len(args) == 2 and (region := box_of(self._known(args[1], scope))) is not None:
            # a block of an array that is read as passes are
            found = self._sources.of(self._known(args[0], scope))
            return found and _Site(func, found, region, ())
        return None

    def _rechunk_site(self, func: Any, args: tuple[Any, ...], scope: Mapping[Any, Any]) -> _Site:
        source = self._sources.of(self._known(args[0], scope))
        if source is None:
            raise ValueError(f"plan does not know what a task reads: {func.__name__} of {args[0]}")
        values = [value_of(self._node(self._known(arg, scope))) for arg in args[1:]]
        plan = next((value for value in values if isinstance(value, FramePlan)), None)
        if func is verify_task:
            source, values = source.of_frame(values[0]), values[1:]
        return _Site(func, source, index_of(func, values), (), plan)

    def _node(self, arg: Any) -> Any:
        """The node of the graph that an argument refers to, or the argument."""
        while isinstance(arg, TaskRef | Alias):
            key = arg.key if isinstance(arg, TaskRef) else arg.target
            if key not in self._graph:
                return arg
            arg = self._graph[key]
        return self._node(self._graph[arg]) if isinstance(arg, str) and arg in self._graph else arg

    def _known(self, arg: Any, scope: Mapping[Any, Any]) -> Any:
        """The value of an argument, where the graph tells it."""
        if isinstance(arg, TaskRef | Alias):
            key = arg.key if isinstance(arg, TaskRef) else arg.target
            if key in scope:
                return scope[key]
            found = self._graph.get(key)
            return found.value if isinstance(found, DataNode) else arg
        return value_of(arg)

    def _reads(self, site: _Site, held: float) -> list[FoundRead]:
        if isinstance(site.source, Source):
            return [site.source.read(site.index)._replace(held=held)]
        frame = _readable(site.source)
        if site.func is read_at_once:
            return [found_read(frame, site.index, held)]
        if site.func is reduce_block:
            step, region = site.rest[0], _region(site.index, frame)
            return [] if _is_told(frame, region, step) else [_reduced(frame, region, step)]
        if site.func is index_block:
            func, work, _, *arguments = site.rest
            held = max(held, held_by_work(work, frame.dtype))
            return _indexed(frame, site.index, func, arguments, held)
        return [found_read(frame, _region(site.index, frame), held)]


def _position(value: Any, given: list[Any]) -> int | None:
    return next((i for i, one in enumerate(given) if one is value), None)


def _frame_of(source: Any) -> Any:
    """What has the dtype of what is read."""
    return source.frame if isinstance(source, Source) else _readable(source)


def _readable(source: Any) -> Readable:
    if isinstance(source, Frame):
        return reference_of(source)
    frame: Readable = source if isinstance(source, Readable) else source.frame
    return frame


def _region(index: Any, frame: Readable) -> tuple[range, ...]:
    try:
        return parse_selection(index, frame.shape).axes
    except IndexError:
        # lists of positions, of which dask leaves few here
        return tuple(map(range, frame.shape))


def _is_told(frame: Readable, region: tuple[range, ...], step: BlockReduction) -> bool:
    """Whether statistics of chunks tell all of a reduction; what they tell in part counts."""
    if not step.asks or step.work.dependencies or not all(region):
        return False
    how = step.chunk.streamed(BoundWork(step.work, {}, frame.dtype)).reduction
    return frame.untold_nbytes(region, how) == 0


def _reduced(frame: Readable, region: tuple[range, ...], step: BlockReduction) -> FoundRead:
    """The read of a reduction, chunk by chunk where `JoinedReference.reduce` takes them so."""
    held = held_by_reduction(step, frame.dtype)
    found = found_read(frame, region, held, is_streamed=True)
    several = isinstance(frame, JoinedReference) and (frame.stacked or len(found.pieces) > 1)
    shape = tuple(map(len, region))
    if not several or not isinstance(step.chunk, Search):
        return found._replace(results=results_of(step, frame.dtype, shape))
    held = held_by_search(step.chunk, step.work, frame.dtype, shape)
    return found._replace(is_streamed=False, held=held)


def _indexed(
    frame: Readable, block: Any, func: Any, arguments: list[Any], held: float
) -> list[FoundRead]:
    """What is read of a block when it is indexed."""
    recorder = Recorder(frame, held)
    try:
        func(Window(recorder, block), *arguments)  # type: ignore[arg-type]
    except Exception:  # noqa: BLE001 - an index that only a running graph knows
        return [found_read(frame, _region(block, frame), held)]
    return recorder.reads
