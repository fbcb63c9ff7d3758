"""Where each stored chunk begins and ends, by its own header; no two may share bytes."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from b2nd_dask.errors import CorruptChunkError
from b2nd_dask.format.chunk.chunk_header import HEADER_LEN, chunk_length
from b2nd_dask.format.index import stored_chunks
from b2nd_dask.frame.open.opening import OpenedFrame, located
from b2nd_dask.storage import ByteReader, Span, chunk_member

#: Chunks whose headers are looked at together.
_AT_ONCE = 1024


def stored_extents(opened: OpenedFrame) -> NDArray[np.int64]:
    """Where each stored chunk begins and ends, in the file or in its chunk file.

    Returns
    -------
    ndarray of int64
        Rows: chunk, start, stop.

    Raises
    ------
    CorruptChunkError
        A damaged header, or a chunk that shares bytes with another.
    """
    parsed = opened.parsed
    offsets, sparse = parsed.index.offsets, parsed.header.sparse
    chunks = stored_chunks(offsets)
    found = offsets[chunks]
    starts = np.zeros_like(found) if sparse else found + parsed.header.header_len
    nbytes = np.ones_like(found)
    if sparse:
        # any two chunks in one file share bytes
        _check_disjoint(opened, chunks, found, nbytes)
    for first in range(0, len(chunks), _AT_ONCE):
        batch = slice(first, first + _AT_ONCE)
        heads = _heads(
            opened.reader, starts[batch].tolist(), found[batch].tolist() if sparse else None
        )
        for at, (chunk, head) in enumerate(zip(chunks[batch].tolist(), heads, strict=True), first):
            with located(opened, chunk):
                nbytes[at] = chunk_length(head, max(parsed.header.cbytes, HEADER_LEN))
    if not sparse:
        _check_disjoint(opened, chunks, found, nbytes)
    return np.stack([chunks, starts, starts + nbytes])


def _heads(reader: ByteReader, starts: list[int], numbers: list[int] | None) -> list[bytes]:
    spans = [Span(at, at + HEADER_LEN) for at in starts]
    if numbers is None:
        return reader.read(spans)
    members = map(chunk_member, numbers)
    return [reader.read([span], name)[0] for span, name in zip(spans, members, strict=True)]


def _check_disjoint(
    opened: OpenedFrame,
    chunks: NDArray[np.int64],
    found: NDArray[np.int64],
    nbytes: NDArray[np.int64],
) -> None:
    """Raise for chunks that share bytes: copied or read one by one they grow without bound."""
    order = np.argsort(found, kind="stable")
    shared = (found + nbytes)[order][:-1] > found[order][1:]
    if shared.any():
        one, other = chunks[order][int(np.argmax(shared)) :][:2].tolist()
        with located(opened, one):
            raise CorruptChunkError(f"it shares bytes with chunk {other}")
