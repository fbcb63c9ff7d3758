"""Scan all stored chunks of a frame: their positions and digests, in parallel."""

from __future__ import annotations

import errno
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import xxhash
from numpy.typing import NDArray

from b2nd_dask.errors import B2ndError, CorruptChunkError, FrameFormatError
from b2nd_dask.format.chunk.chunk_header import HEADER_LEN, chunk_digest, chunk_length, whole_chunk
from b2nd_dask.format.index import stored_chunks
from b2nd_dask.frame.open.cache import OpenedFrame, located
from b2nd_dask.frame.read.fetch import (
    ChunkRequest,
    batches,
    chunk_requests,
    read_whole,
    verify_chunk,
)
from b2nd_dask.storage import Span, chunk_member
from b2nd_dask.system import usable_cores

#: Most compressed bytes per thread, unless one chunk has more; and most chunks, since each takes
#: some memory.
_BATCH_NBYTES, _BATCH_CHUNKS = 4 << 20, 1024

#: Errors of a disk that cannot read some of its sectors.
_UNREADABLE = (errno.EIO, errno.EBADMSG)

#: Chunks whose headers are read together.
_AT_ONCE = 1024

#: The number of a chunk, and its digest or the error that it raised.
Result = tuple[int, int | B2ndError]


def scan_digests(
    opened: OpenedFrame, chunks: NDArray[np.int64] | None = None, threads: int | None = None
) -> Iterator[Result]:
    """Compute the digests of the current bytes of every stored chunk, or of those in `chunks`.

    Chunks are verified according to `opened.verify`. If a chunk is damaged, its file is missing, or
    the disk cannot read it, its result is the error. By default there is one thread per processor.
    """
    threads, offsets = threads or usable_cores(), opened.parsed.index.offsets
    if chunks is None:
        chunks = stored_chunks(offsets)
    # in the order of the file
    chunks = chunks[np.argsort(offsets[chunks], kind="stable")]
    pending: deque[Future[list[Result]]] = deque()
    with ThreadPoolExecutor(threads) as pool:
        for first in range(0, len(chunks), _BATCH_CHUNKS):
            requests = chunk_requests(opened, chunks[first : first + _BATCH_CHUNKS])
            for batch in batches(requests, _BATCH_NBYTES):
                pending.append(pool.submit(_digests_of, opened, batch))
                if len(pending) > 2 * threads:
                    yield from pending.popleft().result()
        while pending:
            yield from pending.popleft().result()


def _digests_of(opened: OpenedFrame, batch: Sequence[ChunkRequest]) -> list[Result]:
    try:
        return [
            (request.chunk, _digest_of(opened, request.chunk, data))
            for request, data in read_whole(opened, batch)
        ]
    except (CorruptChunkError, FrameFormatError, OSError) as caught:
        # the file is missing or cannot be opened, or the disk has lost its data
        if isinstance(caught, OSError) and caught.errno not in _UNREADABLE:
            raise
        if len(batch) > 1:
            return [result for request in batch for result in _digests_of(opened, [request])]
        chunk, error = batch[0].chunk, caught
        if isinstance(error, OSError):
            error = CorruptChunkError(f"it cannot be read: {error.strerror}")
        return [(chunk, error.located(chunk=chunk, path=opened.reader.label))]


def _digest_of(opened: OpenedFrame, chunk: int, data: memoryview) -> int | B2ndError:
    digests = opened.digests
    try:
        with located(opened, chunk):
            if digests is None:
                return chunk_digest(whole_chunk(data))
            verify_chunk(opened, chunk, data)
            return int(digests[chunk])
    except B2ndError as error:
        return error


def content_digest(opened: OpenedFrame, chunks: NDArray[np.int64]) -> str:
    """Compute a hexadecimal digest of the content of some chunks, by ascending numbers.

    If the frame has checksums, the chunks are not read. Raises `CorruptChunkError` if a chunk is
    invalid.
    """
    parsed = opened.parsed
    digests = parsed.columns.digests
    stored = chunks[parsed.index.offsets[chunks] >= 0]
    known = digests_on_disk(opened, stored) if digests is None else digests[stored]
    digest = xxhash.xxh3_128(chunks.astype("<i8").tobytes())
    # special codes describe their chunks completely; offsets of other chunks do not matter
    digest.update(np.minimum(parsed.index.offsets[chunks], 0).astype("<i8").tobytes())
    digest.update(known.astype("<u8").tobytes())
    return digest.hexdigest()


def digests_on_disk(
    opened: OpenedFrame, chunks: NDArray[np.int64], threads: int | None = None
) -> NDArray[np.uint64]:
    """Compute digests of the current bytes of chunks, independent of the frame's checksums.

    The numbers of the stored chunks ascend; there is one thread per processor by default. Raises
    `CorruptChunkError` if a chunk is invalid.
    """
    found = np.zeros(len(chunks), np.uint64)
    for chunk, result in scan_digests(replace(opened, verify=False), chunks, threads):
        if isinstance(result, B2ndError):
            raise result
        found[np.searchsorted(chunks, chunk)] = result
    return found


def stored_extents(opened: OpenedFrame) -> NDArray[np.int64]:
    """Compute start and stop of each stored chunk, in the frame's file or in its chunk file.

    The rows of the result are chunk, start, stop. Raises `CorruptChunkError` if a header is
    damaged, or a chunk shares bytes with another.
    """
    parsed = opened.parsed
    offsets, sparse = parsed.index.offsets, parsed.header.sparse
    chunks = stored_chunks(offsets)
    found = offsets[chunks]
    starts = np.zeros_like(found) if sparse else found + parsed.header.header_len
    nbytes = np.zeros_like(found)
    heads = zip(chunks.tolist(), chunk_heads(opened, chunks), strict=True)
    for at, (chunk, head) in enumerate(heads):
        with located(opened, chunk):
            nbytes[at] = chunk_length(head, max(parsed.header.cbytes, HEADER_LEN))
    order = np.argsort(found, kind="stable")
    # two chunks in one chunk file always share bytes, and copies of them would grow without bound
    ends = found + (np.ones_like(found) if sparse else nbytes)
    shared = ends[order][:-1] > found[order][1:]
    if shared.any():
        one, other = chunks[order][int(np.argmax(shared)) :][:2].tolist()
        with located(opened, one):
            raise CorruptChunkError(f"it shares bytes with chunk {other}")
    return np.stack([chunks, starts, starts + nbytes])


def chunk_heads(
    opened: OpenedFrame, chunks: NDArray[np.int64], *, is_lenient: bool = False
) -> Iterator[bytes]:
    """Read the headers of stored chunks; `is_lenient`: empty if a chunk file is missing."""
    offsets = opened.parsed.index.offsets[chunks]
    if not opened.parsed.header.sparse:
        starts = (offsets + opened.parsed.header.header_len).tolist()
        for first in range(0, len(starts), _AT_ONCE):
            spans = [Span(at, at + HEADER_LEN) for at in starts[first : first + _AT_ONCE]]
            yield from opened.reader.read(spans)
        return
    for chunk, number in zip(chunks.tolist(), offsets.tolist(), strict=True):
        try:
            (head,) = opened.reader.read([Span(0, HEADER_LEN)], chunk_member(number))
        except (B2ndError, OSError) as error:
            if not is_lenient:
                if not isinstance(error, FileNotFoundError):
                    raise
                # this type lets `compact` recognize a frame that was replaced
                problem = f"the file of chunk {chunk} is missing; restore it or write the chunk"
                raise FileNotFoundError(error.errno, problem, error.filename) from error
            head = b""
        yield head
