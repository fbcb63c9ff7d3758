"""Read one region of a frame: plan, fetch, decode into the result."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from b2nd_dask.errors import B2ndError, CorruptChunkError
from b2nd_dask.format.assemble import one_chunk_frame
from b2nd_dask.format.chunk import (
    MAX_DICT_LEN,
    Special,
    check_chunk,
    constant_of,
    padded_chunk,
    parse_chunk_header,
)
from b2nd_dask.format.codec import decode_chunk, decode_in_frame
from b2nd_dask.format.grid import Grid, Piece, split_positions
from b2nd_dask.format.index import ChunkKind
from b2nd_dask.frame.fill import Fill
from b2nd_dask.frame.opening import ParsedFrame
from b2nd_dask.frame.scatter import scatter_chunk
from b2nd_dask.storage import ByteReader, Span

#: Compressed bytes that a read of many chunks holds at once.
FETCH_NBYTES = 32 << 20


class Part(NamedTuple):
    """The part of a region that lies in one chunk."""

    chunk: int
    inner: tuple[range, ...]
    """Selected positions in the chunk."""
    out: tuple[slice, ...]
    """Where they go in the result."""


def read_region(
    reader: ByteReader, frame: ParsedFrame, axes: tuple[range, ...], fill: Fill
) -> NDArray[Any]:
    """Read a region.

    Parameters
    ----------
    reader : ByteReader
    frame : ParsedFrame
    axes : tuple of range
        Ascending positions to read along each axis.
    fill : Fill
        What special chunks read as; its dtype is that of the result.

    Returns
    -------
    ndarray
        A zero-stride, read-only array where one item fills the region and nothing had to be
        decoded.

    Raises
    ------
    CorruptChunkError, UnsupportedFrameError, UninitializedChunkError
        With the chunk's number.
    """
    shape = tuple(len(positions) for positions in axes)
    if 0 in shape:
        return np.empty(shape, fill.dtype)
    pieces = [split_positions(a, c) for a, c in zip(axes, frame.grid.chunks, strict=True)]
    chunks = _chunk_numbers(pieces, frame.grid)
    kinds = frame.index.kinds[chunks]
    if kinds[0] != ChunkKind.STORED and (kinds == kinds[0]).all():
        return np.broadcast_to(_special_item(fill, int(kinds[0]), int(chunks[0])), shape)
    parts = list(_parts(pieces, chunks))
    if len(parts) == 1:
        return _read_single(reader, frame, parts[0], shape, fill)
    # zeros cost no time before they are written to, so that zero chunks are free
    out = np.zeros(shape, _carrier(fill.dtype))
    for at in np.flatnonzero((kinds != ChunkKind.STORED) & (kinds != ChunkKind.ZEROS)):
        item = _special_item(fill, int(kinds[at]), int(chunks[at]))
        out[parts[at].out] = item.view(out.dtype)
    stored = [parts[at] for at in np.flatnonzero(kinds == ChunkKind.STORED)]
    for part, data in _fetch(reader, frame, stored):
        _place(reader, frame, part, data, fill, out[part.out])
    return out.view(fill.dtype)


def _read_single(
    reader: ByteReader, frame: ParsedFrame, part: Part, shape: tuple[int, ...], fill: Fill
) -> NDArray[Any]:
    """A region inside one stored chunk, which may turn out to repeat one item."""
    ((_, data),) = _fetch(reader, frame, [part])
    out = np.empty(shape, _carrier(fill.dtype))
    item = _place(reader, frame, part, data, fill, out)
    return out.view(fill.dtype) if item is None else np.broadcast_to(item, shape)


def _chunk_numbers(pieces: list[list[Piece]], grid: Grid) -> NDArray[np.int64]:
    """Numbers of the touched chunks, in C order over the pieces."""
    numbers = np.zeros(1, np.int64)
    for axis, count in zip(pieces, grid.counts, strict=True):
        cells = np.array([piece.cell for piece in axis], np.int64)
        numbers = (numbers[:, None] * count + cells).reshape(-1)
    return numbers


def _parts(pieces: list[list[Piece]], chunks: NDArray[np.int64]) -> Iterator[Part]:
    for chunk, combination in zip(chunks.tolist(), itertools.product(*pieces), strict=True):
        yield Part(chunk, tuple(p.inner for p in combination), tuple(p.out for p in combination))


def _carrier(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """Dtype to move items in: raw bytes for structured ones, so that all of them move."""
    return dtype if dtype.fields is None else np.dtype(f"V{dtype.itemsize}")


def _special_item(fill: Fill, kind: int, chunk: int) -> NDArray[Any]:
    try:
        return fill.item(kind)
    except B2ndError as error:
        raise error.located(chunk=chunk) from error.__cause__


def _fetch(
    reader: ByteReader, frame: ParsedFrame, parts: list[Part]
) -> Iterator[tuple[Part, bytes]]:
    """Bytes of stored chunks, in batches of bounded size."""
    if frame.header.sparse:
        for part in parts:
            name = member_name(int(frame.index.offsets[part.chunk]))
            yield part, _read_member(reader, name, part.chunk, _longest_chunk(frame.grid))
        return
    base = frame.header.header_len
    starts, stops = frame.index.extents(np.array([part.chunk for part in parts], np.int64))
    stops = np.minimum(stops, starts + _longest_chunk(frame.grid))
    batch_of = np.cumsum(stops - starts) // FETCH_NBYTES
    for _, members in itertools.groupby(range(len(parts)), key=batch_of.__getitem__):
        batch = list(members)
        spans = [Span(base + int(starts[i]), base + int(stops[i])) for i in batch]
        yield from zip([parts[i] for i in batch], reader.read(spans), strict=True)


def _read_member(reader: ByteReader, name: str, chunk: int, nbytes: int) -> bytes:
    try:
        return reader.read([Span(0, nbytes)], name)[0]
    except FileNotFoundError as error:
        raise CorruptChunkError(f"its file {name} is missing", chunk=chunk) from error


def member_name(number: int) -> str:
    """Name of a chunk file in a sparse frame.

    Examples
    --------
    >>> member_name(171)
    '000000AB.chunk'
    """
    return f"{number:08X}.chunk"


def _longest_chunk(grid: Grid) -> int:
    """No chunk is longer: data that does not shrink is stored plain, behind a header."""
    nblocks = grid.chunk_nbytes // grid.block_nbytes
    return 32 + grid.chunk_nbytes + 4 * nblocks + 4 + MAX_DICT_LEN


def _place(
    reader: ByteReader, frame: ParsedFrame, part: Part, data: bytes, fill: Fill, out: NDArray[Any]
) -> NDArray[Any] | None:
    """Decode one part into `out`; returns the chunk's item if it repeats just one."""
    try:
        item = _decode_part(frame, part, data, fill, out)
    except B2ndError as error:
        offset, label = int(frame.index.offsets[part.chunk]), reader.label
        if frame.header.sparse:
            located = error.located(chunk=part.chunk, path=f"{label}/{member_name(offset)}")
        else:
            located = error.located(
                chunk=part.chunk, path=label, shift=frame.header.header_len + offset
            )
        raise located from error.__cause__
    if item is not None:
        out[...] = item.view(out.dtype)
    return item


def _decode_part(
    frame: ParsedFrame, part: Part, data: bytes, fill: Fill, out: NDArray[Any]
) -> NDArray[Any] | None:
    grid = frame.grid
    header = parse_chunk_header(data)
    check_chunk(
        header,
        len(data),
        nbytes=grid.chunk_nbytes,
        blocksize=grid.block_nbytes,
        typesize=grid.itemsize,
    )
    if header.special == Special.UNINIT:
        return fill.item(ChunkKind.UNINIT)
    item = constant_of(data, header, fill.dtype)
    if item is not None:
        return item
    straight = _fills_exactly(grid, part.inner, out)
    raw = out if straight else np.empty(grid.chunk_nbytes // grid.itemsize, out.dtype)
    if header.needs_shape:
        chunk = padded_chunk(data[: header.cbytes], grid.blocks)
        decode_in_frame(one_chunk_frame(chunk, frame.header, grid), raw)
    else:
        decode_chunk(data, header, raw)
    if not straight:
        scatter_chunk(raw, grid, part.inner, out)
    return None


def _fills_exactly(grid: Grid, inner: tuple[range, ...], out: NDArray[Any]) -> bool:
    """Whether a chunk's decoded bytes, as they are, are what `out` must hold."""
    return (
        grid.chunk_is_c_order
        and out.flags.c_contiguous
        and all(
            positions == range(n) for positions, n in zip(inner, grid.padded_chunk, strict=True)
        )
    )
