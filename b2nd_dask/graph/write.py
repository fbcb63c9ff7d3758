"""`to_b2nd`: a dask array as a new frame."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import dask.array as da
import numpy as np
from dask.delayed import Delayed

from b2nd_dask.format.defaults import compression_of
from b2nd_dask.format.metalayers import MAX_METALAYERS
from b2nd_dask.format.values import pack_metadata
from b2nd_dask.frame.source import Frame
from b2nd_dask.frame.writer import FramePlan
from b2nd_dask.graph.blocks import FrameBlocks
from b2nd_dask.graph.layout import aligned_to, frame_grid
from b2nd_dask.graph.read import from_b2nd
from b2nd_dask.graph.write_tasks import write_graph
from b2nd_dask.storage import Location, staging_for

#: Whether each mode may replace a frame.
_MODES = {"w-": False, "w": True}


def to_b2nd(
    arr: Any,
    urlpath: Any,
    *,
    mode: str = "w-",
    chunks: Any = None,
    blocks: Any = None,
    cparams: Any = None,
    meta: Mapping[str, Any] | str | None = None,
    vlmeta: Mapping[str, Any] | str | None = None,
    contiguous: bool = True,
    storage_options: Mapping[str, Any] | None = None,
    compute: bool = True,
) -> da.Array | Delayed:
    """Write an array to a new frame, in parallel and out of core; all or nothing.

    Each task computes, compresses and stages whole frame chunks; only records of a few bytes
    travel. The frame appears under its name when it is complete and on the disk: until then, and if
    anything fails, what was there stays. The target may be the frame that is being read.

    Parameters
    ----------
    arr : dask.array.Array, numpy.ndarray or array-like
        What `dask.array.asarray` takes.
    urlpath : str or os.PathLike
        Path of the new frame, or an fsspec URL.
    mode : {"w-", "w"}
        ``"w-"`` refuses to replace anything, ``"w"`` replaces a frame.
    chunks : int or tuple of int, optional
        Items of a frame chunk along each axis. By default dask's largest block, halved along its
        longest axes until it has no more than 32 MiB. Blocks that do not line up are rechunked.
    blocks : int or tuple of int, optional
        Items of a block along each axis; by default python-blosc2's choice for the chunks.
    cparams : blosc2.CParams or dict, optional
        Codec, level, filters, split mode and dictionary, with python-blosc2's defaults.
    meta, vlmeta : mapping or "keep", optional
        Fixed and variable-length metadata. ``"keep"`` takes those of the frame that `arr` was read
        from.
    contiguous : bool
        One file (True), or a directory with a file for each chunk.
    storage_options : mapping, optional
        For the fsspec filesystem of a URL.
    compute : bool
        False to get a `dask.delayed.Delayed` that writes when it is computed.

    Returns
    -------
    dask.array.Array or dask.delayed.Delayed
        The new frame, opened by `from_b2nd`; or a Delayed that computes to its path or URL.

    Raises
    ------
    FileExistsError
        Something is there that `mode` does not let be replaced.
    ValueError
        Chunks of unknown size, chunks or blocks that do not fit, too many metadata entries.
    TypeError
        A dtype of Python objects, or metadata that cannot be stored.
    OSError
        The store refuses, for instance because it is full.

    Examples
    --------
    >>> import tempfile, pathlib
    >>> path = pathlib.Path(tempfile.mkdtemp(), "ones.b2nd")
    >>> x = to_b2nd(da.ones((100, 100), chunks=(50, 50)) * 2, path)
    >>> x.sum().compute()
    np.float64(20000.0)
    """
    if mode not in _MODES:
        raise ValueError(f"mode={mode!r}; known are {', '.join(map(repr, _MODES))}")
    array = _checked(da.asarray(arr))
    location = Location.of(urlpath, storage_options=storage_options)
    plan = _plan(array, chunks, blocks, cparams, meta, vlmeta, sparse=not contiguous)
    staging = staging_for(
        location, sparse=plan.sparse, replace=_MODES[mode], header_len=len(plan.header())
    )
    written = write_graph(aligned_to(array, plan.grid.chunks), plan, staging)
    staging.prepare()
    if not compute:
        return written
    try:
        written.compute()
    except BaseException:
        # an interrupt, too, must not leave the disk full
        staging.discard()
        raise
    return from_b2nd(urlpath, storage_options=storage_options)


def _checked(array: da.Array) -> da.Array:
    if array.dtype.hasobject:
        raise TypeError(
            f"dtype {array.dtype} holds Python objects, which a frame cannot; convert by .astype"
        )
    if any(np.isnan(n) for n in array.shape):
        raise ValueError(
            f"chunks of unknown size (shape {array.shape}): call .compute_chunk_sizes() first"
        )
    return array


def _plan(
    array: da.Array,
    chunks: Any,
    blocks: Any,
    cparams: Any,
    meta: Mapping[str, Any] | str | None,
    vlmeta: Mapping[str, Any] | str | None,
    *,
    sparse: bool,
) -> FramePlan:
    how = compression_of(cparams, array.dtype.itemsize)
    packed = {
        "meta": _packed(array, "meta", meta),
        "vlmeta": _packed(array, "vlmeta", vlmeta),
    }
    if "b2nd" in packed["meta"] or "caterva" in packed["meta"]:
        raise ValueError("the names b2nd and caterva are the array's own metalayers")
    if len(packed["meta"]) + 1 > MAX_METALAYERS or len(packed["vlmeta"]) > MAX_METALAYERS:
        raise ValueError(
            f"a frame has room for {MAX_METALAYERS - 1} fixed metadata entries and "
            f"{MAX_METALAYERS} of variable length; put several values into one"
        )
    grid = frame_grid(array, chunks, blocks, how)
    return FramePlan(grid, array.dtype, how, sparse, packed["meta"], packed["vlmeta"])


def _packed(
    array: da.Array, name: str, entries: Mapping[str, Any] | str | None
) -> Mapping[str, bytes]:
    compressed = name == "vlmeta"
    if isinstance(entries, str):
        if entries != "keep":
            raise ValueError(f'{name}={entries!r}; a mapping, "keep" or None is expected')
        frame = _source_frame(array)
        return frame.vlmeta.stored if compressed else frame.meta.stored
    return pack_metadata(entries or {}, compressed=compressed)


def _source_frame(array: da.Array) -> Frame:
    """The one frame that an array was computed from."""
    frames = {
        dep.frame.version: dep.frame
        for layer in array.dask.layers.values()
        for dep in getattr(layer, "io_deps", {}).values()
        if isinstance(dep, FrameBlocks)
    }
    if len(frames) != 1:
        raise ValueError(
            f'"keep" needs one frame that the array was read from; found {len(frames)}'
        )
    return next(iter(frames.values()))
