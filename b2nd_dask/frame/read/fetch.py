"""Request the touched chunks and fetch their bytes, whole or only the touched blocks."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from typing import NamedTuple, cast

import numpy as np
from numpy.typing import NDArray

from b2nd_dask.errors import CorruptChunkError
from b2nd_dask.format.chunk.chunk_header import (
    Buffer,
    ChunkHeader,
    head_nbytes,
    parse_chunk_header,
    require_digest,
)
from b2nd_dask.format.chunk.codec import subsets_of
from b2nd_dask.frame.open.cache import OpenedFrame, located
from b2nd_dask.frame.read.buffers import scratch
from b2nd_dask.frame.read.plan import is_in_one_round, located_chunks, max_waste
from b2nd_dask.storage import Span, chunk_member


class ChunkRequest(NamedTuple):
    """The blocks of a stored chunk that a read needs, and the location of the chunk."""

    number: int
    """Number of the request among all requests."""
    chunk: int
    blocks: NDArray[np.int64] | None
    """Ascending numbers of blocks; None for the whole chunk."""
    member: str
    """Name of the chunk's file in a sparse frame; empty in a contiguous one."""
    start: int
    """Start of the chunk in its object (file or stored object)."""
    available: int
    """Bytes that may belong to the chunk."""
    first: int
    """Bytes of the first read: the whole chunk, or header and block offsets."""
    nbytes: float
    """Bytes of the blocks; of the whole chunk if it is verified."""
    piece: int
    """Bytes per piece of a chunk that is longer than a batch and is verified before its blocks are
    read; 0 for all others."""


#: A request for some blocks of a chunk, and the bytes of the first read.
_FirstRead = tuple[ChunkRequest, memoryview]


class ChunkBytes(NamedTuple):
    """The bytes for a chunk request."""

    number: int
    """Number of the request among all requests."""
    chunk: int
    header: ChunkHeader
    """Checked header of `data`."""
    data: memoryview
    """A chunk. Valid until the next iteration."""
    some_blocks: bool
    """Whether `data` is a chunk of the requested blocks only."""


def chunk_requests(
    opened: OpenedFrame,
    chunks: NDArray[np.int64],
    blocks: Sequence[NDArray[np.int64] | None] | None = None,
    claimed: Callable[[NDArray[np.int64], NDArray[np.uint64]], NDArray[np.bool_]] | None = None,
) -> list[ChunkRequest]:
    """Create the requests of stored chunks for their `blocks`, by default for all.

    A chunk that is to be verified is read whole. `claimed` computes from the chunks of the requests
    and their digests whether the read claims the witness of each. Of several requests for parts of
    a large chunk, the first one verifies it.
    """
    reader, grid, digests = opened.reader, opened.parsed.grid, opened.digests
    offsets, sparse = opened.parsed.index.offsets, opened.parsed.header.sparse
    starts, lengths = map(np.ndarray.tolist, located_chunks(opened.parsed, chunks))
    blocks = [None] * len(chunks) if blocks is None else blocks
    is_partial = np.array([some is not None for some in blocks], np.bool_)
    verifies = np.zeros(len(chunks), np.bool_)
    if digests is not None and claimed is not None and is_partial.any():
        is_first = np.diff(chunks, prepend=-1) != 0
        verifies = is_first & (opened.verify is True or claimed(chunks, digests[chunks]))
    waste = float(max_waste(reader, np.count_nonzero(is_partial & ~verifies)))
    nblocks = math.prod(grid.blocks_per_chunk)
    head = head_nbytes(nblocks)
    requests = []
    columns = zip(chunks.tolist(), blocks, starts, lengths, verifies.tolist(), strict=True)
    for number, (chunk, some, start, length, is_verified) in enumerate(columns):
        member = chunk_member(int(offsets[chunk])) if sparse else ""
        # lengths of chunks in a sparse frame are unknown until they are read
        is_long = length > reader.batch_nbytes and not sparse
        piece = reader.batch_nbytes if is_verified and is_long and some is not None else 0
        is_whole = some is None or (is_verified and not piece)
        portion = 1.0 if some is None or is_whole else len(some) / nblocks
        first = length if is_in_one_round(length, portion, waste) else min(head, length)
        requests.append(
            ChunkRequest(number, chunk, some, member, start, length, first, length * portion, piece)
        )
    return requests


def batches(requests: Iterable[ChunkRequest], nbytes: float) -> Iterator[list[ChunkRequest]]:
    """Divide requests into nonempty batches; a batch ends when it has `nbytes` compressed bytes."""
    batch: list[ChunkRequest] = []
    room = nbytes
    for request in requests:
        batch.append(request)
        room -= request.nbytes
        if room <= 0:
            yield batch
            batch, room = [], nbytes
    if batch:
        yield batch


def fetch(opened: OpenedFrame, batch: Sequence[ChunkRequest]) -> Iterator[ChunkBytes]:
    """Fetch the bytes for a batch of chunk requests, made by `batches`, in any order.

    Raises `CorruptChunkError`, which names the chunk; `ChecksumError` if its checksum differs.
    """
    for request in batch:
        if request.piece:
            verify_in_pieces(opened, request)
    with _read(opened, [(request, Span(0, request.first)) for request in batch]) as found:
        partial_reads: list[_FirstRead] = []
        for request, data, size in found:
            if request.blocks is None:
                with located(opened, request.chunk):
                    verify_chunk(opened, request.chunk, data)
                    header = _header_of(opened, data, len(data))
                yield ChunkBytes(request.number, request.chunk, header, data, some_blocks=False)
            else:
                # the read also returned the size of the chunk's file, which bounds the chunk
                available = min(request.available, size - request.start)
                partial_reads.append((request._replace(available=available), data))
        if partial_reads:
            yield from _fetch_blocks(opened, partial_reads)


def fetch_all(opened: OpenedFrame, requests: Sequence[ChunkRequest]) -> Iterator[ChunkBytes]:
    """Fetch the bytes for requests, in batches of the best size for the store; see `fetch`."""
    for batch in batches(requests, opened.reader.batch_nbytes):
        yield from fetch(opened, batch)


def verify_in_pieces(opened: OpenedFrame, request: ChunkRequest) -> None:
    """Verify a chunk by its checksum, if any, in the pieces of the request.

    Raises `CorruptChunkError`, which names the chunk; `ChecksumError` if its checksum differs.
    """
    if opened.digests is None:
        return

    def pieces() -> Iterator[memoryview]:
        for start in range(0, request.available, request.piece):
            span = Span(start, min(start + request.piece, request.available))
            with _read(opened, [(request, span)]) as ((_, data, _),):
                yield data

    with located(opened, request.chunk):
        require_digest(pieces(), request.available, int(opened.digests[request.chunk]))


def read_whole(
    opened: OpenedFrame, batch: Sequence[ChunkRequest]
) -> Iterator[tuple[ChunkRequest, memoryview]]:
    """Read the whole chunks of a batch of requests, without checks of header or checksum.

    Other bytes may follow a chunk. The bytes are valid until the next iteration. Raises
    `CorruptChunkError` if the file of a chunk is missing.
    """
    with _read(opened, [(request, Span(0, request.available)) for request in batch]) as found:
        for request, data, _ in found:
            yield request, data


def _fetch_blocks(opened: OpenedFrame, some: list[_FirstRead]) -> Iterator[ChunkBytes]:
    """Read the blocks in a second round, in which their offsets are known."""
    found: list[_LocatedBlocks] = []
    # `touched_blocks` returns the same object for equal parts, which are processed together
    for _, same_blocks in itertools.groupby(some, lambda row: id(row[0].blocks)):
        found += _locate_blocks(opened, list(same_blocks))
    with scratch.borrow(sum(row.nbytes for row in found)) as room:
        rest = room.data
        missing: list[tuple[ChunkRequest, Span, memoryview]] = []
        chunks: list[memoryview] = []
        for row in found:
            chunk, rest = rest[: row.nbytes], rest[row.nbytes :]
            chunks.append(chunk)
            at = len(row.head)
            chunk[:at] = row.head
            for run in row.runs:
                target = chunk[at : at + run.stop - run.start]
                at += len(target)
                if run.stop <= len(row.data):
                    # the first read has these bytes
                    target[:] = row.data[run.start : run.stop]
                else:
                    missing.append((row.request, run, target))
        with closing(_read_each(opened, missing)) as rest_read:
            for (_, _, target), (request, data, _) in zip(missing, rest_read, strict=True):
                if len(data) < len(target):
                    raise CorruptChunkError("the file ends inside the chunk", chunk=request.chunk)
                if data.obj is not target.obj:  # bytes of a store
                    target[:] = data
        for row, chunk in zip(found, chunks, strict=True):
            request = row.request
            if not row.some_blocks:
                with located(opened, request.chunk):
                    verify_chunk(opened, request.chunk, chunk)
            yield ChunkBytes(request.number, request.chunk, row.header, chunk, row.some_blocks)


@contextmanager
def _read(
    opened: OpenedFrame, wanted: list[tuple[ChunkRequest, Span]]
) -> Iterator[Iterator[tuple[ChunkRequest, memoryview, int]]]:
    """Read spans relative to chunk starts, if needed into a scratch buffer; see `_read_each`."""
    nbytes = sum(span.nbytes for _, span in wanted) if opened.reader.fills_buffers else 0
    with scratch.borrow(nbytes) as room:
        rows, rest = [], room.data
        for request, span in wanted:
            rows.append((request, span, rest[: span.nbytes]))
            rest = rest[span.nbytes :]
        # closed, so that no more requests are sent after an error
        with closing(_read_each(opened, rows)) as found:
            yield found


def _read_each(
    opened: OpenedFrame, rows: list[tuple[ChunkRequest, Span, memoryview]]
) -> Generator[tuple[ChunkRequest, memoryview, int]]:
    """Read spans relative to chunk starts, clipped at the ends of their objects.

    Each result includes the size of the object, and is yielded when its bytes arrive.
    """
    names = [request.member for request, _, _ in rows]
    spans = (Span(request.start + a, request.start + b) for request, (a, b), _ in rows)
    items = list(zip(names, spans, strict=True))
    try:
        found = opened.reader.read_each(items, [buffer for _, _, buffer in rows])
        for (request, _, _), (data, size) in zip(rows, found, strict=True):
            yield request, data, size
    except FileNotFoundError as error:
        missing = str(error.filename).rpartition("/")[2]
        if not missing or missing not in names:
            raise
        chunk = rows[names.index(missing)][0].chunk
        raise CorruptChunkError(f"its file {missing} is missing", chunk=chunk) from error


class _LocatedBlocks(NamedTuple):
    """The located blocks of a chunk after its first read."""

    request: ChunkRequest
    data: memoryview
    """Bytes of the first read."""
    header: ChunkHeader
    """Header of the chunk of the requested blocks, or of the whole chunk if all must be decoded."""
    head: bytes | memoryview
    """First bytes of that chunk. For a whole chunk they are those of the first read, which are
    checked; a second read might return others."""
    runs: list[Span]
    """The remaining bytes, the blocks or the rest of the chunk, in as few spans as possible."""
    some_blocks: bool

    @property
    def nbytes(self) -> int:
        """Bytes of the assembled chunk."""
        return len(self.head) + sum(b - a for a, b in self.runs)


def _locate_blocks(opened: OpenedFrame, rows: list[_FirstRead]) -> list[_LocatedBlocks]:
    """Locate the same blocks of several chunks, chunk by chunk if the headers differ."""
    first, head = rows[0]
    with located(opened, first.chunk):
        header = _header_of(opened, head, first.available)
    available = [request.available for request, _ in rows]
    blocks = cast("NDArray[np.int64]", first.blocks)
    found = subsets_of([data for _, data in rows], available, header, blocks)
    if found is None and len(rows) > 1:
        return [one for row in rows for one in _locate_blocks(opened, [row])]
    if found is None:
        # a whole chunk, which is verified when it is complete
        rest = [Span(len(head), header.cbytes)] if len(head) < header.cbytes else []
        return [_LocatedBlocks(first, head, header, head[: header.cbytes], rest, some_blocks=False)]
    if opened.digests is not None:
        for (request, data), cbytes in zip(rows, found.whole_cbytes, strict=True):
            if len(data) >= cbytes:
                with located(opened, request.chunk):
                    verify_chunk(opened, request.chunk, data)
    columns = zip(rows, found.headers, found.heads, _runs(found.spans), strict=True)
    return [
        _LocatedBlocks(request, data, its_header, its_head, runs, some_blocks=True)
        for (request, data), its_header, its_head, runs in columns
    ]


def _runs(spans: NDArray[np.int64]) -> list[list[Span]]:
    """Merge consecutive spans of each chunk (a row)."""
    begins = np.ones(spans.shape[:2], np.bool_)
    begins[:, 1:] = spans[:, 1:, 0] != spans[:, :-1, 1]
    # a byte range ends where the next one of the chunk starts
    ends = np.roll(begins, -1, axis=1)
    pairs = zip(spans[..., 0][begins].tolist(), spans[..., 1][ends].tolist(), strict=True)
    runs = itertools.starmap(Span, pairs)
    return [list(itertools.islice(runs, count)) for count in begins.sum(axis=1).tolist()]


def verify_chunk(opened: OpenedFrame, chunk: int, data: Buffer) -> None:
    """Verify a whole chunk by its checksum, if it has one."""
    digests = opened.digests
    if digests is not None:
        require_digest([data], len(data), int(digests[chunk]))


def _header_of(opened: OpenedFrame, data: memoryview, available: int) -> ChunkHeader:
    """Parse the header of a chunk, and check it against the frame."""
    grid = opened.parsed.grid
    return parse_chunk_header(
        data,
        available,
        nbytes=grid.chunk_nbytes,
        blocksize=grid.block_nbytes,
        typesize=opened.parsed.header.typesize,
    )
