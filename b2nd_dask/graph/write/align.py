"""Dask blocks that are made of whole frame chunks, without a rechunk where the source allows it."""

from __future__ import annotations

import itertools
import math

import dask.array as da
import numpy as np

from b2nd_dask.format.grid import steps
from b2nd_dask.frame.array import Frame, reference_of
from b2nd_dask.graph import _dask_compat
from b2nd_dask.graph.read.blocks import Chunks
from b2nd_dask.graph.read.from_b2nd import array_reading
from b2nd_dask.graph.read.new_grid import is_read_anew
from b2nd_dask.graph.resources import array_chunk_nbytes
from b2nd_dask.graph.write.input_arrays import ArrayBlocks, Source, array_in_blocks


def aligned_to(arr: da.Array, chunks: tuple[int, ...]) -> da.Array:
    """Give an array blocks that are made of whole frame chunks.

    A NumPy array by itself is cut into the new blocks; anything else is rechunked, which reads
    frames in the new blocks where that costs little (`graph.regrid`).

    Parameters
    ----------
    chunks : tuple of int
        Of the frame to be written.

    Returns
    -------
    dask.array.Array
        In blocks of `aligned_sizes`.
    """
    wanted = aligned_sizes(arr.chunks, chunks, arr.dtype.itemsize)
    if wanted == arr.chunks:
        return arr
    if _dask_compat.is_planned():
        return _planned_in_blocks(arr, wanted)
    source = _array_of(arr)
    return arr.rechunk(wanted) if source is None else array_in_blocks(source, wanted)


def aligned_sizes(
    sizes: Chunks, chunks: tuple[int, ...], itemsize: int, limit: int | None = None
) -> Chunks:
    """Choose lengths of dask blocks made of whole frame chunks, about as large as the given ones.

    Axes are chosen together: blocks that are long along one axis, for chunks that are long along
    another, would otherwise become as large as the array.

    Parameters
    ----------
    sizes : tuple of tuple of int
        Lengths of the dask blocks.
    chunks : tuple of int
        Of the frame.
    itemsize : int
        Bytes of an element.
    limit : int, optional
        Bytes that a block may have; by default dask's ``array.chunk-size``. A block may have more
        where the largest of `sizes` or a single chunk has.
    """
    wanted = tuple(_aligned_axis(*axis) for axis in zip(sizes, chunks, strict=True))
    shape = tuple(map(sum, sizes))
    largest = math.prod(max(axis) for axis in wanted)
    if wanted == tuple(sizes) or not math.prod(shape):
        return wanted
    chunk = math.prod(min(c, n) for c, n in zip(chunks, shape, strict=True))
    if limit is None:
        limit = array_chunk_nbytes()
    bound = max(limit // itemsize, chunk, math.prod(map(max, sizes)))
    if largest <= bound:
        return wanted
    bounded = list(wanted)
    size = chunk
    # the last axes first: what is contiguous in the blocks stays so
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
    return merged if max(merged) <= step else steps(total, step)


def _at_most(sizes: tuple[int, ...], chunk: int, room: int) -> tuple[int, ...]:
    """Blocks of whole chunks with at most `room` elements, unless a chunk has more."""
    if max(sizes) <= room:
        return sizes
    total = sum(sizes)
    most = max(1, room // chunk)
    # as few blocks, but all of about the same size
    blocks = -(-total // (most * chunk))
    return steps(total, -(-total // (blocks * chunk)) * chunk)


def _planned_in_blocks(arr: da.Array, sizes: Chunks) -> da.Array:
    """Rechunk an expression; a frame alone is read in the new blocks where that costs little."""
    operand = _dask_compat.planned_source(arr)
    if isinstance(operand, Frame):
        frame = reference_of(operand)
        if is_read_anew(frame, sizes, (0,) * arr.ndim):
            return array_reading(frame, sizes)
    rechunked: da.Array = arr.rechunk(sizes)
    return rechunked


def _array_of(arr: da.Array) -> Source | None:
    """The NumPy array that a dask array is cut from, if it does nothing else."""
    layer = arr.dask.layers.get(arr.name)
    if len(arr.dask.layers) != 1:
        return None
    # of a layer that is fused the function is another
    func = _dask_compat.block_function(layer)
    for dep in _dask_compat.block_arguments(layer):
        if isinstance(dep, ArrayBlocks) and func is np.asarray:
            return dep.source
    return None
