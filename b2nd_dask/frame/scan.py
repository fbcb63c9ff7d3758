"""Look at the bytes of every stored chunk of a frame once, in parallel and in the file's order."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import numpy as np
from numpy.typing import NDArray

from b2nd_dask.errors import B2ndError, CorruptChunkError
from b2nd_dask.format.chunk import longest_chunk
from b2nd_dask.format.index import ChunkKind
from b2nd_dask.frame.opening import ParsedFrame, member_name
from b2nd_dask.storage import ByteReader, Span

#: Compressed bytes that a thread holds at once, unless one chunk has more.
_BATCH_NBYTES = 4 << 20

#: Takes the bytes of a chunk, and maybe some behind it.
Look = Callable[[int, bytes], int]


def scan_chunks(
    reader: ByteReader, frame: ParsedFrame, look: Look, threads: int | None = None
) -> Iterator[tuple[int, int | B2ndError]]:
    """Show every stored chunk to a function.

    Parameters
    ----------
    reader : ByteReader
    frame : ParsedFrame
    look : callable
        Gets the chunk's number and its bytes, maybe with more bytes behind them.
    threads : int, optional
        One for each processor by default.

    Yields
    ------
    chunk : int
    result : int or B2ndError
        What `look` gave or raised; also where a chunk's file is missing.
    """
    look_at = partial(_look_at, reader, frame, look)
    with ThreadPoolExecutor(threads or os.cpu_count()) as pool:
        for results in pool.map(look_at, _batches(frame)):
            yield from results


def _batches(frame: ParsedFrame) -> list[NDArray[np.int64]]:
    """Numbers of the stored chunks, grouped in the order of their places."""
    index = frame.index
    if not index.nstored:
        return []
    chunks = np.flatnonzero(index.kinds == ChunkKind.STORED)
    chunks = chunks[np.argsort(index.offsets[chunks], kind="stable")]
    if frame.header.sparse:
        # their sizes are known to the file system only
        sizes = np.full(len(chunks), frame.header.cbytes // len(chunks), np.int64)
    else:
        starts, stops = _extents(frame, chunks)
        sizes = stops - starts
    batch = np.cumsum(sizes) // _BATCH_NBYTES
    return np.split(chunks, np.flatnonzero(np.diff(batch)) + 1)


def _extents(
    frame: ParsedFrame, chunks: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    starts, stops = frame.index.extents(chunks)
    return starts, np.minimum(stops, starts + _longest(frame))


def _longest(frame: ParsedFrame) -> int:
    return longest_chunk(frame.grid.chunk_nbytes, frame.grid.block_nbytes)


def _look_at(
    reader: ByteReader, frame: ParsedFrame, look: Look, chunks: NDArray[np.int64]
) -> list[tuple[int, int | B2ndError]]:
    results: list[tuple[int, int | B2ndError]] = []
    for chunk, data in zip(chunks.tolist(), _read(reader, frame, chunks), strict=True):
        try:
            if isinstance(data, B2ndError):
                raise data
            results.append((chunk, look(chunk, data)))
        except B2ndError as error:
            results.append((chunk, _located(error, reader, frame, chunk)))
    return results


def _read(
    reader: ByteReader, frame: ParsedFrame, chunks: NDArray[np.int64]
) -> Iterable[bytes | B2ndError]:
    if frame.header.sparse:
        numbers = frame.index.offsets[chunks].tolist()
        return (_read_member(reader, member_name(number), _longest(frame)) for number in numbers)
    base = frame.header.header_len
    starts, stops = _extents(frame, chunks)
    return reader.read(
        [Span(base + a, base + b) for a, b in zip(starts.tolist(), stops.tolist(), strict=True)]
    )


def _read_member(reader: ByteReader, name: str, nbytes: int) -> bytes | B2ndError:
    try:
        return reader.read([Span(0, nbytes)], name)[0]
    except FileNotFoundError:
        return CorruptChunkError(f"its file {name} is missing")
    except B2ndError as error:
        return error


def _located(error: B2ndError, reader: ByteReader, frame: ParsedFrame, chunk: int) -> B2ndError:
    offset = int(frame.index.offsets[chunk])
    if frame.header.sparse:
        return error.located(chunk=chunk, path=f"{reader.label}/{member_name(offset)}")
    return error.located(chunk=chunk, path=reader.label, shift=frame.header.header_len + offset)
