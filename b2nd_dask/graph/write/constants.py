"""Arrays that dask made of one value: their chunks are known without a task for each block."""

from __future__ import annotations

from typing import Any

import dask.array as da
import numpy as np
from numpy.typing import NDArray

from b2nd_dask.format.grid import Grid
from b2nd_dask.frame.write.records import ChunkRecords
from b2nd_dask.frame.write.writer import constant_records
from b2nd_dask.graph import _dask_compat


def constant_element(arr: da.Array) -> NDArray[Any] | None:
    """The element of an array that `da.zeros`, `da.full` or the like has made.

    Returns
    -------
    ndarray or None
        0-d; None for any other array, also if it is constant.

    Examples
    --------
    >>> constant_element(da.full((10**6, 10**6), 2.5))
    array(2.5)
    >>> constant_element(da.zeros(5) + 1) is None
    True
    """
    shape_dep = _dask_compat.optional("ArrayChunkShapeDep")
    maker = _dask_compat.optional("_broadcast_trick_inner")
    if shape_dep is None or maker is None or _dask_compat.is_planned() or len(arr.dask.layers) != 1:
        return None
    layer = arr.dask.layers.get(arr.name)
    deps = getattr(layer, "io_deps", {}).values()
    func: Any = getattr(getattr(layer, "task", None), "func", None)
    shapes = all(isinstance(dep, shape_dep) for dep in deps)
    if not shapes or _innermost(func) is not _innermost(maker):
        return None
    element: NDArray[Any] = np.asarray(func((1,) * arr.ndim)).reshape(())
    return element


def _innermost(func: Any) -> Any:
    """The function in partials and curried functions."""
    while hasattr(func, "func"):
        func = func.func
    return func


def special_records(arr: da.Array, origin: tuple[int, ...], grid: Grid) -> ChunkRecords | None:
    """Records of the chunks of a constant array that need no data.

    Parameters
    ----------
    arr : dask.array.Array
    origin : tuple of int
        Index of its first element in the frame; the corner of a chunk.
    grid : Grid
        Of the frame.

    Returns
    -------
    ChunkRecords or None
        None where each block has to be computed.
    """
    element = constant_element(arr)
    if element is None or 0 in arr.shape:
        return None
    return constant_records(element, origin, arr.shape, grid)
