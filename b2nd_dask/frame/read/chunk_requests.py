"""Chunk requests, located requests, and batches of them.

A checksum covers a whole chunk, but a read of a few elements must not fetch all of it. So the
checksum also selects one element of its chunk, the witness. A read of the witness fetches the whole
chunk and verifies it. If all elements of a chunk are read, in any number of parts, tasks and
processes, one of the reads contains the witness and finds damage. A read of a small part rarely
contains it: on average the verified fraction of chunks equals the fraction of their elements read.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from b2nd_dask.format.chunk.chunk_header import head_nbytes, longest_chunk
from b2nd_dask.format.grid import Grid
from b2nd_dask.frame.open.cache import OpenedFrame
from b2nd_dask.frame.open.opening import ParsedFrame

#: A first read locates the blocks of a chunk, a second one reads them. A chunk is read whole if it
#: wastes at most this many bytes, which costs less than a second read.
LITTLE_IN_VAIN = 1 << 14
#: The limit for all chunks of a read from a store, plus `max_gap` for each chunk. These bytes take
#: about as long as a second round of requests, 20 ms at 100 MB/s.
SECOND_ROUND = 2 << 20


class ChunkRequest(NamedTuple):
    """The blocks of a stored chunk that a read needs."""

    chunk: int
    blocks: NDArray[np.int64] | None
    """Ascending numbers of blocks; None for the whole chunk."""
    whole: bool = False
    """Whether to read and verify the whole chunk, even if only some blocks are decoded."""


class LocatedRequest(NamedTuple):
    """A chunk request and the location of its chunk."""

    number: int
    chunk: int
    blocks: NDArray[np.int64] | None
    start: int
    """Start of the chunk in its object (file or stored object)."""
    available: int
    """Bytes that may belong to the chunk."""
    first: int
    """Bytes of the first read: the whole chunk, or header and block offsets."""
    piece: int = 0
    """Bytes per piece to verify a chunk separately, if it is longer than a batch. 0 if the chunk is
    verified when it is read."""


def batches(
    opened: OpenedFrame, requests: Sequence[ChunkRequest], nbytes: float
) -> Iterator[list[LocatedRequest]]:
    """Divide requests into batches for `fetch`, never empty.

    A batch ends after `nbytes` compressed bytes.
    """
    room, limits = nbytes, ReadLimits.of(opened)
    chunks = np.array([request.chunk for request in requests], np.int64)
    starts, lengths = map(np.ndarray.tolist, located_chunks(opened.parsed, chunks))
    partial = sum(not each.whole and each.blocks is not None for each in requests)
    in_vain = float(limits.most_in_vain(partial))
    nblocks = math.prod(opened.parsed.grid.blocks_per_chunk)
    head = head_nbytes(nblocks)
    batch: list[LocatedRequest] = []
    for number, (chunk, blocks, whole) in enumerate(requests):
        length = lengths[number]
        # lengths of chunks in a sparse frame are unknown until they are read
        is_long = length > limits.batch_nbytes and not opened.parsed.header.sparse
        piece = limits.batch_nbytes if whole and blocks is not None and is_long else 0
        whole &= not piece
        portion = 1.0 if blocks is None else len(blocks) / nblocks
        in_one_round = whole or is_in_one_round(length, portion, in_vain)
        first = length if in_one_round else min(head, length)
        batch.append(LocatedRequest(number, chunk, blocks, starts[number], length, first, piece))
        room -= length * (1.0 if whole else portion)
        if room <= 0:
            yield batch
            batch, room = [], nbytes
    if batch:
        yield batch


class ReadLimits(NamedTuple):
    """The limits of a frame's reader, for its reads and for estimates of them."""

    max_gap: int
    batch_nbytes: int
    is_far: bool
    """Whether the frame is in a store."""

    @classmethod
    def of(cls, opened: OpenedFrame) -> ReadLimits:
        """The limits of an opened frame."""
        reader = opened.reader
        return cls(reader.max_gap, reader.batch_nbytes, not reader.identity_is_cheap)

    def most_in_vain(self, nchunks: Any) -> Any:
        """Compute the bytes of a chunk that may be wasted to avoid a second read.

        `nchunks` (int or array of int) is the number of chunks that are read in part.
        """
        if not self.is_far:
            return LITTLE_IN_VAIN
        return self.max_gap + SECOND_ROUND / np.maximum(1, nchunks)


def is_in_one_round(length: Any, portion: Any, in_vain: Any) -> Any:
    """Whether a chunk is read whole although a portion of it suffices; also for arrays.

    `in_vain` is the result of `ReadLimits.most_in_vain`.
    """
    return length * (1 - portion) <= in_vain


def located_chunks(
    frame: ParsedFrame, chunks: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Compute starts of stored chunks in their objects, and the bytes that may belong to each."""
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
    """Change requests to whole chunks for the chunks to be verified.

    `takes` says whether the request with a number claims a position of the array. Of several
    requests for parts of a large chunk, the first one verifies it.
    """
    digests = opened.digests
    if digests is None:
        return requests
    some = [number for number, request in enumerate(requests) if request.blocks is not None]
    chunks = np.array([requests[number].chunk for number in some], np.int64)
    axes = witnesses(chunks, digests[chunks], opened.parsed.grid)
    found, done = list(requests), set()
    # Python integers, which a range finds without a search
    for number, position in zip(some, zip(*map(np.ndarray.tolist, axes), strict=True), strict=True):
        request = requests[number]
        if request.chunk not in done and (opened.verify is True or takes(number, position)):
            found[number] = request._replace(whole=True)
            done.add(request.chunk)
    return found


def witnesses(
    chunks: NDArray[np.int64], digests: NDArray[np.uint64], grid: Grid
) -> tuple[NDArray[np.int64], ...]:
    """Choose the witness of each chunk by its checksum: positions in the array, along each axis.

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
