"""Bytes of the touched chunks: whole, or of the touched blocks alone."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from b2nd_dask.errors import CorruptChunkError
from b2nd_dask.format.chunk import MAX_DICT_LEN, check_chunk, parse_chunk_header
from b2nd_dask.format.grid import Grid
from b2nd_dask.format.subset import block_spans, head_nbytes, head_of_blocks
from b2nd_dask.frame.buffers import Scratch
from b2nd_dask.frame.opening import OpenedFrame, ParsedFrame, located, member_name
from b2nd_dask.frame.plan import Part
from b2nd_dask.storage import Span

_first_buffer = Scratch()
_second_buffer = Scratch()

Blocks = tuple[list[int], ...]
"""Numbers of blocks along each axis of a chunk."""

#: Compressed chunks up to this size are read at once: a second read costs more than the rest of it.
SMALL_CHUNK = 1 << 14
#: Where more than this part of a chunk's blocks is wanted, all are read.
NEARLY_ALL = 0.9


class Fetched(NamedTuple):
    """A part and its bytes."""

    part: Part
    data: memoryview
    """A chunk. Valid until the next one is asked for."""
    some_blocks: bool
    """Whether `data` is a chunk of the touched blocks alone."""


class Wish(NamedTuple):
    """A part, and where its chunk lies."""

    part: Part
    start: int
    """Of the chunk, in the object that holds it."""
    available: int
    """Bytes that may belong to the chunk."""
    blocks: Blocks | None
    """To be read; None for the whole chunk."""


def batches(opened: OpenedFrame, parts: Sequence[Part], nbytes: float) -> Iterator[list[Wish]]:
    """Divide what a region needs into reads of bounded size.

    Parameters
    ----------
    opened : OpenedFrame
    parts : sequence of Part
        Of stored chunks.
    nbytes : int
        Compressed bytes after which a batch ends.

    Yields
    ------
    list of Wish
        For `fetch`. Never empty.
    """
    grid, room = opened.parsed.grid, nbytes
    batch: list[Wish] = []
    for part, start, length in zip(parts, *_places(opened.parsed, parts), strict=True):
        blocks = touched_blocks(part.inner, grid)
        batch.append(Wish(part, start, length, blocks))
        room -= length * _portion(blocks, grid)
        if room <= 0:
            yield batch
            batch, room = [], nbytes
    if batch:
        yield batch


def fetch(opened: OpenedFrame, batch: Sequence[Wish]) -> Iterator[Fetched]:
    """Read what parts of stored chunks need.

    Parameters
    ----------
    opened : OpenedFrame
    batch : sequence of Wish

    Yields
    ------
    Fetched
        In any order.

    Raises
    ------
    CorruptChunkError
        With the chunk's number.
    """
    grid = opened.parsed.grid
    head = head_nbytes(math.prod(grid.blocks_per_chunk))
    wanted = [(wish, Span(0, _first_read(wish, head))) for wish in batch]
    with _first_buffer.lent(sum(span.stop for _, span in wanted)) as room:
        later: list[tuple[Wish, memoryview]] = []
        for wish, data in zip(batch, _read(opened, wanted, room.data), strict=True):
            if wish.blocks is None:
                yield Fetched(wish.part, data, some_blocks=False)
            else:
                later.append((wish, data))
        if later:
            yield from _fetch_blocks(opened, later)


def _first_read(wish: Wish, head: int) -> int:
    """Bytes to read before the places of blocks are known."""
    at_once = wish.blocks is None or wish.available <= SMALL_CHUNK
    return wish.available if at_once else min(head, wish.available)


def touched_blocks(inner: tuple[range, ...], grid: Grid) -> Blocks | None:
    """Numbers of the blocks that hold selected items, along each axis of a chunk.

    Parameters
    ----------
    inner : tuple of range
        Ascending positions in the chunk.
    grid : Grid

    Returns
    -------
    tuple of list of int, or None
        None where it is better to take all blocks.

    Examples
    --------
    >>> grid = Grid((64, 64), (32, 32), (4, 8), 8)
    >>> touched_blocks((range(5, 11), range(0, 32, 16)), grid)
    ([1, 2], [0, 2])
    """
    touched = tuple(_touched_along(r, b) for r, b in zip(inner, grid.blocks, strict=True))
    wanted = math.prod(map(len, touched))
    return touched if wanted < NEARLY_ALL * math.prod(grid.blocks_per_chunk) else None


def _touched_along(positions: range, block: int) -> list[int]:
    if positions.step <= block:
        return list(range(positions[0] // block, positions[-1] // block + 1))
    return [position // block for position in positions]


def longest_chunk(grid: Grid) -> int:
    """No chunk is longer: data that does not shrink is stored plain, behind a header."""
    nblocks = grid.chunk_nbytes // grid.block_nbytes
    return 32 + grid.chunk_nbytes + 4 * nblocks + 4 + MAX_DICT_LEN


def _places(frame: ParsedFrame, parts: Sequence[Part]) -> tuple[list[int], list[int]]:
    """Starts of chunks in their objects, and bytes that may belong to each."""
    longest = longest_chunk(frame.grid)
    if frame.header.sparse:
        return [0] * len(parts), [longest] * len(parts)
    starts, stops = frame.index.extents(np.array([part.chunk for part in parts], np.int64))
    lengths = np.minimum(stops - starts, longest)
    return (starts + frame.header.header_len).tolist(), lengths.tolist()


class _Found(NamedTuple):
    """What the first read of a chunk tells of its blocks."""

    wish: Wish
    data: memoryview
    """What was read first."""
    head: bytes
    """What the chunk of the wanted blocks begins with; empty where all have to be decoded."""
    runs: list[Span]
    """The blocks, or the whole chunk, in as few pieces as can be."""

    @property
    def nbytes(self) -> int:
        return len(self.head) + sum(b - a for a, b in self.runs)


def _fetch_blocks(
    opened: OpenedFrame, some: Sequence[tuple[Wish, memoryview]]
) -> Iterator[Fetched]:
    """The second round: places of blocks are known now."""
    found = [_find_blocks(opened, wish, data) for wish, data in some]
    with _second_buffer.lent(sum(row.nbytes for row in found)) as room:
        rest = room.data
        missing: list[tuple[Wish, Span, memoryview]] = []
        chunks: list[memoryview] = []
        for row in found:
            chunk, rest = rest[: row.nbytes], rest[row.nbytes :]
            chunk[: len(row.head)] = row.head
            missing += _fill_in(row, chunk[len(row.head) :])
            chunks.append(chunk)
        _read_into(opened, missing)
        for row, chunk in zip(found, chunks, strict=True):
            yield Fetched(row.wish.part, chunk, some_blocks=bool(row.head))


def _fill_in(row: _Found, body: memoryview) -> Iterator[tuple[Wish, Span, memoryview]]:
    """Copy the runs that were read already; gives the others and where they go."""
    for run in row.runs:
        length = run.stop - run.start
        target, body = body[:length], body[length:]
        if run.stop <= len(row.data):
            target[:] = row.data[run.start : run.stop]
        else:
            yield row.wish, run, target


def _find_blocks(opened: OpenedFrame, wish: Wish, data: memoryview) -> _Found:
    grid = opened.parsed.grid
    with located(opened, wish.part.chunk):
        header = parse_chunk_header(data)
        check_chunk(
            header,
            wish.available,
            nbytes=grid.chunk_nbytes,
            blocksize=grid.block_nbytes,
            typesize=grid.itemsize,
        )
    spans = block_spans(data, header, _numbers(wish.blocks or (), grid))
    if spans is None:
        return _Found(wish, data, b"", [Span(0, header.cbytes)])
    return _Found(wish, data, head_of_blocks(data, header, spans), _runs(spans))


def _runs(spans: NDArray[np.int64]) -> list[Span]:
    """Spans that follow one another as one."""
    breaks = np.flatnonzero(spans[1:, 0] != spans[:-1, 1])
    starts = spans[np.append(0, breaks + 1), 0]
    stops = spans[np.append(breaks, len(spans) - 1), 1]
    return [Span(a, b) for a, b in zip(starts.tolist(), stops.tolist(), strict=True)]


def _read(
    opened: OpenedFrame, wanted: list[tuple[Wish, Span]], room: memoryview
) -> list[memoryview]:
    """Read spans that count from the starts of chunks; clipped at the ends of their objects."""
    lengths = [span.stop - span.start for _, span in wanted]
    stops = itertools.accumulate(lengths)
    targets = [room[stop - n : stop] for n, stop in zip(lengths, stops, strict=True)]
    rows = [(wish, span, target) for (wish, span), target in zip(wanted, targets, strict=True)]
    return [t[:n] for t, n in zip(targets, _read_some(opened, rows), strict=True)]


def _read_into(opened: OpenedFrame, rows: list[tuple[Wish, Span, memoryview]]) -> None:
    for (wish, _, target), count in zip(rows, _read_some(opened, rows), strict=True):
        if count < len(target):
            raise CorruptChunkError("the file ends inside it", chunk=wish.part.chunk)


def _read_some(opened: OpenedFrame, rows: list[tuple[Wish, Span, memoryview]]) -> list[int]:
    reader, frame = opened.reader, opened.parsed
    if not frame.header.sparse:
        spans = [Span(wish.start + a, wish.start + b) for wish, (a, b), _ in rows]
        return reader.read_into(spans, [target for _, _, target in rows])
    counts: list[int] = []
    for chunk, group in itertools.groupby(rows, lambda row: row[0].part.chunk):
        of_chunk = list(group)
        name = member_name(int(frame.index.offsets[chunk]))
        try:
            counts += reader.read_into([r[1] for r in of_chunk], [r[2] for r in of_chunk], name)
        except FileNotFoundError as error:
            raise CorruptChunkError(f"its file {name} is missing", chunk=chunk) from error
    return counts


def _portion(blocks: Blocks | None, grid: Grid) -> float:
    """Part of a chunk's blocks that is wanted."""
    if blocks is None:
        return 1.0
    return math.prod(map(len, blocks)) / math.prod(grid.blocks_per_chunk)


def _numbers(blocks: Blocks, grid: Grid) -> NDArray[np.int64]:
    """Numbers of a product of blocks in their chunk, in C order."""
    axes = np.ix_(*(np.array(b, np.int64) for b in blocks))
    flat: NDArray[np.int64] = np.ravel_multi_index(axes, grid.blocks_per_chunk).reshape(-1)
    return flat
