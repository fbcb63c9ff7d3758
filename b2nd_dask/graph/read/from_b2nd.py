"""`from_b2nd`: a frame, or several, as a dask array."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import dask.array as da
from dask.base import tokenize

from b2nd_dask.frame.access import UrlPath, open_b2nd
from b2nd_dask.frame.array import Frame, reference_of
from b2nd_dask.frame.joined import JoinedReference, Readable, join, open_all
from b2nd_dask.frame.members.listing import sources_of
from b2nd_dask.frame.open.cache import Verify
from b2nd_dask.frame.reference import FrameReference
from b2nd_dask.graph import _dask_compat
from b2nd_dask.graph.read.blocks import ReadBlocks, blockwise_array
from b2nd_dask.graph.read.sizes import block_sizes, warn_of_work
from b2nd_dask.graph.task_names import read_name
from b2nd_dask.lazy import require

ARRAY_TYPES = ("dask", "dask-array")


def from_b2nd(
    urlpath: UrlPath | Sequence[Any] | Any,
    *,
    axis: int | None = None,
    stack: bool = False,
    chunks: Any = None,
    dtype: Any = None,
    uninit: Any = None,
    verify: Verify = "auto",
    storage_options: Mapping[str, Any] | None = None,
    name: str | None = None,
    offset: int = 0,
    component: str | None = None,
    array_type: str = "dask",
) -> da.Array:
    """Open a frame, or several, as a dask array.

    The graph is built from the frame's offset index alone; no chunk is read. Tasks fill in chunks
    that the index marks as zeros, NaN or never written, and read nothing for them.

    Parameters
    ----------
    urlpath : str, os.PathLike, bytes, blosc2.NDArray or Frame
        A path to a contiguous frame or to the directory of a sparse one, an fsspec URL, the bytes
        of a contiguous frame, or an opened array (its file is reopened; one in memory is copied). A
        `Frame` from `open_b2nd` keeps its options. A list or tuple of these becomes one array, and
        so do the matches of a pattern such as ``"data/*.b2nd"``, also in a URL and inside a store,
        as in ``"runs.b2z/*/rain"``. Matches are sorted by name, numbers by value: ``x2`` before
        ``x10``.
    axis : int, optional
        For several frames: the axis along which they are concatenated, 0 by default. Frames may
        differ only in the length along it, in chunks and in metadata.
    stack : bool, optional
        For several frames of one shape: whether `axis` is a new axis, with one index per frame.
    chunks : optional
        Blocks of the dask array. By default the frame's chunks, one task each (small ones that are
        reduced together share one). ``"auto"`` groups whole frame chunks, and small frames, up to
        dask's ``array.chunk-size``; on a cluster also up to a size for the memory and the number of
        its workers. Any other value of `dask.array.from_array` is accepted, aligned with the
        frame's chunks or not; an axis without a size, and so all axes of ``{}``, is one block.
    dtype : dtype-like, optional
        For frames without a dtype (Caterva, the first b2nd files): the dtype of their elements, of
        the same itemsize. By default such elements are raw bytes, ``V{itemsize}``.
    uninit : scalar or "raise", optional
        Value of chunks that were never written: zeros by default, another value, or an error.
    verify : {"auto", True, False}
        Which chunks are verified by the frame's checksums before they are decoded. ``"auto"``: if
        the frame has checksums, the chunks whose elements are all read, in one part or in many;
        seldom a chunk that is only partly read. True: every chunk that is read; a frame without
        valid checksums raises `ChecksumError`. False: none.
    storage_options : mapping, optional
        For the fsspec filesystem of a URL.
    name : str, optional
        Name of the dask array. The default depends on the frame's location and version and on the
        arguments: equal reads share work, and a changed file gets another name.
    offset : int, optional
        Position of the frame inside its file, in bytes.
    component : str, optional
        Key of an array in a store of python-blosc2 (``.b2z``, ``.b2d``, ``.b2e``), or in each of
        several stores. It may also follow the store's path or URL: ``runs.b2z/group/x``.
    array_type : {"dask", "dask-array"}
        The library of the array: `dask.array`, or `dask_array`, whose arrays are expressions (extra
        ``dask-array``). There `name` is the prefix of the names of its arrays.

    Returns
    -------
    dask.array.Array or dask_array.Array
        Computing it raises `StaleFrameError` if the frame has changed since,
        `CorruptChunkError` for a damaged chunk (`ChecksumError` if its checksum shows the damage).
        Functions may change its blocks in place.

    Raises
    ------
    FileNotFoundError
        There is no such file, or nothing matches the pattern. All missing files are named.
    FrameFormatError
        The file is no frame, or is damaged.
    UnsupportedFrameError
        The frame holds no array.
    ChecksumError
        The frame's own metadata do not match their checksums, or it has none and `verify` is True.
    ValueError
        `dtype`, `uninit` or `chunks` do not fit, or an argument repeats an option of an opened
        `Frame`. Frames do not fit together: the message names each difference.
        `array_type` names no library.
    ImportError
        The library of `array_type` is not installed.

    Examples
    --------
    >>> import blosc2, numpy as np
    >>> x = from_b2nd(blosc2.asarray(np.arange(12).reshape(3, 4), chunks=(2, 2), blocks=(1, 2)))
    >>> x.chunks
    ((2, 1), (2, 2))
    >>> x.sum(axis=0).compute()
    array([12, 15, 18, 21])
    >>> parts = [blosc2.full((2, 4), i) for i in range(3)]
    >>> from_b2nd(parts).shape, from_b2nd(parts, axis=-1, stack=True).shape
    ((6, 4), (2, 4, 3))
    """
    if array_type not in ARRAY_TYPES:
        known = " or ".join(map(repr, ARRAY_TYPES))
        raise ValueError(f"array_type={array_type!r}: give {known}")
    opened = partial(
        _opened,
        dtype=dtype,
        uninit=uninit,
        verify=verify,
        storage_options=storage_options,
        offset=offset,
        component=component,
    )
    sources = sources_of(urlpath, storage_options)
    source: Readable
    if sources is not None:
        source = join(open_all(sources, opened), axis or 0, bool(stack))
    elif axis is not None or stack:
        raise ValueError("axis= and stack= join several frames: pass a list or a pattern")
    else:
        source = opened(urlpath)
    array = array_of(source, chunks, name, array_type)
    if chunks is not None:
        warn_of_work(source, array.chunks)
    return array


def _opened(source: Any, *, verify: Verify, offset: int, **given: Any) -> FrameReference:
    """Open one frame; arguments as for `open_b2nd`."""
    if not isinstance(source, Frame):
        return reference_of(open_b2nd(source, verify=verify, offset=offset, **given))
    if offset or verify != "auto" or any(value is not None for value in given.values()):
        raise ValueError(
            "a Frame is read as it was opened: give dtype=, uninit=, verify=, "
            "storage_options=, offset= and component= to open_b2nd"
        )
    return reference_of(source)


def array_of(
    source: Readable, chunks: Any, name: str | None = None, array_type: str = "dask"
) -> da.Array:
    """Make a dask array of opened frames; the other arguments as for `from_b2nd`."""
    sizes = block_sizes(source, chunks)
    if array_type == "dask-array":
        return expressions().expression_reading(source, sizes, name)  # type: ignore[no-any-return]
    name = name or read_name(source.label, tokenize(source, sizes))

    def layer() -> tuple[Any, ...]:
        whole = (slice(None),) * source.ndim
        return _dask_compat.getter, ReadBlocks.whole(source, sizes), whole

    plain = source if isinstance(source, JoinedReference) else Frame(source)
    return blockwise_array(plain, sizes, name, layer)


def expressions() -> Any:
    """Import the module for arrays of `dask_array`, on demand: it changes dask's configuration.

    Raises ImportError, with the command to install the library, if it is missing.
    """
    require("dask-array", "dask_array")
    return importlib.import_module("b2nd_dask.graph.array_expr.arrays")


def is_expression(array: Any) -> bool:
    """Whether an object is an array of `dask_array`; does not import that library."""
    kind: Any = getattr(sys.modules.get("dask_array"), "Array", ())
    return isinstance(array, kind)
