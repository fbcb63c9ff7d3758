"""What some chunks of a frame hold, told by a digest that no time of change is part of."""

from __future__ import annotations

import numpy as np
import xxhash
from numpy.typing import NDArray

from b2nd_dask.errors import B2ndError
from b2nd_dask.format.chunk.chunk_header import whole_chunk
from b2nd_dask.format.integrity import chunk_digest
from b2nd_dask.frame.open.opening import OpenedFrame
from b2nd_dask.frame.read.scan import scan_chunks


def content_digest(opened: OpenedFrame, chunks: NDArray[np.int64]) -> str:
    """Digest a frame's metadata and some of its chunks.

    The checksums of a frame, where it has any, spare reading the chunks.

    Parameters
    ----------
    opened : OpenedFrame
    chunks : ndarray of int64
        Ascending numbers of chunks.

    Returns
    -------
    str
        Hexadecimal.

    Raises
    ------
    CorruptChunkError
        A chunk that cannot be one.
    """
    parsed = opened.parsed
    digests = parsed.integrity.by_chunk
    stored = chunks[parsed.index.offsets[chunks] >= 0]
    known = digests_on_disk(opened, stored) if digests is None else digests[stored]
    digest = xxhash.xxh3_128(parsed.digest.encode())
    digest.update(stored.astype("<i8").tobytes())
    digest.update(known.astype("<u8").tobytes())
    return digest.hexdigest()


def digests_on_disk(
    opened: OpenedFrame, chunks: NDArray[np.int64], threads: int | None = None
) -> NDArray[np.uint64]:
    """Digest chunks as they are now, whatever checksums the frame has.

    Parameters
    ----------
    opened : OpenedFrame
    chunks : ndarray of int64
        Ascending numbers of stored chunks.
    threads : int, optional
        One for each processor by default.

    Returns
    -------
    ndarray of uint64
        One for each of them.

    Raises
    ------
    CorruptChunkError
        A chunk that cannot be one.
    """
    found = np.zeros(len(chunks), np.uint64)
    for chunk, result in scan_chunks(opened, _digest, threads, chunks=chunks):
        if isinstance(result, B2ndError):
            raise result
        found[np.searchsorted(chunks, chunk)] = result
    return found


def _digest(_: int, data: memoryview) -> int:
    return chunk_digest(whole_chunk(data))
