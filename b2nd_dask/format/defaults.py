"""What python-blosc2 would choose, and what it lets users choose."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import blosc2
import numpy as np

from b2nd_dask.errors import UnsupportedFrameError
from b2nd_dask.format.chunk import MAX_TYPESIZE
from b2nd_dask.format.compression import Compression

_SLOTS = 6
#: Parameters of python-blosc2 that do not change what is written, or that this package sets itself.
_OURS = frozenset({"nthreads", "tuner", "typesize", "blocksize"})


def compression_of(cparams: Any, itemsize: int) -> Compression:
    """Compression parameters as python-blosc2 takes them; its defaults for all that is not given.

    Parameters
    ----------
    cparams : blosc2.CParams, dict or None
        `nthreads` and `tuner` have no effect: tasks compress with one thread each.
    itemsize : int
        Bytes of an item.

    Returns
    -------
    Compression

    Raises
    ------
    TypeError
        An unknown parameter.
    ValueError
        A typesize or a blocksize that contradicts dtype and blocks.
    UnsupportedFrameError
        A codec or filter that needs the array's shape (ZFP, NDLZ, NDCELL, NDMEAN).

    Examples
    --------
    >>> compression_of({"codec": blosc2.Codec.LZ4, "clevel": 1}, 8).codec
    1
    """
    if not isinstance(cparams, blosc2.CParams | Mapping | None):
        raise TypeError(
            f"cparams is a blosc2.CParams or a dict of its parameters, not {type(cparams).__name__}"
        )
    given = asdict(cparams) if isinstance(cparams, blosc2.CParams) else dict(cparams or {})
    if not isinstance(cparams, blosc2.CParams) and given.get("typesize", itemsize) != itemsize:
        raise ValueError(
            f"cparams say typesize {given['typesize']}, the items have {itemsize} bytes"
        )
    if given.get("blocksize"):
        raise ValueError("cparams say a blocksize; give the shape of blocks by blocks=")
    chosen = {name: value for name, value in given.items() if name not in _OURS}
    if not 0 <= chosen.get("clevel", 1) <= 9:
        raise ValueError(f"clevel={chosen['clevel']}; levels go from 0 to 9")
    if not isinstance(chosen.get("codec", 0), blosc2.Codec | int):
        raise TypeError(f"codec={chosen['codec']!r}; name one as blosc2.Codec.LZ4")
    if not all(isinstance(f, blosc2.Filter | int) for f in chosen.get("filters", ())):
        raise TypeError(f"filters={chosen['filters']!r}; name them as [blosc2.Filter.SHUFFLE]")
    # CParams fills the defaults in, and refuses names that it does not know
    params = blosc2.CParams(**chosen, typesize=min(itemsize, MAX_TYPESIZE))
    filters, metas = _slots(params.filters), _slots(params.filters_meta)
    how = Compression(
        codec=int(getattr(params.codec, "value", params.codec)),
        clevel=params.clevel,
        filters=filters,
        filters_meta=metas,
        splitmode=int(params.splitmode.value),
        codec_meta=params.codec_meta,
        use_dict=bool(params.use_dict),
    )
    if how.needs_shape:
        raise UnsupportedFrameError(
            f"codec {how.codec} with filters {filters} needs the array's shape, which chunks "
            "that are compressed one by one do not have; write such arrays with blosc2.asarray"
        )
    return how


def default_blocks(
    shape: tuple[int, ...], chunks: tuple[int, ...], dtype: np.dtype[Any], how: Compression
) -> tuple[int, ...]:
    """Shape of blocks that python-blosc2 would choose for given chunks, by the CPU's caches.

    Parameters
    ----------
    shape, chunks : tuple of int
        At least 1 along each axis.
    dtype : numpy.dtype
    how : Compression

    Returns
    -------
    tuple of int
    """
    cparams = {"codec": blosc2.Codec(how.codec), "clevel": how.clevel}
    _, blocks = blosc2.compute_chunks_blocks(shape, chunks=chunks, dtype=dtype, cparams=cparams)
    return tuple(min(b, c) for b, c in zip(blocks, chunks, strict=True))


def _slots(values: Any) -> tuple[int, ...]:
    numbers = tuple(int(getattr(value, "value", value)) for value in values)
    return numbers + (0,) * (_SLOTS - len(numbers))
