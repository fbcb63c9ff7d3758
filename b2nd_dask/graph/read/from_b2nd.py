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
from b2nd_dask.frame.join import join, open_all, sources_of
from b2nd_dask.frame.joined import JoinedReference, Readable
from b2nd_dask.frame.open.opening import Verify
from b2nd_dask.frame.reference import FrameReference
from b2nd_dask.graph import _dask_compat
from b2nd_dask.graph.read.blocks import FrameBlocks, blockwise_array
from b2nd_dask.graph.read.sizes import block_sizes, warn_of_work
from b2nd_dask.graph.task_names import read_name

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

    The graph is built from the frame's offset index alone: no chunk is read. Chunks that the index
    marks as zeros, NaN or never written become constants of the graph and are never read.

    Parameters
    ----------
    urlpath : str, os.PathLike, bytes, blosc2.NDArray or Frame
        A path to a contiguous frame or to the directory of a sparse one, an fsspec URL, the bytes
        of a contiguous frame, or an opened array (its file is opened anew; one in memory is
        copied). What `open_b2nd` gave is used as it was opened. A list or tuple of these: the
        frames become one array. So do those that a pattern matches, as ``"data/*.b2nd"``, also in a
        URL and inside of a store, as ``"runs.b2z/*/rain"``; they are sorted by name, numbers by
        their value: ``x2`` before ``x10``.
    axis : int, optional
        For several frames: the axis along which they follow each other, 0 by default. They may
        differ in length along it, and in nothing else but chunks and metadata.
    stack : bool, optional
        For several frames, all of one shape: whether `axis` is a new axis, with one index for each.
    chunks : optional
        Blocks of the dask array. By default the frame's chunks, one task each (small ones that are
        reduced together share one); ``"auto"`` groups whole frame chunks, and small frames, up to
        dask's ``array.chunk-size``, on a cluster no more than suits the memory and the number of
        its workers; anything else that `dask.array.from_array` takes, aligned with the frame's
        chunks or not.
    dtype : dtype-like, optional
        For frames that store none (Caterva, the first b2nd files): the dtype of their elements, of
        the same itemsize. Without it such elements are raw bytes, ``V{itemsize}``.
    uninit : scalar or "raise", optional
        What chunks that were never written read as: zeros by default, a value, or an error.
    verify : {"auto", True, False}
        Which chunks are verified by the frame's checksums before they are decoded. ``"auto"``:
        those of which all elements are read, in one part or in many, where the frame has checksums;
        a part alone seldom is. True: every chunk of which an element is read; a frame without valid
        checksums raises `ChecksumError`. False: none.
    storage_options : mapping, optional
        For the fsspec filesystem of a URL.
    name : str, optional
        Name of the dask array. By default it depends on the frame's location and version and on
        the arguments: equal reads share work, a changed file gets another name.
    offset : int, optional
        Bytes before the frame inside its file.
    component : str, optional
        Key of an array in a store of python-blosc2 (``.b2z``, ``.b2d``, ``.b2e``), or in each of
        several. The path or URL of a store may also go on with it: ``runs.b2z/group/x``.
    array_type : {"dask", "dask-array"}
        Which library the array is of: `dask.array`, or `dask_array`, whose arrays are expressions.
        The latter comes with the extra ``dask-array``; a `name` begins the name of its arrays.

    Returns
    -------
    dask.array.Array or dask_array.Array
        Computing it raises `StaleFrameError` where the frame has changed meanwhile,
        `CorruptChunkError` for a damaged chunk (`ChecksumError` if its checksum shows that).
        Functions that take its blocks may change them in place.

    Raises
    ------
    FileNotFoundError
        There is no such file, or nothing matches the pattern. Of several, all are named.
    FrameFormatError
        The file is not a frame, or damaged.
    UnsupportedFrameError
        The frame holds no array.
    ChecksumError
        The frame's own metadata do not match their checksums, or it has none and `verify` is True.
    ValueError
        A `dtype`, `uninit` or `chunks` that does not fit, or arguments that a `Frame` was opened
        with already. Frames that do not fit together: each is named, with what differs.
        `array_type` names no library.
    ImportError
        The library that `array_type` names is not installed.

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
        raise ValueError("axis= and stack= put several frames together: pass a list or a pattern")
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
    """Make a dask array of opened frames; other arguments as for `from_b2nd`."""
    sizes = block_sizes(source, chunks)
    if array_type == "dask-array":
        return expressions().expression_reading(source, sizes, name)  # type: ignore[no-any-return]
    name = name or read_name(source.label, tokenize(source, sizes))

    def layer() -> tuple[Any, ...]:
        return _dask_compat.getter, FrameBlocks(source, sizes), _dask_compat.ArraySliceDep(sizes)

    plain = source if isinstance(source, JoinedReference) else Frame(source)
    return blockwise_array(plain, sizes, name, layer)


def expressions() -> Any:
    """The module that knows arrays of `dask_array`; importing that changes dask's configuration.

    So it is imported where somebody asks for its arrays alone.

    Raises
    ------
    ImportError
        The library is not installed; the message holds the command that installs it.
    """
    try:
        importlib.import_module("dask_array")
    except ModuleNotFoundError as error:
        # a library that is there, but lacks another, says so itself
        if error.name != "dask_array":
            raise
        advice = "install it with: pip install 'b2nd-dask[dask-array]'"
        raise ImportError(f"dask_array is not installed; {advice}", name="dask_array") from None
    return importlib.import_module("b2nd_dask.graph.array_expr.arrays")


def is_expression(array: Any) -> bool:
    """Whether something is an array of `dask_array`, which is not imported for it."""
    kind: Any = getattr(sys.modules.get("dask_array"), "Array", ())
    return isinstance(array, kind)
