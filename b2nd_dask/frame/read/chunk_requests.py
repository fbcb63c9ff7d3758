"""What is wanted of stored chunks, where these lie, and what is read of them at once.

A checksum covers a whole chunk, and a read of a few elements must not fetch all of it. So the
checksum also chooses one element of its chunk, the witness. A read that takes the witness fetches
the chunk whole and verifies it. Whoever reads all elements of a chunk, in however many parts, tasks
and processes, takes the witness in one of them, and damage shows. A read of a small part seldom
takes it: on average a read verifies as large a part of the chunks as it takes of their elements.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from b2nd_dask.format.chunk.blocks import head_nbytes
from b2nd_dask.format.chunk.chunk_header import longest_chunk
from b2nd_dask.format.grid import Grid
from b2nd_dask.frame.open.opening import OpenedFrame, ParsedFrame

#: Blocks of a chunk are found by a first read, and read by a second one. Chunks of which no more
#: bytes than these would be read in vain are read whole: that costs less than a second read.
LITTLE_IN_VAIN = 1 << 14
#: The same of all chunks of a store, beside `max_gap` of each: bytes that take about as long as a
#: second round of requests, 20 ms at 100 MB/s.
SECOND_ROUND = 2 << 20


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
    first: int
    """Bytes to read first: all, or those that say where blocks lie."""
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
    chunks = np.array([request.chunk for request in requests], np.int64)
    starts, lengths = map(np.ndarray.tolist, located_chunks(opened.parsed, chunks))
    partial = sum(not each.whole and each.blocks is not None for each in requests)
    reader = opened.reader
    in_vain = float(most_in_vain(reader.max_gap, partial, is_far=not reader.identity_is_cheap))
    nblocks = math.prod(grid.blocks_per_chunk)
    head = head_nbytes(nblocks)
    batch: list[LocatedRequest] = []
    for number, (chunk, blocks, whole) in enumerate(requests):
        length = lengths[number]
        # how long the chunks of sparse frames are shows when they are read
        is_long = length > most and not opened.parsed.header.sparse
        piece = most if whole and blocks is not None and is_long else 0
        whole &= not piece
        portion = 1.0 if blocks is None else len(blocks) / nblocks
        is_whole = whole or length * (1 - portion) <= in_vain
        first = length if is_whole else min(head, length)
        located = LocatedRequest(number, chunk, blocks, whole, starts[number], length, first, piece)
        batch.append(located)
        room -= length * (1.0 if whole else portion)
        if room <= 0:
            yield batch
            batch, room = [], nbytes
    if batch:
        yield batch


def most_in_vain(
    max_gap: int, partial: NDArray[Any] | int, *, is_far: bool
) -> NDArray[np.float64] | float:
    """Bytes of a chunk that are rather read in vain than found out by a read of their own.

    Parameters
    ----------
    partial : int or ndarray of float64
        Chunks of which some blocks are wanted.
    is_far : bool
        Whether the frame lies in a store.
    """
    return max_gap + SECOND_ROUND / np.maximum(1, partial) if is_far else LITTLE_IN_VAIN


def located_chunks(
    frame: ParsedFrame, chunks: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Starts of stored chunks in their objects, and bytes that may belong to each."""
    longest = longest_chunk(frame.grid.chunk_nbytes, frame.grid.block_nbytes)
    if frame.header.sparse:
        return np.zeros_like(chunks), np.full_like(chunks, longest)
    starts, stops = frame.index.extents(chunks)
    return starts + frame.header.header_len, np.minimum(stops - starts, longest)


def verifying(
    opened: OpenedFrame,
    requests: list[ChunkRequest],
    takes: Callable[[int, tuple[int, ...]], bool],
) -> list[ChunkRequest]:
    """Ask for whole chunks where these are to be verified.

    Parameters
    ----------
    requests : list of ChunkRequest
        What a read needs.
    takes : callable
        The number of a request and a position in the array to whether the request takes it.
    """
    digests = opened.digests
    if digests is None:
        return requests
    if opened.verify is True:
        # of several requests for parts of a large chunk one verifies it
        first = {request.chunk: number for number, request in reversed(list(enumerate(requests)))}
        return [
            request._replace(whole=first[request.chunk] == number)
            for number, request in enumerate(requests)
        ]
    some = [number for number, request in enumerate(requests) if request.blocks is not None]
    chunks = np.array([requests[number].chunk for number in some], np.int64)
    axes = witnesses(chunks, digests[chunks], opened.parsed.grid)
    found = list(requests)
    # as integers of Python: a range is searched for others
    for number, position in zip(some, zip(*map(np.ndarray.tolist, axes), strict=True), strict=True):
        if takes(number, position):
            found[number] = found[number]._replace(whole=True)
    return found


def witnesses(
    chunks: NDArray[np.int64], digests: NDArray[np.uint64], grid: Grid
) -> tuple[NDArray[np.int64], ...]:
    """Choose the witness of each chunk.

    Parameters
    ----------
    chunks : ndarray of int64
        Numbers of chunks, 1-D.
    digests : ndarray of uint64
        Their checksums.

    Returns
    -------
    tuple of ndarray of int64
        Positions in the array, along each axis.

    Examples
    --------
    >>> grid = Grid(shape=(10, 10), chunks=(5, 8), blocks=(5, 4), itemsize=8)
    >>> witnesses(np.array([0, 3]), np.array([13, 13], "u8"), grid)
    (array([1, 6]), array([5, 9]))
    """
    if not grid.ndim:
        return ()
    cells = np.unravel_index(chunks, grid.counts)
    rest, found = digests, []
    for cell, chunk, size in reversed(list(zip(cells, grid.chunks, grid.shape, strict=True))):
        start = cell * chunk
        length = np.minimum(chunk, size - start).astype(np.uint64)
        rest, position = np.divmod(rest, length)
        found.append(start + position.astype(np.int64))
    return tuple(reversed(found))
