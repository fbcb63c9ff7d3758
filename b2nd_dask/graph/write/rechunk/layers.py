"""What a dask array is, by its layers: a frame seen in other blocks, with other axes or shape."""

from __future__ import annotations

import math
import re
from typing import Any, NamedTuple

import dask.array as da
import numpy as np

from b2nd_dask.frame.joined import Readable
from b2nd_dask.graph import _dask_compat
from b2nd_dask.graph.read.blocks import Chunks, reading_of

#: Names that dask gives to layers which move elements and do not change them.
_RECHUNK = re.compile(r"rechunk-(merge|p2p)-[0-9a-f]{32}")
#: Not "reshape-blockwise-", whose elements are in another order.
_RESHAPE = re.compile(r"reshape-[0-9a-f]{32}")


class View(NamedTuple):
    """A layer, and the layer whose elements it has, perhaps with other axes."""

    base: str
    """Name of the layer below."""
    order: tuple[int, ...]
    """The axis of the base that each axis of the view is."""
    is_rechunked: bool
    """Whether the blocks of the base are not those of the view."""


def view_of(layers: Any, name: str, ndim: int) -> View:
    """Look through rechunks and transposes."""
    order = tuple(range(ndim))
    rechunked = False
    while True:
        axes = _transposed(layers, name)
        if axes is not None and len(axes) == ndim:
            order = tuple(axes[axis] for axis in order)
        elif not _has_name(layers, name, _RECHUNK):
            return View(name, order, rechunked)
        below = _only_dependency(layers, name)
        if below is None:
            return View(name, order, rechunked)
        rechunked = rechunked or axes is None
        name = below


def frame_of(layers: Any, name: str) -> Readable | None:
    """The frame that a layer reads, or those that are joined; None for other layers."""
    reading = reading_of(layers.layers.get(name))
    return None if reading is None else reading.source


def reshaped_from(layers: Any, name: str) -> str | None:
    """The layer whose elements a layer has in another shape; None for other layers."""
    return _only_dependency(layers, name) if _has_name(layers, name, _RESHAPE) else None


def inputs_of(layers: Any, name: str) -> list[tuple[str, tuple[int | None, ...]]] | None:
    """The layers that a layer of one task a block reads, and its own axis for each of theirs.

    Returns
    -------
    list of (str, tuple of int or None), or None
        None for an axis that the layer does not have, and for layers of another kind.
    """
    layer = layers.layers.get(name)
    if _dask_compat.block_function(layer) is None or layer.new_axes:
        return None
    axes = {index: axis for axis, index in enumerate(layer.output_indices)}
    return [
        (source, tuple(axes.get(index) for index in indices))
        for source, indices in layer.indices
        if indices is not None and isinstance(source, str) and source in layers.layers
    ]


def chunks_of(layers: Any, name: str) -> Chunks | None:
    """Lengths of the blocks of a layer; None where they cannot be known."""
    noted = _noted(layers, name, "chunks")
    if noted is not None:
        return None if np.isnan(sum(map(sum, noted))) else noted
    layer = layers.layers.get(name)
    inputs = inputs_of(layers, name)
    if inputs is None:
        return None
    found: list[tuple[int, ...]] = [()] * len(layer.output_indices)
    known = [(chunks_of(layers, source), axes) for source, axes in inputs]
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
            if axis is not None and (len(along), sum(along)) > (len(found[axis]), sum(found[axis])):
                found[axis] = tuple(along)
    return tuple(found)


def dtype_of(layers: Any, name: str) -> np.dtype[Any] | None:
    """The dtype of a layer; None where it cannot be known without computing a block."""
    noted: np.dtype[Any] | None = _noted(layers, name, "dtype")
    if noted is not None:
        return noted
    frame = frame_of(layers, name)
    if frame is not None:
        return frame.dtype
    below = _only_dependency(layers, name)
    if below is not None and (_has_name(layers, name, _RECHUNK) or reshaped_from(layers, name)):
        return dtype_of(layers, below)
    return _dtype_of_function(layers, name)


def _dtype_of_function(layers: Any, name: str) -> np.dtype[Any] | None:
    """The dtype that a function returns for arrays without elements, as dask finds it."""
    layer = layers.layers.get(name)
    if inputs_of(layers, name) is None or layer.io_deps:
        return None
    arguments: list[Any] = []
    for source, indices in layer.indices:
        dtype = None if indices is None else dtype_of(layers, source)
        if indices is not None and dtype is None:
            return None
        arguments.append(source if indices is None else np.empty((0,) * len(indices), dtype))
    try:
        with np.errstate(all="ignore"):
            found = layer.task.func(*arguments, **layer.task.kwargs)
    except Exception:  # noqa: BLE001 - a function of the user need not take such arrays
        return None
    return getattr(found, "dtype", None)


def nbytes_of_layer(layers: Any, name: str) -> float:
    """Bytes of all blocks of a layer; infinite where they cannot be known."""
    sizes, dtype = chunks_of(layers, name), dtype_of(layers, name)
    if sizes is None or dtype is None:
        return math.inf
    return math.prod(map(sum, sizes)) * dtype.itemsize


def _noted(layers: Any, name: str, what: str) -> Any:
    """What dask has noted of the array that a layer was; None where it was none."""
    return (getattr(layers.layers.get(name), "collection_annotations", None) or {}).get(what)


def ndim_of(layers: Any, name: str) -> int:
    """How many axes a layer has."""
    layer = layers.layers[name]
    indices = getattr(layer, "output_indices", None)
    if indices is not None:
        return len(indices)
    # some layers also have tasks of other names
    return next(len(key) - 1 for key in layer.get_output_keys() if key[0] == name)


def array_at(array: da.Array, name: str, chunks: Chunks, dtype: Any) -> da.Array:
    """The dask array of a layer below an array."""
    return da.Array(array.dask.cull_layers([name]), name, chunks, dtype=dtype)


def largest_block(chunks: Chunks) -> int:
    """Elements of the largest block."""
    return math.prod(max(axis, default=0) for axis in chunks)


def _has_name(layers: Any, name: str, pattern: re.Pattern[str]) -> bool:
    """Whether dask has named a layer so, which is no layer of a function of the user."""
    layer = layers.layers.get(name)
    return pattern.fullmatch(name) is not None and _dask_compat.block_function(layer) is None


def _only_dependency(layers: Any, name: str) -> str | None:
    below = layers.dependencies.get(name, set())
    return next(iter(below)) if len(below) == 1 else None


def _transposed(layers: Any, name: str) -> tuple[int, ...] | None:
    """The axes of a transpose, as NumPy has them; None for other layers."""
    layer = layers.layers.get(name)
    function = _dask_compat.block_function(layer)
    inputs = inputs_of(layers, name) if function in (np.transpose, np.swapaxes) else None
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
