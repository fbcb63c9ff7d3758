"""Regions that repeat one element: their chunks are recorded without writing any data."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from b2nd_dask.format.grid import Grid
from b2nd_dask.format.index import ChunkKind, special_code
from b2nd_dask.frame.write.encode import encode_constant
from b2nd_dask.frame.write.records import ChunkRecords


def constant_records(
    element: NDArray[Any], origin: tuple[int, ...], shape: tuple[int, ...], grid: Grid
) -> ChunkRecords | None:
    """Record the chunks of a region that repeats one element, as far as they need no data.

    Parameters
    ----------
    element : ndarray
        0-d.
    origin : tuple of int
        Index of the region's first element in the frame; the corner of a chunk.
    shape : tuple of int
        Of the region; not empty.
    grid : Grid
        Of the frame.

    Returns
    -------
    ChunkRecords or None
        None where the offset index has no code for the element.
    """
    code = encode_constant(element, grid)
    if not isinstance(code, int):
        return None
    cells = [
        np.arange(start // c, -(-(start + n) // c))
        for start, n, c in zip(origin, shape, grid.chunks, strict=True)
    ]
    if code != special_code(ChunkKind.ZEROS):
        # a chunk that the array's edge cuts holds zeros behind the edge
        whole = [n // c for n, c in zip(grid.shape, grid.chunks, strict=True)]
        cells = [axis[axis < n] for axis, n in zip(cells, whole, strict=True)]
    numbers = np.ravel_multi_index(np.ix_(*cells), grid.counts) if cells else np.zeros(1, np.int64)
    return ChunkRecords.of_special(np.asarray(numbers).reshape(-1), code)
