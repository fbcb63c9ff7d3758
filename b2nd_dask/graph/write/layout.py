"""Shapes of chunks and blocks of a new frame, and dask blocks that line up with them."""

from __future__ import annotations

import itertools
import math
from typing import Any

import dask
import dask.array as da
import numpy as np
from dask.array.core import normalize_chunks

from b2nd_dask.format.array_meta import MAX_NDIM
from b2nd_dask.format.chunk.chunk_checks import MAX_BLOCKSIZE
from b2nd_dask.format.chunk.compression import Compression
from b2nd_dask.format.chunk.defaults import default_blocks
from b2nd_dask.format.grid import Grid
from b2nd_dask.graph import _dask_compat
from b2nd_dask.graph.read.blocks import Chunks

#: A frame chunk is the unit of reading and of memory: bigger dask blocks are stored as several.
LARGEST_DEFAULT_CHUNK = 32 << 20
#: Smaller ones cost more time for the task, the index and the file than for their elements.
SMALLEST_DEFAULT_CHUNK = 1 << 20
#: Fewer dask blocks than this are written as they are, however small.
MANY_BLOCKS = 100
#: The format allows 2**31 - 33; the largest that was seen to work in python-blosc2 throughout is
#: used.
LARGEST_WRITTEN_CHUNK = 2**31 - 2**20


def frame_grid(
    arr: da.Array,
    chunks: Any,
    blocks: Any,
    how: Compression,
) -> Grid:
    """Choose chunks and blocks, or check the user's.

    The default chunk is dask's largest block, halved along its longest axes until it has no more
    than `LARGEST_DEFAULT_CHUNK` bytes. Of `MANY_BLOCKS` and more, as many neighbours are one chunk
    as it needs to have `SMALLEST_DEFAULT_CHUNK` bytes. The default block is python-blosc2's for
    that chunk.

    Parameters
    ----------
    arr : dask.array.Array
    chunks, blocks : int, tuple of int or None
    how : Compression

    Returns
    -------
    Grid

    Raises
    ------
    ValueError
        Sizes that do not fit the array, each other or the format.
    """
    shape, dtype = arr.shape, arr.dtype
    if len(shape) > MAX_NDIM:
        raise ValueError(f"{len(shape)} dimensions; a frame has at most {MAX_NDIM}")
    sizes = _own_sizes(arr) if chunks is None else _chunk_sizes(arr, chunks)
    full = tuple(max(n, 1) for n in shape)
    if blocks is None:
        inner = default_blocks(full, sizes, dtype, how)
    else:
        inner = _per_axis("blocks", blocks, sizes)
        if any(b > c for b, c in zip(inner, sizes, strict=True)):
            raise ValueError(f"blocks {inner} are larger than chunks {sizes}")
    grid = Grid(shape, sizes, inner, dtype.itemsize)
    if grid.chunk_nbytes > LARGEST_WRITTEN_CHUNK:
        raise ValueError(
            f"chunks {sizes} of {dtype} have {grid.chunk_nbytes} bytes, "
            f"{LARGEST_WRITTEN_CHUNK} is the most: choose smaller chunks="
        )
    if grid.block_nbytes > MAX_BLOCKSIZE:
        raise ValueError(
            f"blocks {inner} of {dtype} have {grid.block_nbytes} bytes, "
            f"{MAX_BLOCKSIZE} is the most: choose smaller blocks="
        )
    return grid


def aligned_sizes(
    sizes: Chunks, chunks: tuple[int, ...], itemsize: int, limit: int | None = None
) -> Chunks:
    """Choose dask blocks made of whole frame chunks, about as large as the blocks that are there.

    Axes are chosen together: blocks that are long along one axis, for chunks that are long along
    another, would otherwise become as large as the array.

    Parameters
    ----------
    sizes : tuple of tuple of int
        Of the dask blocks.
    chunks : tuple of int
        Of the frame.
    itemsize : int
        Bytes of an element.
    limit : int, optional
        Bytes that a block may have; by default dask's ``array.chunk-size``. A block may have more
        where the largest of `sizes` or a single chunk has.

    Returns
    -------
    tuple of tuple of int
    """
    wanted = tuple(_aligned_axis(*axis) for axis in zip(sizes, chunks, strict=True))
    shape = tuple(map(sum, sizes))
    largest = math.prod(max(axis) for axis in wanted)
    if wanted == tuple(sizes) or not math.prod(shape):
        return wanted
    chunk = math.prod(min(c, n) for c, n in zip(chunks, shape, strict=True))
    if limit is None:
        parse_bytes = _dask_compat.optional("parse_bytes")
        limit = parse_bytes(dask.config.get("array.chunk-size")) if parse_bytes else 1 << 27
    bound = max(limit // itemsize, chunk, math.prod(map(max, sizes)))
    if largest <= bound:
        return wanted
    bounded = list(wanted)
    size = chunk
    # the last axes first: what lies together in the blocks stays together
    for axis in reversed(range(len(shape))):
        unit = min(chunks[axis], shape[axis])
        room = bound // (size // unit)
        bounded[axis] = _at_most(wanted[axis], chunks[axis], room)
        size = size // unit * max(bounded[axis])
    return tuple(bounded)


def _aligned_axis(sizes: tuple[int, ...], chunk: int) -> tuple[int, ...]:
    edges = list(itertools.accumulate(sizes))[:-1]
    aligned = [edge for edge in edges if edge % chunk == 0]
    if aligned == edges:
        return sizes
    total = sum(sizes)
    step = max(1, round(max(sizes) / chunk)) * chunk
    # the edges of a region lie between those of blocks that line up
    merged = tuple(after - at for at, after in itertools.pairwise([0, *aligned, total]))
    return merged if max(merged) <= step else _steps(total, step)


def _at_most(sizes: tuple[int, ...], chunk: int, room: int) -> tuple[int, ...]:
    """Blocks of whole chunks with at most `room` elements, unless a chunk has more."""
    if max(sizes) <= room:
        return sizes
    total = sum(sizes)
    most = max(1, room // chunk)
    # as few blocks, but all of about the same size
    blocks = -(-total // (most * chunk))
    return _steps(total, -(-total // (blocks * chunk)) * chunk)


def _steps(total: int, step: int) -> tuple[int, ...]:
    whole, rest = divmod(total, step)
    return (step,) * whole + ((rest,) if rest else ())


def _own_sizes(arr: da.Array) -> tuple[int, ...]:
    sizes = [max(1, *axis) if axis else 1 for axis in arr.chunks]
    sizes = _merged(sizes, arr.shape, arr.dtype.itemsize)
    while math.prod(sizes) * arr.dtype.itemsize > LARGEST_DEFAULT_CHUNK and max(sizes) > 1:
        longest = int(np.argmax(sizes))
        sizes[longest] = -(-sizes[longest] // 2)
    return tuple(sizes)


def _merged(sizes: list[int], shape: tuple[int, ...], itemsize: int) -> list[int]:
    """Put whole blocks together where they are many and tiny."""
    counts = [-(-n // size) for n, size in zip(shape, sizes, strict=True)]
    nbytes = math.prod(sizes) * itemsize
    if math.prod(counts) < MANY_BLOCKS or nbytes >= SMALLEST_DEFAULT_CHUNK:
        return sizes
    factors = [1] * len(sizes)
    left = list(counts)
    # along the axis that is cut the most: the sizes of maps stay where only time was cut
    while math.prod(factors) * nbytes < SMALLEST_DEFAULT_CHUNK and max(left) > 1:
        axis = left.index(max(left))
        factors[axis] = min(2 * factors[axis], counts[axis])
        left[axis] = -(-counts[axis] // factors[axis])
    # without a rest, if possible: an append of as many elements begins where a chunk begins
    even = [
        next((k for k in range(factor, 4 * factor) if count % k == 0), factor)
        for factor, count in zip(factors, counts, strict=True)
    ]
    return [min(n, size * k) for n, size, k in zip(shape, sizes, even, strict=True)]


def _chunk_sizes(arr: da.Array, chunks: Any) -> tuple[int, ...]:
    """The user's chunks: sizes, which may exceed the shape, or what only dask can resolve."""
    parts = chunks.values() if isinstance(chunks, dict) else np.ravel(np.array(chunks, object))
    if not isinstance(chunks, dict | str) and not any(p in (-1, None, "auto") for p in parts):
        return _per_axis("chunks", chunks, arr.shape)
    resolved = normalize_chunks(chunks, arr.shape, dtype=arr.dtype, previous_chunks=arr.chunks)
    return tuple(max(1, *axis, 1) for axis in resolved)


def _per_axis(name: str, sizes: Any, limits: tuple[int, ...]) -> tuple[int, ...]:
    given = (sizes,) * len(limits) if isinstance(sizes, int | np.integer) else tuple(sizes)
    if len(given) != len(limits) or any(
        not isinstance(n, int | np.integer) or isinstance(n, bool) or n < 1 for n in given
    ):
        raise ValueError(
            f"{name}={sizes!r} is not one positive size for each of {len(limits)} axes"
        )
    return tuple(int(n) for n in given)
