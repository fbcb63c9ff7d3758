"""Fewer tasks: neighbouring blocks that are small and reduced together are read by one task.

dask combines the results of a few neighbouring blocks at a time, level by level. Where such blocks
form a larger one, its chunk step gives what the level would: a reduction's combining step takes
results of chunk steps and its own alike.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from dask.typing import Key

from b2nd_dask.frame.reference import FrameReference
from b2nd_dask.graph._dask_compat import Alias, GraphNode, List, Task, TaskRef, _concatenate2
from b2nd_dask.graph.optimize.calls.reductions import Combining
from b2nd_dask.graph.optimize.rules.inline import dependents_of
from b2nd_dask.graph.optimize.rules.reduction_pushdown import BlockReduction, reduce_block
from b2nd_dask.graph.optimize.rules.rule import GraphRule, Tasks
from b2nd_dask.graph.resources import available

#: Blocks are merged up to this many bytes of elements: more do not make a task cheaper.
MERGED_NBYTES = 1 << 26
#: Fewer tasks than this would leave threads idle at the end.
TASKS_OF_A_THREAD = 4


@dataclass(frozen=True, eq=False)
class Block:
    """A part of a frame that one task reduces."""

    frame: FrameReference
    axes: tuple[range, ...]
    step: BlockReduction

    @classmethod
    def of(cls, node: GraphNode) -> Block | None:
        """What a task reduces, if that is a part of a frame and takes no other task's result."""
        if not isinstance(node, Task) or node.func is not reduce_block or node.dependencies:
            return None
        frame, index, step, _ = node.args
        # one slice with a positive step for each axis: nothing that takes long to parse
        return cls(frame, tuple(range(n)[s] for n, s in zip(frame.shape, index, strict=True)), step)

    @property
    def nbytes(self) -> int:
        """Of its elements."""
        return math.prod(map(len, self.axes)) * self.frame.dtype.itemsize

    def task(self) -> Task:
        """A task that reduces it."""
        index = tuple(slice(r.start, r.stop, r.step) for r in self.axes)
        return Task(None, reduce_block, self.frame, index, self.step, List(), _data_producer=True)


@dataclass(frozen=True, eq=False)
class Combination:
    """A step of dask's that combines the results of neighbouring blocks."""

    block: Block
    """All of them."""
    func: Any
    depth: int
    """The function takes lists of so many levels."""
    is_last: bool
    """Whether no other step combines its result."""

    @classmethod
    def of(cls, node: GraphNode, blocks: Mapping[Key, Block]) -> Combination | None:
        """Look whether a task is one.

        Parameters
        ----------
        node : dask GraphNode
        blocks : mapping
            What other tasks reduce.
        """
        if not isinstance(node, Task) or len(node.args) != 1 or node.kwargs:
            return None
        depth, names = _nested(node.args[0])
        parts = [blocks[name] for name in names if name is not None and name in blocks]
        step = _combining_step(node.func)
        if step is None or depth == 0 or not parts or len(parts) < len(names):
            return None
        block = _merged(parts)
        if block is None or not block.step.chunk.is_combined_by(step):
            return None
        return cls(block, node.func, depth, step.keywords.get("keepdims") is not True)

    def task(self, key: Key) -> Task:
        """The task that takes the place of the combining one and of those that it takes."""
        argument = self.block.task()
        for _ in range(self.depth):
            argument = List(argument)
        return Task(key, self.func, argument, _data_producer=True)


def blocks_to_merge(tasks: Tasks, output_keys: set[Key]) -> dict[Key, Combination]:
    """The combining tasks that can reduce all of their blocks as one."""
    blocks = {key: block for key, node in tasks.items() if (block := Block.of(node))}
    if not blocks:
        return {}
    total = sum(block.nbytes for block in blocks.values())
    limit = min(MERGED_NBYTES, total // (TASKS_OF_A_THREAD * available().threads))
    dependents = dependents_of(tasks)
    # what several tasks take would be computed for each
    single = {key for key, names in dependents.items() if len(names) == 1} - output_keys
    free = blocks.keys() & single
    merged: dict[Key, Combination] = {}
    todo = [dependents[key][0] for key in free]
    while todo:
        key = todo.pop()
        if key in merged or not tasks[key].dependencies <= free:
            continue
        found = Combination.of(tasks[key], blocks)
        if found is None or found.block.nbytes > limit:
            continue
        merged[key] = found
        blocks[key] = found.block
        if key in single and not found.is_last:
            free.add(key)
            todo += dependents[key]
    return merged


def merge_blocks(tasks: Tasks, output_keys: set[Key], merged: Mapping[Key, Combination]) -> Tasks:
    """Replace combining tasks, and those that they combine, by tasks that reduce larger blocks."""
    gone = {name for key in merged for name in tasks[key].dependencies}
    return {
        key: merged[key].task(key) if key in merged else node
        for key, node in tasks.items()
        if key not in gone
    }


def _nested(argument: Any) -> tuple[int, list[Key | None]]:
    """Levels of lists, and the tasks that the innermost ones name."""
    depth, nodes = 0, [argument]
    while nodes and all(isinstance(i, Task) and i.kwargs.get("typ") is list for i in nodes):
        depth, nodes = depth + 1, [inner for node in nodes for inner in node.args]
    return depth, [_key_of(node) for node in nodes]


def _key_of(node: Any) -> Key | None:
    if isinstance(node, Alias):
        return node.target
    return node.key if isinstance(node, TaskRef) else None


def _combining_step(func: Any) -> Combining | None:
    """The function that combines, with its keywords; dask may concatenate results before."""
    first = getattr(func, "first", None)  # of those that toolz composed
    concatenated = isinstance(first, partial) and first.func is _concatenate2
    if concatenated:
        (func,) = func.funcs
    if not isinstance(func, partial) or func.args:
        return None
    return Combining(func.func, func.keywords, concatenated)


def _merged(blocks: Sequence[Block]) -> Block | None:
    """The block that some form together."""
    first = blocks[0]
    for other in blocks[1:]:
        same_step = other.step is first.step or other.step == first.step
        if other.frame is not first.frame or not same_step:
            return None
    axes: list[range] = []
    count = 1
    for number, column in enumerate(zip(*(block.axes for block in blocks), strict=True)):
        distinct = set(column)
        merged = _contiguous(distinct)
        # side by side along an axis that is kept, each has a position of its own in the result
        if merged is None or (len(distinct) > 1 and number not in first.step.chunk.axis):
            return None
        axes.append(merged)
        count *= len(distinct)
    if not len(blocks) == count == len({block.axes for block in blocks}):
        return None
    return Block(first.frame, tuple(axes), first.step)


def _contiguous(parts: set[range]) -> range | None:
    """The range that some with one step form together."""
    if len(parts) == 1:
        return next(iter(parts))
    first, *others = sorted(parts, key=operator.attrgetter("start"))
    last = first
    for part in others:
        if part.step != first.step or part.start != last.start + len(last) * first.step:
            return None
        last = part
    return range(first.start, last.stop, first.step)


MERGE_BLOCKS = GraphRule(
    "merge_blocks",
    "A task costs dask about 0.3 ms, which is more than a small block takes to read.",
    blocks_to_merge,
    merge_blocks,
)
