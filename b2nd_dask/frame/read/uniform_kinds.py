"""The kind that all chunks under a block share, by the offset index alone."""

from __future__ import annotations

import itertools

import numpy as np
from numpy.typing import NDArray

from b2nd_dask.format.index import ChunkKind


def uniform_kinds(
    kinds: NDArray[np.uint8], chunks: tuple[int, ...], sizes: tuple[tuple[int, ...], ...]
) -> NDArray[np.uint8] | None:
    """Find for each block of an array the kind that all frame chunks under it share.

    Parameters
    ----------
    kinds : ndarray of uint8
        `Frame.chunk_kinds`.
    chunks : tuple of int
        Shape of a frame chunk.
    sizes : tuple of tuple of int
        Lengths of the blocks along each axis, aligned with the chunks or not.

    Returns
    -------
    ndarray of uint8 or None
        One code a block, STORED where the kinds differ; None where no block is special.
    """
    if not any(kinds.strides):
        # all chunks alike, so many that looking at each would take long
        kind = kinds.flat[0] if kinds.size else ChunkKind.STORED
        counts = tuple(map(len, sizes))
        return np.broadcast_to(np.uint8(kind), counts) if kind else None
    if not kinds.any():
        return None
    low, high = kinds, kinds
    for axis, (lengths, chunk) in enumerate(zip(sizes, chunks, strict=True)):
        starts = np.fromiter(itertools.accumulate(lengths, initial=0), np.int64)
        if all(n == chunk for n in lengths[:-1]) and len(lengths) == kinds.shape[axis]:
            continue
        # frame chunks from .. to under each block, which may overlap where the grids are not
        # aligned
        first = np.minimum(starts[:-1] // chunk, kinds.shape[axis] - 1)
        last = np.maximum(first, -(-starts[1:] // chunk) - 1)
        low = _reduce_ranges(np.minimum, low, first, last, axis)
        high = _reduce_ranges(np.maximum, high, first, last, axis)
    uniform = np.where(low == high, low, np.uint8(ChunkKind.STORED))
    return uniform if uniform.any() else None


def _reduce_ranges(
    ufunc: np.ufunc,
    values: NDArray[np.uint8],
    first: NDArray[np.int64],
    last: NDArray[np.int64],
    axis: int,
) -> NDArray[np.uint8]:
    """Reduce values[first[i] : last[i] + 1] along an axis for each i."""
    # reduceat takes pairs (from, to) and reduces the even ones; `to` must exist, so one neutral row
    # is added
    edge = np.take(values, [-1], axis)
    bounds = np.stack([first, last + 1], axis=1).reshape(-1)
    reduced = ufunc.reduceat(np.concatenate([values, edge], axis), bounds, axis)
    return np.take(reduced, np.arange(0, len(bounds), 2), axis)
