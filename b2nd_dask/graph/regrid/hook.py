"""The method `rechunk` of dask arrays, which reads frames in the new blocks where it can."""

from __future__ import annotations

import functools
import logging
from typing import Any

import dask
import dask.array as da
from dask.array.core import normalize_chunks

from b2nd_dask.graph import _dask_compat
from b2nd_dask.graph.optimize.optimizer import KEY, chosen_rules
from b2nd_dask.graph.read.blocks import Chunks, readings

logger = logging.getLogger("b2nd_dask")


def install() -> None:
    """Put `rechunk` in front of dask's own, unless arrays are expressions, without layers."""
    if _dask_compat.is_planned():
        return
    own = getattr(da.Array.rechunk, "dask_own", da.Array.rechunk)

    @functools.wraps(own)
    def rechunk(self: da.Array, chunks: Any = "auto", *args: Any, **kwargs: Any) -> da.Array:
        found = _read_anew(self, chunks, *args, **kwargs)
        return own(self, chunks, *args, **kwargs) if found is None else found

    rechunk.dask_own = own  # type: ignore[attr-defined]
    da.Array.rechunk = rechunk  # type: ignore[method-assign]


def _read_anew(
    arr: da.Array, chunks: Any, *others: Any, block_size_limit: Any = None, **kwargs: Any
) -> da.Array | None:
    """The array in other blocks; None where dask has to cut and join those that it has."""
    # whoever names a method or a threshold wants dask's rechunk
    if others or any(kwargs.values()) or next(readings(arr.dask), None) is None:
        return None
    if not chosen_rules(dask.config.get(KEY, None)):
        return None
    try:
        sizes = _resolved(arr, chunks, block_size_limit)
    except (TypeError, ValueError, IndexError):
        return None  # dask says what is wrong
    if sizes == arr.chunks or tuple(map(sum, sizes)) != arr.shape:
        return None
    try:
        # it needs private names of dask
        from b2nd_dask.graph.regrid.repeat import NotRegriddableError, read_in_blocks
    except _dask_compat.DaskChangedError as error:
        _dask_compat.warn_once("b2nd_dask leaves a rechunk to dask", error)
        return None
    try:
        return read_in_blocks(arr, sizes)
    except NotRegriddableError:
        logger.debug("a rechunk is left to dask", exc_info=True)
    except Exception as error:  # noqa: BLE001 - whatever it is, dask's own rechunk is right
        _dask_compat.warn_once("b2nd_dask leaves a rechunk to dask", error)
    return None


def _resolved(arr: da.Array, chunks: Any, limit: Any) -> Chunks:
    """Lengths of the blocks that `rechunk` was asked for."""
    if isinstance(chunks, dict):
        given = {range(arr.ndim)[axis]: n for axis, n in chunks.items()}
        chunks = tuple(given.get(axis) for axis in range(arr.ndim))
    if isinstance(chunks, tuple | list):
        chunks = tuple(
            old if new is None else new for new, old in zip(chunks, arr.chunks, strict=True)
        )
    sizes: Chunks = normalize_chunks(
        chunks, arr.shape, limit=limit, dtype=arr.dtype, previous_chunks=arr.chunks
    )
    return sizes
