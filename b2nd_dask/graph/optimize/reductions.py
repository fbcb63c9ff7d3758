"""Fold reductions into reads: a task reduces blocks chunk by chunk while it reads them.

Small neighbouring blocks that are reduced together share a task. dask combines their partial
results anyway, and a chunk step over the larger block returns the combined result. If statistics
of chunks answer a reduction, one task does the small remaining read.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from dask.base import tokenize
from dask.typing import Key
from numpy.typing import NDArray

from b2nd_dask.format.grid import steps
from b2nd_dask.graph._dask_compat import List, Task, TaskRef, flatten, task_dict
from b2nd_dask.graph.expression.chunk_steps import Fold, combining_step
from b2nd_dask.graph.expression.nodes import Elemwise, Node, Read, computed_in, nodes_of
from b2nd_dask.graph.expression.program import Compiled, compile_tree
from b2nd_dask.graph.layers.layers import Layers
from b2nd_dask.graph.optimize.lower import Lowered, input_of, own_name
from b2nd_dask.graph.optimize.sharing import Sharing
from b2nd_dask.graph.read.blocks import Chunks, regions_of
from b2nd_dask.graph.read.sizes import merged_blocks
from b2nd_dask.graph.resources import merge_limit
from b2nd_dask.graph.task_names import reading_name
from b2nd_dask.graph.tasks import reduce_block

logger = logging.getLogger("b2nd_dask")

#: One task reads up to so many bytes in any case: dask takes longer for a few tasks.
LITTLE_NBYTES = 1 << 22


class CombiningLayer(NamedTuple):
    """A layer of dask that combines results of neighbouring blocks."""

    name: str
    func: Callable[..., Any]
    every: tuple[int, ...]
    """Number of combined results along each axis."""
    keepdims: bool

    def calls(
        self, name: str, below: NDArray[Any], every: tuple[int, ...], axis: tuple[int, ...]
    ) -> Iterator[tuple[Key, Any]]:
        """The key of each task, and the results that it combines, `every` along each axis.

        These are in nested lists, one level for each reduced axis.
        """
        sizes = tuple(map(steps, below.shape, every))
        for number, box in zip(np.ndindex(*map(len, sizes)), regions_of(sizes), strict=True):
            key = (name, *(n for i, n in enumerate(number) if self.keepdims or i not in axis))
            part = below[box]
            yield key, part.reshape([n for i, n in enumerate(part.shape) if i in axis]).tolist()


class ReductionLayers(NamedTuple):
    """The layers of a reduction: the chunk step, and those that combine its results."""

    name: str
    """Name of the layer of chunk steps."""
    fold: Fold
    below: Read | Elemwise
    """The node whose blocks it reduces."""
    combining: list[CombiningLayer]
    """The combining layers; the last one has one result for all reduced blocks. May be empty."""

    @property
    def top(self) -> str:
        """Name of the last layer."""
        return self.combining[-1].name if self.combining else self.name


class Reductions:
    """The reductions of a graph."""

    def __init__(self, layers: Layers) -> None:
        self._rules = layers.rules
        found = [
            ReductionLayers(name, fold, node, _combining_layers(layers, name, fold))
            for name, (fold, below) in layers.folds.items()
            if "reductions" in layers.rules
            and isinstance(node := layers.nodes[below], Read | Elemwise)
        ]
        # a filter may have other blocks than the array that is read
        self._by_top = {one.top: one for one in found if one.combining or not one.below.filters}
        answers = ((each.name, self._answered(each)) for each in self._by_top.values())
        self.answered = {name: whole for name, whole in answers if whole is not None}
        """Layers of chunk steps answered from statistics; other dependents do not matter."""

    @cached_property
    def _limit(self) -> int:
        """Maximum bytes of elements of blocks that share a task."""
        compiled = (compile_tree(found.below) for found in self._by_top.values())
        return merge_limit(sum(each.read.nbytes for each in compiled if each is not None))

    def _answered(self, found: ReductionLayers) -> ReducedRead | None:
        """The read of a reduction that is answered from statistics; else None."""
        reads = (node for node in nodes_of(found.below) if isinstance(node, Read))
        has_statistics = any(read.source.has_statistics for read in reads)
        if not (found.combining and found.fold.prunes and has_statistics):
            return None
        whole = ReducedRead.of(found.below, found.fold)
        return None if isinstance(whole, str) or not whole.is_answered(self._limit) else whole

    def lowered(self, top: str, sharing: Sharing) -> Lowered | None:
        """Tasks that reduce while they read; None if a layer is not the last of a reduction."""
        found = self._by_top.get(top)
        if found is None:
            return None
        reduced: ReducedRead | str | None = self.answered.get(found.name)
        if reduced is None:
            absorbed = sharing.absorbed(found.below, found.name)
            reduced = None if absorbed is None else ReducedRead.of(absorbed, found.fold)
        if isinstance(reduced, str):
            logger.debug("a reduction of %s does not fold: %s", found.below.layers[0], reduced)
        if not isinstance(reduced, ReducedRead):
            return None
        if found.combining:
            reduced = reduced.merged(self._limit, merges="merge_blocks" in self._rules)
        return reduced.lowered(found)


def _combining_layers(layers: Layers, name: str, fold: Fold) -> list[CombiningLayer]:
    """The layers that combine all results of a chunk step; none if they leave several results.

    Each layer has only the next one as dependent.
    """
    found: list[CombiningLayer] = []
    layer: Any = layers.graph.layers[name]
    (counts,) = layer.numblocks.values()
    keeps = bool(fold.axis)
    while keeps and len(layers.dependents[name]) == 1:
        below, (name,) = name, layers.dependents[name]
        layer = layers.graph.layers[name]
        tasks = task_dict(layer)
        if not tasks or layer.annotations or layers.graph.dependencies[name] != {below}:
            break
        combining = _combining_layer(name, tasks, below, counts, fold)
        if combining is None:
            break
        found.append(combining)
        counts = tuple(map(len, map(steps, counts, combining.every)))
        keeps = combining.keepdims
    return found if all(counts[i] == 1 for i in fold.axis) else []


def _combining_layer(
    name: str, tasks: dict[Any, Any], below: str, counts: tuple[int, ...], fold: Fold
) -> CombiningLayer | None:
    """Parse a layer whose tasks each combine a box of results of the layer below.

    All boxes have the same shape, and the function combines like dask's own reductions.
    dask (2025.12.0 to 2026.8.0) makes these tasks as tuples of a function and nested lists.
    """
    key, task = next(iter(tasks.items()))
    if not isinstance(task, tuple) or len(task) != 2 or not isinstance(task[1], list):
        return None
    func, keys = task[0], list(flatten(task[1]))
    step, concatenated = combining_step(func)
    if not keys or not fold.is_combined_by(step, concatenated=concatenated):
        return None
    if not all(isinstance(one, tuple) and len(one) == 1 + len(counts) for one in keys):
        return None
    every = tuple(len({*along}) for along in zip(*(one[1:] for one in keys), strict=True))
    if any(n != 1 for i, n in enumerate(every) if i not in fold.axis):
        return None
    found = CombiningLayer(name, func, every, keepdims=len(key) > len(counts))
    results = _array_of(counts, ((below, *number) for number in np.ndindex(counts)))
    calls = found.calls(name, results, every, fold.axis)
    return found if tasks == {key: (func, part) for key, part in calls} else None


def _array_of(shape: Sequence[int], values: Iterable[Any]) -> NDArray[Any]:
    """An array of objects, in C order."""
    return np.fromiter(values, object).reshape(shape)


def _argument(results: Any) -> Any:
    """Nested lists of tasks as an argument; a task with a key becomes a reference."""
    if isinstance(results, list):
        return List(*map(_argument, results))
    return results if results.key is None else TaskRef(results.key)


class ReducedRead:
    """The read of a reduction's chunk step, and the reduction of its blocks."""

    def __init__(self, compiled: Compiled, fold: Fold) -> None:
        self._compiled = compiled
        self.read, program, self._inputs = compiled
        self._blocks = list(map(input_of, (self.read, *self._inputs)))
        self.fold = replace(fold, program=program)
        self._axes = self.fold.axes(len(self.read.chunks))

    @classmethod
    def of(cls, node: Node, fold: Fold) -> ReducedRead | str:
        """Parse the node below a chunk step; return the reason if it cannot fold into a read."""
        compiled = compile_tree(node)
        if compiled is None:
            return "it reads no frame, or another layer needs it, too"
        if not compiled.read.positions:
            return "it has one element"
        if not compiled.read.is_box:
            return "axes of the read are reversed, exchanged, dropped or new"
        if not compiled.is_numeric:
            return "its elements are not numbers"
        if any(each.chunks != computed_in(node) for each in compiled.reads):
            return "its blocks come from reads that are broadcast"
        return cls(compiled, fold)

    def in_blocks(self, chunks: Chunks) -> ReducedRead:
        """The same reduction in other blocks."""
        compiled = self._compiled._replace(read=replace(self.read, chunks=chunks))
        return ReducedRead(compiled, self.fold)

    @cached_property
    def _unanswered_nbytes(self) -> float:
        """Bytes of elements that must be read in spite of statistics."""
        source, positions = self.read.source, self.read.positions
        if self._inputs or not all(positions) or not self.fold.prunes or not source.has_statistics:
            return math.inf
        reduction = self.fold.reduction(source.dtype, len(positions))
        nbytes = source.unanswered_nbytes(positions, reduction)
        return math.inf if nbytes is None else nbytes

    def is_answered(self, limit: float) -> bool:
        """Whether statistics leave little to be read."""
        return self._unanswered_nbytes <= max(LITTLE_NBYTES, limit)

    def merged(self, limit: float, *, merges: bool) -> ReducedRead:
        """Merge neighbouring blocks, up to `limit` bytes of elements.

        All blocks are merged if statistics leave little to be read. None are merged if the work has
        array inputs.
        """
        rule = "merge_blocks"
        if self.is_answered(limit):
            rule, limit = "statistics", math.inf
        elif not merges or any(each.chunks != () for each in self._inputs):
            return self
        read = self.read
        blocks = merged_blocks(read.chunks, self._axes, read.source.dtype.itemsize, limit)
        counts = (math.prod(map(len, each)) for each in (blocks, read.chunks))
        logger.debug("%s: %d tasks reduce %d blocks of %s", rule, *counts, read.source.label)
        return self.in_blocks(blocks)

    def lowered(self, found: ReductionLayers) -> Lowered:
        """One layer for all layers of a reduction: its tasks reduce blocks and combine results."""
        axis, chunks = self.fold.axis, self.read.chunks
        # new names, since these tasks read and combine other blocks than dask's
        token = tokenize(chunks)
        reads = reading_name(f"{found.name}-{token}", self.read.source.label)
        name = reads if found.combining else found.name
        # a task that combines a single result computes it itself
        nests = bool(found.combining) and all(len(chunks[i]) == 1 for i in self._axes)
        counts = tuple(map(len, chunks))
        numbers = np.ndindex(counts)
        made = _array_of(counts, (self.task(None if nests else (name, *n), n) for n in numbers))
        if self.fold.program.filters:
            # as dask numbers the blocks of the selected elements
            made = made.reshape(-1)
        tasks: dict[Key, Any] = {}
        for layer in found.combining:
            every = tuple(n if i in axis else 1 for i, n in enumerate(made.shape))
            if layer.name != found.top:
                if math.prod(every) <= math.prod(layer.every):
                    continue
                every = layer.every
            tasks |= {} if nests else {task.key: task for task in made.flat}
            name = found.top if layer.name == found.top else own_name(layer.name, token)
            counts = tuple(map(len, map(steps, made.shape, every)))
            func, calls = self.fold.combining(layer.func), layer.calls(name, made, every, axis)
            made = _array_of(
                counts, (Task(key, func, _argument(p), _data_producer=nests) for key, p in calls)
            )
        tasks |= {task.key: task for task in made.flat}
        below = {each.layers[0] for each in self._inputs if not isinstance(each, Read)}
        return Lowered({found.top: tasks}, {found.top: below})

    def task(self, key: Any, block: tuple[int, ...]) -> Task:
        """The task that reduces a block while it reads it."""
        elements, *inputs = (of_block(block) for of_block in self._blocks)
        return Task(key, reduce_block, elements, self.fold, List(*inputs), _data_producer=True)
