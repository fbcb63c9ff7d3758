"""Read single elements by their coordinates: each block that contains some is decoded once."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from b2nd_dask.format.grid import Grid
from b2nd_dask.format.index import ChunkKind
from b2nd_dask.frame.open.opening import OpenedFrame, located
from b2nd_dask.frame.read.buffers import scratch
from b2nd_dask.frame.read.chunk_requests import ChunkRequest, batches, verifying
from b2nd_dask.frame.read.decode import Fill, carrier, constant_in, decode_raw
from b2nd_dask.frame.read.fetch import ChunkBytes, fetch
from b2nd_dask.frame.read.plan import is_nearly_all
from b2nd_dask.frame.read.region import special_element


def read_points(
    opened: OpenedFrame, coords: tuple[NDArray[np.int64], ...], fill: Fill
) -> NDArray[Any]:
    """Read single elements by 1-D arrays of their positions along each axis.

    Raises `IndexError` if the arrays are not one per axis (at least one), or a position is out of
    bounds; `CorruptChunkError`, `UnsupportedFrameError` or `UninitializedChunkError`, which name
    the chunk.
    """
    frame = opened.parsed
    _check(coords, frame.grid)
    out = np.empty(len(coords[0]), carrier(fill.dtype))
    chunks, blocks, inside = _addresses(coords, frame.grid)
    kinds = frame.index.kinds[chunks]
    for kind in np.unique(kinds).tolist():
        if kind != ChunkKind.STORED:
            chosen = kinds == kind
            first = int(chunks[np.argmax(chosen)])
            out[chosen] = special_element(fill, kind, first).view(out.dtype)
    # group the points by chunk
    order = np.argsort(chunks, kind="stable")
    order = order[kinds[order] == ChunkKind.STORED]
    groups = np.split(order, np.flatnonzero(np.diff(chunks[order])) + 1) if len(order) else []

    def takes(number: int, position: tuple[int, ...]) -> bool:
        found = [along[groups[number]] == at for along, at in zip(coords, position, strict=True)]
        return bool(np.logical_and.reduce(found).any())

    requests = [ChunkRequest(int(chunks[g[0]]), _wanted(blocks[g], frame.grid)) for g in groups]
    requests = verifying(opened, requests, takes)
    for batch in batches(opened, requests, opened.reader.batch_nbytes):
        for fetched in fetch(opened, batch):
            at = groups[fetched.number]
            touched = requests[fetched.number].blocks if fetched.some_blocks else None
            ranks = blocks[at] if touched is None else np.searchsorted(touched, blocks[at])
            out[at] = _pick(opened, fetched, fill, ranks, inside[at])
    return out.view(fill.dtype)


def _check(coords: tuple[NDArray[np.int64], ...], grid: Grid) -> None:
    if len(coords) != grid.ndim or not coords:
        raise IndexError(f"{len(coords)} arrays of positions for a frame of {grid.ndim} axes")
    for axis, (positions, size) in enumerate(zip(coords, grid.shape, strict=True)):
        if len(positions) and not 0 <= positions.min() <= positions.max() < size:
            raise IndexError(f"a position is out of bounds for axis {axis} with size {size}")


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


def _wanted(blocks: NDArray[np.int64], grid: Grid) -> NDArray[np.int64] | None:
    touched = np.unique(blocks)
    return None if is_nearly_all(len(touched), grid) else touched


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
