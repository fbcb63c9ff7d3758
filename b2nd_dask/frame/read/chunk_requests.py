"""What is wanted of stored chunks, where these lie, and what is read of them at once."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from b2nd_dask.format.chunk.chunk_header import longest_chunk
from b2nd_dask.format.grid import Grid
from b2nd_dask.frame.open.opening import OpenedFrame, ParsedFrame


class ChunkRequest(NamedTuple):
    """What is wanted of a stored chunk."""

    chunk: int
    blocks: NDArray[np.int64] | None
    """Ascending numbers of blocks; None for the whole chunk."""
    whole: bool = False
    """Whether to read all of the chunk, and verify it, though only some blocks are decoded."""


class LocatedRequest(NamedTuple):
    """A chunk request, and where its chunk lies."""

    number: int
    chunk: int
    blocks: NDArray[np.int64] | None
    whole: bool
    """As in `ChunkRequest`."""
    start: int
    """Of the chunk, in the object that holds it."""
    available: int
    """Bytes that may belong to the chunk."""
    piece: int = 0
    """Verify the chunk by itself, so many bytes at once: it has more than a batch. 0 where the
    chunk is verified when it is read."""


def batches(
    opened: OpenedFrame, requests: Sequence[ChunkRequest], nbytes: float
) -> Iterator[list[LocatedRequest]]:
    """Divide reads into some of bounded size.

    Parameters
    ----------
    nbytes : float
        Compressed bytes after which a batch ends.

    Yields
    ------
    list of LocatedRequest
        For `fetch`. Never empty.
    """
    grid, room, most = opened.parsed.grid, nbytes, opened.reader.batch_nbytes
    starts, lengths = _locate(opened.parsed, [request.chunk for request in requests])
    batch: list[LocatedRequest] = []
    for number, (chunk, blocks, whole) in enumerate(requests):
        length = lengths[number]
        # how long the chunks of sparse frames are shows when they are read
        is_long = length > most and not opened.parsed.header.sparse
        piece = most if whole and blocks is not None and is_long else 0
        whole &= not piece
        batch.append(LocatedRequest(number, chunk, blocks, whole, starts[number], length, piece))
        room -= length * (1.0 if whole else _portion(blocks, grid))
        if room <= 0:
            yield batch
            batch, room = [], nbytes
    if batch:
        yield batch


def _locate(frame: ParsedFrame, chunks: Sequence[int]) -> tuple[list[int], list[int]]:
    """Starts of chunks in their objects, and bytes that may belong to each."""
    longest = longest_chunk(frame.grid.chunk_nbytes, frame.grid.block_nbytes)
    if frame.header.sparse:
        return [0] * len(chunks), [longest] * len(chunks)
    starts, stops = frame.index.extents(np.array(chunks, np.int64))
    lengths = np.minimum(stops - starts, longest)
    return (starts + frame.header.header_len).tolist(), lengths.tolist()


def _portion(blocks: NDArray[np.int64] | None, grid: Grid) -> float:
    """Part of a chunk's blocks that is wanted."""
    return 1.0 if blocks is None else len(blocks) / math.prod(grid.blocks_per_chunk)
