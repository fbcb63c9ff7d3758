"""Fuse reads with their dependents where dask does not.

There are two kinds: a read whose only dependent indexes it by a list, and a read whose result would
wait in memory. In ``x - x.mean()`` each block is needed twice, before and after the mean is known;
read twice, no block waits.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Container, Mapping
from typing import Any, TypeGuard

from dask.base import tokenize
from dask.typing import Key

from b2nd_dask.format.grid import parse_selection
from b2nd_dask.graph._dask_compat import (
    GraphNode,
    Task,
    TaskRef,
    _execute_subgraph,
    _shuffle,
    toposort,
)
from b2nd_dask.graph.optimize.calls.elementwise import elementwise_work_of
from b2nd_dask.graph.optimize.calls.expression import NotUnderstoodError, Read, expression_of
from b2nd_dask.graph.optimize.rules.rule import GraphRule, Tasks
from b2nd_dask.graph.resources import available

#: A result is late if it depends on reads of more bytes than this: blocks that wait for it would
#: fill the memory.
LATE_NBYTES = 1 << 28
#: The part of the memory that blocks may occupy while they wait for a late result.
SHARE_OF_MEMORY = 1 / 8
#: A block is read again for at most so many tasks.
MAX_COPIES = 4


def reads_to_inline(tasks: Tasks, output_keys: set[Key]) -> dict[Key, tuple[list[Key], bool]]:
    """Map reads to the dependents that they are fused into, and whether these are all."""
    dependents = dependents_of(tasks)
    # most graphs have none: their tasks are not parsed
    if not any(
        len(names) > 1 or _indexes_by_list(tasks[names[0]]) for names in dependents.values()
    ):
        return {}
    reads = {
        key: read
        for key, node in tasks.items()
        if key not in output_keys and dependents[key] and (read := _read_of(node)) is not None
    }
    if not reads:
        return {}
    late = _late_results(tasks, {key: _nbytes(read) for key, read in reads.items()})
    chosen = {
        # a remote frame is read once
        key: _dependents_to_inline(
            key, dependents[key], tasks, set() if read.region.frame.is_remote else late
        )
        for key, read in reads.items()
    }
    return {
        key: (names, len(names) == len(dependents[key])) for key, names in chosen.items() if names
    }


def inline_reads(
    tasks: Tasks, output_keys: set[Key], chosen: Mapping[Key, tuple[list[Key], bool]]
) -> Tasks:
    """Fuse reads into dependents; drop reads that have no other dependents."""
    inlined = dict(tasks)
    for key, (names, are_all) in chosen.items():
        for name in names:
            inlined[name] = _fused(inlined[name], tasks[key])
        if are_all:
            del inlined[key]
    return inlined


def dependents_of(tasks: Tasks) -> defaultdict[Key, list[Key]]:
    """Map each key to the tasks that depend on it."""
    dependents: defaultdict[Key, list[Key]] = defaultdict(list)
    for key, node in tasks.items():
        for name in node.dependencies:
            dependents[name].append(key)
    return dependents


def _read_of(node: GraphNode) -> Read | None:
    """Return the read of a task that does nothing but read a block and elementwise work."""
    if not isinstance(node, Task) or node.dependencies:
        return None
    try:
        found = elementwise_work_of(expression_of(node))
    except NotUnderstoodError:
        return None
    return None if found is None else found[0]


def _nbytes(read: Read) -> int:
    frame = read.region.frame
    try:
        shape = parse_selection(read.index, frame.shape).shape
    except IndexError:
        shape = frame.shape  # indexed by lists
    return math.prod(shape) * frame.dtype.itemsize


def _late_results(dsk: Mapping[Key, GraphNode], nbytes: Mapping[Key, int]) -> set[Key]:
    """Find results that depend on reads of so many bytes that no block should wait for them."""
    total = sum(nbytes.values())
    if total <= LATE_NBYTES:
        return set()
    late = max(LATE_NBYTES, int(available().memory * SHARE_OF_MEMORY))
    if total <= late:
        return set()
    needed: dict[Key, int] = {}
    # persisted results have no task
    inside = {key: node.dependencies & dsk.keys() for key, node in dsk.items()}
    for key in toposort(dsk, dependencies=inside):
        count = nbytes.get(key) or sum(needed[name] for name in inside[key])
        # capped: reads that several dependencies share are counted for each
        needed[key] = min(count, late + 1)
    return {key for key, count in needed.items() if count > late}


def _dependents_to_inline(
    key: Key, dependents: list[Key], dsk: Mapping[Key, GraphNode], late_results: Container[Key]
) -> list[Key]:
    """Choose the dependents that read the block themselves."""
    tasks = [name for name in dependents if type(dsk[name]) is Task]
    if len(dependents) == 1:
        return [name for name in tasks if _indexes_by_list(dsk[name])]
    late = [
        name
        for name in tasks
        if any(other in late_results for other in dsk[name].dependencies - {key})
    ]
    if len(late) > MAX_COPIES:
        return []
    rest = [name for name in dependents if name not in late]
    alone = [name for name in rest if name in tasks and dsk[name].dependencies == {key}]
    return late + rest if late and len(rest) == len(alone) == 1 else late


def _indexes_by_list(node: GraphNode) -> TypeGuard[Task]:
    """Whether a task, or one that is fused into it, indexes by a list."""
    if not isinstance(node, Task):
        return False
    inner = node.args[0].values() if node.func is _execute_subgraph else [node]
    return any(isinstance(n, Task) and n.func is _shuffle._getitem for n in inner)


def _fused(dependent: GraphNode, read: GraphNode) -> GraphNode:
    """Fuse a read into a dependent.

    Inside, the read gets a key that no other task and no argument has: two nodes of a fused task
    with the same key would be one node to dask.
    """
    inside = f"read-for-{tokenize(read.key, dependent.key)}"
    own = read.substitute({}, key=inside)
    fused = _fused_inside(dependent, read.key, own)
    return fused or Task.fuse(own, dependent.substitute({read.key: inside}), key=dependent.key)


def _fused_inside(dependent: Any, key: Key, read: GraphNode) -> Task | None:
    """Add a read to the tasks inside a fused task, where the pushdown rules find it.

    None for other tasks, and those whose argument has the result inside a list.
    """
    if dependent.func is not _execute_subgraph:
        return None
    inner, out, names, *values = dependent.args
    arguments = dict(zip(names, values, strict=True))
    # inside, a result may have another key
    aliases = [name for name, value in arguments.items() if value == TaskRef(key)]
    others = {name: value for name, value in arguments.items() if name not in aliases}
    if any(isinstance(v, GraphNode) and key in v.dependencies for v in others.values()):
        return None
    renamed = {
        name: task.substitute(dict.fromkeys(aliases, read.key)) for name, task in inner.items()
    }
    return Task(
        dependent.key,
        _execute_subgraph,
        {**renamed, read.key: read},
        out,
        tuple(others),
        *others.values(),
        _data_producer=True,
    )


INLINE_READS = GraphRule(
    "inline_reads",
    "A block that waits for a late result would fill the memory, where it could be read once more; "
    "a list of positions need not be read out of a whole block.",
    reads_to_inline,
    inline_reads,
)
