"""Blocks of a dask array of many frames: the frames' own chunks, or several small frames."""

from __future__ import annotations

import math
from typing import Any

from dask.array.core import normalize_chunks

from b2nd_dask.format.grid import steps
from b2nd_dask.frame.joined import JoinedReference
from b2nd_dask.frame.reference import FrameReference
from b2nd_dask.graph import _dask_compat
from b2nd_dask.graph.read.blocks import Chunks
from b2nd_dask.graph.resources import array_chunk_nbytes, auto_block_nbytes, auto_limit

#: Frames that a block is made of at most: to open one takes a worker about as long as dask takes
#: for a task.
FRAMES_OF_A_BLOCK = 64
#: Where chunks differ from frame to frame, blocks of their least common multiple line up with all,
#: if it is at most so many times the longest.
_LONGER = 2


def joined_sizes(joined: JoinedReference, chunks: Any) -> Chunks:
    """Resolve the user's `chunks` to the lengths of blocks along each axis."""
    if 0 in joined.shape and (chunks is None or isinstance(chunks, str)):
        return tuple((n,) for n in joined.shape)
    sizes: Chunks
    if 0 in joined.shape:
        sizes = normalize_chunks(
            chunks, joined.shape, dtype=joined.dtype, limit=auto_limit(joined.nbytes, chunks)
        )
    elif chunks is None:
        sizes = _own_sizes(joined)
    elif isinstance(chunks, str):
        sizes = _grouped(joined, _limit(joined.nbytes, chunks))
    else:
        sizes = normalize_chunks(
            chunks,
            joined.shape,
            dtype=joined.dtype,
            limit=auto_limit(joined.nbytes, chunks),
            previous_chunks=_own_sizes(joined),
        )
    return sizes


def _own_sizes(joined: JoinedReference) -> Chunks:
    """Blocks of the frames' chunks."""
    frames, axis = joined.frames, joined.axis
    others = [
        steps(n, _common({frame.chunks[i] for frame in frames}))
        for i, n in enumerate(frames[0].shape)
        if joined.stacked or i != axis
    ]
    along = (1,) * len(frames) if joined.stacked else _concatenated(frames, axis, 1)
    return (*others[:axis], along, *others[axis:])


def _common(lengths: set[int]) -> int:
    together, longest = math.lcm(*lengths), max(lengths)
    return together if together <= _LONGER * longest else longest


def _concatenated(frames: tuple[FrameReference, ...], axis: int, length: int) -> tuple[int, ...]:
    """Blocks of whole chunks along the joined axis, about as long as given; none in two frames."""
    return tuple(
        size
        for frame in frames
        for size in steps(
            frame.shape[axis], max(1, length // frame.chunks[axis]) * frame.chunks[axis]
        )
    )


def _grouped(joined: JoinedReference, limit: int) -> Chunks:
    """Blocks of several frames, or of several chunks of a frame, up to a number of bytes."""
    frames, axis = joined.frames, joined.axis
    largest = max(frames, key=lambda frame: frame.nbytes)
    if largest.nbytes > limit:
        sizes: Chunks = normalize_chunks("auto", largest.shape, limit, joined.dtype)
        others = [
            steps(n, max(1, size[0] // chunk) * chunk)
            for n, size, chunk in zip(largest.shape, sizes, largest.chunks, strict=True)
        ]
        if joined.stacked:
            return (*others[:axis], (1,) * len(frames), *others[axis:])
        along = _concatenated(frames, axis, sizes[axis][0])
        return (*others[:axis], along, *others[axis + 1 :])
    whole: list[tuple[int, ...]] = [(n,) for n in joined.shape]
    whole[axis] = _put_together(joined, limit)
    return tuple(whole)


def _limit(nbytes: int, chunks: str) -> int:
    """Bytes of a block, of an array of so many."""
    if chunks == "auto":
        return auto_block_nbytes(nbytes) or array_chunk_nbytes()
    parse_bytes = _dask_compat.optional("parse_bytes")
    return int(parse_bytes(chunks)) if parse_bytes else array_chunk_nbytes()


def _put_together(joined: JoinedReference, limit: int) -> tuple[int, ...]:
    """Blocks of whole frames along the joined axis, as many as the limits allow."""
    lengths = [after - at for at, after in zip(joined.starts, joined.starts[1:], strict=False)]
    along = joined.shape[joined.axis]
    most = max(1, limit // max(1, joined.nbytes // along))
    sizes, together = [0], 0
    for length in map(int, lengths):
        if sizes[-1] and (sizes[-1] + length > most or together == FRAMES_OF_A_BLOCK):
            sizes.append(0)
            together = 0
        sizes[-1] += length
        together += 1
    return tuple(sizes)
