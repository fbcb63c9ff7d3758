"""Blocks of a dask array of frames: their sizes, and whether to read in other blocks."""

from __future__ import annotations

import itertools
import math
import warnings
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from dask.array.core import normalize_chunks

from b2nd_dask.errors import UnsupportedFrameError, level_of_caller
from b2nd_dask.format.grid import Grid, steps
from b2nd_dask.frame.joined import JoinedReference, Readable
from b2nd_dask.frame.read.read_cost import Boxes
from b2nd_dask.frame.reference import FrameReference
from b2nd_dask.graph.read.blocks import Chunks
from b2nd_dask.graph.resources import array_chunk_nbytes, auto_limit, available

#: Maximum number of blocks: dask needs about 1 kB for each before anything is computed.
MAX_TASKS = 1 << 24
#: dask takes about 0.3 ms per task: half a minute for so many.
MANY_TASKS = 100_000
#: Maximum number of frames in a block: a worker opens a frame about as fast as dask handles a
#: task.
FRAMES_OF_A_BLOCK = 64
#: Blocks of frames with different chunks have the least common multiple of their lengths, if it is
#: at most so many times the longest.
_LONGER = 2
#: A frame of at most this share of the memory may be held whole, as in dask's rechunk.
HELD_SHARE = 1 / 8
#: Maximum work of a read in other blocks, relative to reading each block once: dask's rechunk takes
#: about as long, by tasks and copies.
MOST_WORK = 2.0
#: The maximum work for a larger frame.
MOST_WORK_LARGE = 16.0
#: Blocks with at least this relative work, and so many bytes of work, cause a warning.
_MUCH_WORK, _MANY_NBYTES = 4.0, 1 << 30


def own_or_auto(nchunks: int) -> str | None:
    """The `chunks` to read a frame of `nchunks`: None (its own), or "auto" if there are many."""
    # dask takes minutes to build a graph of very many blocks
    return "auto" if nchunks > MANY_TASKS else None


def is_length(size: Any) -> bool:
    """Whether a size is an integer, which a bool is not."""
    return isinstance(size, int | np.integer) and not isinstance(size, bool)


def by_axis(sizes: Any, ndim: int, name: str = "chunks") -> Any:
    """Convert a mapping of sizes by axis to a tuple with None for other axes; check its axes."""
    if not isinstance(sizes, Mapping):
        return sizes
    for axis in sizes:
        if not is_length(axis) or not -ndim <= axis < ndim:
            raise ValueError(f"{name}={sizes!r}: {axis!r} is not the number of one of {ndim} axes")
    return tuple(map({int(axis) % ndim: size for axis, size in sizes.items()}.get, range(ndim)))


def block_sizes(source: Readable, chunks: Any) -> Chunks:
    """Resolve the user's `chunks` to the lengths of blocks along each axis."""
    chunks = by_axis(chunks, source.ndim)
    if isinstance(source, JoinedReference) and 0 not in source.shape:
        sizes = _joined_sizes(source, chunks)
        _check_count(source, math.prod(map(len, sizes)), chunks)
        return sizes
    if chunks is None:
        _check_count(source, source.grid.nchunks, chunks)
    return sizes_in(source.grid, source.dtype, chunks)


def sizes_in(grid: Grid, dtype: np.dtype[Any], chunks: Any) -> Chunks:
    """Resolve the user's `chunks` of a frame; a text becomes blocks of whole chunks."""
    if 0 in grid.shape:
        if chunks is None or isinstance(chunks, str):
            # one block: the frame's chunks may be 0, which dask rejects, and its axes are unbounded
            return tuple((n,) for n in grid.shape)
        return _resolved(grid.shape, dtype, chunks, None)
    if chunks is None:
        own: Chunks = normalize_chunks(grid.chunks, grid.shape)
        return own
    if grid.nchunks > MAX_TASKS:
        # too many chunks to list them
        nbytes = math.prod(grid.shape) * grid.itemsize
        if isinstance(chunks, str):
            return of_whole_chunks(grid, _limit(nbytes, chunks))
        return _resolved(grid.shape, dtype, chunks, None)
    return _resolved(grid.shape, dtype, chunks, normalize_chunks(grid.chunks, grid.shape))


def _check_count(source: Readable, count: int, chunks: Any) -> None:
    """Raise if a graph cannot hold so many blocks; warn of many blocks if they are the default."""
    if count > MAX_TASKS:
        raise UnsupportedFrameError(
            f"{source.description} would have {count} blocks, and a graph can hold {MAX_TASKS} "
            'tasks; pass chunks="auto" for larger blocks'
        )
    if count > MANY_TASKS and chunks is None:
        warnings.warn(
            f"{source.description} has {count} blocks, one for each chunk, and dask needs about "
            '0.3 ms for each block; pass chunks="auto" for larger blocks',
            stacklevel=level_of_caller(),
        )


def _resolved(
    shape: tuple[int, ...], dtype: np.dtype[Any], chunks: Any, own: Chunks | None
) -> Chunks:
    """Resolve chunks as dask does; blocks align with the existing blocks `own`."""
    each = chunks if isinstance(chunks, tuple | list) else (chunks,) * len(shape)
    for axis, (size, n) in enumerate(zip(each, shape, strict=False)):
        # dask divides by 0, and makes blocks of negative lengths
        if is_length(size) and size < 1 and size != -1 and n:
            raise ValueError(
                f"chunks={chunks!r}: a block cannot have {size} of the {n} elements along axis "
                f"{axis}; give 1 or more, or -1 for all of them"
            )
    limit = auto_limit(math.prod(shape) * dtype.itemsize, chunks)
    sizes: Chunks = normalize_chunks(chunks, shape, limit, dtype, own)
    return sizes


def _limit(nbytes: int, chunks: str) -> int:
    """Bytes of a block of an array of `nbytes`, from a text."""
    return auto_limit(nbytes, chunks) or array_chunk_nbytes(chunks)


def of_whole_chunks(grid: Grid, limit: int) -> Chunks:
    """Blocks of whole frame chunks, as many as a number of bytes allows, at least one."""
    room = max(1, limit // grid.chunk_nbytes)
    counts: Chunks = normalize_chunks("auto", grid.counts, room, np.uint8)
    axes = zip(grid.shape, grid.chunks, counts, strict=True)
    return tuple(steps(n, chunk * along[0]) for n, chunk, along in axes)


def _joined_sizes(joined: JoinedReference, chunks: Any) -> Chunks:
    """`block_sizes` of joined frames that are not empty."""
    if isinstance(chunks, str):
        return _grouped(joined, _limit(joined.nbytes, chunks))
    frames, axis = joined.frames, joined.axis
    own = tuple(
        _concatenated(frames, axis, 1)
        if i == axis
        else steps(n, _common({frame.chunks[i] for frame in frames}))
        for i, n in enumerate(joined.shape)
    )
    return own if chunks is None else _resolved(joined.shape, joined.dtype, chunks, own)


def _common(lengths: set[int]) -> int:
    together, longest = math.lcm(*lengths), max(lengths)
    return together if together <= _LONGER * longest else longest


def _concatenated(frames: tuple[FrameReference, ...], axis: int, length: int) -> tuple[int, ...]:
    """Blocks of whole chunks along the joined axis; no block crosses frames."""
    sides = ((frame.shape[axis], frame.chunks[axis]) for frame in frames)
    parts = (steps(n, max(1, length // chunk) * chunk) for n, chunk in sides)
    return tuple(itertools.chain.from_iterable(parts))


def _grouped(joined: JoinedReference, limit: int) -> Chunks:
    """Blocks of several frames, or of several chunks of a frame, up to a number of bytes."""
    frames, axis = joined.frames, joined.axis
    largest = max(frames, key=lambda frame: frame.nbytes)
    if largest.nbytes > limit:
        whole = of_whole_chunks(largest.grid, limit)
        along = _concatenated(frames, axis, whole[axis][0])
        return (*whole[:axis], along, *whole[axis + 1 :])
    together = _frame_groups(joined, limit)
    return tuple(together if i == axis else (n,) for i, n in enumerate(joined.shape))


def _frame_groups(joined: JoinedReference, limit: int) -> tuple[int, ...]:
    """Blocks of whole frames along the joined axis, as many frames as the limits allow."""
    starts, edges = joined.starts, [0]
    most = max(1, limit // max(1, joined.nbytes // joined.shape[joined.axis]))
    while (first := edges[-1]) < len(joined.frames):
        fits = int(np.searchsorted(starts, starts[first] + most, side="right")) - 1
        edges.append(min(max(fits, first + 1), first + FRAMES_OF_A_BLOCK))
    # empty frames alone make no block
    return tuple(filter(None, np.diff(starts[edges]).tolist()))


def is_cheap_in_blocks(source: Readable, sizes: Chunks, corner: tuple[int, ...]) -> bool:
    """Whether a read in other blocks, none empty, costs little; the first block is at `corner`."""
    # constant frames need no read
    found = Counter(
        boxes for frame, boxes in _boxes(source, sizes, corner) if not frame.repeats_one_element
    )
    if source.is_remote:
        # a request costs more than its bytes: no chunk may be requested twice
        return all(boxes.visits == 1.0 for boxes in found)
    is_large = source.nbytes > available().memory * HELD_SHARE
    most = MOST_WORK_LARGE if is_large else MOST_WORK
    once = sum(count * boxes.nbytes for boxes, count in found.items())
    work = sum(count * boxes.nbytes * boxes.work for boxes, count in found.items())
    return work <= most * once


def _boxes(
    source: Readable, sizes: Chunks, corner: tuple[int, ...]
) -> Iterator[tuple[FrameReference, Boxes]]:
    """Cut blocks at the ends of frames; skip frames without a block."""
    if not isinstance(source, JoinedReference):
        yield source, Boxes(source.grid, sizes, corner)
        return
    axis, starts = source.axis, source.starts
    edges = corner[axis] + np.cumsum([0, *sizes[axis]])
    firsts = np.maximum(np.searchsorted(edges, starts[:-1], side="right") - 1, 0).tolist()
    lasts = np.searchsorted(edges, starts[1:], side="left").tolist()
    for number, frame in enumerate(source.frames):
        begin, stop = starts[number : number + 2].tolist()
        inner = np.clip(edges[firsts[number] : lasts[number] + 1], begin, stop)
        lengths = tuple(filter(None, np.diff(inner).tolist()))
        if not lengths:
            continue
        along = (*sizes[:axis], lengths, *sizes[axis + 1 :])
        at = (*corner[:axis], int(inner[0]) - begin, *corner[axis + 1 :])
        yield frame, Boxes(frame.grid, along, at)


def warn_of_work(source: Readable, sizes: Chunks) -> None:
    """Warn if a read of all elements takes much longer in these blocks."""
    found: Counter[Boxes] = Counter()
    for frame, boxes in _boxes(source, sizes, (0,) * source.ndim):
        kinds = frame.chunk_kinds()
        # special chunks have a nonzero kind and are not decoded
        nbytes = (kinds.size - int(np.count_nonzero(kinds))) * frame.grid.chunk_nbytes
        if nbytes and boxes.nbytes:
            found[boxes] += nbytes
    stored = found.total()
    work = sum(nbytes * boxes.work for boxes, nbytes in found.items())
    if work > _MUCH_WORK * stored and work > _MANY_NBYTES:
        warnings.warn(
            f"{source.description}: with the blocks of chunks= a computation of the whole array "
            f"takes about {work / stored:.0f} times as long as with its own chunks, because each "
            "block reads parts of many chunks. Give larger blocks, or multiples of its chunks. "
            "Or write from_b2nd(...).rechunk(chunks) by to_b2nd(..., max_mem=), which needs little "
            "memory; dask's rechunk alone may hold the whole array",
            stacklevel=level_of_caller(),
        )


def merged_blocks(chunks: Chunks, axis: Sequence[int], itemsize: int, limit: float) -> Chunks:
    """Join neighbouring blocks along some axes, up to a number of bytes.

    Examples
    --------
    >>> merged_blocks(((2, 2), (5, 5, 5)), (1,), itemsize=8, limit=160)
    ((2, 2), (10, 5))
    """
    sizes = list(chunks)
    for i in reversed(axis):
        others = math.prod(max(along, default=0) for n, along in enumerate(sizes) if n != i)
        joined = [0]
        for length in sizes[i]:
            if joined[-1] and (joined[-1] + length) * others * itemsize > limit:
                joined.append(0)
            joined[-1] += length
        sizes[i] = tuple(joined)
    return tuple(sizes)


def aligned_sizes(sizes: Chunks, chunks: tuple[int, ...], itemsize: int) -> Chunks:
    """Choose lengths of dask blocks made of whole frame chunks, about as large as the given ones.

    Axes are chosen together: blocks that are long along one axis, with chunks that are long along
    another, would otherwise grow to the whole array. The maximum is dask's ``array.chunk-size``,
    or the largest of `sizes` or a single chunk if one of these is larger.
    """
    wanted = tuple(_aligned_axis(*axis) for axis in zip(sizes, chunks, strict=True))
    shape = tuple(map(sum, sizes))
    if not math.prod(shape):
        return wanted
    chunk = math.prod(min(c, n) for c, n in zip(chunks, shape, strict=True))
    bound = max(array_chunk_nbytes() // itemsize, chunk, math.prod(map(max, sizes)))
    bounded, longest = list(wanted), [max(axis) for axis in wanted]
    # cut the first axes first: contiguous elements stay together
    for axis, (n, c) in enumerate(zip(shape, chunks, strict=True)):
        room = bound // (math.prod(longest) // longest[axis])
        if longest[axis] > room:
            # the fewest blocks, all of about the same size
            count = -(-n // (max(1, room // c) * c))
            bounded[axis] = steps(n, -(-n // (count * c)) * c)
            longest[axis] = max(bounded[axis])
    return tuple(bounded)


def _aligned_axis(sizes: tuple[int, ...], chunk: int) -> tuple[int, ...]:
    edges = list(itertools.accumulate(sizes))[:-1]
    aligned = [edge for edge in edges if edge % chunk == 0]
    if aligned == edges:
        return sizes
    total = sum(sizes)
    step = max(1, round(max(sizes) / chunk)) * chunk
    # the edges of a region lie between edges that are aligned
    merged = tuple(after - at for at, after in itertools.pairwise([0, *aligned, total]))
    return merged if max(merged) <= step else steps(total, step)
