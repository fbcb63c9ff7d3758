"""Repeat the layers between the reads of frames and a dask array on other blocks.

Layers are symbolic: a function, and which blocks go into which. Elementwise functions and
transposes compute the same of any blocks; a slice moves the blocks of what it cuts. Nothing else is
repeated: a function that is not known may depend on how large its blocks are.
"""

from __future__ import annotations

import itertools
import operator
from typing import Any, NamedTuple

import dask.array as da
from dask.base import tokenize
from dask.highlevelgraph import HighLevelGraph

from b2nd_dask.graph._dask_compat import (
    Alias,
    TaskRef,
    block_function,
    blockwise,
)
from b2nd_dask.graph.layers.layers import Layers
from b2nd_dask.graph.optimize.calls.elementwise import UNKNOWN, is_elementwise
from b2nd_dask.graph.read.blocks import Chunks, RegionBlocks, reading_of
from b2nd_dask.graph.read.from_b2nd import array_reading
from b2nd_dask.graph.read.new_grid import is_read_anew

#: Longer chains of layers are left to dask: they are followed by recursion.
MOST_LAYERS = 100


class NotRegriddableError(Exception):
    """A graph that cannot be repeated on other blocks, or should not be."""


class Axis(NamedTuple):
    """Blocks along one axis of a layer, and what the slices behind it drop."""

    sizes: tuple[int, ...]
    before: int = 0
    """Elements in front of the blocks."""
    after: int = 0

    @property
    def lengths(self) -> tuple[int, ...]:
        """Of all blocks: what is dropped is a block of its own, which is never computed."""
        return tuple(filter(None, (self.before,))) + self.sizes + tuple(filter(None, (self.after,)))


Axes = tuple[Axis, ...]
#: Of an axis along which an argument is broadcast.
_BROADCAST = Axis((1,))


def read_in_blocks(arr: da.Array, sizes: Chunks) -> da.Array:
    """Make the same array in other blocks, of reads in these.

    Parameters
    ----------
    sizes : tuple of tuple of int
        Lengths of the blocks along each axis.

    Raises
    ------
    NotRegriddableError
        Something between a read and the array cannot be repeated on other blocks, or reading in
        these takes too long.
    """
    graph = _Regridding(arr.dask)
    name = graph.layer(arr.name, tuple(map(Axis, sizes)))
    found = HighLevelGraph(graph.layers, graph.dependencies)
    return da.Array(found, name, sizes, dtype=arr.dtype, meta=arr._meta)


class _Regridding:
    """A graph that is built of the layers of another one."""

    def __init__(self, old: HighLevelGraph) -> None:
        self._old = old
        self._old_layers = Layers(old)
        self._names: dict[tuple[str, Axes], str] = {}
        self._depth = 0
        self.layers: dict[str, Any] = {}
        self.dependencies: dict[str, set[str]] = {}

    def layer(self, name: str, axes: Axes) -> str:
        """Add a layer in other blocks, and those that it depends on; return its new name."""
        if (name, axes) not in self._names:
            self._depth += 1
            if self._depth > MOST_LAYERS or 0 in map(sum, (axis.sizes for axis in axes)):
                raise NotRegriddableError(f"{name}: empty, or too many layers")
            self._names[name, axes] = self._added(name, axes)
            self._depth -= 1
        return self._names[name, axes]

    def _added(self, name: str, axes: Axes) -> str:
        layer = self._old.layers.get(name)
        if getattr(layer, "annotations", None):
            raise NotRegriddableError(f"{name} has annotations")
        reading = reading_of(layer)
        if reading is not None:
            return self._read(reading, axes)
        new = f"{name.rpartition('-')[0]}-{tokenize(name, axes)}"
        if block_function(layer) is None:
            return self._slice(name, new, axes)
        return self._elementwise(layer, name, new, axes)

    def _read(self, reading: RegionBlocks, axes: Axes) -> str:
        lengths, sizes = _lengths(axes), tuple(axis.sizes for axis in axes)
        source = reading.source
        if tuple(map(sum, lengths)) != source.shape:
            raise NotRegriddableError(f"{source.description}: broadcast")
        if not is_read_anew(source, sizes, tuple(axis.before for axis in axes)):
            raise NotRegriddableError(f"{source.description}: its blocks would be read too often")
        array = array_reading(source, lengths)
        name: str = array.name
        self._add(name, array.dask.layers[name], set())
        return name

    def _elementwise(self, layer: Any, name: str, new: str, axes: Axes) -> str:
        _check_elementwise(layer, name, permutes=self._old_layers.transposed(name) is not None)
        labelled = dict(zip(layer.output_indices, axes, strict=True))
        pairs: list[Any] = []
        numblocks: dict[str, Any] = {}
        for argument, labels in layer.indices:
            source = argument
            if labels is not None:
                wanted = tuple(
                    _BROADCAST if count == 1 < layer.dims[label] else labelled[label]
                    for label, count in zip(labels, layer.numblocks[argument], strict=True)
                )
                self._check_broadcast(argument, wanted)
                if all(axis is _BROADCAST for axis in wanted):
                    self._keep(argument)
                    numblocks[source] = layer.numblocks[argument]
                else:
                    source = self.layer(argument, wanted)
                    numblocks[source] = tuple(map(len, _lengths(wanted)))
            pairs += source, labels
        task = layer.task
        made = blockwise(
            task.func, new, layer.output_indices, *pairs, numblocks=numblocks, **task.kwargs
        )
        self._add(new, made, set(numblocks))
        return new

    def _check_broadcast(self, argument: str, wanted: Axes) -> None:
        """Check that a block for all blocks has one element: else it is paired with each block."""
        repeated = [number for number, axis in enumerate(wanted) if axis is _BROADCAST]
        sizes = self._old_layers.chunks(argument) if repeated else ()
        if sizes is None or any(sizes[number] != (1,) for number in repeated):
            raise NotRegriddableError(f"{argument}: its block has more than one element")

    def _slice(self, name: str, new: str, axes: Axes) -> str:
        cut = self._old_layers.cut(name)
        if cut is None:
            raise NotRegriddableError(f"{name} is no grid of slices")
        wanted = tuple(
            Axis(axis.sizes, axis.before + along.start, axis.after + n - along.stop)
            for axis, along, n in zip(axes, cut.window, cut.shape, strict=True)
        )
        if any(sum(axis.lengths) != n for axis, n in zip(wanted, cut.shape, strict=True)):
            raise NotRegriddableError(f"{name}: broadcast")
        source = self.layer(cut.source, wanted)
        # one block more in front, where there was none in front of the slice
        shift = [int(w.before > 0) - int(a.before > 0) for w, a in zip(wanted, axes, strict=True)]
        tasks = {}
        for block in itertools.product(*(range(len(axis.lengths)) for axis in axes)):
            key: Any = (new, *block)
            target: Any = (source, *map(operator.add, block, shift))
            tasks[key] = Alias(key, target)
        self._add(new, tasks, {source})
        return new

    def _keep(self, name: str) -> None:
        """Take a layer and what it depends on as they are."""
        if name not in self.layers:
            self._add(name, self._old.layers[name], self._old.dependencies[name])
            for source in self._old.dependencies[name]:
                self._keep(source)

    def _add(self, name: str, layer: Any, dependencies: set[str]) -> None:
        self.layers[name] = layer
        self.dependencies[name] = set(dependencies)


def _lengths(axes: Axes) -> Chunks:
    return tuple(axis.lengths for axis in axes)


def _check_elementwise(layer: Any, name: str, *, permutes: bool) -> None:
    """Raise NotRegriddableError unless a layer computes the same of any blocks."""
    arguments = [UNKNOWN if labels is not None else given for given, labels in layer.indices]
    own = layer.output_indices
    task = layer.task
    plain = (
        not layer.io_deps
        and not layer.new_axes
        and not layer.concatenate
        and layer.output_blocks is None
        and len(task.args) == len(arguments)
        and all(isinstance(argument, TaskRef) for argument in task.args)
        and not any(isinstance(argument, TaskRef) for argument in arguments)
    )
    # blocks lie where NumPy broadcasts their elements to
    in_place = all(
        tuple(labels) == tuple(own[len(own) - len(labels) :])
        for _, labels in layer.indices
        if labels is not None
    )
    works = in_place and is_elementwise(task.func, arguments, task.kwargs)
    if not plain or not (permutes or works):
        raise NotRegriddableError(f"{name}: {task.func} may depend on its blocks")
