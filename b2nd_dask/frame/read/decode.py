"""From a chunk to selected elements: decoded ones, or what chunks without data read as.

C-Blosc2 takes the shapes for ZFP, NDLZ, NDCELL and NDMEAN from the metalayer of the frame that the
chunk is in: such a chunk is decoded in a small frame of its own, in memory.
"""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from b2nd_dask.errors import UninitializedChunkError
from b2nd_dask.format.array_meta import build_array_meta
from b2nd_dask.format.chunk.chunk_header import Buffer, ChunkHeader, Special
from b2nd_dask.format.chunk.codec import (
    constant_of,
    decode_chunk,
    decode_in_frame,
    nan_element,
    read_only,
)
from b2nd_dask.format.chunk.compression import Compression
from b2nd_dask.format.grid import Grid
from b2nd_dask.format.header import FrameHeader, build_header
from b2nd_dask.format.index import ChunkKind, build_index
from b2nd_dask.format.trailer import build_trailer
from b2nd_dask.frame.open.opening import OpenedFrame, ParsedFrame, located
from b2nd_dask.frame.read.buffers import scratch
from b2nd_dask.frame.read.fetch import ChunkBytes
from b2nd_dask.frame.read.plan import Part
from b2nd_dask.frame.read.scatter import scatter_chunk


@dataclass(frozen=True, eq=False, slots=True)
class Fill:
    """Elements of special chunks, for one dtype and one choice of `uninit`."""

    dtype: np.dtype[Any]
    uninit: NDArray[Any] | None
    """0-d element of chunks that were never written, read-only; None if reading them raises."""

    def __reduce__(self) -> tuple[Any, ...]:
        # NumPy's pickles below protocol 5 make arrays of the other byte order native
        uninit = None if self.uninit is None else self.uninit.tobytes()
        return _unpickled, (self.dtype, uninit)

    @classmethod
    def of(cls, dtype: np.dtype[Any], uninit: object) -> Fill:
        """Check the user's choice.

        Parameters
        ----------
        dtype : numpy.dtype
            Of the array.
        uninit : object
            None for zeros, ``"raise"``, or a value that the dtype can hold.

        Raises
        ------
        ValueError
            A value that the dtype cannot hold.
        """
        if uninit is None:
            return cls(dtype, read_only(np.zeros((), dtype)))
        if isinstance(uninit, str) and uninit == "raise":
            return cls(dtype, None)
        try:
            return cls(dtype, read_only(np.array(uninit, dtype).reshape(())))
        except (TypeError, ValueError, OverflowError) as error:
            raise ValueError(f"uninit={uninit!r} is no value of dtype {dtype}") from error

    def element(self, kind: int) -> NDArray[Any]:
        """Element of a special chunk.

        Parameters
        ----------
        kind : int
            A `ChunkKind` other than STORED.

        Returns
        -------
        ndarray
            0-d, read-only.

        Raises
        ------
        UninitializedChunkError
            The chunk was never written, and `uninit` is "raise".
        CorruptChunkError
            A NaN chunk in an array whose dtype has no NaN.
        """
        if kind == ChunkKind.ZEROS:
            return read_only(np.zeros((), self.dtype))
        if kind == ChunkKind.NAN:
            return nan_element(self.dtype)
        if self.uninit is None:
            raise UninitializedChunkError(
                'it was never written, and uninit="raise" asks for this error'
            )
        return self.uninit


def _unpickled(dtype: np.dtype[Any], uninit: bytes | None) -> Fill:
    return Fill(dtype, None if uninit is None else np.frombuffer(uninit, dtype).reshape(()))


def carrier(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """Dtype to move elements in: raw bytes for structured ones, so that all of them move."""
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
    """Decode what was fetched into an array.

    Parameters
    ----------
    part : Part
        That it was fetched for.
    out : ndarray
        The elements of the part, of the `carrier` dtype.
    in_order : bool
        False where it does not matter which element comes where.

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
            _decode(opened.parsed, fetched, part, out, in_order=in_order)
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


def _decode(
    frame: ParsedFrame, fetched: ChunkBytes, part: Part, out: NDArray[Any], *, in_order: bool
) -> None:
    grid, inner, some = frame.grid, part.inner, fetched.some_blocks
    is_all = out.flags.c_contiguous and out.nbytes == fetched.header.nbytes and not in_order
    if is_all or is_in_place(grid, inner, out, some_blocks=some):
        decode_raw(frame, fetched, out)
        return
    with scratch.borrow(fetched.header.nbytes) as buffer:
        raw = buffer.view(out.dtype)
        decode_raw(frame, fetched, raw)
        scatter_chunk(raw, grid, inner, out, some_blocks=some)


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


def is_in_place(
    grid: Grid, inner: tuple[range, ...], out: NDArray[Any], *, some_blocks: bool = False
) -> bool:
    """Whether selected elements are decoded to where they belong, without a scratch buffer."""
    return out.flags.c_contiguous and _is_c_order(grid, inner, some_blocks=some_blocks)


# most chunks of a region are cut alike
@lru_cache(maxsize=1024)
def _is_c_order(grid: Grid, inner: tuple[range, ...], *, some_blocks: bool) -> bool:
    """Whether decoded bytes, as they are, are the selected elements in C order."""
    if not some_blocks:
        whole = tuple(map(range, grid.padded_chunk))
        return grid.chunk_is_c_order and inner == whole
    aligned = all(
        positions.step == 1 and not positions.start % block and not positions.stop % block
        for positions, block in zip(inner, grid.blocks, strict=True)
    )
    # the touched blocks are like a chunk of nothing else
    return aligned and replace(grid, chunks=tuple(map(len, inner))).chunk_is_c_order


def decode_shaped_chunk(
    data: Buffer, header: ChunkHeader, frame: FrameHeader, grid: Grid, out: NDArray[Any]
) -> None:
    """Decode a chunk whose header says `needs_shape`.

    Parameters
    ----------
    data : bytes-like
        The chunk.
    header : ChunkHeader
        Its header.
    frame, grid : FrameHeader, Grid
        Of the frame that it comes from.
    out : ndarray
        Contiguous; exactly as many bytes as the chunk holds.

    Raises
    ------
    CorruptChunkError
        The compressed streams cannot be decoded, or a codec or filter is not registered.
    """
    chunk = _padded_chunk(memoryview(data)[: header.cbytes], grid.blocks)
    decode_in_frame(_one_chunk_frame(chunk, frame, grid), out)


def _padded_chunk(chunk: Buffer, blocks: tuple[int, ...]) -> bytes:
    """Add zeros behind a chunk, for codecs that read past the end of damaged streams.

    ZFP reads up to some bits for each cell of 4 elements an axis, whatever is there.
    """
    padding = math.prod(-(-n // 4) for n in blocks) // 8 + 4096
    out = bytearray(chunk) + bytes(padding)
    struct.pack_into("<i", out, 12, len(out))
    return bytes(out)


def _one_chunk_frame(chunk: bytes, header: FrameHeader, grid: Grid) -> bytes:
    """Wrap one chunk into a frame of shape `grid.chunks`, with elements of raw bytes."""
    alone = Grid(grid.chunks, grid.chunks, grid.blocks, grid.itemsize)
    meta = build_array_meta(alone, np.dtype(f"V{grid.itemsize}"))
    index, trailer = build_index(np.zeros(1, np.int64)), build_trailer({})
    fields = replace(
        header,
        sparse=False,
        nbytes=grid.chunk_nbytes,
        cbytes=len(chunk),
        typesize=grid.itemsize,
        metalayers={"b2nd": meta},
        # the chunk says itself how it was compressed; upstream looks for the frame's codec, even in
        # other programs
        compression=Compression(codec=0, clevel=1, filters=(0,) * 6),
    )
    # the header's own length does not depend on its values
    start = len(build_header(fields, has_vlmeta=False))
    frame_len = start + len(chunk) + len(index) + len(trailer)
    head = build_header(replace(fields, frame_len=frame_len), has_vlmeta=False)
    return b"".join([head, chunk, index, trailer])
