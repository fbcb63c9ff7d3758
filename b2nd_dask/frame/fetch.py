"""Bytes of the touched chunks: whole, or of the touched blocks alone."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from b2nd_dask.errors import B2ndError, CorruptChunkError
from b2nd_dask.format.chunk import MAX_DICT_LEN, ChunkHeader, check_chunk, parse_chunk_header
from b2nd_dask.format.grid import Grid
from b2nd_dask.format.subset import block_spans, chunk_of_blocks, head_nbytes
from b2nd_dask.frame.opening import OpenedFrame, ParsedFrame
from b2nd_dask.frame.plan import Part
from b2nd_dask.storage import Span

Blocks = tuple[list[int], ...]
"""Numbers of blocks along each axis of a chunk."""

#: Compressed chunks up to this size are read whole: two reads cost more than the rest of it.
SMALL_CHUNK = 1 << 14
#: Where more than this part of a chunk's blocks is wanted, all are read.
NEARLY_ALL = 0.9


class Fetched(NamedTuple):
    """A part and its bytes."""

    part: Part
    data: bytes
    """A chunk."""
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
        blocks = None if length <= SMALL_CHUNK else touched_blocks(part.inner, grid)
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
    whole = [wish for wish in batch if wish.blocks is None]
    some = [wish for wish in batch if wish.blocks is not None]
    head = head_nbytes(math.prod(grid.blocks_per_chunk))
    answers = _read(
        opened,
        [(wish, Span(0, wish.available)) for wish in whole]
        + [(wish, Span(0, min(head, wish.available))) for wish in some],
    )
    for wish, data in zip(whole, answers, strict=False):
        yield Fetched(wish.part, data, some_blocks=False)
    if some:
        yield from _fetch_blocks(opened, some, answers[len(whole) :])


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


def member_name(number: int) -> str:
    """Name of a chunk file in a sparse frame.

    Examples
    --------
    >>> member_name(171)
    '000000AB.chunk'
    """
    return f"{number:08X}.chunk"


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


def _fetch_blocks(opened: OpenedFrame, some: list[Wish], heads: list[bytes]) -> Iterator[Fetched]:
    """The second round: places of blocks are known now."""
    found = [_find_blocks(opened.parsed.grid, *pair) for pair in zip(some, heads, strict=True)]
    flat = [(wish, span) for wish, (_, spans) in zip(some, found, strict=True) for span in spans]
    answers = iter(_read(opened, flat))
    for wish, head, (header, spans) in zip(some, heads, found, strict=True):
        streams = list(itertools.islice(answers, len(spans)))
        if header is None:
            yield Fetched(wish.part, streams[0], some_blocks=False)
            continue
        if any(len(s) < b - a for s, (a, b) in zip(streams, spans, strict=True)):
            raise CorruptChunkError("the file ends inside it", chunk=wish.part.chunk)
        yield Fetched(wish.part, chunk_of_blocks(head, header, streams), some_blocks=True)


def _find_blocks(grid: Grid, wish: Wish, head: bytes) -> tuple[ChunkHeader | None, list[Span]]:
    """Header, and spans of the wanted blocks; no header where the whole chunk has to be read."""
    whole = [Span(0, wish.available)]
    try:
        header = parse_chunk_header(head)
        check_chunk(
            header,
            wish.available,
            nbytes=grid.chunk_nbytes,
            blocksize=grid.block_nbytes,
            typesize=grid.itemsize,
        )
    except B2ndError:
        # decoding the whole chunk says what is wrong
        return None, whole
    spans = block_spans(head, header, _numbers(wish.blocks or (), grid))
    return (None, whole) if spans is None else (header, _spans(spans))


def _read(opened: OpenedFrame, wanted: list[tuple[Wish, Span]]) -> list[bytes]:
    """Read spans that count from the starts of chunks."""
    reader, frame = opened.reader, opened.parsed
    if not frame.header.sparse:
        return reader.read([Span(wish.start + a, wish.start + b) for wish, (a, b) in wanted])
    answers: list[bytes] = []
    for chunk, group in itertools.groupby(wanted, lambda item: item[0].part.chunk):
        name = member_name(int(frame.index.offsets[chunk]))
        try:
            answers += reader.read([span for _, span in group], name)
        except FileNotFoundError as error:
            raise CorruptChunkError(f"its file {name} is missing", chunk=chunk) from error
    return answers


def _spans(rows: NDArray[np.int64]) -> list[Span]:
    return [Span(a, b) for a, b in rows.tolist()]


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
