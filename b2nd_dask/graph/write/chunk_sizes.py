"""Chunks and blocks of a new frame: the user's sizes, and the default; blocks of its tasks."""

from __future__ import annotations

import math
from collections.abc import Iterable
from contextlib import suppress
from typing import Any

import dask.array as da
from dask.array.core import normalize_chunks

from b2nd_dask.format.grid import steps
from b2nd_dask.frame.read.buffers import BOX_NBYTES
from b2nd_dask.frame.write.new_frame import halved
from b2nd_dask.graph import _dask_compat
from b2nd_dask.graph.read.blocks import Chunks
from b2nd_dask.graph.read.sizes import aligned_sizes, by_axis, is_length, merged_blocks
from b2nd_dask.graph.resources import merge_limit
from b2nd_dask.graph.write.input_arrays import array_in_blocks, numpy_source

#: Larger dask blocks become several chunks: a chunk is the unit of reading and of memory.
LARGEST_DEFAULT_CHUNK = 32 << 20
#: Below this size the task, the index entry and the file cost more time than the elements.
SMALLEST_DEFAULT_CHUNK = 1 << 20
#: Fewer dask blocks than this are not grouped, however small.
MANY_BLOCKS = 100


def broadcast_sizes(name: str, given: Any, ndim: int) -> tuple[Any, ...]:
    """The user's chunks or blocks along each axis, not checked; None is a whole axis."""
    sizes = by_axis(given, ndim, name)
    if isinstance(sizes, str | bytes) or not isinstance(sizes, Iterable):
        sizes = (sizes,) * ndim
    return tuple(None if is_length(n) and n == -1 else n for n in sizes)


def is_fixed(size: Any) -> bool:
    """Whether a size of `broadcast_sizes` does not depend on the array."""
    return size is not None and not isinstance(size, str)


def default_shape(arr: da.Array) -> tuple[int, ...]:
    """The default chunks: dask's largest block, halved along its longest axes if it is too large.

    If there are `MANY_BLOCKS` or more, small neighbours are grouped to `SMALLEST_DEFAULT_CHUNK`.
    """
    sizes = [max(1, *axis) if axis else 1 for axis in arr.chunks]
    sizes = _grouped(sizes, arr.shape, arr.dtype.itemsize)
    return halved(sizes, arr.dtype.itemsize, LARGEST_DEFAULT_CHUNK)


def _grouped(sizes: list[int], shape: tuple[int, ...], itemsize: int) -> list[int]:
    """Group whole blocks if they are many and tiny."""
    counts = [-(-n // size) for n, size in zip(shape, sizes, strict=True)]
    nbytes = math.prod(sizes) * itemsize
    if math.prod(counts) < MANY_BLOCKS or nbytes >= SMALLEST_DEFAULT_CHUNK:
        return sizes
    factors = [1] * len(sizes)
    left = list(counts)
    # along the axis with the most blocks: maps that are cut along time alone keep their sizes
    while math.prod(factors) * nbytes < SMALLEST_DEFAULT_CHUNK and max(left) > 1:
        axis = left.index(max(left))
        factors[axis] = min(2 * factors[axis], counts[axis])
        left[axis] = -(-counts[axis] // factors[axis])
    # a divisor of the count, if possible: then an append of equal length starts at a chunk
    even = [
        next((k for k in range(factor, 4 * factor) if count % k == 0), factor)
        for factor, count in zip(factors, counts, strict=True)
    ]
    return [min(n, size * k) for n, size, k in zip(shape, sizes, even, strict=True)]


def resolved_shape(arr: da.Array, chunks: Any) -> tuple[int, ...]:
    """The user's chunks: sizes, which may exceed the shape, or texts that dask resolves."""
    sizes = checked_sizes("chunks", chunks, arr.shape, texts=True)
    if not any(isinstance(size, str) for size in sizes):
        return sizes
    try:
        resolved = normalize_chunks(sizes, arr.shape, dtype=arr.dtype, previous_chunks=arr.chunks)
    except (TypeError, ValueError) as error:
        raise ValueError(f"chunks={chunks!r} for the shape {arr.shape}: {error}") from error
    axes = zip(sizes, resolved, strict=True)
    return tuple(max(1, *axis) if isinstance(size, str) else size for size, axis in axes)


def checked_sizes(
    name: str, given: Any, shape: tuple[int, ...], *, texts: bool = False
) -> tuple[Any, ...]:
    """The user's chunks or blocks of an array or a chunk of this shape: a size for each axis.

    `texts` allows texts such as "auto". Raises ValueError for anything else.
    """
    sizes = broadcast_sizes(name, given, len(shape))
    if len(sizes) == len(shape):
        sizes = tuple(_one_size(name, n, axis, shape[axis]) for axis, n in enumerate(sizes))
        if all((is_length(n) and n > 0) or (texts and isinstance(n, str)) for n in sizes):
            return sizes
    raise ValueError(
        f"{name}={given!r} is neither a size nor one for each of {len(shape)} axes; a size is at "
        "least 1, or -1 for the whole axis"
    )


def _one_size(name: str, given: Any, axis: int, n: int) -> Any:
    """The size along an axis of `n` elements, also from dask's list of all lengths."""
    if given is None:
        return max(1, n)
    if not isinstance(given, tuple | list):
        return int(given) if is_length(given) else given
    size = next(iter(given), 0)
    if not is_length(size) or size < 1 or steps(n, int(size)) != tuple(given):
        raise ValueError(
            f"{name}= lists {tuple(given)!s:.60} along axis {axis} of {n} elements. All {name} "
            "of a frame have one size, only the last may be shorter: give that size"
        )
    return int(size)


def aligned_to(arr: da.Array, chunks: tuple[int, ...], *, groups: bool = False) -> da.Array:
    """Give an array blocks of whole frame chunks, with the sizes of `aligned_sizes`.

    A plain NumPy array is cut into the new blocks. Any other array is rechunked; frames are then
    read in the new blocks if that costs little. With `groups`, blocks may contain several small
    chunks each.
    """
    sizes = aligned_sizes(arr.chunks, chunks, arr.dtype.itemsize)
    wanted = _joined(arr, sizes) if groups else sizes
    if wanted == arr.chunks:
        return arr
    source = numpy_source(arr)
    if source is not None:
        return array_in_blocks(source, wanted)
    # no rule lowers p2p to reads, and to choose a method dask imports distributed
    rechunked: da.Array = arr.rechunk(wanted, method=None if wanted == sizes else "tasks")
    return rechunked


def _joined(arr: da.Array, sizes: Chunks) -> Chunks:
    """Join blocks if they are many and small, and if frames can be read in the joined blocks."""
    if math.prod(map(len, sizes)) < MANY_BLOCKS or not _dask_compat.has_layers():
        return sizes
    limit = merge_limit(math.prod(arr.shape) * arr.dtype.itemsize, BOX_NBYTES)
    wanted = merged_blocks(sizes, range(arr.ndim), arr.dtype.itemsize, limit)
    with suppress(_dask_compat.NameChangedError):
        from b2nd_dask.graph.layers.layers import accepts_blocks

        if wanted != sizes and accepts_blocks(arr, wanted):
            return wanted
    return sizes
