"""Read at once what `compute()` returns: one task in place of a read for each block and their join.

dask makes a task of each block, optimizes these, hands them out one by one, and copies the results
into one array. Where all of that array comes from a frame by slices, one read does it: into that
array, by threads of its own. Elementwise work on what is read is done by these threads as well.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from typing import NamedTuple

import dask
import numpy as np
from dask.typing import Key

from b2nd_dask.frame.joined import JoinedReference
from b2nd_dask.frame.read.read_cost import touched_blocks_along
from b2nd_dask.frame.read.reduce import Predicate
from b2nd_dask.graph._dask_compat import Alias, GraphNode, List, Task, TaskRef, core, held_tasks
from b2nd_dask.graph.expression.nodes import Elemwise, Node, Read
from b2nd_dask.graph.expression.program import Program, compile_tree
from b2nd_dask.graph.expression.pruning import predicate_of
from b2nd_dask.graph.layers.layers import Layers
from b2nd_dask.graph.optimize.lower import finish_of
from b2nd_dask.graph.resources import available, on_cluster
from b2nd_dask.graph.task_names import read_name
from b2nd_dask.graph.tasks import BlockRead, read_at_once

#: One thread decodes so many bytes in the time of some ten tasks.
SMALL_NBYTES = 1 << 25
#: A read of more could not be interrupted for a second, and a progress bar would wait as long.
MOST_NBYTES = 1 << 30


def tasks_at_once(
    layers: Layers, output_keys: set[Key], *, asks: bool
) -> dict[Key, GraphNode] | None:
    """Make one task for each result; None unless all of them come from a frame each.

    Parameters
    ----------
    asks : bool
        Whether statistics prune chunks.
    """
    tasks: dict[Key, GraphNode] = {}
    touched: Counter[int] = Counter()
    by_layer: dict[str, Key] = {}
    for key in output_keys:
        node = _result_of(layers, key)
        found = None if node is None else at_once(node, asks=asks)
        if node is None or found is None:
            return None
        # one array that is wanted twice is one result, as dask's own
        if (same := by_layer.setdefault(node.layers[0], key)) != key:
            tasks[key] = Alias(key, same)
            continue
        source = id(found.read.source)
        is_first = source not in touched
        touched[source] += _touched_nbytes(found.read)
        # several results may share blocks, which tasks of blocks read once
        if not is_first and touched[source] > SMALL_NBYTES:
            return None
        tasks |= _tasks_for(key, found)
    return tasks


class AtOnce(NamedTuple):
    """What one task reads, and the work on it."""

    read: Read
    program: Program
    predicate: Predicate | None
    threads: int

    def task(self, key: Key) -> Task:
        """The task."""
        read = self.read
        block = BlockRead.of(read.source, read.ascending, finish_of(read), self.predicate)
        args = block, self.program, read.chunks, self.threads
        return Task(key, read_at_once, *args, _data_producer=True)


def at_once(node: Node, *, asks: bool) -> AtOnce | None:
    """What one task does for all blocks of a node; None where tasks of blocks do it better."""
    compiled = compile_tree(node)
    if compiled is None or compiled.inputs or compiled.program.filters:
        return None
    read, program = compiled.read, compiled.program
    if program.steps and not (read.is_box and node.chunks and compiled.is_numeric):
        return None
    nbytes = read.nbytes
    if program.steps:
        dtype = program.dtype([np.empty((0,) * len(read.chunks), read.source.dtype)])
        nbytes = nbytes // read.source.dtype.itemsize * dtype.itemsize
    threads = _threads_for(read, nbytes)
    predicate = predicate_of(node) if asks else None
    return None if threads is None else AtOnce(read, program, predicate, threads)


def _tasks_for(key: Key, found: AtOnce) -> dict[Key, GraphNode]:
    if not on_cluster():
        return {key: found.task(key)}
    # its dashboard shows that a task reads
    name = read_name(found.read.source.label, str(key).replace("-", "."))
    return {key: Alias(key, name), name: found.task(name)}


def _result_of(layers: Layers, key: Key) -> Node | None:
    """What an output key computes, where it is the result of `compute()`."""
    node = (held_tasks(layers.graph.layers.get(str(key))) or {}).get(key)
    if type(node) is not Task or node.func is not core.finalize or len(node.args) != 1:
        return None
    blocks = [node.args[0]]
    while all(isinstance(one, List) for one in blocks):
        blocks = list(itertools.chain.from_iterable(one.args for one in blocks))
    first = getattr(blocks[0], "key", None) if blocks else None
    found = layers.nodes.get(first[0]) if isinstance(first, tuple) else None
    if not isinstance(found, Read | Elemwise) or found.chunks is None:
        return None
    every = itertools.product((found.layers[0],), *(range(len(along)) for along in found.chunks))
    refers = all(type(one) is TaskRef for one in blocks)
    return found if refers and [one.key for one in blocks] == list(every) else None


def _threads_for(read: Read, nbytes: int) -> int | None:
    """How many threads make a result of so many bytes; None where tasks of dask's do it better."""
    source = read.source
    kept = [axis for axis in read.axes if axis is not None]
    if kept != sorted(kept):
        return None  # elements whose axes are exchanged are copied anyway
    small = _touched_nbytes(read) <= SMALL_NBYTES
    if on_cluster():
        return 1 if small else None
    if small:
        return available().threads
    # of joined frames one is read after the other
    in_threads = dask.config.get("scheduler", None) in (None, "threads", "threading")
    alone = isinstance(source, JoinedReference) or not in_threads
    return None if alone or nbytes > MOST_NBYTES else available().threads


def _touched_nbytes(read: Read) -> int:
    """Bytes of the blocks that a read touches."""
    grid = read.source.grid
    axes = zip(read.ascending, grid.chunks, grid.blocks, strict=True)
    return math.prod(itertools.starmap(touched_blocks_along, axes)) * grid.block_nbytes
