"""Find what the tasks of an optimized graph read of frames, and which frames they write."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from b2nd_dask.format.grid import parse_selection
from b2nd_dask.frame.array import Frame, reference_of
from b2nd_dask.frame.reference import FrameReference
from b2nd_dask.frame.write.idempotent import open_staging
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
from b2nd_dask.graph.optimize.rules.index_pushdown import Window, index_block
from b2nd_dask.graph.optimize.rules.pushdown import kind_of, value_of
from b2nd_dask.graph.optimize.rules.reduction_pushdown import reduce_block
from b2nd_dask.graph.plan.memory import held_by_reduction, held_by_work, held_in
from b2nd_dask.graph.read.blocks import ConstantRegion, FrameRegion
from b2nd_dask.graph.write.write_tasks import write_task
from b2nd_dask.storage import Staging

_GETTERS = (core.getter, core.getter_inline, core.getter_nofancy)
Region = tuple[range, ...]


class FoundRead(NamedTuple):
    """A region of a frame that a task reads."""

    frame: FrameReference
    region: Region
    is_streamed: bool
    """Whether chunks are reduced one by one, and no array of the region is built."""
    held: float
    """Bytes that work on the elements holds beside them, for each byte of elements."""


class FoundWrite(NamedTuple):
    """A frame that tasks write."""

    plan: FramePlan
    staging: Staging


class FoundTask(NamedTuple):
    """What one task does with frames."""

    reads: list[FoundRead]
    writes: bool


class _Site(NamedTuple):
    """A call that reads a frame, in a task."""

    func: Any
    source: Any
    """Region or reference."""
    index: Any
    rest: tuple[Any, ...]
    """The other arguments."""


def tasks_of(graph: Mapping[Any, Any]) -> Iterator[FoundTask]:
    """What each task of a graph does with frames; nothing of those that do nothing with them."""
    walk = _Walk(graph)
    for node in graph.values():
        found = walk.task(node)
        if found.reads or found.writes:
            yield found


def writes_of(graph: Mapping[Any, Any]) -> list[FoundWrite]:
    """Frames that are written, each once."""
    found: list[FoundWrite] = []
    for node in graph.values():
        func, args = _call_of(node)
        if func is open_staging:
            plan, staging = (value_of(arg) for arg in args)
            found.append(FoundWrite(plan, staging))
    return found


def is_run(node: Any) -> bool:
    """Whether a node of a graph is a task that a scheduler runs."""
    if isinstance(node, GraphNode):
        return not isinstance(node, DataNode)
    return isinstance(node, tuple) and bool(node) and callable(node[0])


def _call_of(node: Any) -> tuple[Any, tuple[Any, ...]]:
    if isinstance(node, Task):
        return node.func, tuple(node.args)
    # as the tasks that write are made
    return (node[0], node[1:]) if isinstance(node, tuple) and node else (None, ())


class _Walk:
    def __init__(self, graph: Mapping[Any, Any]) -> None:
        self._graph = graph
        self._known_held: dict[tuple[int, ...], float] = {}
        # with a task of each, since identities are part of the keys
        self._layers: dict[Hashable, tuple[Any, list[tuple[_Site, int | None]], bool, float]] = {}

    def task(self, node: Any) -> FoundTask:
        """What a task of the graph does."""
        if not isinstance(node, Task):
            return FoundTask([], writes=False)
        if node.func is _execute_subgraph:
            return self._fused(node)
        sites, writes = self._sites(node, {})
        reads = [read for site in sites for read in self._reads(site, 0.0)]
        return FoundTask(reads, writes)

    def _fused(self, node: Task) -> FoundTask:
        inner, out, names, *values = node.args
        layer = id(inner), out, names, *map(kind_of, values)
        if layer not in self._layers:
            sites, writes = self._sites(node, {})
            given = [value_of(value) for value in values]
            positions = [
                next((i for i, value in enumerate(given) if value is site.index), None)
                for site in sites
            ]
            known = list(zip(sites, positions, strict=True))
            self._layers[layer] = node, known, writes, self._held(node, sites)
        _, known, writes, held = self._layers[layer]
        reads = []
        for site, position in known:
            index = site.index if position is None else value_of(values[position])
            reads += self._reads(site._replace(index=index), held)
        return FoundTask(reads, writes)

    def _held(self, node: Task, sites: list[_Site]) -> float:
        """What work in a fused task holds: alike for the same functions of the same frames."""
        functions = (id(getattr(task, "func", None)) for task in node.args[0].values())
        work = *functions, *(id(_frame_of(site.source)) for site in sites)
        if work not in self._known_held:
            self._known_held[work] = held_in(node)
        return self._known_held[work]

    def _sites(self, node: Any, scope: Mapping[Any, Any]) -> tuple[list[_Site], bool]:
        """The reads in a task, and whether one of its calls writes a block."""
        if isinstance(node, list | tuple):
            args: tuple[Any, ...] = tuple(node)
            func = None
        elif not isinstance(node, Task):
            return [], False
        elif node.func is _execute_subgraph:
            inner, _, names, *values = node.args
            inside = {n: self._known(v, scope) for n, v in zip(names, values, strict=True)}
            func, args, scope = None, tuple(inner.values()), {**scope, **inside}
        else:
            func, args = node.func, (*node.args, *node.kwargs.values())
            site = self._site(func, node.args, scope)
            if site is not None:
                return [site], False
        sites, writes = [], func is write_task
        for arg in args:
            more, more_writes = self._sites(arg, scope)
            sites += more
            writes = writes or more_writes
        return sites, writes

    def _site(self, func: Any, args: tuple[Any, ...], scope: Mapping[Any, Any]) -> _Site | None:
        if func in (reduce_block, index_block) or func in _GETTERS:
            source, index, *rest = (self._known(arg, scope) for arg in args)
            if isinstance(source, FrameRegion | ConstantRegion | FrameReference | Frame):
                return _Site(func, source, index, tuple(rest))
        return None

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
        frame = _frame_of(site.source)
        if site.func is reduce_block:
            held = held_by_reduction(site.rest[0], frame.dtype)
            return [FoundRead(frame, _region(site.index, frame), is_streamed=True, held=held)]
        if site.func is index_block:
            func, work, _, *arguments = site.rest
            held = max(held, held_by_work(work, frame.dtype))
            regions = _indexed(frame, site.index, func, arguments)
            return [FoundRead(frame, region, is_streamed=False, held=held) for region in regions]
        return [FoundRead(frame, _region(site.index, frame), is_streamed=False, held=held)]


def _frame_of(source: Any) -> FrameReference:
    if isinstance(source, Frame):
        return reference_of(source)
    frame: FrameReference = source if isinstance(source, FrameReference) else source.frame
    return frame


def _region(index: Any, frame: FrameReference) -> Region:
    try:
        return parse_selection(index, frame.shape).axes
    except IndexError:
        # lists of positions, of which dask leaves few here
        return tuple(map(range, frame.shape))


def _indexed(frame: FrameReference, block: Any, func: Any, arguments: list[Any]) -> list[Region]:
    """Regions that a block is read in when it is indexed."""
    recorder = _Recorder(frame)
    try:
        func(Window(recorder, block), *arguments)  # type: ignore[arg-type]
    except Exception:  # noqa: BLE001 - an index that only a running graph knows
        return [_region(block, frame)]
    return recorder.regions


class _Recorder:
    """Looks like a frame to `Window`, and notes what is read of it."""

    def __init__(self, frame: FrameReference) -> None:
        self.shape = frame.shape
        self.blocks = frame.blocks
        self.dtype = frame.dtype
        self.regions: list[Region] = []

    def read_axes(self, axes: Region) -> NDArray[Any]:
        """Note a region; return elements of its shape."""
        self.regions.append(axes)
        return np.broadcast_to(np.zeros((), self.dtype), tuple(map(len, axes)))

    def read(self, index: Any) -> Any:
        """Note a region by its index."""
        selection = parse_selection(index, self.shape)
        return self.read_axes(selection.axes)[selection.finish]

    def read_points(self, coords: tuple[NDArray[np.int64], ...]) -> NDArray[Any]:
        """Note the blocks of single elements, as a region each."""
        blocks = np.array(self.blocks)[:, None]
        for corner in np.unique(np.stack(coords) // blocks * blocks, axis=1).T.tolist():
            self.regions.append(tuple(range(at, at + 1) for at in corner))
        return np.zeros(len(coords[0]), self.dtype)
