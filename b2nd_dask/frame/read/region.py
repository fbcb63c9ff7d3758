"""Read one region of a frame into an array: plan, fetch, decode."""

from __future__ import annotations

import math
import multiprocessing
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from b2nd_dask.format.chunk.chunk_header import ChunkKind
from b2nd_dask.format.grid import Grid
from b2nd_dask.frame.open.cache import OpenedFrame
from b2nd_dask.frame.read.buffers import BOX_NBYTES, MAX_SCRATCH_NBYTES, in_pages, result_pool
from b2nd_dask.frame.read.decode import Fill, carrier, decode_part, is_in_place
from b2nd_dask.frame.read.fetch import ChunkRequest, batches, chunk_requests, fetch
from b2nd_dask.frame.read.plan import (
    Axes,
    Part,
    RegionPlan,
    claimed,
    reads_in_boxes,
    touched_blocks,
)
from b2nd_dask.system import usable_cores

T = TypeVar("T")

#: Least bytes to decode per thread: with fewer, waits for the GIL exceed the gain.
LEAST_OF_A_THREAD = 1 << 22
#: Least batches per thread in a shared read, so that all threads have work until the end.
BATCHES_OF_A_THREAD = 3


def read_region(
    opened: OpenedFrame,
    axes: Axes,
    fill: Fill,
    threads: int = 1,
    batch_nbytes: int | None = None,
    into: NDArray[Any] | None = None,
    claims: Axes | None = None,
) -> NDArray[Any]:
    """Read a region of ascending positions along each axis, with the dtype of `fill`.

    The result is a zero-stride, read-only array if one element fills the region and nothing had to
    be decoded; else it is a view of `into`, if given, an array with the shape of the region and the
    `carrier` dtype. If memory is short, `batch_nbytes` limits the compressed bytes to read at once,
    and the memory of the result is not kept for reuse; by default batches have the best size of the
    reader. For `claims` see `RegionPlan`. Raises `CorruptChunkError`, `UnsupportedFrameError` or
    `UninitializedChunkError`, which name the chunk.
    """
    shape = tuple(len(positions) for positions in axes)
    if 0 in shape:
        return np.empty(shape, fill.dtype)
    element = only_element(opened, axes, fill)
    if element is not None:
        return np.broadcast_to(element, shape)
    plan = RegionPlan.of(opened.parsed, axes, claims)
    if plan.single_kind is not None:
        element = fill.element(plan.single_kind, int(plan.chunks[0]))
        return np.broadcast_to(element, shape)
    empty = result_pool.empty if batch_nbytes is None else in_pages
    out = new_array(plan, fill, shape, empty, into)
    repeated = read_parts(opened, plan, fill, out, threads, batch_nbytes)
    return out.view(fill.dtype) if repeated is None else np.broadcast_to(repeated, shape)


def read_parts(
    opened: OpenedFrame,
    plan: RegionPlan,
    fill: Fill,
    out: NDArray[Any],
    threads: int = 1,
    batch_nbytes: int | None = None,
) -> NDArray[Any] | None:
    """Read the stored chunks of a region into an array of its elements; see `read_region`.

    If the region lies inside one chunk, and the chunk repeats an element, returns the element and
    does not change the array; else returns None.
    """
    parts = parts_of(opened, plan, out)
    is_single, repeated = len(plan.chunks) == len(parts) == 1, []
    requests = requests_of(opened, parts, plan.claims)
    nbytes: float = opened.reader.batch_nbytes if batch_nbytes is None else batch_nbytes
    if threads > 1:
        decoded = _decoded_nbytes((each.blocks for each in requests), opened.parsed.grid)
        threads = min(threads, 1 + decoded // LEAST_OF_A_THREAD)
        header = opened.parsed.header
        compressed = decoded * header.cbytes / header.nbytes
        nbytes = min(nbytes, compressed / (threads * BATCHES_OF_A_THREAD))

    def decode(batch: list[ChunkRequest]) -> None:
        for fetched in fetch(opened, batch):
            part = parts[fetched.number]
            # the ellipsis makes the result of a 0-d array an array
            where = out[(*part.out, ...)]  # type: ignore[arg-type]
            element = decode_part(opened, fetched, part, fill, where)
            if element is None:
                continue
            if is_single:
                repeated.append(element)
            else:
                where[...] = element.view(out.dtype)

    in_threads(decode, batches(requests, nbytes), threads)
    return repeated[0] if repeated else None


def parts_of(opened: OpenedFrame, plan: RegionPlan, out: NDArray[Any] | None = None) -> list[Part]:
    """Divide a region into parts that are each decoded at once, directly into `out` if possible.

    A chunk that is too large for a scratch buffer has several parts. A reduction has no `out`.
    """
    grid = opened.parsed.grid
    if not reads_in_boxes(opened.parsed, opened.reader.batch_nbytes):
        return list(plan.parts())
    divided: list[Part] = []
    for part in plan.parts():
        nbytes = _decoded_nbytes([touched_blocks(part.inner, grid)], grid)
        # the ellipsis makes the result of a 0-d array an array
        where = None if out is None else out[(*part.out, ...)]  # type: ignore[arg-type]
        in_place = where is not None and is_in_place(grid, part.inner, where)
        if nbytes > MAX_SCRATCH_NBYTES and not in_place:
            divided += part.in_boxes(grid, BOX_NBYTES)
        else:
            divided.append(part)
    return divided


def requests_of(opened: OpenedFrame, parts: Sequence[Part], claims: Axes) -> list[ChunkRequest]:
    """Create the chunk requests of a region; for `claims` see `RegionPlan`."""
    grid, ends = opened.parsed.grid, [(r.start, r.stop, r.step) for r in claims]
    chunks = np.array([part.chunk for part in parts], np.int64)
    blocks = [touched_blocks(part.inner, grid) for part in parts]
    return chunk_requests(opened, chunks, blocks, partial(claimed, grid=grid, claims=ends))


def only_element(opened: OpenedFrame, axes: Axes, fill: Fill) -> NDArray[Any] | None:
    """Find, in constant time, the element that all chunks of a frame repeat; else None.

    Errors name the first chunk of the region.
    """
    kind, grid = opened.parsed.index.single_kind, opened.parsed.grid
    if not kind:
        return None
    first = (np.array([along[0] // chunk]) for along, chunk in zip(axes, grid.chunks, strict=True))
    return fill.element(kind, int(grid.chunk_numbers(first)[0]))


def special_elements(
    fill: Fill, kinds: NDArray[np.uint8], chunks: NDArray[np.int64]
) -> Iterator[tuple[int, NDArray[np.bool_], NDArray[Any]]]:
    """Yield each kind of special chunks, a mask of these chunks, and their element."""
    # most regions have none
    for kind in np.unique(kinds).tolist() if kinds.any() else ():
        if kind != ChunkKind.STORED:
            chosen = kinds == kind
            yield kind, chosen, fill.element(kind, int(chunks[np.argmax(chosen)]))


def new_array(
    plan: RegionPlan,
    fill: Fill,
    shape: tuple[int, ...],
    empty: Callable[..., NDArray[Any]],
    into: NDArray[Any] | None = None,
) -> NDArray[Any]:
    """Create the array of the result, or reuse `into`; write the elements of special chunks."""
    dtype = carrier(fill.dtype)
    zeros = np.count_nonzero(plan.kinds == ChunkKind.ZEROS)
    mostly_zeros = into is None and 2 * zeros > len(plan.kinds)
    # fresh zeros cost nothing until they are written
    make = np.zeros if mostly_zeros else empty
    out = make(shape, dtype) if into is None else into
    for kind, chosen, element in special_elements(fill, plan.kinds, plan.chunks):
        if kind != ChunkKind.ZEROS or not mostly_zeros:
            for part in plan.parts(chosen):
                out[part.out] = element.view(dtype)
    return out


def _decoded_nbytes(touched: Iterable[NDArray[np.int64] | None], grid: Grid) -> int:
    """Sum the bytes of the decoded blocks of some chunks; None means all blocks of a chunk."""
    whole = math.prod(grid.blocks_per_chunk)
    return sum(whole if blocks is None else len(blocks) for blocks in touched) * grid.block_nbytes


def in_threads(work: Callable[[T], None], elements: Iterable[T], threads: int) -> None:
    """Process elements in several threads, including the calling thread."""
    if threads == 1:
        for element in elements:
            work(element)
        return
    todo = list(elements)
    # a thread takes the next element when it is done with one
    left = iter(todo)

    def share() -> None:
        try:
            for element in left:
                work(element)
        except BaseException:
            # the other threads stop, too
            todo.clear()
            raise

    with ThreadPoolExecutor(threads - 1) as pool:
        others = [pool.submit(share) for _ in range(min(threads, len(todo)) - 1)]
        share()
        for done in others:
            done.result()


def own_threads() -> int:
    """Choose the number of threads of a read: that of the cores in the main thread, else 1.

    Other threads, and processes that a program has started, usually belong to a scheduler, which
    reads in all of them at the same time.
    """
    alone = threading.current_thread() is threading.main_thread()
    return usable_cores() if alone and multiprocessing.parent_process() is None else 1
