"""Dask blocks that are made of whole frame chunks, without a rechunk where the source allows it."""

from __future__ import annotations

import itertools
import math
from typing import Any

import dask.array as da
import numpy as np

from b2nd_dask.format.integrity import ChecksumState
from b2nd_dask.frame.array import Frame
from b2nd_dask.graph import _dask_compat
from b2nd_dask.graph.read.blocks import Chunks, FrameBlocks
from b2nd_dask.graph.read.from_frame import array_of
from b2nd_dask.graph.write.array_blocks import ArrayBlocks, Source, dask_array
from b2nd_dask.graph.write.layout import aligned_sizes

#: How much may wait in memory while it is rechunked, rather than be read again.
HELD_NBYTES = 256 << 20
#: How often the chunks of a larger frame may be read.
MOST_READS = 16


def aligned_to(arr: da.Array, chunks: tuple[int, ...]) -> da.Array:
    """Give an array blocks that are made of whole frame chunks.

    A frame or a NumPy array by itself is cut anew; anything else is rechunked by dask, which holds
    every block until all pieces of it are taken.

    Parameters
    ----------
    arr : dask.array.Array
    chunks : tuple of int
        Of the frame to be written.

    Returns
    -------
    dask.array.Array
        See `aligned_sizes`.
    """
    wanted = aligned_sizes(arr.chunks, chunks, arr.dtype.itemsize)
    if wanted == arr.chunks:
        return arr
    source = _source(arr)
    if isinstance(source, Frame):
        read = _frame_in_blocks(source, wanted)
        return arr.rechunk(wanted) if read is None else read
    return arr.rechunk(wanted) if source is None else dask_array(source, wanted)


def _source(arr: da.Array) -> Frame | Source | None:
    """What an array reads, if it does nothing else."""
    if _dask_compat.is_planned():
        planned: Any = arr
        expression = planned.expr
        operand = getattr(expression, "array", None)
        plain = type(expression).__name__ == "FromArray"
        return operand if plain and isinstance(operand, Frame) else None
    layer = arr.dask.layers.get(arr.name)
    if len(arr.dask.layers) != 1:
        return None
    # of a layer that is fused the function is another
    func = getattr(getattr(layer, "task", None), "func", None)
    for dep in getattr(layer, "io_deps", {}).values():
        if isinstance(dep, FrameBlocks) and func is _dask_compat.getter:
            return dep.frame
        if isinstance(dep, ArrayBlocks) and func is np.asarray:
            return dep.source
    return None


def _frame_in_blocks(frame: Frame, sizes: Chunks) -> da.Array | None:
    """Read a frame in other blocks; None where that reads its chunks too often."""
    reads = _reads(sizes, frame.chunks)
    if reads > 1:
        if reads > MOST_READS or frame.is_remote or frame.nbytes <= HELD_NBYTES:
            return None
        if frame.parsed.integrity.checksum_state is ChecksumState.VALID:
            # cut chunks get new checksums: damage must not hide behind them
            frame = frame.verifying()
    return array_of(frame, sizes)


def _reads(sizes: Chunks, chunks: tuple[int, ...]) -> float:
    """How often each chunk is read, on average, by blocks of these sizes."""

    def touched(axis: tuple[int, ...], chunk: int) -> int:
        edges = itertools.pairwise(itertools.accumulate(axis, initial=0))
        return sum(-(-stop // chunk) - start // chunk for start, stop in edges)

    return math.prod(
        touched(axis, chunk) / max(1, -(-sum(axis) // chunk))
        for axis, chunk in zip(sizes, chunks, strict=True)
    )
