"""Where the wanted blocks of chunks lie, as the bytes say that were read of each chunk first."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from b2nd_dask.format.chunk.chunk_header import ChunkHeader, parse_chunk_header
from b2nd_dask.format.chunk.subset import alike_subsets, subset_of
from b2nd_dask.format.integrity import require_digest
from b2nd_dask.frame.open.opening import OpenedFrame, located
from b2nd_dask.frame.read.chunk_requests import LocatedRequest
from b2nd_dask.storage import Span


class FirstRead(NamedTuple):
    """A chunk of which some blocks are wanted, and what was read of it first."""

    request: LocatedRequest
    blocks: NDArray[np.int64]
    """Of the request."""
    data: memoryview


class FoundBlocks(NamedTuple):
    """What is known of a chunk's blocks after its first read."""

    request: LocatedRequest
    data: memoryview
    """What was read first."""
    header: ChunkHeader
    """Of the chunk of the wanted blocks, or of the whole one where all have to be decoded."""
    head: bytes | memoryview
    """What that chunk begins with. Of a whole chunk it is what was read first: bytes that are read
    again may have changed since they were checked."""
    runs: list[Span]
    """What follows: the blocks, or the rest of the chunk, in as few spans as can be."""
    some_blocks: bool

    @property
    def nbytes(self) -> int:
        """Of the chunk that is put together."""
        return len(self.head) + sum(b - a for a, b in self.runs)


def find_blocks(opened: OpenedFrame, some: Sequence[FirstRead]) -> Iterator[FoundBlocks]:
    """Find the blocks of each chunk; of neighbours of which the same are wanted all at once."""
    # what `touched_blocks` gives for parts that are alike is one object
    for _, alike in itertools.groupby(some, lambda row: id(row.blocks)):
        rows = list(alike)
        found = _find_alike(opened, rows) if len(rows) > 1 else None
        yield from found or (_find_alone(opened, row) for row in rows)


def _find_alike(opened: OpenedFrame, rows: list[FirstRead]) -> list[FoundBlocks] | None:
    """Find the same blocks of several chunks; None for chunks that are looked at one by one."""
    first, blocks, head = rows[0]
    with located(opened, first.chunk):
        header = header_of(opened, head, first.available)
    available = [row.request.available for row in rows]
    found = alike_subsets([row.data for row in rows], available, header, blocks)
    if found is None:
        return None
    if opened.digests is not None:
        for (request, _, data), cbytes in zip(rows, found.whole_cbytes, strict=True):
            if len(data) >= cbytes:
                with located(opened, request.chunk):
                    verify_chunk(opened, request.chunk, data)
    return [
        FoundBlocks(
            request,
            data,
            header._replace(nbytes=found.nbytes, cbytes=cbytes),
            smaller,
            runs,
            some_blocks=True,
        )
        for (request, _, data), cbytes, smaller, runs in zip(
            rows, found.cbytes, found.heads, _runs(found.spans), strict=True
        )
    ]


def _find_alone(opened: OpenedFrame, row: FirstRead) -> FoundBlocks:
    request, blocks, data = row
    with located(opened, request.chunk):
        header = header_of(opened, data, request.available)
        if len(data) >= header.cbytes:
            verify_chunk(opened, request.chunk, data)
    subset = subset_of(data, header, blocks)
    if subset is None:
        rest = [Span(len(data), header.cbytes)] if len(data) < header.cbytes else []
        return FoundBlocks(request, data, header, data[: header.cbytes], rest, some_blocks=False)
    (runs,) = _runs(subset.spans[None])
    return FoundBlocks(request, data, subset.header, subset.head, runs, some_blocks=True)


def _runs(spans: NDArray[np.int64]) -> list[list[Span]]:
    """Spans of each chunk (a row) that follow one another as one."""
    begins = np.ones(spans.shape[:2], np.bool_)
    begins[:, 1:] = spans[:, 1:, 0] != spans[:, :-1, 1]
    # a run ends where the next one of the chunk begins
    ends = np.roll(begins, -1, axis=1)
    pairs = zip(spans[..., 0][begins].tolist(), spans[..., 1][ends].tolist(), strict=True)
    runs = itertools.starmap(Span, pairs)
    return [list(itertools.islice(runs, count)) for count in begins.sum(axis=1).tolist()]


def verify_chunk(opened: OpenedFrame, chunk: int, data: memoryview) -> None:
    """Verify a chunk that was read whole by its checksum, where there is one."""
    digests = opened.digests
    if digests is not None:
        require_digest(data, int(digests[chunk]))


def header_of(opened: OpenedFrame, data: memoryview, available: int) -> ChunkHeader:
    """Parse a chunk's header and check it against the frame."""
    grid = opened.parsed.grid
    return parse_chunk_header(
        data,
        available,
        nbytes=grid.chunk_nbytes,
        blocksize=grid.block_nbytes,
        typesize=opened.parsed.header.typesize,
    )
