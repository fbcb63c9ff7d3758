"""Symbolic arguments of block tasks; recognition of layers: reads, constants, expressions."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator
from functools import cached_property
from typing import Any

import dask.array as da
import numpy as np
from dask.highlevelgraph import HighLevelGraph
from numpy.typing import NDArray

from b2nd_dask.format.grid import Selection, parse_selection
from b2nd_dask.frame.joined import JoinedReference, Readable
from b2nd_dask.frame.read.buffers import writable
from b2nd_dask.graph import _dask_compat
from b2nd_dask.processes import reduced_strictly

Chunks = tuple[tuple[int, ...], ...]


def regions_of(chunks: Chunks) -> Iterator[tuple[slice, ...]]:
    """Slices of the blocks of an array, in C order."""
    edges = (itertools.accumulate(along, initial=0) for along in chunks)
    return itertools.product(*([slice(*ends) for ends in itertools.pairwise(e)] for e in edges))


def cut(positions: range, sizes: tuple[int, ...]) -> list[range]:
    """The positions of each block along an axis."""
    ends = itertools.accumulate(sizes, initial=0)
    return [positions[start:stop] for start, stop in itertools.pairwise(ends)]


def broadcast_chunks(each: Iterable[Chunks]) -> Chunks | None:
    """Blocks of arrays that NumPy broadcasts to each other; None if their blocks do not align.

    One block longer than 1 does not align with several blocks, and one element not with the
    blocks of one element and none that a slice leaves: dask may choose the blocks of either.

    Examples
    --------
    >>> broadcast_chunks([((1,), (5, 5)), ((2, 2), (1,))])
    ((2, 2), (5, 5))
    """
    found: list[tuple[int, ...]] = []
    for blocks in itertools.zip_longest(*(own[::-1] for own in each), fillvalue=(1,)):
        distinct = set(blocks)
        if any(sum(along) != 1 for along in distinct):
            distinct.discard((1,))
        if len(distinct) > 1:
            return None
        found += distinct
    return tuple(found[::-1])


class FrameRegion:
    """A frame, or several joined ones, to be sliced by dask's getter in a task.

    Indices refer to the whole array, even if only some of its frames are included. dask fuses
    further slices into them, so only the needed elements are read. Blocks are writable, as user
    functions may expect.
    """

    def __init__(self, frame: Readable) -> None:
        self.frame = frame
        # keep only the shape of the whole array, so that a task does not pickle all joined frames
        whole = frame.whole if isinstance(frame, JoinedReference) else frame
        self._shape = whole.shape
        self._start = frame.start if isinstance(frame, JoinedReference) else 0

    def select(self, index: Any) -> Selection:
        """Convert an index of the whole array to positions in the frame or the joined frames."""
        selection = parse_selection(index, self._shape)
        if not self._start or not isinstance(self.frame, JoinedReference):
            return selection
        return selection._replace(axes=self.frame.shifted(selection.axes, -self._start))

    def __getitem__(self, index: Any) -> Any:
        axes, finish = self.select(index)
        elements = self.frame.read_axes(axes)
        return writable(elements[finish] if finish else elements)


#: The base class; a plain object if dask lacks it, since there are no graphs of layers then.
BlockArgument: Any = _dask_compat.optional("ArrayBlockwiseDep") or object


class FrameBlocks(BlockArgument):  # type: ignore[misc]
    """The argument of each block's task: the frame, or the joined frames of that block."""

    def __init__(self, source: Readable, chunks: Chunks) -> None:
        super().__init__(chunks)
        self.source = source
        # blocks of the same frames share one region
        self._regions: dict[tuple[int, int], FrameRegion] = {}
        self._whole = FrameRegion(source)

    def __dask_tokenize__(self) -> tuple[Any, ...]:
        # dask's own token would pickle and unpickle the blocks
        return "b2nd_dask.FrameBlocks", *self.source.__dask_tokenize__(), self.chunks

    def __reduce__(self) -> tuple[Any, ...]:
        return reduced_strictly(type(self), self.source, self.chunks)

    @cached_property
    def _slices(self) -> Any:
        """Slices of each block in the array."""
        return _dask_compat.ArraySliceDep(self.chunks)

    def __getitem__(self, block: tuple[int, ...]) -> FrameRegion:
        if not isinstance(self.source, JoinedReference):
            return self._whole
        along = self._slices[block][self.source.axis]
        part = self.source.part(along.start, along.stop)
        frames = part.start, len(part.frames)
        return self._regions.setdefault(frames, FrameRegion(part))


def constant_of(layer: Any, ndim: int) -> NDArray[Any] | None:
    """The 0-d element of a layer made by `dask.array.full` or the like; None for other layers."""
    shapes = _dask_compat.optional("ArrayChunkShapeDep")
    maker = _dask_compat.optional("_broadcast_trick_inner")
    if shapes is None or maker is None:
        return None
    func, deps = _dask_compat.block_function(layer), _dask_compat.block_arguments(layer)
    if not all(isinstance(dep, shapes) for dep in deps) or _innermost(func) is not _innermost(
        maker
    ):
        return None
    element: NDArray[Any] = np.asarray(func((1,) * ndim)).reshape(())
    return element


def _innermost(func: Any) -> Any:
    """The function inside partials and curried functions."""
    while hasattr(func, "func"):
        func = func.func
    return func


def reading_of(layer: Any) -> FrameBlocks | None:
    """The read of a layer that only reads; None for other layers."""
    func = _dask_compat.block_function(layer)
    if func is None or func is not _dask_compat.optional("getter"):
        return None
    return next(_readings_in(layer), None)


def readings(graph: Any) -> Iterator[FrameBlocks]:
    """List the reads in the layers of a graph, including reads that dask has fused."""
    for layer in getattr(graph, "layers", {}).values():
        yield from _readings_in(layer)


def _readings_in(layer: Any) -> Iterator[FrameBlocks]:
    return (dep for dep in _dask_compat.block_arguments(layer) if isinstance(dep, FrameBlocks))


#: Note on a layer of tasks that has no counterpart among dask's layers.
_NOTE = "b2nd_dask.expression"


def layer_of_expression(name: str, tasks: dict[Any, Any]) -> HighLevelGraph:
    """Make a graph with one layer of the tasks of a `dask_array` expression."""
    graph = HighLevelGraph({name: tasks}, {name: set()})
    graph.layers[name].collection_annotations = {_NOTE: True}
    return graph


def is_layer_of_expression(layer: Any) -> bool:
    """Whether `layer_of_expression` made a layer."""
    return bool(_dask_compat.noted(layer, _NOTE))


def blockwise_array(
    source: Any, sizes: Chunks, name: str, layer: Callable[[], tuple[Any, ...]]
) -> da.Array:
    """Make a dask array; one function reads each block from symbolic arguments.

    `layer` returns the function and its arguments, with a value for each block
    (`ArrayBlockwiseDep`). Without layers, dask itself cuts the `source`.
    """
    if not _dask_compat.is_planned():
        try:
            _dask_compat.require_layers()
            read, *arguments = layer()
            indices = tuple(range(len(sizes)))
            indexed = itertools.chain.from_iterable((argument, indices) for argument in arguments)
            made = _dask_compat.blockwise(
                read, name, indices, *indexed, numblocks={}, _data_producer=True
            )
            graph = HighLevelGraph.from_collections(name, made)
            return da.Array(graph, name, sizes, dtype=source.dtype)
        except Exception as error:  # noqa: BLE001 - in any case dask can read the source
            without = "b2nd_dask leaves the reading of a frame to dask.array.from_array"
            _dask_compat.warn_once(without, error)
    plain: da.Array = da.from_array(source, chunks=sizes, name=name)
    return plain
