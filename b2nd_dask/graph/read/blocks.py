"""Symbolic arguments of block tasks: for each block the frame, or the constant that fills it."""

from __future__ import annotations

import itertools
import zlib
from collections.abc import Callable, Iterator
from typing import Any

import dask.array as da
import numpy as np
from dask.base import normalize_token
from dask.highlevelgraph import HighLevelGraph
from numpy.typing import NDArray

from b2nd_dask.frame.joined import Readable
from b2nd_dask.frame.read.plan import uniform_kinds
from b2nd_dask.frame.read.settled import Settles
from b2nd_dask.frame.reference import FrameReference
from b2nd_dask.graph import _dask_compat
from b2nd_dask.processes import reduced_strictly

Chunks = tuple[tuple[int, ...], ...]


class FrameRegion:
    """The whole frame, or some that are joined, as dask's getter slices it in a task.

    dask fuses further slices into the index, so that only what is needed is read.

    Parameters
    ----------
    views : bool
        Whether blocks of one repeated value may be read-only views of a single element. Otherwise
        all are writable, as functions of the user may expect.
    settles : Settles, optional
        Tells of chunks whose elements do not matter; of a single frame.
    """

    def __init__(
        self, frame: Readable, *, views: bool = False, settles: Settles | None = None
    ) -> None:
        self.frame = frame
        self.views = views
        self.settles = settles

    def __getitem__(self, index: Any) -> Any:
        if self.settles is not None and isinstance(self.frame, FrameReference):
            elements = self.frame.read_unsettled(index, self.settles)
        else:
            elements = self.frame.read(index)
        return elements if self.views else writable(elements)

    def giving_views(self) -> FrameRegion:
        """The same region, which returns views."""
        return FrameRegion(self.frame, views=True, settles=self.settles)


class ConstantRegion:
    """An array of one repeated element; unlike a zero-stride ndarray it pickles small.

    Parameters
    ----------
    kind : int
        A code of `FrameReference.chunk_kinds`, of chunks that repeat an element. The element itself
        would lose its byte order in a pickle (NumPy's protocols below 5).
    views : bool
        As for `FrameRegion`.
    """

    def __init__(self, kind: int, frame: Readable, *, views: bool = False) -> None:
        self.kind = kind
        self.frame = frame
        self.views = views

    def __getitem__(self, index: Any) -> Any:
        # what was zeros when the graph was built may hold data now
        self.frame.check_current()
        element: Any = self.frame.constant_element(self.kind)
        elements = np.broadcast_to(element, self.frame.shape)
        elements = elements[index] if index else elements
        return elements if self.views else writable(elements)

    def giving_views(self) -> ConstantRegion:
        """The same region, which returns views."""
        return ConstantRegion(self.kind, self.frame, views=True)


def writable(elements: Any) -> Any:
    """Copy an array that is read-only; return anything else as it is."""
    if isinstance(elements, np.ndarray) and not elements.flags.writeable:
        return elements.copy(order="C")
    return elements


#: Without it there are no graphs of layers, and no arguments for them.
BlockArgument: Any = _dask_compat.optional("ArrayBlockwiseDep") or object


class RegionBlocks(BlockArgument):  # type: ignore[misc]
    """The argument of each block's task, by the block's position in the grid.

    Parameters
    ----------
    chunks : tuple of tuple of int
        Blocks of the dask array.
    kinds : ndarray of uint8 or None
        The kind of chunks that fill each block; None where all hold data.
    """

    def __init__(self, chunks: Chunks, kinds: NDArray[np.uint8] | None) -> None:
        super().__init__(chunks)
        self._kinds = kinds

    @property
    def source(self) -> Readable:
        """What is read."""
        raise NotImplementedError

    @property
    def frames(self) -> tuple[FrameReference, ...]:
        """The frames that are read."""
        raise NotImplementedError

    def kind_of(self, block: tuple[int, ...]) -> int:
        """The kind of chunks that fill a block; 0 where it holds data."""
        return 0 if self._kinds is None else int(self._kinds[block])

    def __reduce__(self) -> tuple[Any, ...]:
        return (*reduced_strictly(_empty_blocks, type(self)), self.__getstate__())

    def __getstate__(self) -> dict[str, Any]:
        # the graph travels to the scheduler, and runs of equal kinds, which frames have, compress
        state = dict(self.__dict__)
        if self._kinds is not None:
            state["_kinds"] = zlib.compress(self._kinds.tobytes(), 1)
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        if self._kinds is not None:
            flat = np.frombuffer(zlib.decompress(state["_kinds"]), np.uint8)
            self._kinds = flat.reshape(self.numblocks)


def _empty_blocks(kind: type[RegionBlocks]) -> RegionBlocks:
    """Make an object for `RegionBlocks.__setstate__` to fill."""
    return kind.__new__(kind)


class FrameBlocks(RegionBlocks):
    """The region of one frame, or the constants that fill blocks of it."""

    def __init__(
        self,
        frame: FrameReference,
        chunks: Chunks,
        *,
        settles: Settles | None = None,
    ) -> None:
        kinds = uniform_kinds(frame.chunk_kinds(), frame.chunks, chunks)
        super().__init__(chunks, kinds)
        self.frame = frame
        self._region = FrameRegion(frame, settles=settles)
        self._constants = {
            kind: ConstantRegion(kind, frame)
            for kind in ([] if kinds is None else np.unique(kinds).tolist())
            if frame.constant_element(kind) is not None
        }

    def __dask_tokenize__(self) -> tuple[Any, ...]:
        # dask itself would pickle the blocks, and unpickle them again
        settles = normalize_token(self._region.settles)
        return (
            "b2nd_dask.FrameBlocks",
            *self.frame.__dask_tokenize__(),
            self.chunks,
            settles,
        )

    def settled_by(self, settles: Settles) -> FrameBlocks:
        """The same blocks, of which chunks whose elements do not matter are not read."""
        return FrameBlocks(self.frame, self.chunks, settles=settles)

    @property
    def source(self) -> FrameReference:
        """As `RegionBlocks.source`."""
        return self.frame

    @property
    def frames(self) -> tuple[FrameReference, ...]:
        """As `RegionBlocks.frames`."""
        return (self.frame,)

    def __getitem__(self, block: tuple[int, ...]) -> FrameRegion | ConstantRegion:
        if self._kinds is None:
            return self._region
        return self._constants.get(int(self._kinds[block]), self._region)


def reading_of(layer: Any) -> RegionBlocks | None:
    """Say what a layer reads, if it does nothing else; None for other layers."""
    func = _dask_compat.block_function(layer)
    if func is None or func is not _dask_compat.optional("getter"):
        return None
    return next(_readings_in(layer), None)


def readings(graph: Any) -> Iterator[RegionBlocks]:
    """List what the layers of a graph read, also those that dask has fused with others."""
    for layer in getattr(graph, "layers", {}).values():
        yield from _readings_in(layer)


def _readings_in(layer: Any) -> Iterator[RegionBlocks]:
    return (dep for dep in _dask_compat.block_arguments(layer) if isinstance(dep, RegionBlocks))


def dask_array(
    source: Any, sizes: Chunks, name: str, layer: Callable[[], tuple[Any, ...]]
) -> da.Array:
    """Make a dask array of which each block is read by one function from symbolic arguments.

    Parameters
    ----------
    source : array-like
        What is read; dask cuts it by itself where it has no layers.
    sizes : tuple of tuple of int
        Lengths of the blocks along each axis.
    layer : callable
        Returns the function, and its arguments with a value for each block (`ArrayBlockwiseDep`).
    """
    if _dask_compat.has_layers():
        read, *arguments = layer()
        try:
            return _of_layer(read, arguments, sizes, name, source.dtype)
        except Exception as error:  # noqa: BLE001 - whatever it is, dask can read the source
            _dask_compat.warn_once(_dask_compat.WITHOUT_LAYERS, error)
    elif not _dask_compat.is_planned():
        _dask_compat.warn_without_layers()
    plain: da.Array = da.from_array(source, chunks=sizes, name=name)
    return plain


def _of_layer(read: Any, arguments: list[Any], sizes: Chunks, name: str, dtype: Any) -> da.Array:
    graph = HighLevelGraph.from_collections(name, reading_layer(read, arguments, name))
    return da.Array(graph, name, sizes, dtype=dtype)


def reading_layer(read: Any, arguments: list[Any], name: str) -> Any:
    """Make a layer of which each block is read by one function; arguments as for `dask_array`."""
    indices = tuple(range(len(arguments[0].numblocks)))
    indexed = itertools.chain.from_iterable((argument, indices) for argument in arguments)
    return _dask_compat.blockwise(read, name, indices, *indexed, numblocks={}, _data_producer=True)
