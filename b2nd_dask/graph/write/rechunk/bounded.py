"""`to_b2nd` within a stated memory: dask's rechunks, transposes and reshapes become passes.

What they read is a frame, or is written to an intermediate frame first, in its own blocks. So no
task ever needs more than blocks that it reads or writes. Functions between them keep the blocks
that dask gave them.
"""

from __future__ import annotations

import math
from typing import Any

import dask.array as da
import numpy as np
from dask.highlevelgraph import HighLevelGraph

from b2nd_dask.frame.read.decode_cost import decodes_per_block
from b2nd_dask.frame.rechunk.one_pass import PER_KEY, TooLittleMemoryError, shown
from b2nd_dask.frame.rechunk.source import Box, RegionSource
from b2nd_dask.graph import _dask_compat
from b2nd_dask.graph.layers.layers import Layers, View, function_name
from b2nd_dask.graph.read.blocks import Chunks, writable
from b2nd_dask.graph.write.align import aligned_sizes
from b2nd_dask.graph.write.rechunk.budget import budget_of
from b2nd_dask.graph.write.rechunk.intermediate import (
    Elements,
    IntermediateFrames,
    elements_of,
    passes_to,
)
from b2nd_dask.graph.write.rechunk.job import LaterSource, RechunkJob, boxes_of
from b2nd_dask.graph.write.running import Job
from b2nd_dask.graph.write.write_tasks import WriteJob, named

#: Blocks that a task of functions is taken to hold: what it reads, temporary results, what it
#: compresses.
_BLOCKS_OF_TASK = 4
#: So often more memory is tried until all steps have enough.
_TRIES = 20
#: Bytes of arrays in the graph that dask itself may rechunk.
_SMALL = 1 << 20


def bounded_job(job: WriteJob, max_mem: Any) -> Job:
    """Make a job that writes the same elements within a stated memory.

    Raises
    ------
    ValueError
        There is no plan for the array, with the function that is in the way, or the memory is too
        small.
    """
    if not _dask_compat.has_layers() or not isinstance(job.elements.dask, HighLevelGraph):
        raise ValueError(
            "max_mem= needs dask arrays of layers, which this dask, or its option "
            "array.query-planning, does not have: leave max_mem= out"
        )
    try:
        return _Bounded(job, max_mem).job()
    except TooLittleMemoryError as error:
        raise _for_all_steps(job, error) from None


def _for_all_steps(job: WriteJob, error: TooLittleMemoryError) -> TooLittleMemoryError:
    """The error of the step that needs the most, where that of another step is known.

    Intermediate frames have larger chunks where there is more memory, and then what reads them
    needs more, too.
    """
    asked = error.asked
    for _ in range(_TRIES):
        try:
            # as it is shown, which is what the user passes
            _Bounded(job, shown(error.least)).job()
        except TooLittleMemoryError as another:
            error = another
        else:
            break
    return TooLittleMemoryError(asked, error.least, error.what, error.advice)


class _Bounded:
    """What is planned for one array."""

    def __init__(self, job: WriteJob, max_mem: Any) -> None:
        self._write = job
        self._array = job.elements
        self._layers = Layers(job.elements.dask)
        names = job.elements.dask.layers
        frames = [self._layers.frame(name) for name in names]
        is_remote = any(frame is not None and frame.is_remote for frame in frames)
        budget = budget_of(max_mem, job.staging, is_remote=is_remote)
        # tasks that stay as dask has made them
        kept = [name for name in names if not (self._is_view(name) or self._is_read(name))]
        keys = sum(len(names[name]) for name in kept)
        budget = budget.without(keys * PER_KEY)
        # functions that read what is moved run again where the write does
        again = any(
            self._is_view(below)
            for name in names
            for below, _ in self._layers.inputs(name) or ()
            if not self._is_view(name)
        )
        self._frames = IntermediateFrames(job, budget, reads_again=again)
        # by their names: several views may be of one
        self._bases: dict[str, da.Array] = {}

    def job(self) -> Job:
        """The job of the last step, with all others in its graph."""
        array, plan = self._array, self._write.plan
        if not plan.grid.nchunks:
            return self._write
        if self._is_view(array.name) or self._layers.frame(array.name) is not None:
            return self._rechunked(self._elements(array.name, array.shape))
        elements = self._replaced(array)
        self._check_blocks(elements)
        sizes = aligned_sizes(array.chunks, plan.grid.chunks, array.dtype.itemsize)
        if sizes == array.chunks:
            return self._write._replace(elements=elements)
        whole = View(array.name, tuple(range(array.ndim)))
        return self._rechunked(self._frames.written(elements, whole))

    def _rechunked(self, source: Elements) -> RechunkJob:
        job = self._write
        if source.grid.shape != job.plan.grid.shape:
            raise _not_understood(self._array.name)
        passes = passes_to(job.plan.grid, source, self._frames.budget, job.staging.label)
        return RechunkJob(source.reads, passes, self._frames.budget.threads, job.plan, job.staging)

    def _is_view(self, name: str) -> bool:
        """Whether the elements of a layer are those of another, in other blocks or shape."""
        view = self._layers.view(name)
        moved = view.is_rechunked or self._layers.frame(view.base) is not None
        return (moved and view.base != name) or self._layers.reshaped_from(view.base) is not None

    def _is_read(self, name: str) -> bool:
        """Whether a layer reads frames, or slices of them, as dask's tasks do."""
        cut = self._layers.cut(name)
        return self._layers.frame(name) is not None or (
            cut is not None and self._is_read(cut.source)
        )

    def _elements(self, name: str, shape: tuple[int, ...] | None) -> Elements:
        """The elements of a layer that is a view; its shape where it is known."""
        view = self._layers.view(name)
        frame = self._layers.frame(view.base)
        if frame is not None:
            return elements_of(frame, view, self._frames.budget.read_batch)
        below = self._layers.reshaped_from(view.base)
        if below is not None:
            reshaped = self._base_shape(view, self._layers.chunks(name), shape)
            source = self._elements(below, None)
            if math.prod(source.grid.shape) != math.prod(reshaped):
                raise _not_understood(view.base)
            return self._frames.reshaped(source, reshaped, view)
        if view.base not in self._bases:
            self._bases[view.base] = self._base(view.base)
        return self._frames.written(self._bases[view.base], view)

    def _base(self, name: str) -> da.Array:
        """The blocks of functions that a view is one of."""
        sizes, dtype = self._layers.chunks(name), self._layers.dtype(name)
        if sizes is None:
            raise _not_understood(name)
        if dtype is None:
            raise ValueError(
                f"max_mem= needs the dtype of what {function_name(name)} returns, which the "
                "graph does not say: pass dtype= where the function is called, as to map_blocks, "
                "or leave max_mem= out"
            )
        graph = self._array.dask.cull_layers([name])
        base = self._replaced(da.Array(graph, name, sizes, dtype=dtype))
        self._check_blocks(base)
        return base

    def _base_shape(
        self, view: View, sizes: Chunks | None, shape: tuple[int, ...] | None
    ) -> tuple[int, ...]:
        """The shape of the base of a view, by what is known of the base or of the view."""
        known = self._layers.chunks(view.base)
        if known is not None:
            return tuple(map(sum, known))
        if shape is None and sizes is not None:
            shape = tuple(map(sum, sizes))
        if shape is None or view.window is not None:
            raise _not_understood(view.base)
        below = [0] * len(shape)
        for axis, n in zip(view.order, shape, strict=True):
            below[axis] = n
        return tuple(below)

    def _replaced(self, array: da.Array) -> da.Array:
        """The same array, of which all views are read from frames."""
        reads: dict[str, dict[Any, Any]] = {}
        self._replace(array.name, array.chunks, reads)
        if not reads:
            return array
        below = {name: layer for name, layer in array.dask.layers.items() if name not in reads}
        layers: dict[str, Any] = {**below, **reads}
        dependencies = {
            name: set() if name in reads else array.dask.dependencies[name] for name in layers
        }
        graph = HighLevelGraph(layers, dependencies).cull_layers([array.name])
        return da.Array(graph, array.name, array.chunks, dtype=array.dtype)

    def _replace(self, name: str, chunks: Chunks, reads: dict[str, dict[Any, Any]]) -> None:
        """Find the views below a layer, and add the tasks that read them."""
        if name in reads or self._is_read(name):
            return
        if self._is_view(name):
            if not self._is_small(name):
                reads[name] = self._reading(name, chunks)
            return
        inputs = self._layers.inputs(name)
        if inputs is None:
            if self._array.dask.dependencies[name]:
                raise _not_understood(name)
            return
        for below, axes in inputs:
            known = self._layers.chunks(below)
            if known is None:
                if None in axes:
                    raise _not_understood(below)
                known = tuple(chunks[axis] for axis in axes if axis is not None)
            self._replace(below, known, reads)

    def _is_small(self, name: str) -> bool:
        """Whether a view is one of a small array that the graph holds, which dask may move."""
        base = self._layers.view(name).base
        return self._layers.is_held(base) and self._layers.nbytes(base) <= _SMALL

    def _reading(self, name: str, chunks: Chunks) -> dict[Any, Any]:
        """Tasks that read the blocks of a view."""
        shape = tuple(map(sum, chunks))
        source = self._elements(name, shape)
        numbers = list(np.ndindex(*map(len, chunks)))
        keys = self._array.dask.layers[name].get_output_keys()
        known = {key[1:] for key in keys if key[0] == name}
        if source.grid.shape != shape or known != set(numbers):
            raise _not_understood(name)
        if source.stored or decodes_per_block(source.grid, chunks) > 1:
            source = self._frames.in_chunks(source, chunks, name)
        if isinstance(source.reads, LaterSource):
            graph, key = dict(source.reads.graph), source.reads.key
        else:
            key = named("source", self._frames.token())
            graph = {key: source.reads}
        for at, region in zip(numbers, boxes_of(chunks), strict=True):
            graph[(name, *at)] = (_read, key, region)
        return graph

    def _check_blocks(self, array: da.Array) -> None:
        """Raise ValueError where blocks of functions need more memory than there is."""
        budget = self._frames.budget
        block = math.prod(max(axis, default=0) for axis in array.chunks) * array.dtype.itemsize
        least = block * _BLOCKS_OF_TASK * budget.threads
        if least > budget.nbytes:
            raise budget.too_little(
                f"for blocks of {shown(block)} in {budget.threads} threads, of which a task "
                f"of {function_name(array.name)} takes about {_BLOCKS_OF_TASK} at once",
                lambda more: least <= more.nbytes,
                "read the frame in smaller blocks (chunks= of from_b2nd), or compute in fewer "
                "threads",
            )


def _not_understood(name: str) -> ValueError:
    function = function_name(name)
    if function == "getitem":
        function = "indexing by integers, lists or slices with steps"
    return ValueError(
        f"max_mem= cannot bound the memory of {function}: only rechunks, transposes, reshapes and "
        "slices of frames are planned, with functions of single blocks before, between and behind "
        "them. Write the array before that step to a frame, and go on from that frame; or leave "
        "max_mem= out"
    )


def _read(source: RegionSource, region: Box) -> Any:
    """Task that reads a block; functions may change it in place."""
    return writable(source.read(region))
