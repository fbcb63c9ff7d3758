"""Reads that are part of the tasks that need them, where dask leaves them apart.

Two kinds: a read with the one task that takes items of it by a list, and a read whose result would
wait in memory. In ``x - x.mean()`` each block is needed twice, before and after the mean is known;
read twice, nothing waits.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping
from typing import Any, TypeGuard

from dask._task_spec import GraphNode, Task, TaskRef, _execute_subgraph
from dask.array import _shuffle
from dask.core import toposort
from dask.typing import Key

from b2nd_dask.format.grid import parse_selection
from b2nd_dask.graph.expression import NotUnderstoodError, Read, expression_of
from b2nd_dask.graph.program import program_of

#: A result that needs more bytes of reads than this comes late: by then blocks that were read for
#: it would fill the memory.
LATE_NBYTES = 1 << 28
#: More tasks than this do not read a block each for themselves.
MAX_COPIES = 4


def inline_reads(dsk: Mapping[Key, GraphNode], wanted: set[Key]) -> Mapping[Key, GraphNode]:
    """Make reads part of the tasks that take their results, where that saves memory or work.

    Parameters
    ----------
    dsk : mapping
        A graph that dask has optimized.
    wanted : set of Key
        Tasks whose results are asked for.

    Returns
    -------
    mapping
    """
    takers = takers_of(dsk)
    # most graphs have none, and are not looked into
    if not any(len(names) > 1 or _takes(dsk[names[0]]) for names in takers.values()):
        return dsk
    nbytes = {
        key: count
        for key, node in dsk.items()
        if key not in wanted and takers[key] and (count := _nbytes_read(node)) is not None
    }
    if not nbytes:
        return dsk
    needed = _nbytes_needed(dsk, nbytes)
    inlined = dict(dsk)
    for key in nbytes:
        chosen = _choose(key, takers[key], dsk, needed)
        for name in chosen:
            inlined[name] = _joined(inlined[name], dsk[key])
        if len(chosen) == len(takers[key]):
            del inlined[key]
    return inlined


def takers_of(dsk: Mapping[Key, GraphNode]) -> defaultdict[Key, list[Key]]:
    """Which tasks take the result of each.

    Parameters
    ----------
    dsk : mapping

    Returns
    -------
    mapping of Key to list of Key
    """
    takers: defaultdict[Key, list[Key]] = defaultdict(list)
    for key, node in dsk.items():
        for name in node.dependencies:
            takers[name].append(key)
    return takers


def _nbytes_read(node: GraphNode) -> int | None:
    """Bytes of items that a task reads and works on, if that is all it does."""
    if not isinstance(node, Task) or node.dependencies:
        return None
    try:
        found = program_of(expression_of(node))
    except NotUnderstoodError:
        return None
    return None if found is None else _size(found[0])


def _size(read: Read) -> int:
    frame = read.region.frame
    try:
        shape = parse_selection(read.index, frame.shape).shape
    except IndexError:
        shape = frame.shape  # taken by lists
    return math.prod(shape) * frame.dtype.itemsize


def _nbytes_needed(dsk: Mapping[Key, GraphNode], nbytes: Mapping[Key, int]) -> Mapping[Key, int]:
    """How many bytes are read for each result, up to just more than is looked for."""
    needed: dict[Key, int] = {}
    # what is persisted has no task
    inside = {key: node.dependencies & dsk.keys() for key, node in dsk.items()}
    for key in toposort(dsk, dependencies=inside):
        count = nbytes.get(key) or sum(needed[name] for name in inside[key])
        needed[key] = min(count, LATE_NBYTES + 1)
    return needed


def _choose(
    key: Key, takers: list[Key], dsk: Mapping[Key, GraphNode], needed: Mapping[Key, int]
) -> list[Key]:
    """The tasks that read for themselves."""
    tasks = [name for name in takers if type(dsk[name]) is Task]
    if len(takers) == 1:
        return [name for name in tasks if _takes(dsk[name])]
    late = [
        name
        for name in tasks
        if any(needed.get(other, 0) > LATE_NBYTES for other in dsk[name].dependencies - {key})
    ]
    if len(late) > MAX_COPIES:
        return []
    rest = [name for name in takers if name not in late]
    alone = [name for name in rest if name in tasks and dsk[name].dependencies == {key}]
    return late + rest if late and len(rest) == len(alone) == 1 else late


def _takes(node: GraphNode) -> TypeGuard[Task]:
    """Whether a task, or one that is fused into it, takes items by a list."""
    if not isinstance(node, Task):
        return False
    inner = node.args[0].values() if node.func is _execute_subgraph else [node]
    return any(isinstance(n, Task) and n.func is _shuffle._getitem for n in inner)


def _joined(taker: Any, read: Any) -> Task:
    """A task with the read that it needs in it."""
    inner, out, names, values = {taker.key: taker}, taker.key, taker.dependencies, None
    if taker.func is _execute_subgraph:
        inner, out, names, *values = taker.args
    # inside, a task may go by another name
    given = dict(zip(names, values or map(TaskRef, names), strict=True))
    reads = {name for name, value in given.items() if value == TaskRef(read.key)}
    kept = {name: value for name, value in given.items() if name not in reads}
    return Task(
        taker.key,
        _execute_subgraph,
        {**inner, **{name: read.substitute({}, key=name) for name in reads}},
        out,
        tuple(kept),
        *kept.values(),
        _data_producer=True,
    )
