"""From the bytes of a stored chunk to selected elements."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from b2nd_dask.format.chunk.chunk_header import Special
from b2nd_dask.format.chunk.codec import decode_chunk
from b2nd_dask.format.chunk.constant import constant_of
from b2nd_dask.format.grid import Grid
from b2nd_dask.format.index import ChunkKind
from b2nd_dask.format.shaped_chunk import decode_shaped_chunk
from b2nd_dask.frame.open.opening import OpenedFrame, ParsedFrame, located
from b2nd_dask.frame.read.buffers import Scratch
from b2nd_dask.frame.read.fetch import ChunkBytes
from b2nd_dask.frame.read.fill import Fill
from b2nd_dask.frame.read.plan import Part
from b2nd_dask.frame.read.scatter import scatter_chunk

_scratch = Scratch()


def carrier(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """Dtype to move elements in: raw bytes for structured ones, so that all of them move."""
    return dtype if dtype.fields is None else np.dtype(f"V{dtype.itemsize}")


def decode_part(
    opened: OpenedFrame, fetched: ChunkBytes, part: Part, fill: Fill, out: NDArray[Any]
) -> NDArray[Any] | None:
    """Decode what was fetched into an array.

    Parameters
    ----------
    part : Part
        That it was fetched for.
    out : ndarray
        The elements of the part, of the `carrier` dtype.

    Returns
    -------
    ndarray or None
        The element that the chunk repeats, 0-d; then `out` is left as it was.

    Raises
    ------
    CorruptChunkError, UnsupportedFrameError, UninitializedChunkError
        With the chunk's number, and the file's name and byte where these are known.
    """
    with located(opened, fetched.chunk):
        element = constant_in(fetched, fill)
        if element is None:
            _decode(opened.parsed, fetched, part, out)
        return element


def constant_in(fetched: ChunkBytes, fill: Fill) -> NDArray[Any] | None:
    """Find the element that a chunk repeats.

    Returns
    -------
    ndarray or None
        0-d; None for a chunk that has to be decoded.

    Raises
    ------
    CorruptChunkError, UninitializedChunkError
    """
    if fetched.header.special == Special.UNINIT:
        return fill.element(ChunkKind.UNINIT)
    return constant_of(fetched.data, fetched.header, fill.dtype)


def _decode(frame: ParsedFrame, fetched: ChunkBytes, part: Part, out: NDArray[Any]) -> None:
    grid, inner = frame.grid, part.inner
    if not fetched.some_blocks and _fills_exactly(grid, inner, out):
        decode_raw(frame, fetched, out)
        return
    with _scratch.borrow(fetched.header.nbytes) as buffer:
        raw = buffer.view(out.dtype)
        decode_raw(frame, fetched, raw)
        scatter_chunk(raw, grid, inner, out, some_blocks=fetched.some_blocks)


def decode_raw(frame: ParsedFrame, fetched: ChunkBytes, raw: NDArray[Any]) -> None:
    """Decode a chunk in stored order.

    Parameters
    ----------
    raw : ndarray
        Contiguous; exactly as many bytes as the chunk holds.

    Raises
    ------
    CorruptChunkError
        The compressed streams cannot be decoded.
    """
    header = fetched.header
    if header.needs_shape:
        decode_shaped_chunk(fetched.data, header, frame.header, frame.grid, raw)
    else:
        decode_chunk(fetched.data, header, raw)


def _fills_exactly(grid: Grid, inner: tuple[range, ...], out: NDArray[Any]) -> bool:
    """Whether a chunk's decoded bytes, as they are, are what `out` must hold."""
    return (
        grid.chunk_is_c_order
        and out.flags.c_contiguous
        and all(
            positions == range(n) for positions, n in zip(inner, grid.padded_chunk, strict=True)
        )
    )
