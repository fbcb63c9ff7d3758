"""`open_b2nd`: from a user's argument to a `Frame`.

For an opened `blosc2.NDArray`, `open_b2nd` reads its bytes, its file, or its member of a store.
python-blosc2 reports the file of an array, but not the offset of the frame in it. For a store
(``.b2z``) that is open for changes, it reports files in a temporary folder.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator, Mapping
from contextlib import closing, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from b2nd_dask.errors import B2ndError, level_of_caller
from b2nd_dask.format.chunk.chunk_header import ChunkKind, chunk_digest
from b2nd_dask.format.dtypes import not_stored
from b2nd_dask.frame.array import Frame
from b2nd_dask.frame.members.store import StoredArray, locate_member, require_no_link_out
from b2nd_dask.frame.open.cache import OpenedFrame, Verify, process_cache
from b2nd_dask.frame.open.embedded import open_reader
from b2nd_dask.frame.open.opening import parse_frame, read_header
from b2nd_dask.frame.read.decode import Fill
from b2nd_dask.frame.read.scan import scan_digests
from b2nd_dask.frame.reference import FrameReference
from b2nd_dask.storage import TOGETHER, Location, split_store

#: Arguments of `open_b2nd`, beside an opened `blosc2.NDArray`.
UrlPath = str | os.PathLike[str] | bytes


def open_b2nd(
    urlpath: UrlPath | Any,
    *,
    dtype: Any = None,
    uninit: Any = None,
    verify: Verify = "auto",
    storage_options: Mapping[str, Any] | None = None,
    offset: int = 0,
    component: str | None = None,
    threads: int | None = None,
) -> Frame:
    """Open a frame as an array-like, without dask.

    Reads only the metadata: header, offset index and trailer.

    Parameters
    ----------
    urlpath : str, os.PathLike, bytes or blosc2.NDArray
        A path of a contiguous frame or of the directory of a sparse one, an fsspec URL, the bytes
        of a contiguous frame, or an opened array, perhaps of a store. The file of an opened array
        is opened again, in a ``.b2z`` at the offset inside it; an array in memory is copied.
    dtype : dtype-like, optional
        Dtype of the elements of a frame that stores none (Caterva, the first b2nd files), with
        the same itemsize. Without it such elements are raw bytes, ``V{itemsize}``.
    uninit : scalar or "raise", optional
        Value of chunks that were never written: zeros by default, a scalar, or an error.
    verify : {"auto", True, False}
        Whether reads verify chunks by the frame's checksums. ``"auto"``: if the frame has
        checksums, verify each chunk whose elements are all read, in one part or in many. True:
        verify every chunk that is read; a frame without valid checksums raises an error. False:
        verify none.
    storage_options : mapping, optional
        For the fsspec filesystem of a URL.
    offset : int, optional
        Bytes before the frame inside its file.
    component : str, optional
        Key of an array in a store of python-blosc2 (``.b2z``, ``.b2d``, ``.b2e``), which is read
        in place. The path or URL of the store may also end with the key: ``runs.b2z/group/x``.
    threads : int, optional
        Most threads that decode the elements of one index. By default one per core in the main
        thread of a program. Other threads, and processes of `multiprocessing`, use one, since
        several of them usually read at the same time.

    Returns
    -------
    Frame

    Raises
    ------
    FileNotFoundError
        No such file, or no such member of a store.
    FrameFormatError
        The path is not a frame, or the frame is damaged.
    UnsupportedFrameError
        A frame or a member that is not an array, such as a plain SChunk or a lazy expression.
    ChecksumError
        The frame's metadata does not match its checksum, or `verify` is True without checksums.
    ValueError
        `dtype` does not fit, the dtype cannot hold `uninit`, or `threads` is less than one.

    Warns
    -----
    UserWarning
        The shape differs from the one that the checksums were written for.

    Examples
    --------
    >>> import blosc2, numpy as np
    >>> frame = open_b2nd(blosc2.asarray(np.arange(12).reshape(3, 4), chunks=(2, 2), blocks=(1, 2)))
    >>> frame.shape, frame.dtype, frame.chunks
    ((3, 4), dtype('int64'), (2, 2))
    >>> frame[1, ::-2]
    array([7, 5])
    """
    if verify not in ("auto", True, False):
        raise ValueError(f'verify={verify!r}; known are "auto", True and False')
    # NumPy's booleans, too
    verify = "auto" if verify == "auto" else bool(verify)
    if threads is not None and threads < 1:
        raise ValueError(f"threads={threads}: give 1 or more")
    location = locate(urlpath, offset, storage_options, component)
    return Frame(frame_at(location, dtype, uninit, verify), threads)


def frame_at(
    location: Location, dtype: Any = None, uninit: Any = None, verify: Verify = "auto"
) -> FrameReference:
    """Open the current frame at a location; other arguments as for `open_b2nd`."""
    opened = replace(process_cache.current(location), verify=verify)
    parsed, fill = opened.parsed, Fill.of(_choose_dtype(opened, dtype), uninit)
    opened.require_checksums()
    # warn in the process where the user names the frame, not in each process that opens it
    opened.warn_if_stale()
    return FrameReference(location, parsed.version, parsed.grid, fill, verify, parsed=parsed)


def _choose_dtype(opened: OpenedFrame, request: Any) -> np.dtype[Any]:
    """Return the frame's dtype, or the user's if the frame stores none."""
    stored, itemsize = opened.parsed.stored_dtype, opened.parsed.grid.itemsize
    label = opened.reader.label
    if request is None:
        return np.dtype(f"V{itemsize}") if stored is None else stored
    wanted: np.dtype[Any] = np.dtype(request)
    reason = not_stored(wanted)
    if reason:
        raise ValueError(f"dtype={request!r}: {reason}")
    if wanted.subdtype is not None:
        raise ValueError(f"dtype={request!r}: an element is one value, not an array")
    if stored is not None and wanted != stored:
        raise ValueError(
            f"{label}: the frame's dtype is {stored}; to convert, use .astype({wanted.str!r})"
        )
    if wanted.itemsize != itemsize:
        raise ValueError(
            f"{label}: dtype {wanted} does not fit the frame's elements of {itemsize} bytes"
        )
    return wanted


def locate(
    urlpath: Any,
    offset: int,
    storage_options: Mapping[str, Any] | None,
    component: str | None = None,
) -> Location:
    """Convert a user's argument to a location; arguments as for `open_b2nd`."""
    if is_opened_array(urlpath):
        urlpath = source_of_array(urlpath, offset)
    if isinstance(urlpath, StoredArray):
        if offset or component is not None:
            raise ValueError(
                f"{urlpath.store.label}: the argument names a member of the store: omit offset= "
                "and component="
            )
        return locate_member(urlpath.store, urlpath.key)
    _require_one(urlpath)
    if component is None and not offset:
        urlpath, component = split_store(urlpath)
    location = Location.of(urlpath, offset=offset, storage_options=storage_options)
    if component is not None:
        return locate_member(location, component)
    require_no_link_out(location)
    return location


def _require_one(given: Any) -> None:
    """Raise TypeError for an object with several arrays; the message explains how to read them."""
    name = type(given).__name__
    if isinstance(given, np.ndarray) and given.dtype.kind not in "OSTU":
        raise TypeError(
            "a NumPy array, where the path of a frame is needed. An opened array of python-blosc2 "
            "can be passed, but a slice of it is a NumPy array"
        )
    if isinstance(given, list | tuple | set | frozenset | Iterator | np.ndarray):
        # Path.glob has the order of the file system
        ordered = "; pass sorted(...), or list(...) if the frames are in order"
        more = "" if isinstance(given, list | tuple) else ordered
        raise TypeError(f"a {name}, where the path of one frame is needed: {TOGETHER}{more}")
    if type(given).__module__.startswith("blosc2.") and hasattr(given, "keys"):
        raise TypeError(f"a {name} holds several arrays: pass one of them, as store[KEY]")


def is_opened_array(given: Any) -> bool:
    """Whether an object is a `blosc2.NDArray`, without importing blosc2.

    Fields of arrays, proxies and remote arrays also have a `schunk`, but with other elements.
    """
    return any(
        kind.__name__ == "NDArray" and kind.__module__.partition(".")[0] == "blosc2"
        for kind in type(given).__mro__
    )


def source_of_array(array: Any, offset: int = 0) -> bytes | Path | StoredArray:
    """Find the source of an opened array; an array in memory is copied.

    `offset` is the start of the frame in its file, 0 if the user gave none. Raises
    `FileNotFoundError` if the file was in the temporary folder of a store that is closed,
    `ValueError` if the frame lies inside a file that is not a store of python-blosc2.
    """
    if array.schunk.urlpath is None:
        return bytes(array.to_cframe())
    own = Path(os.path.abspath(array.schunk.urlpath))  # noqa: PTH100 - a name may begin with ~
    if offset:
        return own
    # python-blosc2's reference of an array from a store
    ref = getattr(array, "_blosc2_ref", None)
    if ref is not None and ref.kind == "dictstore_key" and not os.path.isdir(ref.urlpath):  # noqa: PTH112
        store = Path(os.path.abspath(ref.urlpath))  # noqa: PTH100
        return _source_in_store(array, own, StoredArray(Location.of(store), ref.key))
    if own.is_dir() or _fills_file(own) or _has_chunks_of(Location.of(own), array):
        return own
    raise ValueError(
        f"{own}: this array's frame is a part of the file, and python-blosc2 does not expose its "
        "offset: pass the path and offset= instead of the opened array"
    )


def _source_in_store(array: Any, own: Path, stored: StoredArray) -> Path | StoredArray:
    """Choose the archive, or the file that an open store has unpacked from it."""
    store = Path(stored.store.url)
    unpacked = own != store and not (own.exists() and store.exists() and own.samefile(store))
    with suppress(FileNotFoundError, B2ndError):
        if _has_chunks_of(locate_member(stored.store, stored.key), array, compared=unpacked):
            return stored
    if not (unpacked and own.exists()):
        raise FileNotFoundError(
            f"{own}: {store} no longer has the {stored.key!r} that this array was read from (the "
            "temporary folder of a store that is open for changes is removed when the store is "
            'closed): open the store with mode="r", and read the array again'
        )
    warnings.warn(
        f"{store} is open for changes, and does not yet hold the current {stored.key!r}. The array "
        f"is read from {own}, which is removed when the store is closed. For an array that stays "
        'readable, close the store first, and open it with mode="r"',
        stacklevel=level_of_caller(),
    )
    return own


def _fills_file(path: Path) -> bool:
    """Whether a file consists of exactly one frame."""
    try:
        with closing(Location.of(path).open()) as reader:
            size = reader.opened_identity().size
            return read_header(reader, size)[1].frame_len == size
    except B2ndError:
        return False


def _has_chunks_of(location: Location, array: Any, *, compared: bool = True) -> bool:
    """Whether a frame has an array's shapes and, with `compared`, the same chunk bytes."""
    try:
        with closing(open_reader(location)) as reader:
            opened = OpenedFrame(reader, parse_frame(reader), verify=False)
            grid = opened.parsed.grid
            theirs = (*map(tuple, (array.shape, array.chunks, array.blocks)), array.schunk.typesize)
            if (grid.shape, grid.chunks, grid.blocks, grid.itemsize) != theirs:
                return False
            if not compared:
                return True
            schunk = array.schunk
            codes = np.array([each.special.value for each in schunk.iterchunks_info()], np.uint8)
            # the index lists chunks that repeat a value as stored chunks
            codes[codes == ChunkKind.ONE_VALUE] = ChunkKind.STORED
            # this thread alone reads the schunk, which is not thread-safe
            return np.array_equal(codes, opened.parsed.index.kinds) and all(
                digest == chunk_digest(schunk.get_chunk(chunk))
                for chunk, digest in scan_digests(opened)
            )
    except B2ndError:
        return False
