"""Read at once what `compute()` returns: one task in place of a read for each block and their join.

dask makes a task of each block, optimizes these, hands them out one by one, and copies the results
into one array. Where all of that array comes from a frame by slices, one read does it: into that
array, by threads of its own.
"""

from __future__ import annotations

import itertools
import math

import dask
from dask.typing import Key

from b2nd_dask.frame.joined import JoinedReference
from b2nd_dask.frame.read.decode_cost import touched_blocks_along
from b2nd_dask.graph._dask_compat import Alias, GraphNode, List, Task, TaskRef, core, held_tasks
from b2nd_dask.graph.expression.nodes import Read
from b2nd_dask.graph.layers.layers import Layers
from b2nd_dask.graph.optimize.lower import finish_of, part_of
from b2nd_dask.graph.resources import available, on_cluster
from b2nd_dask.graph.task_names import read_name
from b2nd_dask.graph.tasks.block_read import BlockRead, read_at_once

#: One thread decodes so many bytes in the time of some ten tasks.
SMALL_NBYTES = 1 << 25
#: A read of more could not be interrupted for a second, and a progress bar would wait as long.
MOST_NBYTES = 1 << 30


def tasks_at_once(layers: Layers, output_keys: set[Key]) -> dict[Key, GraphNode] | None:
    """Make one task for each result; None unless all of them are slices of frames."""
    tasks: dict[Key, GraphNode] = {}
    made: list[Read] = []
    by_layer: dict[str, Key] = {}
    for key in output_keys:
        read = _result_of(layers, key)
        threads = None if read is None else threads_for(read)
        if read is None or threads is None:
            return None
        # one array that is wanted twice is one result, as dask's own
        if (same := by_layer.setdefault(read.layers[0], key)) != key:
            tasks[key] = Alias(key, same)
            continue
        of_same = [other for other in made if other.source is read.source]
        # several results may share blocks, which tasks of blocks read once
        if of_same and sum(map(_touched_nbytes, (read, *of_same))) > SMALL_NBYTES:
            return None
        made.append(read)
        tasks |= _tasks_for(key, read, threads)
    return tasks


def _tasks_for(key: Key, read: Read, threads: int) -> dict[Key, GraphNode]:
    if not on_cluster():
        return {key: task_at_once(key, read, threads)}
    # its dashboard shows that a task reads
    name = read_name(read.source.label, str(key).replace("-", "."))
    return {key: Alias(key, name), name: task_at_once(name, read, threads)}


def task_at_once(key: Key, read: Read, threads: int) -> Task:
    """The task that reads all elements of a read."""
    block = BlockRead(*part_of(read.source, read.ascending), finish_of(read))
    return Task(key, read_at_once, block, threads, _data_producer=True)


def _result_of(layers: Layers, key: Key) -> Read | None:
    """What an output key reads, where it is the result of `compute()`."""
    node = (held_tasks(layers.graph.layers.get(str(key))) or {}).get(key)
    if type(node) is not Task or node.func is not core.finalize or len(node.args) != 1:
        return None
    blocks = [node.args[0]]
    while all(isinstance(one, List) for one in blocks):
        blocks = list(itertools.chain.from_iterable(one.args for one in blocks))
    first = getattr(blocks[0], "key", None) if blocks else None
    read = layers.nodes.get(first[0]) if isinstance(first, tuple) else None
    if not isinstance(read, Read):
        return None
    every = itertools.product((read.layers[0],), *(range(len(along)) for along in read.chunks))
    refers = all(type(one) is TaskRef for one in blocks)
    return read if refers and [one.key for one in blocks] == list(every) else None


def threads_for(read: Read) -> int | None:
    """How many threads shall read at once; None where tasks of dask's do it better."""
    source = read.source
    kept = [axis for axis in read.axes if axis is not None]
    if kept != sorted(kept):
        return None  # elements whose axes are exchanged are copied anyway
    small = _touched_nbytes(read) <= SMALL_NBYTES
    if on_cluster():
        return 1 if small else None
    if small:
        return available().threads
    # of joined frames one is read after the other, and from stores dask's threads fetch more
    in_threads = dask.config.get("scheduler", None) in (None, "threads", "threading")
    alone = isinstance(source, JoinedReference) or source.is_remote or not in_threads
    return None if alone or read.nbytes > MOST_NBYTES else available().threads


def _touched_nbytes(read: Read) -> int:
    """Bytes of the blocks that a read touches."""
    grid = read.source.grid
    axes = zip(read.ascending, grid.chunks, grid.blocks, strict=True)
    return math.prod(itertools.starmap(touched_blocks_along, axes)) * grid.block_nbytes
