"""Reductions fold into reads: a task reduces blocks chunk by chunk while it reads them.

Small neighbouring blocks that are reduced together share a task, since dask combines their partial
results anyway: a chunk step over the larger block returns what a combining step would. Where
statistics of chunks answer a reduction, little is read, and one task does it all.
"""

from __future__ import annotations

import itertools
import logging
import math
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import cached_property, partial
from typing import Any, NamedTuple

from dask.typing import Key

from b2nd_dask.graph._dask_compat import List, Task, TaskRef
from b2nd_dask.graph.expression.chunk_steps import Fold, combining_step
from b2nd_dask.graph.expression.nodes import Elemwise, Node, Read
from b2nd_dask.graph.expression.program import Compiled, compile_tree
from b2nd_dask.graph.layers.layers import Layers
from b2nd_dask.graph.optimize.lower import Lowered, input_of, own_name
from b2nd_dask.graph.optimize.reduction_trees import (
    Box,
    Level,
    combining_layers,
    keys_in,
    levels_over,
)
from b2nd_dask.graph.optimize.sharing import Sharing
from b2nd_dask.graph.resources import TASKS_OF_A_THREAD, available
from b2nd_dask.graph.task_names import reading_name
from b2nd_dask.graph.tasks import BlockRead, reduce_block

logger = logging.getLogger("b2nd_dask")

#: Blocks are merged up to this many bytes of elements, as dask's `array.chunk-size` has them: more
#: hardly make a task cheaper. They are reduced by parts, so that none is in memory.
MERGED_NBYTES = 1 << 27
#: So little is read by one task in any case: dask takes longer for a few tasks.
LITTLE_NBYTES = 1 << 22


class FoundReduction(NamedTuple):
    """The layers of a reduction: the chunk step, and those that combine its results."""

    name: str
    """Of the layer of chunk steps."""
    levels: list[Level]

    @property
    def top(self) -> str:
        """The last layer."""
        return self.levels[-1].name if self.levels else self.name


class Reductions:
    """The reductions of a graph.

    Their tasks are parsed when it is known that they fold, or where statistics may answer them.
    """

    def __init__(self, layers: Layers, *, merges: bool, asks: bool) -> None:
        self._layers = layers
        self._asks = asks
        self._merges = merges
        self._combining = {
            name: combining_layers(layers, name, partial(_combines, fold))
            for name, (fold, below) in layers.folds.items()
            if isinstance(node := layers.nodes[below], Read | Elemwise) and not node.filters
        }
        # the last layer of a reduction, and that of its chunk steps
        self._by_top = {[name, *above][-1]: name for name, above in self._combining.items()}
        self._parsed: dict[str, FoundReduction] = {}
        reads = (node for node in layers.nodes.values() if isinstance(node, Read))
        has_statistics = asks and any(read.source.has_statistics for read in reads)
        self._answered = {
            name: reduced
            for name in self._by_top.values()
            if has_statistics and (reduced := self._reduced_whole(name)) is not None
        }

    @cached_property
    def _limit(self) -> int:
        """Bytes of elements of blocks that share a task."""
        nodes = [self._layers.nodes[self._layers.folds[name][1]] for name in self._by_top.values()]
        reads = [found.read for node in nodes if (found := compile_tree(node)) is not None]
        return merge_limit(sum(read.nbytes for read in reads))

    @property
    def answered(self) -> set[str]:
        """Layers of chunk steps whose blocks statistics make unnecessary."""
        return set(self._answered)

    def _reduced_whole(self, name: str) -> ReducedRead | None:
        """A reduction that statistics answer: it does not matter who else reads the blocks."""
        fold, below = self._layers.folds[name]
        whole = ReducedRead.of(self._layers.nodes[below], fold, asks=True)
        if isinstance(whole, str) or not whole.is_answered(self._limit):
            return None
        return whole if self._found(name).levels else None

    def _found(self, name: str) -> FoundReduction:
        if name not in self._parsed:
            levels = levels_over(self._layers, name, self._combining[name])
            self._parsed[name] = FoundReduction(name, levels)
        return self._parsed[name]

    def lowered(self, top: str, sharing: Sharing) -> Lowered | None:
        """Tasks that reduce while they read; None where a layer is not the last of a reduction."""
        name = self._by_top.get(top)
        if name is None:
            return None
        fold, below = self._layers.folds[name]
        reduced = self._answered.get(name)
        if reduced is None:
            absorbed = sharing.absorbed(self._layers.nodes[below], name)
            if absorbed is None:
                return None
            folded = ReducedRead.of(absorbed, fold, asks=self._asks)
            if isinstance(folded, str):
                logger.debug("a reduction of %s does not fold: %s", below, folded)
                return None
            reduced = folded
        found = self._found(name)
        if found.top != top:
            # not all of its tasks are what one was; it ends at a layer that comes later
            self._by_top[found.top] = self._by_top.pop(top)
            return None
        return reduced.lowered(found, reduced.merged_nbytes(self._limit, merges=self._merges))


def _why_not_folded(node: Node, compiled: Compiled | None) -> str:
    """Why the chunk step of a reduction of a node cannot run while it is read; empty if it can."""
    if compiled is None:
        return "no frame is read there, or something else needs it, too"
    if not compiled.read.positions:
        return "it has one element"
    if not compiled.read.is_box:
        return "axes of what is read are reversed, exchanged, dropped or new"
    if not compiled.is_numeric:
        return "its elements are no numbers"
    reads = [compiled.read, *(each for each in compiled.inputs if isinstance(each, Read))]
    if any(each.chunks != node.chunks for each in reads):
        return "its blocks come of reads that are broadcast"
    return ""


def _combines(fold: Fold, func: Any) -> bool:
    """Whether a function combines results of a chunk step as dask's own reductions do."""
    step = combining_step(func)
    return step is not None and fold.is_combined_by(step)


def merge_limit(nbytes: int) -> int:
    """Bytes of elements that blocks which share a task have at most, where so many are reduced."""
    return min(MERGED_NBYTES, nbytes // (TASKS_OF_A_THREAD * available().threads))


class ReducedRead:
    """What the chunk step of a reduction reads, and how it reduces that."""

    def __init__(self, compiled: Compiled, fold: Fold, *, asks: bool) -> None:
        self.read, program, self._inputs = compiled
        self._blocks = list(map(input_of, self._inputs))
        self.fold = replace(fold, program=program, asks=asks)
        self._ends = [
            list(itertools.accumulate(along, initial=0)) for along in compiled.read.chunks
        ]

    @classmethod
    def of(cls, node: Node, fold: Fold, *, asks: bool) -> ReducedRead | str:
        """Parse what is below a chunk step; the reason where this cannot fold into a read."""
        compiled = compile_tree(node)
        refusal = _why_not_folded(node, compiled)
        if compiled is None or refusal:
            return refusal
        return cls(compiled, fold, asks=asks)

    @cached_property
    def _unanswered_nbytes(self) -> float:
        """Bytes of elements that statistics leave to be read."""
        source, positions = self.read.source, self.read.positions
        if self._inputs or not all(positions) or not self.fold.asks or not source.has_statistics:
            return math.inf
        left = source.unanswered_nbytes(positions, self.fold.reduction(source.dtype))
        return math.inf if left is None else left

    def is_answered(self, limit: float) -> bool:
        """Whether statistics leave little to be read."""
        return self._unanswered_nbytes <= max(LITTLE_NBYTES, limit)

    def merged_nbytes(self, limit: float, *, merges: bool) -> float:
        """Up to how many bytes of elements neighbouring blocks share a task; -1 for none.

        All do where statistics leave little to be read, and none whose work has inputs of its own.
        """
        if self.is_answered(limit):
            return math.inf
        # blocks of no elements have 0 bytes
        return limit if merges and all(each.chunks == () for each in self._inputs) else -1

    def lowered(self, found: FoundReduction, limit: float) -> Lowered:
        """The layers of a reduction as one; blocks are merged up to so many bytes."""
        tasks: dict[Key, Any] = {}
        numbers = range(len(found.levels))
        names = [self._names(found, number - 1, limit) for number in numbers]

        def add(key: Any, old: Any, number: int) -> None:
            """Add the task in place of one of a level, and those that it needs; -1: chunk steps."""
            if number < 0:
                tasks[key] = self.task(key, tuple(range(at, at + 1) for at in old[1:]))
                return
            level, name_of = found.levels[number], names[number]
            box, argument = level.boxes[old], level.arguments[old]
            reads = self._nbytes(box) <= limit
            if reads:
                inner: Any = self.task(None, box)
                for _ in range(_depth(argument)):
                    inner = List(inner)
            else:
                inner = _referring(argument, name_of)
                for below in keys_in(argument):
                    add(name_of(below), below, number - 1)
            tasks[key] = Task(key, level.func, inner, _data_producer=reads)

        blocks = itertools.product([found.name], *(range(len(along)) for along in self.read.chunks))
        top: Iterable[Any] = found.levels[-1].boxes if found.levels else blocks
        for old in top:
            add((found.top, *old[1:]), old, numbers.stop - 1)
        below = {each.layers[0] for each in self._inputs if not isinstance(each, Read)}
        return Lowered({found.top: tasks}, {found.top: below})

    def _names(self, found: FoundReduction, number: int, limit: float) -> Callable[[Any], Any]:
        """Names of the tasks of a level, by dask's own; of the chunk steps for -1.

        They are other ones: what these tasks combine, or read, is not what dask's do.
        """
        level = found.levels[number] if number >= 0 else None
        name = found.name if level is None else level.name
        combines = own_name(name, limit)
        reads = reading_name(f"{name}-{limit}", self.read.source.label)

        def name_of(key: Any) -> Any:
            is_read = level is None or self._nbytes(level.boxes[key]) <= limit
            return (reads if is_read else combines, *key[1:])

        return name_of

    def task(self, key: Any, box: Box) -> Task:
        """The task that reduces neighbouring blocks while it reads them."""
        corner = tuple(along.start for along in box)
        inputs = (of_block(corner) for of_block in self._blocks)
        block = BlockRead.of(self.read.source, self._axes(box))
        return Task(key, reduce_block, block, self.fold, List(*inputs), _data_producer=True)

    def _axes(self, box: Box) -> tuple[range, ...]:
        return tuple(
            positions[ends[along.start] : ends[along.stop]]
            for positions, ends, along in zip(self.read.positions, self._ends, box, strict=True)
        )

    def _nbytes(self, box: Box) -> int:
        return int(math.prod(map(len, self._axes(box))) * self.read.source.dtype.itemsize)


def _depth(nested: Any) -> int:
    return 1 + _depth(nested[0]) if isinstance(nested, list) else 0


def _referring(nested: Any, name_of: Callable[[Any], Any]) -> Any:
    """Nested lists of keys as arguments of a task, by the names that these have now."""
    if isinstance(nested, list):
        return List(*(_referring(inner, name_of) for inner in nested))
    return TaskRef(name_of(nested))
