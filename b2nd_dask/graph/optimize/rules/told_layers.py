"""Reductions that statistics of chunks tell, for whole layers of a graph.

Where little is left to read, one task reduces all, however many blocks dask has made: the layers of
a reduction become one of a single task for each block of the result.
"""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

from dask.highlevelgraph import HighLevelGraph
from dask.typing import Key

from b2nd_dask.frame.joined import Readable
from b2nd_dask.graph._dask_compat import List, Task, block_function
from b2nd_dask.graph.layers.layers import Layers
from b2nd_dask.graph.layers.reduction_trees import Box, ReductionTree, tree_over
from b2nd_dask.graph.optimize.calls.elementwise import BoundWork
from b2nd_dask.graph.optimize.calls.expression import Read
from b2nd_dask.graph.optimize.calls.layer_expression import block_expression, source_of
from b2nd_dask.graph.optimize.calls.reductions import combining_step, is_chunk_step
from b2nd_dask.graph.optimize.rules.merge import most_merged_nbytes
from b2nd_dask.graph.optimize.rules.reduction_pushdown import (
    BlockReduction,
    block_reduction_of,
    reduce_block,
)
from b2nd_dask.graph.optimize.rules.rule import LayerRewrite, Tasks
from b2nd_dask.graph.read.blocks import Chunks, FrameRegion

#: So little is read by one task in any case: dask takes longer for a few tasks.
_LITTLE_NBYTES = 1 << 22


def told_layers(graph: HighLevelGraph, output_keys: set[Key]) -> HighLevelGraph | None:
    """Replace the layers of reductions that statistics tell; None where there are none."""
    layers = Layers(graph)
    told: dict[str, Tasks] = {}
    for name, layer in graph.layers.items():
        if is_chunk_step(block_function(layer)):
            found = _Reduced.of(graph, layers, name)
            if found is not None and found.is_told():
                told[found.tree.top] = found.tasks()
    if not told:
        return None
    below = {name: set() if name in told else used for name, used in graph.dependencies.items()}
    return HighLevelGraph({**graph.layers, **told}, below)


class _Reduced:
    """A reduction of a frame, or of a window of it, by the layers that make it."""

    def __init__(
        self,
        frame: Readable,
        window: tuple[range, ...],
        sizes: Chunks,
        step: BlockReduction,
        tree: ReductionTree,
    ) -> None:
        self.frame = frame
        self.window = window
        self.step = step
        self.tree = tree
        self._ends = [
            [axis.start + n for n in itertools.accumulate(along, initial=0)]
            for axis, along in zip(window, sizes, strict=True)
        ]

    @classmethod
    def of(cls, graph: HighLevelGraph, layers: Layers, name: str) -> _Reduced | None:
        """Parse the layers below and above a layer of chunk steps."""
        source = source_of(graph, layers, name)
        if source is None:
            return None
        view = layers.view(source)
        frame, sizes = layers.frame(view.base), layers.chunks(source)
        if frame is None or sizes is None or view.order != tuple(range(frame.ndim)):
            return None
        window = view.window or tuple(map(range, frame.shape))
        first = tuple(
            slice(axis.start, axis.start + along[0])
            for axis, along in zip(window, sizes, strict=True)
        )
        top = block_expression(graph, name, source, Read(FrameRegion(frame), first))
        found = top and block_reduction_of(top)
        if not found or found[1].work.dependencies:
            return None
        step = replace(found[1], asks=True)

        def combines(func: Any) -> bool:
            combining = combining_step(func)
            return combining is not None and step.chunk.is_combined_by(combining)

        tree = tree_over(graph, name, combines)
        return None if tree is None else cls(frame, window, sizes, step, tree)

    def is_told(self) -> bool:
        """Whether little is left to read."""
        if not all(self.window):
            return False
        work = BoundWork(self.step.work, {}, self.frame.dtype)
        how = self.step.chunk.streamed(work).reduction
        left = self.frame.untold_nbytes(self.window, how)
        nbytes = self.frame.dtype.itemsize
        for axis in self.window:
            nbytes *= len(axis)
        return left is not None and left <= max(_LITTLE_NBYTES, most_merged_nbytes(nbytes))

    def tasks(self) -> Tasks:
        """One task for each block of the result."""
        return {key: self._task(key, box) for key, box in self.tree.boxes.items()}

    def _task(self, key: Key, box: Box) -> Task:
        index = tuple(
            slice(ends[along.start], ends[along.stop])
            for ends, along in zip(self._ends, box, strict=True)
        )
        argument = Task(
            None, reduce_block, self.frame, index, self.step, List(), _data_producer=True
        )
        for _ in range(self.tree.nesting[key]):
            argument = List(argument)
        return Task(key, self.tree.func, argument, _data_producer=True)


TOLD_LAYERS = LayerRewrite(
    "statistics_layers",
    "A reduction that statistics tell needs no task for each block.",
    told_layers,
)
