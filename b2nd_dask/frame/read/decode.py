"""Decode chunk bytes to selected elements; elements of special chunks.

A stored chunk has its elements block by block; they are copied between this order and an array.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from b2nd_dask.errors import UninitializedChunkError, locating
from b2nd_dask.format.chunk.chunk_header import ChunkKind
from b2nd_dask.format.chunk.codec import (
    constant_of,
    decode_chunk,
    decode_shaped_chunk,
    nan_element,
    read_only,
)
from b2nd_dask.format.grid import AxisCells, Grid
from b2nd_dask.format.header import geometry_of
from b2nd_dask.format.index import INDEX_KINDS
from b2nd_dask.frame.open.cache import OpenedFrame, located
from b2nd_dask.frame.open.opening import ParsedFrame
from b2nd_dask.frame.read.buffers import scratch
from b2nd_dask.frame.read.fetch import ChunkBytes
from b2nd_dask.frame.read.plan import Part

#: Most moves of a layout to cache for the next chunk.
_FEW_MOVES = 8


@dataclass(frozen=True, slots=True)
class Fill:
    """Elements of special chunks, for one dtype and one choice of `uninit`."""

    dtype: np.dtype[Any]
    uninit: bytes | None
    """The element of chunks that were never written; None if reads of them raise."""

    @classmethod
    def of(cls, dtype: np.dtype[Any], uninit: object) -> Fill:
        """Create a fill from the user's `uninit`: None for zeros, "raise", or a value.

        Raises `ValueError` if the dtype cannot hold the value.
        """
        if uninit is None:
            return cls(dtype, np.zeros((), dtype).tobytes())
        if isinstance(uninit, str) and uninit == "raise":
            return cls(dtype, None)
        error: Exception | None = None
        try:
            with np.errstate(invalid="ignore"):
                element = np.array(uninit, dtype).reshape(())
            # NumPy truncates fractions, and NumPy integers wrap around
            is_held = dtype.kind not in "biu" or bool(element == uninit)
        except (TypeError, ValueError, OverflowError) as caught:
            is_held, error = False, caught
        if not is_held:
            raise ValueError(f"uninit={uninit!r} is not a value of dtype {dtype}") from error
        return cls(dtype, element.tobytes())

    def element(self, kind: int, chunk: int) -> NDArray[Any]:
        """Return the 0-d, read-only element of a special chunk, one of `INDEX_KINDS`.

        Raises errors that name the chunk: `UninitializedChunkError` if it was never written, and
        `uninit` is "raise"; `CorruptChunkError` for NaN in an array with a dtype without NaN.
        """
        if kind == ChunkKind.ZEROS:
            return read_only(np.zeros((), self.dtype))
        if kind == ChunkKind.NAN:
            with locating(chunk=chunk):
                return nan_element(self.dtype)
        if self.uninit is None:
            raise UninitializedChunkError(
                'it was never written, and uninit="raise" requests this error', chunk=chunk
            )
        return np.frombuffer(self.uninit, self.dtype).reshape(())


def carrier(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """Choose the dtype to copy elements: raw bytes for structured ones, to copy padding, too."""
    return dtype if dtype.fields is None else np.dtype(f"V{dtype.itemsize}")


def decode_part(
    opened: OpenedFrame,
    fetched: ChunkBytes,
    part: Part,
    fill: Fill,
    out: NDArray[Any],
    *,
    in_order: bool = True,
) -> NDArray[Any] | None:
    """Decode the bytes that were fetched for a part into an array of the `carrier` dtype.

    `in_order` is False if the order of the elements does not matter. Returns the 0-d element that
    the chunk repeats, with `out` unchanged; else None. Raises `CorruptChunkError`,
    `UnsupportedFrameError` or `UninitializedChunkError`, which name the chunk and, if known, the
    file and the byte offset.
    """
    with located(opened, fetched.chunk):
        element = constant_in(fetched, fill)
        if element is not None:
            return element
        frame, inner, some = opened.parsed, part.inner, fetched.some_blocks
        is_all = out.flags.c_contiguous and out.nbytes == fetched.header.nbytes and not in_order
        if is_all or is_in_place(frame.grid, inner, out, some_blocks=some):
            decode_raw(frame, fetched, out)
            return None
        with scratch.borrow(fetched.header.nbytes) as buffer:
            raw = buffer.view(out.dtype)
            decode_raw(frame, fetched, raw)
            for stored, target in paired_views(raw, frame.grid, inner, out, some_blocks=some):
                target[...] = stored
    return None


def constant_in(fetched: ChunkBytes, fill: Fill) -> NDArray[Any] | None:
    """Find the 0-d element that a chunk repeats; None for a chunk that must be decoded.

    Raises `CorruptChunkError` and `UninitializedChunkError`.
    """
    if fetched.header.special in INDEX_KINDS:
        return fill.element(fetched.header.special, fetched.chunk)
    return constant_of(fetched.data, fetched.header, fill.dtype)


def decode_raw(frame: ParsedFrame, fetched: ChunkBytes, raw: NDArray[Any]) -> None:
    """Decode a chunk in stored order into a contiguous array of exactly as many bytes.

    Raises `CorruptChunkError` if the compressed streams cannot be decoded.
    """
    header = fetched.header
    if header.needs_shape:
        # not the frame's grid, which may have a new axis
        grid, _ = geometry_of(frame.header)
        decode_shaped_chunk(fetched.data, header, grid, raw)
    else:
        decode_chunk(fetched.data, header, raw)


def is_in_place(
    grid: Grid, inner: tuple[range, ...], out: NDArray[Any], *, some_blocks: bool = False
) -> bool:
    """Whether selected elements are decoded directly into `out`, without a scratch buffer."""
    return out.flags.c_contiguous and _is_c_order(grid, inner, some_blocks=some_blocks)


# most chunks of a region have equal selections
@lru_cache(maxsize=1024)
def _is_c_order(grid: Grid, inner: tuple[range, ...], *, some_blocks: bool) -> bool:
    """Whether the decoded bytes are the selected elements in C order."""
    if not some_blocks and inner != tuple(map(range, grid.padded_chunk)):
        return False
    aligned = all(
        positions.step == 1 and not positions.start % block and not positions.stop % block
        for positions, block in zip(inner, grid.blocks, strict=True)
    )
    # treat the touched blocks as a chunk of these blocks only
    return aligned and replace(grid, chunks=tuple(map(len, inner))).chunk_is_c_order


class Tile(NamedTuple):
    """Neighbouring blocks along one axis with the same selection in each."""

    blocks: slice
    """Numbers of the blocks along the axis."""
    inner: slice
    """Selected elements of each block."""
    out: slice
    """Position of these elements in the array."""


# most chunks of a region have equal selections
@lru_cache(maxsize=1024)
def tiles(positions: range, block: int, *, compact: bool = False) -> tuple[Tile, ...]:
    """Divide the selected positions along a chunk's axis into tiles of equal blocks.

    `block` counts the elements of a block along this axis; `compact` says whether only touched
    blocks are present and counted.

    Examples
    --------
    >>> for tile in tiles(range(3, 14), 4):
    ...     print(tile)
    Tile(blocks=slice(0, 1, None), inner=slice(3, 4, 1), out=slice(0, 1, None))
    Tile(blocks=slice(1, 3, None), inner=slice(0, 4, 1), out=slice(1, 9, None))
    Tile(blocks=slice(3, 4, None), inner=slice(0, 2, 1), out=slice(9, 11, None))
    >>> tiles(range(0, 40, 20), 10, compact=True)
    (Tile(blocks=slice(0, 2, None), inner=slice(0, 1, 20), out=slice(0, 2, None)),)
    """
    merged: list[Tile] = []
    for number, (cell, inner, out) in enumerate(AxisCells(positions, block)):
        at = number if compact else cell
        tile = Tile(slice(at, at + 1), slice(inner.start, inner.stop, inner.step), out)
        if merged and merged[-1].inner == tile.inner and merged[-1].blocks.stop == at:
            last = merged.pop()
            blocks = slice(last.blocks.start, at + 1)
            tile = Tile(blocks, tile.inner, slice(last.out.start, out.stop))
        merged.append(tile)
    return tuple(merged)


# most chunks of a region have equal selections
@lru_cache(maxsize=256)
def _layout(grid: Grid, inner: tuple[range, ...], some_blocks: bool) -> tuple[Any, ...]:
    """Compute the layout of the selected elements of a chunk, in stored order and in an array.

    Returns the shape of the stored elements, (block numbers ..., elements ...); the order of its
    axes that puts both of an array's axis together; the tiles; the moves, None if too many to keep.
    """
    axes = [tiles(r, b, compact=some_blocks) for r, b in zip(inner, grid.blocks, strict=True)]
    counts = grid.blocks_per_chunk
    if some_blocks:
        counts = tuple(axis[-1].blocks.stop for axis in axes)
    order = [i for axis in range(grid.ndim) for i in (axis, grid.ndim + axis)]
    few = math.prod(map(len, axes)) <= _FEW_MOVES
    return counts + grid.blocks, order, axes, tuple(_moves(axes)) if few else None


def _moves(axes: Sequence[tuple[Tile, ...]]) -> Iterator[tuple[Any, Any]]:
    """Yield the indices of the same elements in stored order and in the array, tile by tile."""
    for several in itertools.product(*axes):
        numbers, inside = (tile.blocks for tile in several), (tile.inner for tile in several)
        # the ellipsis makes a 0-d result an array
        yield (*numbers, *inside, ...), (*(tile.out for tile in several), ...)


def paired_views(
    raw: NDArray[Any],
    grid: Grid,
    inner: tuple[range, ...],
    elements: NDArray[Any],
    *,
    some_blocks: bool = False,
) -> Iterator[tuple[NDArray[Any], NDArray[Any]]]:
    """Yield views of the same elements in stored order and in an array, tile by tile.

    `raw` is a decoded chunk, 1-D in stored order, with `some_blocks` only its touched blocks;
    `elements` has the selected positions of the chunk.
    """
    shape, order, axes, moves = _layout(grid, inner, some_blocks)
    blocks = raw.reshape(shape)
    for stored, out in moves or _moves(axes):
        part = blocks[stored].transpose(order)
        # never a copy, which would lose written elements: the reshape only splits axes
        yield part, elements[out].reshape(part.shape, copy=False)
