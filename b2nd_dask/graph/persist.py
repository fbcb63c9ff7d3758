"""`persist_compressed`: an array whose blocks stay compressed in the memory of the workers."""

from __future__ import annotations

import operator
from functools import partial
from typing import Any

import dask.array as da
import numpy as np
from dask.base import tokenize

from b2nd_dask.frame.compressed import CompressedArray, compress, memory_plan
from b2nd_dask.graph import _dask_compat
from b2nd_dask.graph.read.from_b2nd import expressions, is_expression
from b2nd_dask.graph.write.input_arrays import as_dask, is_labelled
from b2nd_dask.graph.write.write_tasks import checked_block


def persist_compressed(x: Any, *, cparams: Any = None) -> Any:
    """Compute an array and keep its blocks in memory, compressed by Blosc2.

    Like `dask.array.Array.persist`, for arrays that are larger than memory: the blocks stay in the
    memory of the cluster's workers, or else of this process. A task that uses a block decompresses
    it; a task that slices a block decompresses only what the slice touches.

    Parameters
    ----------
    x : dask.array.Array, dask_array.Array or array-like
        Anything that `to_b2nd` accepts, also a `xarray.DataArray`. It is computed now.
    cparams : blosc2.CParams or dict, optional
        Codec, level and filters as for `to_b2nd`. The default is Zstandard at level 1 after
        bitshuffle: masks, rounded numbers and integers of small ranges take a fifth of their memory
        or less, random floats nearly all of it.

    Returns
    -------
    dask.array.Array, dask_array.Array or xarray.DataArray
        An array of the kind and the blocks of `x`, with its labels. The compressed blocks are freed
        with the last array that uses them.

    Raises
    ------
    TypeError
        The dtype holds Python objects, the array is masked, the array's dtype cannot hold the
        elements of a block, or `x` is a `xarray.Dataset`: pass its arrays, by
        ``x.map(persist_compressed)``.
    ValueError
        Chunks have an unknown size, a block has another shape than the array says, or the array has
        more than 16 dimensions.
    UnsupportedFrameError
        A codec or filter needs the array's shape.

    Examples
    --------
    >>> x = persist_compressed(da.arange(1000000, chunks=250000) // 1000)
    >>> x.mean().compute(), x[5999:6001].compute()
    (np.float64(499.5), array([5, 6]))
    """
    if is_labelled(x):
        if not hasattr(x, "dtype"):
            raise TypeError(
                f"a {type(x).__name__} holds several arrays: call "
                "x.map(b2nd_dask.persist_compressed, keep_attrs=True), or pass its arrays one by "
                "one"
            )
        return x.copy(data=persist_compressed(x.data, cparams=cparams))
    array = as_dask(x)
    # raise errors of the options here, not on a worker
    memory_plan(tuple(max(axis, default=0) for axis in array.chunks), array.dtype, cparams)
    labels = tuple(range(array.ndim))
    shape_dep = _dask_compat.optional("ArrayChunkShapeDep")
    shapes = (shape_dep(array.chunks), labels) if shape_dep else (None, None)
    compressed = da.blockwise(
        partial(_compress_block, dtype=array.dtype, cparams=cparams),
        labels, array, labels, *shapes,
        token="compress",  # noqa: S106 - prefix of the names of tasks
        dtype=object, meta=np.empty((0,) * array.ndim, object), align_arrays=False,
    ).persist()  # fmt: skip
    found = _decompressed(compressed, array)
    return expressions().expression_of(found) if is_expression(x) else found


def _compress_block(
    block: Any, shape: tuple[int, ...] | None, *, dtype: np.dtype[Any], cparams: Any
) -> CompressedArray:
    """Compress a block; it must have the given shape, unless dask does not provide one."""
    shape = np.shape(block) if shape is None else shape
    return compress(checked_block(block, "persist_compressed: a block", shape, dtype), cparams)


def _decompressed(compressed: da.Array, like: da.Array) -> da.Array:
    """Make a dask array whose tasks decompress blocks."""
    # dask fuses further slices into the index of its getter
    index = _dask_compat.optional("getter") or operator.getitem
    found: da.Array = da.map_blocks(
        index,
        compressed,
        (slice(None),) * like.ndim,
        name=f"decompress-{tokenize(compressed)}",
        chunks=like.chunks,
        dtype=like.dtype,
        meta=np.empty((0,) * like.ndim, like.dtype),
    )
    return found
