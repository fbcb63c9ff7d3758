"""Merge small neighbouring blocks that are reduced together: one task reads them all.

dask combines the partial results of a few neighbouring blocks at a time, level by level. Where such
blocks form a larger one, its chunk step returns what the level would: a combining step accepts
results of chunk steps and of combining steps alike.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dask.typing import Key

from b2nd_dask.frame.joined import JoinedReference, Readable
from b2nd_dask.graph._dask_compat import Alias, GraphNode, List, Task, TaskRef
from b2nd_dask.graph.optimize.calls.reductions import combining_step
from b2nd_dask.graph.optimize.rules.inline import dependents_of
from b2nd_dask.graph.optimize.rules.reduction_pushdown import BlockReduction, reduce_block
from b2nd_dask.graph.optimize.rules.rule import GraphRule, Tasks
from b2nd_dask.graph.resources import available

#: Blocks are merged up to this many bytes of elements, as dask's `array.chunk-size` has them: more
#: hardly make a task cheaper. They are reduced by parts, so that none is in memory.
MERGED_NBYTES = 1 << 27
#: Fewer tasks than this would leave threads idle at the end.
TASKS_OF_A_THREAD = 4


@dataclass(frozen=True, eq=False)
class Block:
    """A part of a frame, or of joined frames, that one task reduces."""

    frame: Readable
    """Of joined frames all, so that blocks in different ones are neighbours."""
    axes: tuple[range, ...]
    step: BlockReduction

    @classmethod
    def of(cls, node: GraphNode) -> Block | None:
        """Parse a task that reduces a part of a frame and has no dependencies."""
        if not isinstance(node, Task) or node.func is not reduce_block or node.dependencies:
            return None
        frame, index, step, _ = node.args
        # one slice with a positive step for each axis: quick to parse
        axes = tuple(range(n)[s] for n, s in zip(frame.shape, index, strict=True))
        if isinstance(frame, JoinedReference):
            if not all(axes):
                return None
            frame, axes = frame.whole, frame.shifted(axes, frame.start)
        return cls(frame, axes, step)

    @property
    def nbytes(self) -> int:
        """Bytes of its elements."""
        return math.prod(map(len, self.axes)) * self.frame.dtype.itemsize

    def task(self) -> Task:
        """Make the task that reduces the block."""
        frame, axes = self.frame, self.axes
        if isinstance(frame, JoinedReference):
            frame, axes = frame.part_of_axes(axes)
        index = tuple(slice(r.start, r.stop, r.step) for r in axes)
        return Task(None, reduce_block, frame, index, self.step, List(), _data_producer=True)


@dataclass(frozen=True, eq=False)
class Combination:
    """A combining step over neighbouring blocks that form a larger one."""

    block: Block
    """The larger one."""
    func: Any
    depth: int
    """Levels of lists in the argument of the function."""
    is_last: bool
    """Whether no other step combines its result: an aggregate."""

    @classmethod
    def of(cls, node: GraphNode, blocks: Mapping[Key, Block]) -> Combination | None:
        """Parse a task as a combination of blocks that other tasks reduce."""
        if not isinstance(node, Task) or len(node.args) != 1 or node.kwargs:
            return None
        depth, names = _nested(node.args[0])
        parts = [blocks[name] for name in names if name is not None and name in blocks]
        step = combining_step(node.func)
        if step is None or depth == 0 or not parts or len(parts) < len(names):
            return None
        block = _merged(parts)
        if block is None or not block.step.chunk.is_combined_by(step):
            return None
        return cls(block, node.func, depth, step.keywords.get("keepdims") is not True)

    def task(self, key: Key) -> Task:
        """Make the task that replaces the combining task and its dependencies."""
        argument = self.block.task()
        for _ in range(self.depth):
            argument = List(argument)
        return Task(key, self.func, argument, _data_producer=True)


def blocks_to_merge(tasks: Tasks, output_keys: set[Key]) -> dict[Key, Combination]:
    """Find the combining tasks that can reduce all of their blocks as one."""
    blocks = {key: block for key, node in tasks.items() if (block := Block.of(node))}
    if not blocks:
        return {}
    total = sum(block.nbytes for block in blocks.values())
    limit = most_merged_nbytes(total)
    dependents = dependents_of(tasks)
    # a result with several dependents would be computed for each
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


def most_merged_nbytes(total: int) -> int:
    """Bytes that one task reads at most, of so many in all."""
    return min(MERGED_NBYTES, total // (TASKS_OF_A_THREAD * available().threads))


def merge_blocks(tasks: Tasks, output_keys: set[Key], merged: Mapping[Key, Combination]) -> Tasks:
    """Replace combining tasks and their dependencies by tasks that reduce larger blocks."""
    dropped = {name for key in merged for name in tasks[key].dependencies}
    return {
        key: merged[key].task(key) if key in merged else node
        for key, node in tasks.items()
        if key not in dropped
    }


def _nested(argument: Any) -> tuple[int, list[Key | None]]:
    """Return the levels of lists in an argument, and the keys in the innermost ones."""
    depth, nodes = 0, [argument]
    while nodes and all(isinstance(i, Task) and i.kwargs.get("typ") is list for i in nodes):
        depth, nodes = depth + 1, [inner for node in nodes for inner in node.args]
    return depth, [_key_of(node) for node in nodes]


def _key_of(node: Any) -> Key | None:
    if isinstance(node, Alias):
        return node.target
    return node.key if isinstance(node, TaskRef) else None


def _merged(blocks: Sequence[Block]) -> Block | None:
    """Merge blocks that form a larger one."""
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
        # along an axis that is not reduced each block has a position of its own in the result
        if merged is None or (len(distinct) > 1 and number not in first.step.chunk.axis):
            return None
        axes.append(merged)
        count *= len(distinct)
    if not len(blocks) == count == len({block.axes for block in blocks}):
        return None
    return Block(first.frame, tuple(axes), first.step)


def _contiguous(parts: set[range]) -> range | None:
    """Merge ranges of one step that follow each other."""
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
