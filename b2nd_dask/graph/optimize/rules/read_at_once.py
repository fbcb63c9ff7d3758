"""Read at once what `compute()` returns: one task in place of a read for each block and their join.

dask makes a task of each block, optimizes these, hands them out one by one, and copies the results
into one array. Where all of that array comes from a frame by slices, one read does it: into that
array, by threads of its own.
"""

from __future__ import annotations

import itertools
import math
import threading
from types import EllipsisType
from typing import Any

import dask
import numpy as np
from dask.highlevelgraph import HighLevelGraph
from dask.typing import Key

from b2nd_dask.frame.joined import JoinedReference, Readable
from b2nd_dask.frame.read.decode_cost import touched_blocks_along
from b2nd_dask.frame.read.region import own_threads
from b2nd_dask.graph._dask_compat import Alias, GraphNode, List, Task, TaskRef, core
from b2nd_dask.graph.layers.selections import FrameSelection, selection_of
from b2nd_dask.graph.optimize.rules.rule import LayerAnswer, Tasks
from b2nd_dask.graph.resources import available, on_cluster
from b2nd_dask.graph.task_names import of_frame

#: One thread decodes so many bytes in the time of some ten tasks.
SMALL_NBYTES = 1 << 25
#: A read of more could not be interrupted for a second, and a progress bar would wait as long.
MOST_NBYTES = 1 << 30


def read_at_once(
    source: Readable,
    axes: tuple[range, ...],
    finish: tuple[int | slice | EllipsisType | None, ...],
    threads: int,
) -> Any:
    """Read a region, with threads of the task where these are not somebody else's.

    Parameters
    ----------
    axes : tuple of range
        Ascending positions along each axis.
    finish : tuple
        Index into what was read.
    threads : int
        Of dask's threaded scheduler.

    Returns
    -------
    ndarray or scalar
        Writable, in C order.
    """
    # the main thread of a program computes for the synchronous scheduler, or for that of processes
    in_main = threading.current_thread() is threading.main_thread()
    elements = source.read_axes(axes, min(threads, own_threads()) if in_main else threads)
    # `elements[()]` of a 0-d array would be a scalar, of native byte order: another dtype
    found: Any = elements[finish] if finish else elements
    if isinstance(found, np.ndarray) and not (found.flags.writeable and found.flags.c_contiguous):
        return found.copy(order="C")
    return found


def tasks_at_once(graph: HighLevelGraph, output_keys: set[Key]) -> Tasks | None:
    """Make one task for each result; None unless all of them are slices of frames."""
    tasks: dict[Key, GraphNode] = {}
    made: dict[Key, FrameSelection] = {}
    for key in output_keys:
        selection = _result_of(graph, key)
        threads = None if selection is None else _threads_for(selection)
        if selection is None or threads is None:
            return None
        of_same = {k: other for k, other in made.items() if other.source is selection.source}
        same = next((k for k, other in of_same.items() if other == selection), None)
        if same is not None:
            tasks[key] = Alias(key, same)
            continue
        # several results may share blocks, which tasks of blocks read once
        if of_same and sum(map(_touched_nbytes, (selection, *of_same.values()))) > SMALL_NBYTES:
            return None
        made[key] = selection
        tasks |= _tasks_for(key, selection, threads)
    return tasks


def _tasks_for(key: Key, selection: FrameSelection, threads: int) -> dict[Key, GraphNode]:
    source, axes = selection.source, selection.ascending
    if isinstance(source, JoinedReference) and all(axes):
        source, axes = source.part_of_axes(axes)
    arguments = source, axes, selection.finish, threads
    if not on_cluster():
        return {key: Task(key, read_at_once, *arguments, _data_producer=True)}
    # its dashboard shows that a task reads
    name = "read" + of_frame(source.label, str(key).replace("-", "."))
    reading = Task(name, read_at_once, *arguments, _data_producer=True)
    return {key: Alias(key, name), name: reading}


def _result_of(graph: HighLevelGraph, key: Key) -> FrameSelection | None:
    """What an output key selects, where it is the result of `compute()`."""
    tasks = getattr(graph.layers.get(str(key)), "mapping", None)
    node = tasks.get(key) if isinstance(tasks, dict) else None
    if type(node) is not Task or node.func is not core.finalize or len(node.args) != 1:
        return None
    blocks = [node.args[0]]
    while all(isinstance(one, List) for one in blocks):
        blocks = list(itertools.chain.from_iterable(one.args for one in blocks))
    first = getattr(blocks[0], "key", None) if blocks else None
    if not isinstance(first, tuple) or first[0] not in graph.layers:
        return None
    selection = selection_of(graph, first[0])
    if selection is None:
        return None
    every = itertools.product((first[0],), *(range(len(along)) for along in selection.sizes))
    refers = all(type(one) is TaskRef for one in blocks)
    return selection if refers and [one.key for one in blocks] == list(every) else None


def _threads_for(selection: FrameSelection) -> int | None:
    """How many threads shall read a selection; None where tasks of dask's do it better."""
    source = selection.source
    small = _touched_nbytes(selection) <= SMALL_NBYTES
    if on_cluster():
        return 1 if small else None
    if small:
        return available().threads
    # of joined frames one is read after the other, and from stores dask's threads fetch more
    in_threads = dask.config.get("scheduler", None) in (None, "threads", "threading")
    alone = isinstance(source, JoinedReference) or source.is_remote or not in_threads
    nbytes = math.prod(map(len, selection.positions)) * source.dtype.itemsize
    return None if alone or nbytes > MOST_NBYTES else available().threads


def _touched_nbytes(selection: FrameSelection) -> int:
    """Bytes of the blocks that a selection touches."""
    grid = selection.source.grid
    axes = zip(selection.ascending, grid.chunks, grid.blocks, strict=True)
    return math.prod(touched_blocks_along(*axis) for axis in axes) * grid.block_nbytes


READ_AT_ONCE = LayerAnswer(
    "read_at_once",
    "One read of few blocks takes less time than tasks for all of the chunks that they lie in, "
    "and what is read to where it belongs need not be copied there.",
    tasks_at_once,
)
