"""Read a result of `compute()` by one task, instead of one task per block and a join.

dask makes a task for each block, optimizes and schedules each, and copies the results into one
array. If a slice of a frame has all elements of that array, one task reads them into it, with
its own threads. These threads also do elementwise work on the elements.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from dataclasses import replace
from typing import Any

import dask
import numpy as np
from dask.typing import Key

from b2nd_dask.format.grid import AxisCells
from b2nd_dask.frame.joined import JoinedReference
from b2nd_dask.graph._dask_compat import Alias, GraphNode, List, Task, TaskRef, core, task_dict
from b2nd_dask.graph.expression.nodes import Elemwise, Node, Read
from b2nd_dask.graph.expression.program import Compiled, compile_tree
from b2nd_dask.graph.expression.pruning import predicate_of
from b2nd_dask.graph.layers.layers import Layers
from b2nd_dask.graph.resources import available, on_cluster
from b2nd_dask.graph.task_names import read_name
from b2nd_dask.graph.tasks import read_at_once

#: One thread decodes so many bytes in the time of about ten tasks.
SMALL_NBYTES = 1 << 25
#: A larger read would block interrupts and the progress bar for a second.
MOST_NBYTES = 1 << 30


def tasks_at_once(layers: Layers, output_keys: set[Key]) -> dict[Key, GraphNode] | None:
    """Make one task for each result; None unless each comes from a frame."""
    prunes = "statistics" in layers.rules
    tasks: dict[Key, GraphNode] = {}
    touched: Counter[int] = Counter()
    by_layer: dict[str, Key] = {}
    for key in output_keys:
        node = _result_of(layers, key)
        found = None if node is None else at_once(node)
        if node is None or found is None:
            return None
        # an array that is requested twice is one result, as in dask
        if (same := by_layer.setdefault(node.layers[0], key)) != key:
            tasks[key] = Alias(key, same)
            continue
        read = found[0].read
        source = id(read.source)
        is_first = source not in touched
        touched[source] += _touched_nbytes(read)
        # results of one frame may share blocks, which tasks per block read once
        if not is_first and touched[source] > SMALL_NBYTES:
            return None
        name = key
        if on_cluster():
            # the cluster's dashboard shows the read by this name
            name = read_name(read.source.label, str(key).replace("-", "."))
            tasks[key] = Alias(key, name)
        tasks[name] = task_at_once(name, *found, prunes=prunes)
    return tasks


def at_once(node: Node) -> tuple[Compiled, int] | None:
    """The read of all blocks of a node by one task, and its number of threads.

    None if one task per block is faster.
    """
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
    return None if threads is None else (compiled, threads)


def task_at_once(key: Key, compiled: Compiled, threads: int, *, prunes: bool) -> Task:
    """Make the task; with `prunes`, statistics prune chunks."""
    read = compiled.read
    whole = replace(read, chunks=tuple((sum(along),) for along in read.chunks))
    block = whole.blocks(predicate_of(compiled) if prunes else None)[(0,) * len(read.chunks)]
    args = block, compiled.program, read.chunks, threads
    return Task(key, read_at_once, *args, _data_producer=True)


def _result_of(layers: Layers, key: Key) -> Node | None:
    """The node of an output key that is a result of `compute()`; else None."""
    node = (task_dict(layers.graph.layers.get(str(key))) or {}).get(key)
    if type(node) is not Task or node.func is not core.finalize or len(node.args) != 1:
        return None
    blocks = [node.args[0]]
    while all(isinstance(one, List) for one in blocks):
        blocks = list(itertools.chain.from_iterable(one.args for one in blocks))
    keys: list[Any] = [one.key if type(one) is TaskRef else None for one in blocks]
    found = layers.nodes.get(keys[0][0]) if isinstance(keys[0], tuple) else None
    if not isinstance(found, Read | Elemwise) or found.chunks is None:
        return None
    every = itertools.product((found.layers[0],), *(range(len(along)) for along in found.chunks))
    return found if keys == list(every) else None


def _threads_for(read: Read, nbytes: int) -> int | None:
    """Threads for a result of `nbytes`; None if dask's tasks are faster."""
    source = read.source
    kept = [axis for axis in read.axes if axis is not None]
    if kept != sorted(kept):
        return None  # permuted axes need a copy in any case
    small = _touched_nbytes(read) <= SMALL_NBYTES
    if on_cluster():
        return 1 if small else None
    if small:
        return available().threads
    # joined frames are read one after another
    in_threads = dask.config.get("scheduler", None) in (None, "threads", "threading")
    alone = isinstance(source, JoinedReference) or not in_threads
    return None if alone or nbytes > MOST_NBYTES else available().threads


def _touched_nbytes(read: Read) -> int:
    """Bytes of the blocks that a read touches."""
    # a lower bound, exact if blocks divide chunks; an empty array may have empty blocks
    grid = read.source.grid
    axes = zip(read.ascending, grid.blocks, strict=True)
    return math.prod(len(AxisCells(at, block or 1)) for at, block in axes) * grid.block_nbytes
