"""Cast blocks of elements, encode them as chunks, and stage these."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from b2nd_dask.format.chunk.chunk_header import ChunkKind, chunk_digest
from b2nd_dask.format.chunk.codec import encode_chunk, encode_repeated, join_chunks, nan_element
from b2nd_dask.format.chunk.compression import Compression
from b2nd_dask.format.grid import Grid
from b2nd_dask.format.index import special_code
from b2nd_dask.format.statistics import chunk_statistics
from b2nd_dask.frame.read.buffers import BOX_NBYTES, MAX_SCRATCH_NBYTES, scratch
from b2nd_dask.frame.read.decode import paired_views
from b2nd_dask.frame.write.new_frame import FramePlan
from b2nd_dask.frame.write.records import ChunkBox, ChunkRecords, merge_records
from b2nd_dask.storage import Staging

#: Elements per comparison in the search for a repeated element; they stay in the L2 cache.
_COMPARED_AT_ONCE = 1 << 15


def write_block(
    elements: NDArray[Any],
    origin: tuple[int, ...],
    plan: FramePlan,
    staging: Staging,
    threads: int = 1,
    chunks: NDArray[np.int64] | None = None,
) -> ChunkRecords:
    """Encode and stage the chunks of one block: whole chunks, except at the array's edges.

    `origin` is the index of the block's first element in the array, the corner of a chunk;
    `threads` compress a large chunk; `chunks` are the numbers of those to write, by default all.
    """
    grid = plan.grid
    batches = StagedBatches(plan.row, staging, threads)
    elements = np.asarray(elements, plan.dtype)
    if chunks is None:
        chunks = ChunkBox.of(origin, elements.shape, grid).chunks(grid)
    constant = ChunkRecords.of_special(plan.row)
    if elements.ndim and elements.size and not any(elements.strides):
        # a view of one element: most chunks need no data
        corner: tuple[Any, ...] = (*(0,) * elements.ndim, ...)
        constant = constant_records(elements[corner], chunks, plan)
        chunks = np.setdiff1d(chunks, constant.rows["chunk"], assume_unique=True)
    for chunk in chunks.tolist():
        along = zip(grid.extent(chunk), origin, strict=True)
        inside = (slice(axis.start - at, axis.stop - at) for axis, at in along)
        # the ellipsis makes the result of a 0-d block an array
        index: tuple[Any, ...] = (*inside, ...)
        batches.add_elements(chunk, elements[index], plan)
    staged = batches.finish()
    return merge_records([constant, staged]) if len(constant.rows) else staged


class StagedBatches:
    """Encoded chunks, held until they fill a batch of the staging, then staged together."""

    def __init__(self, row: np.dtype[Any], staging: Staging, threads: int = 1) -> None:
        self._row = row
        self._staging = staging
        self._threads = threads
        self._held: list[tuple[int, bytes, tuple[Any, ...]]] = []
        """Number, bytes and entry of each held chunk."""
        self._held_nbytes = 0
        self._rows: list[tuple[Any, ...]] = []
        self._parts: dict[str, int] = {}

    def add_elements(self, chunk: int, elements: NDArray[Any], plan: FramePlan) -> None:
        """Encode and add a chunk of valid elements."""
        encoded, statistics = encode_elements(elements, plan, self._threads)
        if isinstance(encoded, int):
            _, *nothing = np.zeros((), self._row["entry"])[()]
            self._rows.append((chunk, -1, 0, 0, (encoded, *nothing)))
        else:
            self.add(chunk, encoded, *statistics)

    def add(self, chunk: int, encoded: bytes, *statistics: Any) -> None:
        """Add a stored chunk, with its statistics if the table has the column.

        Stages the held chunks first if the batch would be too large.
        """
        if self._held_nbytes + len(encoded) > self._staging.batch_nbytes:
            self._stage()
        # compute the digest while the chunk is in the processor's cache
        self._held.append((chunk, encoded, (0, chunk_digest(encoded), *statistics)))
        self._held_nbytes += len(encoded)

    def finish(self) -> ChunkRecords:
        """Stage the remaining chunks, and return the records of all."""
        self._stage()
        return ChunkRecords(tuple(self._parts), np.array(self._rows, self._row))

    def _stage(self) -> None:
        if not self._held:
            return
        runs = self._staging.append([encoded for _, encoded, _ in self._held])
        for (chunk, encoded, entry), run in zip(self._held, runs, strict=True):
            part = self._parts.setdefault(run.part, len(self._parts))
            self._rows.append((chunk, part, run.start, len(encoded), entry))
        self._held, self._held_nbytes = [], 0


def constant_records(
    element: NDArray[Any], chunks: NDArray[np.int64], plan: FramePlan
) -> ChunkRecords:
    """Record chunks that repeat one element (0-d), without those that need data."""
    grid = plan.grid
    code = encode_constant(element, grid)
    if not isinstance(code, int):
        return ChunkRecords.of_special(plan.row)
    if code != special_code(ChunkKind.ZEROS):
        # not chunks with zeros behind the array's edge; one more axis is for 0-d arrays
        cells = np.unravel_index(chunks, (1, *grid.counts))
        sizes = zip(cells, (1, *grid.shape), (1, *grid.chunks), strict=True)
        chunks = chunks[np.logical_and.reduce([cell < n // c for cell, n, c in sizes])]
    return ChunkRecords.of_special(plan.row, chunks, code)


def encode_elements(
    elements: NDArray[Any], plan: FramePlan, threads: int = 1
) -> tuple[int | bytes, list[Any]]:
    """Encode the valid elements of one chunk: all elements, or fewer at the array's edges.

    `threads` compress boxes of a large chunk. Returns a special code for the offset index, or a
    chunk; and the statistics, if the chunk is stored and the frame has some. They are computed
    while the elements are in the processor's cache.
    """
    grid, compression = plan.grid, plan.compression
    element = repeated_element(elements)
    # at the edge only zeros are constant: the padding must read as zeros after an append
    if element is not None and (elements.shape == grid.chunks or not any(element.tobytes())):
        encoded = encode_constant(element, grid)
        is_stored = plan.stats and isinstance(encoded, bytes)
        repeated = np.broadcast_to(element, elements.shape)
        return encoded, [chunk_statistics(repeated)] if is_stored else []
    moved = elements if elements.dtype.fields is None else elements.view(f"V{grid.itemsize}")
    most = BOX_NBYTES if threads > 1 else MAX_SCRATCH_NBYTES
    is_large = grid.chunk_nbytes > most and compression.has_independent_blocks
    if is_large and (threads > 1 or not _is_in_stored_order(moved, grid)):
        chunk = join_chunks(_encoded_boxes(moved, grid, compression, threads))
        if chunk is not None:
            return chunk, [chunk_statistics(elements)] if plan.stats else []
    statistics = []
    with _in_stored_order(moved, grid) as raw:
        if plan.stats:
            # if all elements were copied to the buffer, they are contiguous there
            is_whole = elements.shape == grid.padded_chunk
            valid = raw.view(elements.dtype) if is_whole else elements
            statistics.append(chunk_statistics(valid))
        chunk = encode_chunk(raw, compression, typesize=grid.itemsize, blocksize=grid.block_nbytes)
    return chunk, statistics


def _encoded_boxes(
    elements: NDArray[Any], grid: Grid, compression: Compression, threads: int
) -> Iterator[bytes]:
    """Compress the boxes of a large chunk."""

    def encoded(box: tuple[slice, ...]) -> bytes:
        shape = tuple(along.stop - along.start for along in box)
        part = replace(grid, shape=shape, chunks=shape)
        with _in_stored_order(elements[box], part) as raw:
            return encode_chunk(
                raw, compression, typesize=grid.itemsize, blocksize=grid.block_nbytes
            )

    boxes = grid.boxes_of_blocks(BOX_NBYTES)
    if threads == 1:
        yield from map(encoded, boxes)
        return
    with ThreadPoolExecutor(threads) as pool:
        yield from pool.map(encoded, boxes)


@contextmanager
def _in_stored_order(elements: NDArray[Any], grid: Grid) -> Iterator[NDArray[Any]]:
    """Yield the valid elements of a chunk in stored order, with zeros in the padding."""
    if _is_in_stored_order(elements, grid):
        yield elements.reshape(-1)
        return
    with scratch.borrow(grid.chunk_nbytes) as buffer:
        raw = buffer.view(elements.dtype)
        if elements.shape != grid.padded_chunk:
            buffer[:] = 0
        if elements.size:
            inner = tuple(map(range, elements.shape))
            for stored, source in paired_views(raw, grid, inner, elements):
                stored[...] = source
        yield raw


def _is_in_stored_order(elements: NDArray[Any], grid: Grid) -> bool:
    is_whole = elements.shape == grid.padded_chunk
    return is_whole and grid.chunk_is_c_order and elements.flags.c_contiguous


def repeated_element(elements: NDArray[Any]) -> NDArray[Any] | None:
    """Find the one element (0-d) that fills a non-empty array bit for bit; None for several.

    -0.0 differs from 0.0, and NaNs differ by payload.

    Examples
    --------
    >>> repeated_element(np.full((2, 3), -0.0))
    array(-0.)
    >>> repeated_element(np.array([0.0, -0.0])) is None
    True
    """
    # the ellipsis keeps a 0-d array an array: its element would have native byte order
    corner: tuple[Any, ...] = (*(slice(0, 1),) * elements.ndim, ...)
    first: NDArray[Any] = elements[corner].reshape(())
    if all(
        stride == 0 or n == 1 for stride, n in zip(elements.strides, elements.shape, strict=True)
    ):
        return first
    size = elements.dtype.itemsize
    bits = elements.view(f"u{size}" if size in (1, 2, 4, 8) else f"V{size}")
    start = bits[(0,) * bits.ndim]
    # a fast test: most arrays differ at their ends
    if start != bits[(-1,) * bits.ndim]:
        return None
    step = max(1, _COMPARED_AT_ONCE // bits[0].size)
    parts = (bits[at : at + step] for at in range(0, len(bits), step))
    return first if all((part == start).all() for part in parts) else None


def encode_constant(element: NDArray[Any], grid: Grid) -> int | bytes:
    """Encode a chunk that repeats one element (0-d): a special code, or a chunk."""
    value = element.tobytes()
    if not any(value):
        return special_code(ChunkKind.ZEROS)
    # the NaN code represents only one payload
    has_nan = (
        element.dtype.kind == "f" and element.dtype.itemsize in (4, 8) and element.dtype.isnative
    )
    if has_nan and value == nan_element(element.dtype).tobytes():
        return special_code(ChunkKind.NAN)
    return encode_repeated(value, nbytes=grid.chunk_nbytes, blocksize=grid.block_nbytes)


def fits(given: np.dtype[Any], wanted: np.dtype[Any]) -> bool:
    """Whether elements convert without loss, except of floating-point precision.

    Times fit if their values allow it, which `checked_cast` verifies.

    Examples
    --------
    >>> fits(np.dtype("f8"), np.dtype("f4")), fits(np.dtype("i8"), np.dtype("i4"))
    (True, False)
    """
    lossy = (wanted.kind in "fc" and given.kind in "iufc") or given.kind == wanted.kind in "mM"
    return np.can_cast(given, wanted, "same_kind" if lossy else "safe")


def cast_value(elements: NDArray[Any], dtype: np.dtype[Any], name_in_error: str) -> NDArray[Any]:
    """Cast elements whose dtype no user chose: their values must fit, not the dtype.

    Returns the same elements if `dtype` cannot represent them. Raises OverflowError if a number is
    too large for a float type, or a time for the unit.

    Examples
    --------
    >>> u1 = np.dtype("u1")
    >>> cast_value(np.array(255), u1, "").dtype, cast_value(np.array(256), u1, "").dtype
    (dtype('uint8'), dtype('int64'))
    """
    if fits(elements.dtype, dtype):
        return checked_cast(elements, dtype, name_in_error)
    if elements.dtype.kind in "biu" and dtype.kind in "biu":
        cast = elements.astype(dtype)
        return cast if np.array_equal(cast, elements) else elements
    return elements


def cast_fill(fill: Any, dtype: np.dtype[Any]) -> NDArray[Any]:
    """Cast a scalar to a 0-d array; raise an error if more than its precision would change."""
    is_time, kind = dtype.kind in "mM", None
    if isinstance(fill, str) and is_time:
        # a date has the unit in which it is written; other texts, such as NaT, have no unit
        is_date = dtype.kind == "M" and fill.strip().lower() not in ("nat", "")
        kind = np.dtype("M8") if is_date else dtype
    given = np.array(fill, kind)
    element = cast_value(given, dtype, f"fill={fill!r}").reshape(())
    problem = f"fill={fill!r} does not fit elements of {dtype}"
    if element.dtype != dtype:
        both_whole = given.dtype.kind in "iub" and dtype.kind in "iub"
        raise (OverflowError if both_whole else TypeError)(problem)
    if is_time and not np.array_equal(element, given.reshape(()), equal_nan=True):
        raise OverflowError(problem)
    return element


def checked_cast(block: Any, wanted: np.dtype[Any], name_in_error: str) -> NDArray[Any]:
    """Cast a block; raise OverflowError if a number would become infinity, or a time another."""
    try:
        with np.errstate(over="raise"):
            elements: NDArray[Any] | None = np.asarray(block, wanted)
    except FloatingPointError:
        raise OverflowError(
            f"{name_in_error} has elements that are too large for {wanted}: they would become "
            "infinity. Write a frame of a wider dtype; or convert by .astype first, if infinity "
            "is intended"
        ) from None
    except OverflowError:
        # NumPy 2.5 raises instead of wrapping times around
        elements = None
    if elements is None or _has_other_times(np.asarray(block), elements):
        raise OverflowError(
            f"{name_in_error} has times that {wanted} cannot hold: they are out of its range, or "
            "not multiples of its unit. Write a frame with another unit, or round the times first"
        )
    return elements


def _has_other_times(given: NDArray[Any], elements: NDArray[Any]) -> bool:
    """Whether a cast changed times: out of range of a finer unit, or between coarser steps."""
    if given.dtype == elements.dtype:
        return False
    if given.dtype.names and elements.dtype.names:
        # NumPy assigns fields by position
        fields = zip(given.dtype.names, elements.dtype.names, strict=True)
        return any(_has_other_times(given[one], elements[other]) for one, other in fields)
    if not given.dtype.kind == elements.dtype.kind in "mM":
        return False
    return not bool(((elements.astype(given.dtype) == given) | np.isnat(given)).all())
