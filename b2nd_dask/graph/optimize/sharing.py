"""Dependents of layers: whether a tree may absorb a layer, or repeats its read.

Also whether a constant block may be a view, since no dependent writes into it.
"""

from __future__ import annotations

import itertools
import logging
import math
from collections.abc import Set
from functools import cache, cached_property, partial
from typing import Any

import numpy as np

from b2nd_dask.graph._dask_compat import Alias, M, Task, _shuffle, block_function, core, task_dict
from b2nd_dask.graph.expression.elementwise import (
    FILTERS,
    UNKNOWN,
    VIEW_FUNCTIONS,
    is_among,
    is_elementwise,
    unwrapped,
)
from b2nd_dask.graph.expression.nodes import Elemwise, Node, Opaque, Read, nodes_of, with_nodes
from b2nd_dask.graph.expression.program import compile_tree
from b2nd_dask.graph.layers.layers import Layers
from b2nd_dask.graph.layers.moves import as_task
from b2nd_dask.graph.resources import available
from b2nd_dask.graph.write.write_tasks import write_task

logger = logging.getLogger("b2nd_dask")

#: A result is late if it depends on reads of more bytes: blocks that wait for it would fill the
#: memory.
LATE_NBYTES = 1 << 28
#: Share of the memory for blocks that wait for a late result.
SHARE_OF_MEMORY = 1 / 8
#: Elements that are so many times as wide as the stored ones never wait for a late result.
WIDE = 4
#: Maximum number of dependents for which a block is read again.
MAX_COPIES = 4
#: Functions whose result may be a view of their argument.
_MOVES = FILTERS | {np.transpose, np.swapaxes, M.reshape}
#: Functions that join blocks.
_JOIN_FUNCTIONS = frozenset(
    {_shuffle.concatenate_arrays, core.concatenate3, core.concatenate_shaped, np.concatenate}
)


class Sharing:
    """The dependents of the layers of a graph.

    The layers `outputs` are results. The layers `answered`, answered from statistics, need no
    blocks from below.
    """

    def __init__(self, layers: Layers, outputs: set[str], answered: Set[str]) -> None:
        self._layers = layers
        # layers that lowered ones use, and the dependents of each layer that are not lowered yet
        self._used: set[str] = set()
        self._pending = {name: set(layers.dependents[name]) for name in layers.order}
        self._outputs = outputs
        unneeded = {name for name in layers.order if not layers.dependents[name]} - outputs
        self._release([*answered, *unneeded])
        self._rank = {name: number for number, name in enumerate(layers.order)}
        self._late = _LateReads(layers) if "late_reads" in layers.rules else None
        self._is_sliced = cache(partial(_is_sliced, layers))

    def absorbed(self, top: Node, dependent: str | None = None) -> Node | None:
        """The tree of a node; layers with other dependents become opaque.

        `dependent` is the layer that absorbs the whole tree, such as the chunk step of a reduction.
        Returns None if the tree itself cannot be absorbed.
        """
        included = {dependent or top.layers[0]}
        opaque: set[str] = set()
        computed = (node for node in nodes_of(top) if not isinstance(node, Opaque))
        # each after all its dependents
        for node in sorted(computed, key=lambda one: -self._rank[one.layers[-1]]):
            first = node is top and dependent is None
            added = self._included(node, node.layers[first:], included)
            if added is None:
                # all nodes moved by one layer have its name
                opaque.add(node.layers[0])
            else:
                included |= added
        # a raveled argument has other blocks than the layer that ravels it
        raveled = top.args if isinstance(top, Elemwise) and top.is_raveled else ()
        if any(isinstance(each, Node) and each.layers[0] in opaque for each in (top, *raveled)):
            return None

        def cut(node: Node) -> Node:
            is_cut = node.layers[0] in opaque
            return Opaque(node.layers[0], node.chunks) if is_cut else node

        return with_nodes(top, cut)

    def _included(self, node: Node, names: tuple[str, ...], included: set[str]) -> set[str] | None:
        """Layers that are absorbed with a node; None if one has another dependent."""
        # Other dependents may read the old blocks, too: that costs less than to rechunk them. But
        # elements that several rechunks need, such as the slices of a difference, are read once.
        is_rechunked = isinstance(node, Read) and node.is_rechunked and not node.source.is_remote
        reads_besides = is_rechunked and self._layers.rechunks_of[node.layers[-1]] == 1
        added: set[str] = set()
        for name in names:
            is_old = reads_besides and not self._layers.nodes[name].is_rechunked
            if not (is_old or name in included or self._is_free(name, included | added)):
                others = self._layers.dependents[name]
                logger.debug("%s is not absorbed: it is needed by %s", name, others or "the user")
                return None
            added.add(name)
        return added

    def is_needed(self, name: str) -> bool:
        """Whether a layer is a result, or lowered layers use it."""
        return name in self._outputs or name in self._used

    def note_lowered(self, name: str, uses: set[str]) -> None:
        """Note the layers that a lowered layer uses."""
        self._used |= uses
        self._release([name])

    def _release(self, names: list[str]) -> None:
        """Remove layers, and all below that nothing else needs, from the pending dependents."""
        for name in names:
            for below in self._layers.graph.dependencies[name]:
                left = self._pending[below]
                if name in left:
                    left.remove(name)
                    if not left and not self.is_needed(below):
                        names.append(below)

    @cached_property
    def only_read(self) -> set[str]:
        """Layers into whose blocks no dependent may write.

        A user function may work in place, and so may the receiver of a result.
        """
        found: set[str] = set()
        # a layer that joins many others is above each of them, but is examined once
        readers: set[str] = set()
        for name in reversed(self._layers.order):
            if name not in self._outputs and readers.issuperset(self._layers.dependents[name]):
                found.add(name)
            if self._reads_only(name, found):
                readers.add(name)
        return found

    def _reads_only(self, name: str, only_read: set[str]) -> bool:
        layer, node = self._layers.graph.layers[name], self._layers.nodes[name]
        if isinstance(node, Elemwise) and node.filters and len(node.layers) == 1:
            # a mask copies the elements that it selects
            return True
        if name in self._layers.folds or block_function(layer) is write_task:
            return True
        return _makes_arrays(layer) or (name in only_read and _passes_blocks(layer))

    def _is_free(self, name: str, included: set[str]) -> bool:
        """Whether a tree may absorb a layer."""
        if name in self._outputs:
            return False
        is_sliced = self._is_sliced(name) if len(self._layers.dependents[name]) > 1 else None
        if is_sliced:
            return True
        if name not in self._used and self._pending[name] <= included:
            return is_sliced is None
        return self._late is not None and self._late.is_repeated(name, included)


def _makes_arrays(layer: Any) -> bool:
    """Whether a layer's results are new arrays: elementwise work, and `compute()`."""
    func = block_function(layer)
    if func is None:
        tasks = list((task_dict(layer) or {}).values())
        # for a single block some versions of dask return the block itself
        return (
            len(tasks) == 1
            and _calls(tasks[0], {core.finalize})
            and (len(tasks[0].dependencies) > 1)
        )
    args = [UNKNOWN if labels is not None else value for value, labels in layer.indices]
    kwargs = layer.task.kwargs
    may_be_views = is_among(unwrapped(func, kwargs)[0], VIEW_FUNCTIONS)
    return is_elementwise(func, args, kwargs) and not may_be_views


def _passes_blocks(layer: Any) -> bool:
    """Whether the blocks of a layer may be the blocks below, or views of them."""
    func = block_function(layer)
    if func is not None:
        return is_among(func, _MOVES) and not layer.task.kwargs.get("out")
    tasks = task_dict(layer)
    return tasks is not None and all(
        isinstance(task, Alias) or _calls(task, _MOVES | _JOIN_FUNCTIONS)
        for task in itertools.starmap(as_task, tasks.items())
    )


def _calls(task: Any, functions: Set[Any]) -> bool:
    return isinstance(task, Task) and is_among(task.func, functions)


def _is_sliced(layers: Layers, name: str) -> bool | None:
    """Whether the slices of a layer have no more elements than it; None with other dependents."""
    nodes = [layers.nodes[other] for other in layers.dependents[name]]
    if not all(name in node.layers[1:] for node in nodes):
        return None
    return sum(map(_nelements, nodes)) <= _nelements(layers.nodes[name])


def _nelements(node: Node) -> int:
    return math.prod(map(sum, node.chunks or ()))


class _LateReads:
    """Blocks that would wait in memory for a result of all blocks, as in ``x - x.mean()``.

    They are read again: by the tasks that need the late result, and by one other dependent.
    """

    def __init__(self, layers: Layers) -> None:
        self._layers = layers
        # each reduction of a frame would search the dependents of all others
        self._dependents_of = cache(self._dependents)
        self._limit = LATE_NBYTES
        reads = [node for node in layers.nodes.values() if isinstance(node, Read)]
        total = sum(node.nbytes for node in reads if len(node.layers) == 1)
        if total > self._limit:
            self._limit = max(self._limit, int(available().memory * SHARE_OF_MEMORY))
        self._is_short = total > self._limit

    @cached_property
    def _nbytes_below(self) -> dict[str, int]:
        """Bytes of frames that each layer depends on."""
        nbytes: dict[str, int] = {}
        for name in self._layers.order:
            node = self._layers.nodes[name]
            if isinstance(node, Read):
                count = node.nbytes
            else:
                count = sum(nbytes[other] for other in self._layers.graph.dependencies[name])
            # capped, since reads shared by several dependencies count several times
            nbytes[name] = min(count, self._limit + 1)
        return nbytes

    def is_repeated(self, name: str, included: set[str]) -> bool:
        """Whether the dependents of a layer that a tree includes compute the layer themselves."""
        late, rest = self._dependents_of(name)
        is_late = 0 < len(late) <= MAX_COPIES and (len(rest) == 1 or included.isdisjoint(rest))
        if is_late:
            logger.debug("late_reads: %s is read again, or would wait for another result", name)
        return is_late

    def _dependents(self, name: str) -> tuple[set[str], set[str]]:
        """The dependents of a layer that wait for a late result, and the others."""
        limit = self._limit_of(self._layers.nodes[name])
        dependents = self._layers.dependents[name]
        if limit is None:
            return set(), dependents
        late = {other for other in dependents if self._is_late(other, name, limit)}
        return late, dependents - late

    def _limit_of(self, node: Node) -> int | None:
        """Bytes of reads above which a result is late; None if a node's blocks wait for it."""
        if not isinstance(node, Read | Elemwise):
            return None
        # elements of a store are read only once
        if any(isinstance(each, Read) and each.source.is_remote for each in nodes_of(node)):
            return None
        if _is_wide(node):
            return LATE_NBYTES
        return self._limit if self._is_short else None

    def _is_late(self, name: str, source: str, limit: int) -> bool:
        """Whether a dependent of `source`, or its elementwise successors, need a late result."""
        seen = {source}
        while True:
            below = self._layers.graph.dependencies[name] - seen
            if any(self._nbytes_below[other] > limit for other in below):
                return True
            seen.add(name)
            above = list(self._layers.dependents[name])
            if len(above) != 1 or not isinstance(self._layers.nodes[above[0]], Elemwise):
                return False
            (name,) = above


def _is_wide(tree: Node) -> bool:
    """Whether the elements of a tree are `WIDE` times as wide as those that it reads.

    Packed temperature is: to read and unpack int16 twice takes no longer than to keep float64.
    """
    compiled = compile_tree(tree)
    if compiled is None or compiled.inputs or not compiled.is_numeric:
        return False
    stored = compiled.read.source.dtype
    made = compiled.program.dtype([np.empty(0, stored)])
    return bool(made.itemsize >= WIDE * stored.itemsize)
