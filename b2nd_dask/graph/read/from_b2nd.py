"""`from_b2nd`: a frame, or several, as a dask array."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import dask.array as da
from dask.array.core import normalize_chunks
from dask.base import tokenize

from b2nd_dask.errors import UnsupportedFrameError, level_of_caller
from b2nd_dask.frame.access import UrlPath, open_b2nd
from b2nd_dask.frame.array import Frame, reference_of
from b2nd_dask.frame.join import join, open_all, sources_of
from b2nd_dask.frame.joined import JoinedReference, Readable
from b2nd_dask.frame.open.opening import Verify
from b2nd_dask.frame.reference import FrameReference
from b2nd_dask.graph import _dask_compat
from b2nd_dask.graph.read.blocks import Chunks, FrameBlocks, dask_array
from b2nd_dask.graph.read.many import joined_array
from b2nd_dask.graph.read.many_sizes import joined_sizes
from b2nd_dask.graph.read.new_grid import warn_of_work
from b2nd_dask.graph.resources import auto_limit
from b2nd_dask.graph.task_names import of_frame

#: dask needs about 1 kB for each block of a graph before anything is computed.
MAX_TASKS = 1 << 24
#: dask takes some 0.3 ms for each task: half a minute here.
MANY_TASKS = 100_000


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

    Returns
    -------
    dask.array.Array
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
    given = _Given(dtype, uninit, verify, storage_options, offset, component)
    sources = sources_of(urlpath, storage_options)
    if sources is not None:
        joined = join(open_all(sources, given.opened), axis or 0, bool(stack))
        return _warned(joined, array_of_many(joined, chunks, name), chunks)
    if axis is not None or stack:
        raise ValueError("axis= and stack= put several frames together: pass a list or a pattern")
    frame = given.opened(urlpath)
    return _warned(frame, array_of(frame, chunks, name), chunks)


def _warned(source: Readable, array: da.Array, chunks: Any) -> da.Array:
    """The array, after a warning where the user's blocks take long to read."""
    if chunks is not None:
        warn_of_work(source, array.chunks)
    return array


class _Given(NamedTuple):
    """How the user wants frames to be opened; as for `open_b2nd`."""

    dtype: Any
    uninit: Any
    verify: Verify
    storage_options: Mapping[str, Any] | None
    offset: int
    component: str | None

    def opened(self, source: Any) -> FrameReference:
        """Open one frame."""
        if not isinstance(source, Frame):
            return reference_of(open_b2nd(source, **self._asdict()))
        given = (self.dtype, self.uninit, self.storage_options, self.component)
        chosen = any(value is not None for value in given)
        if chosen or self.offset or self.verify != "auto":
            raise ValueError(
                "a Frame is read as it was opened: give dtype=, uninit=, verify=, "
                "storage_options=, offset= and component= to open_b2nd"
            )
        return reference_of(source)


def array_of(frame: FrameReference, chunks: Any, name: str | None = None) -> da.Array:
    """Make a dask array of an opened frame; `chunks` and `name` as for `from_b2nd`."""
    sizes = block_sizes(frame, chunks)
    name = name or "read" + of_frame(frame.label, tokenize(frame, sizes))

    def layer() -> tuple[Any, ...]:
        slices = _dask_compat.ArraySliceDep(sizes)
        return _dask_compat.getter, FrameBlocks(frame, sizes), slices

    return dask_array(Frame(frame), sizes, name, layer)


def array_reading(source: Readable, sizes: Chunks) -> da.Array:
    """Make a dask array of a frame, or of joined ones, in blocks of given lengths."""
    if isinstance(source, JoinedReference):
        return joined_array(source, sizes)
    return array_of(source, sizes)


def array_of_many(joined: JoinedReference, chunks: Any, name: str | None = None) -> da.Array:
    """Make a dask array of joined frames; `chunks` and `name` as for `from_b2nd`."""
    sizes = joined_sizes(joined, chunks)
    count = math.prod(map(len, sizes))
    if count > MAX_TASKS:
        raise UnsupportedFrameError(
            f"{joined.description} becomes {count} blocks, but a graph has room for {MAX_TASKS} "
            'tasks; pass chunks="auto" to group them'
        )
    if chunks is None:
        _warn_of_many(joined.description, count)
    return joined_array(joined, sizes, name)


def block_sizes(frame: FrameReference, chunks: Any) -> Chunks:
    """Resolve the user's `chunks` to the lengths of blocks along each axis."""
    if 0 in frame.shape and (chunks is None or isinstance(chunks, str)):
        # its chunks may be 0, which dask does not accept, and nothing bounds its other axes
        return tuple((n,) for n in frame.shape)
    count = frame.chunk_kinds().size
    if count > MAX_TASKS and chunks is None:
        raise UnsupportedFrameError(
            f"{frame!r} has {count} chunks, but a graph has room for {MAX_TASKS} tasks; pass "
            'chunks="auto" to group them'
        )
    if count > MAX_TASKS or 0 in frame.shape:
        sizes: Chunks = normalize_chunks(
            chunks, frame.shape, dtype=frame.dtype, limit=auto_limit(frame.nbytes, chunks)
        )
        return _grouped(sizes, frame) if isinstance(chunks, str) else sizes
    sizes = normalize_chunks(frame.chunks, frame.shape)
    if chunks is None:
        _warn_of_many(frame.description, count)
    else:
        sizes = normalize_chunks(
            chunks,
            frame.shape,
            dtype=frame.dtype,
            limit=auto_limit(frame.nbytes, chunks),
            previous_chunks=sizes,
        )
    return sizes


def _warn_of_many(description: str, count: int) -> None:
    if count > MANY_TASKS:
        warnings.warn(
            f"{description} becomes {count} blocks, one for each chunk, and dask takes about "
            '0.3 ms for each; pass chunks="auto" to group them',
            stacklevel=level_of_caller(),
        )


def _grouped(sizes: Chunks, frame: FrameReference) -> Chunks:
    """Round dask's choice to whole frame chunks, without listing all of these."""
    rounded = tuple(
        max(1, axis[0] // chunk) * chunk for axis, chunk in zip(sizes, frame.chunks, strict=True)
    )
    grouped: Chunks = normalize_chunks(rounded, frame.shape)
    return grouped
