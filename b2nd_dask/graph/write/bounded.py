"""`to_b2nd` within a memory limit: dask's rechunks, transposes and reshapes become passes.

A pass reads the user's frame, or an intermediate frame with the blocks of the pass's input. So a
task needs memory only for the blocks that it reads or writes. Functions between the passes keep
dask's blocks.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import dask.array as da
import numpy as np
from dask.highlevelgraph import HighLevelGraph

from b2nd_dask.frame.read.buffers import writable
from b2nd_dask.frame.read.read_cost import Boxes
from b2nd_dask.frame.rechunk.one_pass import PER_KEY, TooLittleMemoryError, shown
from b2nd_dask.frame.rechunk.passes import Box
from b2nd_dask.frame.rechunk.work import RegionSource, View
from b2nd_dask.graph import _dask_compat
from b2nd_dask.graph.expression.nodes import Moved, Node, Read
from b2nd_dask.graph.layers.layers import Layers, annotated_dtype
from b2nd_dask.graph.read.blocks import Chunks, regions_of
from b2nd_dask.graph.read.sizes import aligned_sizes
from b2nd_dask.graph.write.input_arrays import numpy_source
from b2nd_dask.graph.write.rechunk import Elements, IntermediateFrames, RechunkJob, budget_of
from b2nd_dask.graph.write.write_tasks import Job, WriteJob

#: Blocks in memory, assumed for a task of functions: inputs, temporary results and the block that
#: is compressed.
_BLOCKS_OF_TASK = 4
#: Maximum number of attempts to find a memory limit that is enough for all steps.
_TRIES = 20
_SMALLER_BLOCKS = "read the frame in smaller blocks (chunks= of from_b2nd)"
#: Largest array held by the graph, in bytes, that dask itself may rechunk.
_SMALL = 1 << 20


def bounded_job(job: WriteJob, max_mem: Any) -> Job:
    """Make a job that writes the same elements within a stated memory.

    Raises ValueError if the memory is too small, or if a function prevents a plan; the
    message names that function.
    """
    if not _dask_compat.has_layers() or not isinstance(job.elements.dask, HighLevelGraph):
        raise ValueError(
            "max_mem= needs arrays whose graph has layers; with this version of dask, or with its "
            "option array.query-planning, they have none: omit max_mem="
        )
    try:
        return _BoundedPlan(job, max_mem).job()
    except TooLittleMemoryError as first:
        asked, error = first.asked, first
    # Find a limit that is enough for all steps. Intermediate frames have larger chunks with more
    # memory, so their readers then need more, too.
    for _ in range(_TRIES):
        try:
            # rounded as in the message: the user passes this number
            _BoundedPlan(job, shown(error.least)).job()
        except TooLittleMemoryError as another:
            error = another
        else:
            break
    raise TooLittleMemoryError(asked, error.least, error.what, error.advice)


class _BaseView(NamedTuple):
    """A node as a view of a base node, which has its elements."""

    base: Node
    view: View
    is_moved: bool
    """Whether a pass makes the node: it is a rechunk or reshape of the base, or a transpose of a
    frame. A slice of a frame is read by dask's own tasks."""

    @property
    def is_read(self) -> bool:
        """Whether the elements are those of the user's frame."""
        return isinstance(self.base, Read)


def _base_view(node: Node, bases: Mapping[str, _BaseView]) -> _BaseView:
    """Resolve rechunks, transposes, and slices of these and of frames, to their base.

    `bases` has the results of the layers below.
    """
    is_reshape = isinstance(node, Moved) and node.is_reshape
    base = _BaseView(node, View.whole(tuple(map(sum, node.chunks or ()))), is_reshape)
    if not isinstance(node, Moved) or node.is_reshape:
        return base
    below = bases[node.child.layers[0]]
    if node.move is None:
        return below._replace(is_moved=True)
    box, axes = _box_of(node), tuple(axis for axis in node.move.axes if axis is not None)
    is_slice = axes == tuple(range(len(axes)))
    # for a slice of another layer, dask computes only the blocks that it needs
    if box is None or (is_slice and not (below.is_moved or below.is_read)):
        return base
    is_moved = below.is_moved or (below.is_read and not is_slice)
    return below._replace(view=below.view.cut(box).transposed(axes), is_moved=is_moved)


def _box_of(node: Node) -> Box | None:
    """The slices of a selection of all axes with step 1 along each; None for any other node."""
    if not isinstance(node, Moved) or node.move is None:
        return None
    positions = node.move.positions
    is_box = all(axis in node.move.axes for axis in range(len(positions)))
    if not is_box or None in node.move.axes or any(along.step != 1 for along in positions):
        return None
    return tuple(slice(along.start, along.stop) for along in positions)


class _BoundedPlan:
    """The passes and functions that write one array within a memory limit."""

    def __init__(self, job: WriteJob, max_mem: Any) -> None:
        self._write = job
        graph = job.elements.dask.cull_layers([job.elements.name])
        # without rules no node absorbs a move: moves become passes
        self._layers = Layers(graph, (), of_opaque=True)
        self._nodes = self._layers.nodes
        self._bases: dict[str, _BaseView] = {}
        # dependencies first, without recursion: the graph may be deeper than Python's stack
        for name, node in self._nodes.items():
            self._bases[name] = _base_view(node, self._bases)
        # from the top: errors name the last step
        functions = [name for name in reversed(self._nodes) if not self._bases[name].is_moved]
        inputs = {below for name in functions for below in self._inputs(name)}
        # the views to read from frames, also those of steps below
        self._views = [
            name
            for name in self._nodes
            if name in inputs and self._bases[name].is_moved and not self._is_small(name)
        ]
        reads = [node for node in self._nodes.values() if isinstance(node, Read)]
        is_remote = any(read.source.is_remote for read in reads)
        # tasks of dask that stay in the graph
        keys = sum(len(graph.layers[name]) for name in functions if not self._bases[name].is_read)
        budget = budget_of(max_mem, job.transaction.staging, is_remote=is_remote).without(
            keys * PER_KEY
        )
        # a retried write computes functions again, which then read the views again
        self._frames = IntermediateFrames(job.transaction, budget, for_functions=bool(self._views))
        self._new_layers = dict[str, Any](graph.layers)
        self._dependencies = dict[str, Any](graph.dependencies)

    def job(self) -> Job:
        """The job of the last step; its graph contains all other steps."""
        array, plan = self._write.elements, self._write.transaction.plan
        if not plan.grid.nchunks:
            return self._write
        for name in self._views:
            self._new_layers[name], self._dependencies[name] = self._reading(name), set()
        base = self._bases[array.name]
        if base.is_moved or base.is_read:
            return self._rechunked(self._elements(array.name))
        elements = self._replaced(array.name, array.chunks, array.dtype)
        sizes = aligned_sizes(array.chunks, plan.grid.chunks, array.dtype.itemsize)
        if sizes == array.chunks:
            return replace(self._write, elements=elements, opened=self._frames.opened)
        return self._rechunked(self._frames.written(elements))

    def _rechunked(self, source: Elements) -> RechunkJob:
        name = self._write.elements.name
        if source.grid.shape != self._write.transaction.plan.grid.shape:
            raise _unsupported(name)
        return self._frames.rechunked(source, name)

    def _inputs(self, name: str) -> list[str]:
        """The layers that a layer of functions reads block by block."""
        node, graph = self._nodes[name], self._layers.graph
        if isinstance(node, Moved) and _box_of(node) is not None:
            return [node.child.layers[0]]
        inputs = self._layers.inputs(name)
        if inputs is None and graph.dependencies[name]:
            raise _unsupported(name)
        return inputs or []

    def _elements(self, name: str) -> Elements:
        """The elements of a view, by the name of its layer."""
        (base, view, _), frames = self._bases[name], self._frames
        layer = base.layers[0]
        if isinstance(base, Read):
            return frames.elements_of(base.source, view)
        if isinstance(base, Moved) and base.is_reshape:
            shape = tuple(map(sum, base.chunks))
            source = self._elements(base.child.layers[0])
            if math.prod(source.grid.shape) != math.prod(shape):
                raise _unsupported(layer)
            return frames.reshaped(source, shape, layer, view)
        dtype = annotated_dtype(self._new_layers[layer])
        if dtype is None:
            raise ValueError(
                f"max_mem= needs the dtype of the result of {function_name(layer)}, and the "
                "graph does not contain it: pass dtype= where the function is called (for instance "
                "to map_blocks), or omit max_mem="
            )
        # `Layers` makes moves only of nodes with known blocks
        return frames.written(self._replaced(layer, base.chunks or (), dtype), view)

    def _replaced(self, name: str, chunks: Chunks, dtype: np.dtype[Any]) -> da.Array:
        """A layer of functions as an array that reads all views from frames."""
        graph = HighLevelGraph(self._new_layers, self._dependencies).cull_layers([name])
        array = da.Array(graph, name, chunks, dtype=dtype)
        self._check_blocks(array)
        return array

    def _is_small(self, name: str) -> bool:
        """Whether dask may move a view: its base is a small array held by the graph."""
        base = self._bases[name].base
        dtype = annotated_dtype(self._layers.graph.layers[base.layers[0]])
        if base.chunks is None or dtype is None or not self._layers.is_in_graph(base.layers[0]):
            return False
        return math.prod(map(sum, base.chunks)) * dtype.itemsize <= _SMALL

    def _reading(self, name: str) -> dict[Any, Any]:
        """Tasks that read the blocks of a view."""
        chunks, source = self._nodes[name].chunks or (), self._elements(name)
        numbers = list(np.ndindex(*map(len, chunks)))
        keys: Any = self._layers.graph.layers[name].get_output_keys()
        known = {key[1:] for key in keys if key[0] == name}
        if source.grid.shape != tuple(map(sum, chunks)) or known != set(numbers):
            raise _unsupported(name)
        if Boxes(source.grid, chunks).decodes > 1:
            source = self._frames.in_chunks(source, chunks, name)
        reads = {
            (name, *at): (_read, source.made.key, region)
            for at, region in zip(numbers, regions_of(chunks), strict=True)
        }
        return {**source.made.dask, **reads}

    def _check_blocks(self, array: da.Array) -> None:
        """Raise ValueError if blocks of functions need more memory than the limit."""
        budget = self._frames.budget
        block = math.prod(max(axis, default=0) for axis in array.chunks) * array.dtype.itemsize
        least = block * _BLOCKS_OF_TASK * budget.threads
        if least > budget.nbytes:
            is_in_memory = numpy_source(array) is not None
            smaller = "give it smaller chunks=" if is_in_memory else _SMALLER_BLOCKS
            raise budget.too_little(
                f"for blocks of {shown(block)} in {budget.threads} threads: each task of "
                f"{function_name(array.name)} holds about {_BLOCKS_OF_TASK} blocks",
                lambda _: least,
                f"{smaller}, or compute in fewer threads",
            )


def function_name(name: str) -> str:
    """The name of a layer without dask's token, for messages."""
    return re.sub(r"-[0-9a-f]{32}$", "", name)


def _unsupported(name: str) -> ValueError:
    function = function_name(name)
    if function == "getitem":
        function = "indexing by integers, lists or slices with steps"
    return ValueError(
        f"max_mem= cannot bound the memory of {function}. It supports rechunks, transposes, "
        "reshapes and slices of frames, with functions of single blocks before, between and after "
        "them. Write the array before that step to a frame, and continue with that frame; or omit "
        "max_mem="
    )


def _read(source: RegionSource, region: Box) -> Any:
    """Task that reads a block as a writable array, since functions may change it in place."""
    return writable(source.read(region))
