"""Chunks that repeat one element: zeros, NaN, any value (docs/format.md, Special values)."""

from __future__ import annotations

import struct
from typing import Any

import numpy as np
from numpy.typing import NDArray

from b2nd_dask.errors import CorruptChunkError
from b2nd_dask.format.chunk.chunk_header import EXTENDED, Buffer, ChunkHeader, Special
from b2nd_dask.format.chunk.compression import MAX_TYPESIZE


def encode_repeated(value: bytes, *, nbytes: int, blocksize: int) -> bytes:
    """Make the chunk that repeats one element (docs/format.md, Special values).

    Parameters
    ----------
    value : bytes
        The element.
    nbytes, blocksize : int
        Uncompressed bytes of the chunk and of a block.

    Returns
    -------
    bytes
        Header and element.
    """
    typesize = len(value) if len(value) <= MAX_TYPESIZE else 1
    head = struct.pack("<BBBBiii", 5, 1, EXTENDED, typesize, nbytes, blocksize, 32 + len(value))
    return head + bytes(15) + bytes([Special.REPEATED << 4]) + value


def constant_of(data: Buffer, header: ChunkHeader, dtype: np.dtype[Any]) -> NDArray[Any] | None:
    """The one element that a chunk repeats.

    Parameters
    ----------
    data : bytes-like
        The chunk.
    header : ChunkHeader
        Its header.
    dtype : numpy.dtype
        Of the array.

    Returns
    -------
    ndarray or None
        0-d, read-only; None for a chunk that has to be decoded, and for one that was never written.
    """
    if header.special == Special.ZEROS:
        return read_only(np.zeros((), dtype))
    if header.special == Special.NAN:
        return nan_element(dtype)
    width = header.cbytes - header.header_len
    if header.special == Special.REPEATED and dtype.itemsize % width == 0:
        value = bytes(data[header.header_len : header.cbytes]) * (dtype.itemsize // width)
        return np.frombuffer(value, dtype)[0:1].reshape(())
    return None


def nan_element(dtype: np.dtype[Any]) -> NDArray[Any]:
    """What a NaN chunk holds, element by element.

    The format fills such chunks with little-endian quiet NaNs as wide as the element, whatever its
    type (docs/format.md, Offset index): that is kept for complex and raw elements. For big-endian
    floats it would be a denormal number, which no writer means, so they get a NaN.

    Parameters
    ----------
    dtype : numpy.dtype
        Of the array; 4 or 8 bytes.

    Returns
    -------
    ndarray
        0-d, read-only.

    Raises
    ------
    CorruptChunkError
        A type that has no NaN.

    Examples
    --------
    >>> nan_element(np.dtype(">f8"))
    array(nan, dtype='>f8')
    """
    if dtype.itemsize not in (4, 8) or dtype.kind not in "fcV" or dtype.fields is not None:
        raise CorruptChunkError(f"it is marked as NaN, which {dtype} does not have")
    if dtype.kind == "f":
        return read_only(np.array(np.nan, dtype))
    return read_only(np.array(np.nan, f"<f{dtype.itemsize}")).view(dtype)


def read_only(elements: NDArray[Any]) -> NDArray[Any]:
    """Make a shared array read-only.

    Parameters
    ----------
    elements : ndarray
        Views that were made of it before stay writable.

    Returns
    -------
    ndarray
        The same.
    """
    elements.flags.writeable = False
    return elements
