"""The witness of a chunk: the element whose read verifies the chunk.

A checksum covers a whole chunk, and a read of a few elements must not fetch all of it. So the
checksum also chooses one element of its chunk, the witness. A read that takes the witness fetches
the chunk whole and verifies it. Whoever reads all elements of a chunk, in however many parts, tasks
and processes, takes the witness in one of them, and damage shows. A read of a small part seldom
takes it: on average a read verifies as large a part of the chunks as it takes of their elements.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from b2nd_dask.format.grid import Grid
from b2nd_dask.frame.open.opening import OpenedFrame
from b2nd_dask.frame.read.chunk_requests import ChunkRequest


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
