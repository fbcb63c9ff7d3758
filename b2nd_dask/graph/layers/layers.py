"""What the layers of a dask array are: a frame seen in other blocks, with other axes or shape.

Whoever repeats layers on other blocks (`graph.regrid`) has to know of each function besides that it
computes the same of any blocks; whoever leaves the blocks as they are need not.
"""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from dask.highlevelgraph import HighLevelGraph

from b2nd_dask.frame.joined import Readable
from b2nd_dask.graph import _dask_compat
from b2nd_dask.graph.read.blocks import Chunks, reading_of

if TYPE_CHECKING:
    from b2nd_dask.graph.layers.slices import Cut

#: Names that dask gives to layers which move elements and do not change them.
_RECHUNK = re.compile(r"rechunk-(merge|p2p)-[0-9a-f]{32}")
#: Not "reshape-blockwise-", whose elements are in another order.
_RESHAPE = re.compile(r"reshape-[0-9a-f]{32}")


def function_name(name: str) -> str:
    """The name of a layer without dask's token, for messages."""
    return re.sub(r"-[0-9a-f]{32}$", "", name)


class View(NamedTuple):
    """A layer, and the layer whose elements it has, perhaps with other axes, or a part of them."""

    base: str
    """Name of the layer below."""
    order: tuple[int, ...]
    """The axis of the base that each axis of the view is."""
    is_rechunked: bool = False
    """Whether the blocks of the base are not those of the view."""
    window: tuple[range, ...] | None = None
    """What the view has of each axis of the base; None of all of it."""

    def cut(self, taken: tuple[range, ...]) -> View:
        """The view of a part of the view."""
        window = [range(0)] * len(taken)
        for axis, along in zip(self.order, taken, strict=True):
            window[axis] = self.window[axis][along.start : along.stop] if self.window else along
        return self._replace(window=tuple(window))


class Layers:
    """The layers of a graph, by their names."""

    def __init__(self, graph: HighLevelGraph) -> None:
        self._layers = graph.layers
        self._below = graph.dependencies
        self._cuts: dict[str, Cut | None] = {}

    def view(self, name: str) -> View:
        """Look through rechunks, transposes, and slices of these and of frames."""
        below = self._only_below(name)
        if below is not None:
            axes = self.transposed(name)
            if axes is not None:
                view = self.view(below)
                return view._replace(order=tuple(view.order[axis] for axis in axes))
            if self._has_name(name, _RECHUNK):
                return self.view(below)._replace(is_rechunked=True)
            cut = self.cut(name)
            view = self.view(below) if cut is not None else View("", ())
            # of other layers only the blocks that are needed are computed
            if cut is not None and (view.is_rechunked or self.frame(view.base) is not None):
                return view.cut(cut.window)
        return View(name, tuple(range(self.ndim(name))))

    def frame(self, name: str) -> Readable | None:
        """The frame that a layer reads, or those that are joined; None for other layers."""
        reading = reading_of(self._layers.get(name))
        return None if reading is None else reading.source

    def reshaped_from(self, name: str) -> str | None:
        """The layer whose elements a layer has in another shape; None for other layers."""
        return self._only_below(name) if self._has_name(name, _RESHAPE) else None

    def moved_from(self, name: str) -> str | None:
        """The layer whose elements a layer has, in the same order, in other blocks or lengths."""
        below = self.reshaped_from(name)
        return self._only_below(name) if below is None and self._has_name(name, _RECHUNK) else below

    def cut(self, name: str) -> Cut | None:
        """What a layer takes of another by slices of step 1; None for other layers."""
        if name not in self._cuts:
            self._cuts[name] = self._cut(name)
        return self._cuts[name]

    def _cut(self, name: str) -> Cut | None:
        below = self._only_below(name)
        # of layers that are no functions of blocks dask holds the tasks, or makes them when asked
        tasks = getattr(self._layers.get(name), "mapping", None)
        if below is None or not isinstance(tasks, dict) or self._has_name(name, _RECHUNK):
            return None
        sizes = self.chunks(below)
        if sizes is None:
            return None
        try:
            # it needs private names of dask
            from b2nd_dask.graph.layers.slices import cut_of
        except _dask_compat.DaskChangedError:
            return None
        return cut_of(tasks, name, below, sizes)

    def inputs(self, name: str) -> list[tuple[str, tuple[int | None, ...]]] | None:
        """The layers that a layer of one task a block reads, and its own axis for each of theirs.

        Returns
        -------
        list of (str, tuple of int or None), or None
            None for an axis that the layer does not have, and for layers of another kind.
        """
        layer: Any = self._layers.get(name)
        cut = self.cut(name)
        if cut is not None:
            return [(cut.source, tuple(range(len(cut.window))))]
        if _dask_compat.block_function(layer) is None or layer.new_axes:
            return None
        axes = {index: axis for axis, index in enumerate(layer.output_indices)}
        return [
            (source, tuple(axes.get(index) for index in indices))
            for source, indices in layer.indices
            if indices is not None and isinstance(source, str) and source in self._layers
        ]

    def chunks(self, name: str) -> Chunks | None:
        """Lengths of the blocks of a layer; None where they cannot be known."""
        noted = self._noted(name, "chunks")
        if noted is not None:
            return None if np.isnan(sum(map(sum, noted))) else noted
        reading, cut = reading_of(self._layers.get(name)), self.cut(name)
        if reading is not None:
            found: Chunks = reading.chunks
            return found
        return self._chunks_of_function(name) if cut is None else cut.sizes

    def _chunks_of_function(self, name: str) -> Chunks | None:
        layer: Any = self._layers.get(name)
        inputs = self.inputs(name)
        if inputs is None:
            return None
        found: list[tuple[int, ...]] = [()] * len(layer.output_indices)
        known = [(self.chunks(source), axes) for source, axes in inputs]
        arguments = {key: getattr(dep, "chunks", None) for key, dep in layer.io_deps.items()}
        axis_of = {index: axis for axis, index in enumerate(layer.output_indices)}
        known += [
            (arguments[source], tuple(axis_of.get(index) for index in indices))
            for source, indices in layer.indices
            if isinstance(source, str) and source in arguments and indices is not None
        ]
        for sizes, axes in known:
            if sizes is None:
                return None
            for along, axis in zip(sizes, axes, strict=True):
                # an axis of length 1 is broadcast
                if axis is not None and (len(along), sum(along)) > (
                    len(found[axis]),
                    sum(found[axis]),
                ):
                    found[axis] = tuple(along)
        return tuple(found)

    def dtype(self, name: str) -> np.dtype[Any] | None:
        """The dtype of a layer; None where it cannot be known without computing a block."""
        noted: np.dtype[Any] | None = self._noted(name, "dtype")
        if noted is not None:
            return noted
        frame = self.frame(name)
        if frame is not None:
            return frame.dtype
        below = self._only_below(name)
        moves = self._has_name(name, _RECHUNK) or self.reshaped_from(name) or self.cut(name)
        return self.dtype(below) if below is not None and moves else self._dtype_of_function(name)

    def _dtype_of_function(self, name: str) -> np.dtype[Any] | None:
        """The dtype that a function returns for arrays without elements, as dask finds it."""
        layer: Any = self._layers.get(name)
        if self.inputs(name) is None or layer.io_deps:
            return None
        arguments: list[Any] = []
        for source, indices in layer.indices:
            dtype = None if indices is None else self.dtype(source)
            if indices is not None and dtype is None:
                return None
            arguments.append(source if indices is None else np.empty((0,) * len(indices), dtype))
        try:
            with np.errstate(all="ignore"):
                found = layer.task.func(*arguments, **layer.task.kwargs)
        except Exception:  # noqa: BLE001 - a function of the user need not take such arrays
            return None
        return getattr(found, "dtype", None)

    def nbytes(self, name: str) -> float:
        """Bytes of all blocks of a layer; infinite where they cannot be known."""
        sizes, dtype = self.chunks(name), self.dtype(name)
        if sizes is None or dtype is None:
            return math.inf
        return math.prod(map(sum, sizes)) * dtype.itemsize

    def ndim(self, name: str) -> int:
        """How many axes a layer has."""
        layer: Any = self._layers[name]
        indices = getattr(layer, "output_indices", None)
        if indices is not None:
            return len(indices)
        # some layers also have tasks of other names
        return next(len(key) - 1 for key in layer.get_output_keys() if key[0] == name)

    def is_held(self, name: str) -> bool:
        """Whether the graph holds the elements of a layer."""
        return _dask_compat.block_function(self._layers[name]) is None and not self._below[name]

    def _noted(self, name: str, what: str) -> Any:
        """What dask has noted of the array that a layer was; None where it was none."""
        layer = self._layers.get(name)
        return (getattr(layer, "collection_annotations", None) or {}).get(what)

    def _has_name(self, name: str, pattern: re.Pattern[str]) -> bool:
        """Whether dask has named a layer so, which is no layer of a function of the user."""
        layer = self._layers.get(name)
        return pattern.fullmatch(name) is not None and _dask_compat.block_function(layer) is None

    def _only_below(self, name: str) -> str | None:
        below = self._below.get(name, set())
        return next(iter(below)) if len(below) == 1 else None

    def transposed(self, name: str) -> tuple[int, ...] | None:
        """The axes of a transpose, as NumPy has them; None for other layers."""
        layer: Any = self._layers.get(name)
        function = _dask_compat.block_function(layer)
        inputs = self.inputs(name) if function in (np.transpose, np.swapaxes) else None
        if inputs is None or len(layer.indices) != 1:
            return None
        ((_, own),) = inputs
        if set(own) != set(range(len(own))):
            return None
        # dask moves the blocks along with their elements
        moved = tuple(own.index(axis) for axis in range(len(own)))
        # NumPy itself says what the function does, by an array whose lengths tell its axes apart
        numbered = np.empty(tuple(range(len(own))))
        try:
            result = function(numbered, **layer.task.kwargs).shape
        except (TypeError, ValueError):
            return None
        return moved if moved == result else None
