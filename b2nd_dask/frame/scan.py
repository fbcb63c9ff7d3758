"""Look at the bytes of every stored chunk of a frame once, in parallel."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial

import numpy as np

from b2nd_dask.errors import B2ndError, CorruptChunkError, FrameFormatError
from b2nd_dask.format.index import ChunkKind
from b2nd_dask.frame.fetch import Placed, Wish, batches, fetch
from b2nd_dask.frame.opening import OpenedFrame, located
from b2nd_dask.frame.region import own_threads

#: Compressed bytes that a thread holds at once, unless one chunk has more.
_BATCH_NBYTES = 4 << 20

#: Takes a chunk's number and its bytes, with maybe some behind them.
Look = Callable[[int, memoryview], int]
Result = tuple[int, int | B2ndError]


def scan_chunks(opened: OpenedFrame, look: Look, threads: int | None = None) -> Iterator[Result]:
    """Show every stored chunk to a function.

    Parameters
    ----------
    opened : OpenedFrame
    look : callable
        Gets the chunk's number and its bytes, maybe with more bytes behind them.
    threads : int, optional
        One for each processor by default.

    Yields
    ------
    chunk : int
    result : int or B2ndError
        What `look` gave or raised; an error also where a chunk's file is missing.
    """
    shown = replace(opened, verify=False)
    todo = batches(shown, _all_stored(shown), _BATCH_NBYTES)
    with ThreadPoolExecutor(threads or own_threads()) as pool:
        for results in pool.map(partial(_look_at, shown, look), todo):
            yield from results


def _all_stored(opened: OpenedFrame) -> list[Wish]:
    """All stored chunks, in the order of their places."""
    index = opened.parsed.index
    if not index.nstored:
        return []
    chunks = np.flatnonzero(index.kinds == ChunkKind.STORED)
    chunks = chunks[np.argsort(index.offsets[chunks], kind="stable")]
    return [Wish(chunk, None) for chunk in chunks.tolist()]


def _look_at(opened: OpenedFrame, look: Look, batch: Sequence[Placed]) -> list[Result]:
    try:
        return [_look_at_one(opened, look, one.chunk, one.data) for one in fetch(opened, batch)]
    except (CorruptChunkError, FrameFormatError) as error:
        # no file, or none that is opened
        if len(batch) > 1:
            return [result for wish in batch for result in _look_at(opened, look, [wish])]
        chunk = batch[0].chunk
        return [(chunk, error.located(chunk=chunk, path=opened.reader.label))]


def _look_at_one(opened: OpenedFrame, look: Look, chunk: int, data: memoryview) -> Result:
    try:
        with located(opened, chunk):
            return chunk, look(chunk, data)
    except B2ndError as error:
        return chunk, error
