"""Read elements by integer arrays: lists of positions along axes, or points.

For points, each block that contains some of them is decoded once.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from b2nd_dask.format.chunk.chunk_header import ChunkKind
from b2nd_dask.format.grid import Grid
from b2nd_dask.frame.open.cache import OpenedFrame, located
from b2nd_dask.frame.read.buffers import scratch
from b2nd_dask.frame.read.decode import Fill, carrier, constant_in, decode_raw
from b2nd_dask.frame.read.fetch import ChunkBytes, chunk_requests, fetch_all
from b2nd_dask.frame.read.plan import block_number, is_nearly_all, witnesses
from b2nd_dask.frame.read.region import special_elements

#: Most bytes of blocks between two positions that are read together. A separate read costs about
#: 0.3 ms, in which a core decodes this many bytes.
_NEAR_NBYTES = 512 * 1024
#: Runs of near positions are cut at chunk ends, after at least this many bytes of chunks.
_RUN_NBYTES = 16 << 20
#: Points to read at a time; their coordinates have 32 MB per axis.
_POINTS = 1 << 22


def read_outer(
    read: Callable[[tuple[range, ...]], NDArray[Any]],
    frame: Any,
    index: Sequence[Any],
    axes: Sequence[range],
) -> NDArray[Any]:
    """Read a part of a box of a frame, by a slice or a list of positions in it along each axis.

    `read` reads a range along each axis of the frame; near positions of lists are read together.
    Positions of a list may be in any order and repeat; several lists select an outer product.
    """
    axis = next((at for at, part in enumerate(index) if not isinstance(part, slice)), None)
    if axis is None:
        return read(tuple(own[part] for own, part in zip(axes, index, strict=True)))
    positions, inverse = positions_in(index[axis], axes[axis]), None
    if (np.diff(positions) < 0).any():
        positions, inverse = np.unique(positions, return_inverse=True)
    others = (
        len(own[part] if isinstance(part, slice) else part)
        for at, (own, part) in enumerate(zip(axes, index, strict=True))
        if at != axis
    )
    chunk, block = max(1, frame.chunks[axis]), max(1, frame.blocks[axis])
    rest = (*index[:axis], slice(None), *index[axis + 1 :])
    parts = []
    for run in _runs(positions, chunk, block, frame.dtype.itemsize * math.prod(others)):
        covered = _range_to_read(run, chunk, block, axes[axis])
        found = read_outer(read, frame, rest, (*axes[:axis], covered, *axes[axis + 1 :]))
        parts.append(found.take(run - covered.start, axis))
    # without dtype= the byte order would become native
    found = np.concatenate(parts, axis, dtype=parts[0].dtype) if parts[1:] else parts[0]
    return found if inverse is None else found.take(inverse, axis)


def _runs(
    positions: NDArray[np.int64], chunk: int, block: int, nbytes: int
) -> list[NDArray[np.int64]]:
    """Divide ascending positions along an axis, each of `nbytes`, into runs to read at once."""
    nbytes = max(1, nbytes)
    length = chunk * max(1, _RUN_NBYTES // (chunk * nbytes))
    between = (np.diff(block_number(positions, chunk, block)) - 1) * block * nbytes
    # a chunk between two positions, however small, costs about as much as another read
    is_far = (between > _NEAR_NBYTES) | (np.diff(positions // chunk) > 1)
    cuts = is_far | (np.diff(positions // length) > 0)
    return np.split(positions, np.flatnonzero(cuts) + 1)


def _range_to_read(run: NDArray[np.int64], chunk: int, block: int, own: range) -> range:
    """Choose the range to read for ascending positions in `own`, which contains it.

    It extends to block ends unless this more than doubles it: blocks are decoded anyway, and whole
    chunks are decoded without a copy.
    """
    if not run.size:
        return own[:0]
    first, last = int(run[0]), int(run[-1])
    start = first - first % chunk % block
    in_chunk = last % chunk // block * block + block
    stop = last - last % chunk + min(in_chunk, chunk)
    if stop - start > 2 * (last + 1 - first):
        return range(first, last + 1)
    return range(max(start, own[0]), min(stop, own[-1] + 1))


def read_pointwise(frame: Any, index: Sequence[Any], axes: Sequence[range]) -> NDArray[Any]:
    """Read single elements of a box of a frame, by the `read_points` of the frame.

    `index` has positions in the box, one array per axis, which broadcast together to the shape of
    the result; `axes` are the positions of the box along each axis of the frame.
    """
    coords = np.broadcast_arrays(*map(positions_in, index, axes))
    out = np.empty(coords[0].size, frame.dtype)
    for start in range(0, out.size, _POINTS):
        part = slice(start, start + _POINTS)
        out[part] = frame.read_points(tuple(each.flat[part] for each in coords))
    return out.reshape(coords[0].shape)


def positions_in(index: Any, axis: range) -> NDArray[np.int64]:
    """Convert positions in a range to its values; negative positions count from the end.

    Raises IndexError if a position is out of bounds.
    """
    inside = np.asarray(index, np.int64)
    wrong = (inside < -len(axis)) | (inside >= len(axis))
    if wrong.any():
        raise IndexError(
            f"index {inside[wrong][0]} is out of bounds for an axis of {len(axis)} elements"
        )
    return axis.start + axis.step * np.where(inside < 0, inside + len(axis), inside)


def read_points(
    opened: OpenedFrame, coords: tuple[NDArray[np.int64], ...], fill: Fill
) -> NDArray[Any]:
    """Read single elements by 1-D arrays of their positions along each axis (at least one).

    The positions are inside the frame. Raises `CorruptChunkError`, `UnsupportedFrameError` or
    `UninitializedChunkError`, which name the chunk.
    """
    frame = opened.parsed
    out = np.empty(len(coords[0]), carrier(fill.dtype))
    chunks, blocks, inside = _addresses(coords, frame.grid)
    kinds = frame.index.kinds[chunks]
    for _, chosen, element in special_elements(fill, kinds, chunks):
        out[chosen] = element.view(out.dtype)
    # group the points by chunk
    order = np.argsort(chunks, kind="stable")
    order = order[kinds[order] == ChunkKind.STORED]
    groups = np.split(order, np.flatnonzero(np.diff(chunks[order])) + 1) if len(order) else []

    def claimed(touched: NDArray[np.int64], digests: NDArray[np.uint64]) -> NDArray[np.bool_]:
        which = np.searchsorted(touched, chunks[order])
        columns = zip(coords, witnesses(touched, digests, frame.grid), strict=True)
        found = np.logical_and.reduce([along[order] == at[which] for along, at in columns])
        return np.bincount(which, found, len(touched)) > 0

    touched_chunks = np.array([chunks[group[0]] for group in groups], np.int64)
    every = (np.unique(blocks[group]) for group in groups)
    wanted = [None if is_nearly_all(len(each), frame.grid) else each for each in every]
    requests = chunk_requests(opened, touched_chunks, wanted, claimed)
    for fetched in fetch_all(opened, requests):
        at = groups[fetched.number]
        touched = wanted[fetched.number] if fetched.some_blocks else None
        ranks = blocks[at] if touched is None else np.searchsorted(touched, blocks[at])
        out[at] = _pick(opened, fetched, fill, ranks, inside[at])
    return out.view(fill.dtype)


def _addresses(
    coords: tuple[NDArray[np.int64], ...], grid: Grid
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Compute the numbers of chunks, of blocks in the chunks, and of elements in the blocks."""
    chunks, blocks, inside = (np.zeros(len(coords[0]), np.int64) for _ in range(3))
    for axis, positions in enumerate(coords):
        chunk, rest = np.divmod(positions, grid.chunks[axis])
        block, element = np.divmod(rest, grid.blocks[axis])
        chunks = chunks * grid.counts[axis] + chunk
        blocks = blocks * grid.blocks_per_chunk[axis] + block
        inside = inside * grid.blocks[axis] + element
    return chunks, blocks, inside


def _pick(
    opened: OpenedFrame,
    fetched: ChunkBytes,
    fill: Fill,
    ranks: NDArray[np.int64],
    inside: NDArray[np.int64],
) -> NDArray[Any]:
    """Select elements of a chunk, by the ranks of their blocks among the fetched ones."""
    dtype = carrier(fill.dtype)
    with located(opened, fetched.chunk):
        element = constant_in(fetched, fill)
        if element is not None:
            return element.view(dtype)
        with scratch.borrow(fetched.header.nbytes) as buffer:
            raw = buffer.view(dtype)
            decode_raw(opened.parsed, fetched, raw)
            picked: NDArray[Any] = raw.reshape(-1, math.prod(opened.parsed.grid.blocks))[
                ranks, inside
            ]
            return picked
