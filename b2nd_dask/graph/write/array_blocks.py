"""NumPy arrays and memory-mapped files as dask arrays whose blocks are views, not copies."""

from __future__ import annotations

import itertools
import uuid
from collections.abc import Iterable
from typing import Any

import dask.array as da
import numpy as np
from dask.array.core import normalize_chunks
from dask.base import tokenize
from dask.highlevelgraph import HighLevelGraph
from numpy.typing import NDArray

from b2nd_dask.graph import _dask_compat
from b2nd_dask.graph.read.blocks import Chunks
from b2nd_dask.storage.read.mapped import MappedArray, mapped_array

Source = NDArray[Any] | MappedArray


#: Without it there are no graphs of layers, and no arguments for them.
_Argument: Any = _dask_compat.optional("ArrayBlockwiseDep") or object


class ArrayBlocks(_Argument):  # type: ignore[misc]
    """The argument of each block's task: a view, or where to find it in a file.

    A task that is sent to another process takes its own block along, not the array.

    Parameters
    ----------
    source : ndarray or MappedArray
    chunks : tuple of tuple of int
        Blocks of the dask array.
    """

    def __init__(self, source: Source, chunks: Chunks) -> None:
        super().__init__(chunks)
        self.source = source
        self._slices = _dask_compat.ArraySliceDep(chunks)

    def __getitem__(self, block: tuple[int, ...]) -> Source:
        return part_of(self.source, self._slices[block])


def from_numpy(elements: NDArray[Any], *, named: bool, snapshot: bool) -> da.Array:
    """Cut a NumPy array into blocks of about dask's ``array.chunk-size``.

    Parameters
    ----------
    elements : ndarray
        A `numpy.memmap` is read from its file, block by block, by the tasks.
    named : bool
        Whether equal arrays get the same name; that reads all elements, or the time of a file's
        last change.
    snapshot : bool
        Whether elements are copied, so that they may be changed before the array is computed. Files
        are never copied.

    Returns
    -------
    dask.array.Array
    """
    source: Source | None = mapped_array(elements)
    if source is None:
        # of subclasses the elements only
        source = np.array(elements) if snapshot else np.asarray(elements)
    # without elements dask may divide by their number
    wanted = "auto" if elements.size else source.shape
    sizes: Chunks = normalize_chunks(wanted, source.shape, dtype=source.dtype)
    token = _token(source, sizes) if named else uuid.uuid4().hex
    return dask_array(source, sizes, f"array-b2nd-{token}")


def dask_array(source: Source, sizes: Chunks, name: str | None = None) -> da.Array:
    """Make a dask array of blocks of the given sizes.

    Parameters
    ----------
    source : ndarray or MappedArray
    sizes : tuple of tuple of int
    name : str, optional
        By default one of its own.

    Returns
    -------
    dask.array.Array
    """
    name = name or f"array-b2nd-{uuid.uuid4().hex}"
    if not _dask_compat.has_layers():
        # with array.query-planning a dask array is no graph of layers
        planned: da.Array = da.from_array(source, chunks=sizes, name=name)
        return planned
    indices = tuple(range(source.ndim))
    layer = _dask_compat.blockwise(
        np.asarray,
        name,
        indices,
        ArrayBlocks(source, sizes),
        indices,
        numblocks={},
        _data_producer=True,
    )
    graph = HighLevelGraph.from_collections(name, layer)
    return da.Array(graph, name, sizes, dtype=source.dtype)


def part_of(source: Source, place: tuple[slice, ...]) -> Source:
    """A view of a part."""
    # with the ellipsis a 0-d array stays an array
    index: tuple[Any, ...] = (*place, ...)
    return source[place] if isinstance(source, MappedArray) else source[index]


def _token(source: Source, sizes: Chunks) -> str:
    """Stand for the elements; block by block, since arrays that are not contiguous are copied."""
    if isinstance(source, MappedArray):
        parts: list[Any] = [source]
    else:
        parts = [tokenize(part_of(source, place)) for place in _places(sizes)]
    token: str = tokenize(sizes, parts)
    return token


def _places(sizes: Chunks) -> Iterable[tuple[slice, ...]]:
    """Where each block lies."""
    stops = [list(itertools.accumulate(axis)) for axis in sizes]
    return itertools.product(*(list(map(slice, (0, *ends[:-1]), ends)) for ends in stops))
