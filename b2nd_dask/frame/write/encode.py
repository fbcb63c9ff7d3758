"""One chunk of an array to the bytes of a chunk, or to the code of what it repeats."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from b2nd_dask.format.chunk.codec import encode_chunk
from b2nd_dask.format.chunk.compression import Compression
from b2nd_dask.format.chunk.constant import encode_repeated, nan_element
from b2nd_dask.format.grid import Grid
from b2nd_dask.format.index import ChunkKind, special_code
from b2nd_dask.frame.read.buffers import Scratch
from b2nd_dask.frame.read.scatter import gather_chunk

#: Elements compared at once when looking whether a chunk repeats one: the comparison stays in the
#: L2 cache.
_COMPARED_AT_ONCE = 1 << 15

_scratch = Scratch()


def encode_elements(elements: NDArray[Any], grid: Grid, how: Compression) -> int | bytes:
    """Encode the elements of one chunk.

    Parameters
    ----------
    elements : ndarray
        The chunk's valid elements: of the shape of a chunk, or less at the array's edges.

    Returns
    -------
    int or bytes
        A special code for the offset index, or a chunk.
    """
    element = repeated_element(elements)
    # what grows over a cut chunk's edge later must read as zeros: there only zeros are constant
    if element is not None and (elements.shape == grid.chunks or not any(element.tobytes())):
        return encode_constant(element, grid)
    moved = elements if elements.dtype.fields is None else elements.view(f"V{grid.itemsize}")
    if (
        grid.chunk_is_c_order
        and elements.shape == grid.padded_chunk
        and elements.flags.c_contiguous
    ):
        return encode_chunk(
            moved.reshape(-1), how, typesize=grid.itemsize, blocksize=grid.block_nbytes
        )
    with _scratch.borrow(grid.chunk_nbytes) as raw:
        if elements.shape != grid.padded_chunk:
            raw[:] = 0
        gather_chunk(moved, grid, raw.view(moved.dtype))
        return encode_chunk(raw, how, typesize=grid.itemsize, blocksize=grid.block_nbytes)


def repeated_element(elements: NDArray[Any]) -> NDArray[Any] | None:
    """The one element that fills an array, bit for bit.

    -0.0 is not 0.0, and NaNs differ by payload.

    Parameters
    ----------
    elements : ndarray
        Not empty.

    Returns
    -------
    ndarray or None
        0-d; None where elements differ.

    Examples
    --------
    >>> repeated_element(np.full((2, 3), -0.0))
    array(-0.)
    >>> repeated_element(np.array([0.0, -0.0])) is None
    True
    """
    # the ellipsis keeps a 0-d array an array, whose element would have native byte order
    corner: tuple[Any, ...] = (*(slice(0, 1),) * elements.ndim, ...)
    first: NDArray[Any] = elements[corner].reshape(())
    if all(
        stride == 0 or n == 1 for stride, n in zip(elements.strides, elements.shape, strict=True)
    ):
        return first
    bits = elements.view(_bits_of(elements.dtype))
    # nearly every chunk of data differs at its ends
    if bits[(0,) * bits.ndim] != bits[(-1,) * bits.ndim]:
        return None
    return first if _all_equal(bits) else None


def _all_equal(bits: NDArray[Any]) -> bool:
    first = bits[(0,) * bits.ndim]
    if bits.ndim == 0:
        return True
    row = max(1, bits[0].size)
    step = max(1, _COMPARED_AT_ONCE // row)
    return all((bits[at : at + step] == first).all() for at in range(0, len(bits), step))


def _bits_of(dtype: np.dtype[Any]) -> np.dtype[Any]:
    size = dtype.itemsize
    return np.dtype(f"u{size}") if size in (1, 2, 4, 8) else np.dtype(f"V{size}")


def encode_constant(element: NDArray[Any], grid: Grid) -> int | bytes:
    """Encode a chunk that repeats one element.

    Parameters
    ----------
    element : ndarray
        0-d.

    Returns
    -------
    int or bytes
        As for `encode_elements`.
    """
    value = element.tobytes()
    if not any(value):
        return special_code(ChunkKind.ZEROS)
    # the NaN code stands for one payload only
    has_nan = (
        element.dtype.kind == "f" and element.dtype.itemsize in (4, 8) and element.dtype.isnative
    )
    if has_nan and value == nan_element(element.dtype).tobytes():
        return special_code(ChunkKind.NAN)
    return encode_repeated(value, nbytes=grid.chunk_nbytes, blocksize=grid.block_nbytes)
