"""`persist_compressed`: an array whose blocks stay compressed in the memory of the workers."""

from __future__ import annotations

from typing import Any

import dask.array as da
import numpy as np
from dask.base import tokenize
from dask.highlevelgraph import HighLevelGraph
from numpy.typing import NDArray

from b2nd_dask.frame.compressed import CompressedArray, compress, memory_plan
from b2nd_dask.frame.write.casts import checked_cast
from b2nd_dask.graph import _dask_compat
from b2nd_dask.graph.read.blocks import BlockArgument
from b2nd_dask.graph.write.input_arrays import as_dask
from b2nd_dask.graph.write.source_metadata import is_labelled
from b2nd_dask.graph.write.write_tasks import check_block


def persist_compressed(x: Any, *, cparams: Any = None) -> Any:
    """Compute an array and keep its blocks in memory, compressed by Blosc2.

    As `dask.array.Array.persist`, for arrays that do not fit into the memory as they are: on a
    cluster in the memory of the workers, else in that of this process. Tasks that use a block
    decompress it, of a slice only what it touches.

    Parameters
    ----------
    x : dask.array.Array or array-like
        Anything that `to_b2nd` takes, also a `xarray.DataArray`. It is computed now.
    cparams : blosc2.CParams or dict, optional
        Codec, level and filters as for `to_b2nd`. By default Zstandard at level 1 behind
        bitshuffle: masks, rounded numbers and integers of small ranges take a fifth of their memory
        or less, random floats nearly all of it.

    Returns
    -------
    dask.array.Array or xarray.DataArray
        In the same blocks; of a labelled array with its labels. The compressed blocks are freed
        with the last array that uses them.

    Raises
    ------
    TypeError
        The dtype holds Python objects, the array is masked, a block is not what the array promises,
        or it is a `xarray.Dataset`: pass its arrays, by ``x.map(persist_compressed)``.
    ValueError
        Chunks have an unknown size, or the array has more than 16 dimensions.
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
                f"a {type(x).__name__} is not one array: call x.map(b2nd_dask.persist_compressed, "
                "keep_attrs=True), or pass its arrays one by one"
            )
        return x.copy(data=persist_compressed(x.data, cparams=cparams))
    array = as_dask(x, named=False, snapshot=False)
    # raises here what would otherwise be an error of a worker
    memory_plan(tuple(max(axis, default=0) for axis in array.chunks), array.dtype, cparams)
    compressed = da.map_blocks(
        _compress_block,
        array,
        array.dtype,
        cparams,
        token="compress",  # noqa: S106 - begins the name of the tasks
        dtype=object,
        meta=np.empty((0,) * array.ndim, object),
    ).persist()
    return _decompressed(compressed, array)


def _compress_block(block: Any, dtype: np.dtype[Any], cparams: Any) -> CompressedArray:
    name = "persist_compressed: a block"
    check_block(block, name, np.shape(block), dtype)
    return compress(checked_cast(np.asarray(block), dtype, name), cparams)


def _decompressed(compressed: da.Array, like: da.Array) -> da.Array:
    """Make an array of blocks that are held compressed."""
    if not _dask_compat.has_layers():
        meta = np.empty((0,) * like.ndim, like.dtype)
        plain: da.Array = da.map_blocks(
            decompress, compressed, chunks=like.chunks, dtype=like.dtype, meta=meta
        )
        return plain
    name = f"decompress-{tokenize(compressed)}"
    indices = tuple(range(like.ndim))
    # dask fuses further slices into the index
    layer = _dask_compat.blockwise(
        _dask_compat.getter,
        name,
        indices,
        compressed.name,
        indices,
        _WholeBlocks(like.chunks),
        indices,
        numblocks={compressed.name: compressed.numblocks},
    )
    before: Any = compressed
    graph = HighLevelGraph.from_collections(name, layer, dependencies=[before])
    return da.Array(graph, name, like.chunks, dtype=like.dtype)


class _WholeBlocks(BlockArgument):  # type: ignore[misc]
    """The argument of each block's task: slices of the whole block."""

    def __getitem__(self, block: tuple[int, ...]) -> tuple[slice, ...]:
        sizes = (axis[i] for axis, i in zip(self.chunks, block, strict=True))
        return tuple(slice(0, n, None) for n in sizes)


def decompress(block: CompressedArray) -> NDArray[Any]:
    """Decompress a whole block."""
    elements: NDArray[Any] = np.asarray(block[...])
    return elements
