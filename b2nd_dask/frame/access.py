"""`open_b2nd`: from what a user names to a `Frame`."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from b2nd_dask.format.dtypes import not_stored
from b2nd_dask.frame.array import Frame
from b2nd_dask.frame.members.files import require_no_link_out
from b2nd_dask.frame.members.store import StoredArray, locate_member
from b2nd_dask.frame.open.cache import process_cache
from b2nd_dask.frame.open.opening import OpenedFrame, Verify
from b2nd_dask.frame.open.validity import warn_of_remedy
from b2nd_dask.frame.opened_array import is_opened_array, source_of_array
from b2nd_dask.frame.read.decode import Fill
from b2nd_dask.frame.reference import FrameReference
from b2nd_dask.storage import TOGETHER, Location, split_store

#: What `open_b2nd` takes, beside an opened `blosc2.NDArray`.
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

    Only metadata is read: header, offset index and trailer.

    Parameters
    ----------
    urlpath : str, os.PathLike, bytes or blosc2.NDArray
        A path to a contiguous frame or to the directory of a sparse one, an fsspec URL, the bytes
        of a contiguous frame, or an opened array, also one of a store (its file is opened anew,
        at the offset inside a ``.b2z``; an array in memory is copied).
    dtype : dtype-like, optional
        For frames that store none (Caterva, the first b2nd files): the dtype of their elements, of
        the same itemsize. Without it such elements are raw bytes, ``V{itemsize}``.
    uninit : scalar or "raise", optional
        What chunks that were never written read as: zeros by default, a value, or an error.
    verify : {"auto", True, False}
        Whether reads verify chunks by the frame's checksums. ``"auto"``: those of which all
        elements are read, in one part or in many, where the frame has checksums. True: every chunk
        of which an element is read, and a frame without valid checksums raises an error. False:
        none.
    storage_options : mapping, optional
        For the fsspec filesystem of a URL.
    offset : int, optional
        Bytes before the frame inside its file.
    component : str, optional
        Key of an array in a store of python-blosc2 (``.b2z``, ``.b2d``, ``.b2e``), which is read
        in place; the path or URL of a store may also go on with it: ``runs.b2z/group/x``.
    threads : int, optional
        At most so many decode what one index selects. By default one for each core in the main
        thread of a program, and one alone in other threads and in processes of `multiprocessing`,
        of which several most often read at the same time.

    Returns
    -------
    Frame

    Raises
    ------
    FileNotFoundError
        No such file, or no such member of a store.
    FrameFormatError
        Not a frame, or damaged.
    UnsupportedFrameError
        A frame or a member that is not an array, such as a plain SChunk or a lazy expression.
    ChecksumError
        The frame's own metadata do not match their checksums, or it has none and `verify` is True.
    ValueError
        A `dtype` that does not fit, an `uninit` that the dtype cannot hold, less than one thread.

    Warns
    -----
    UserWarning
        The frame has another shape than its checksums were written for.

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
    # NumPy's booleans too
    verify = "auto" if verify == "auto" else bool(verify)
    if threads is not None and threads < 1:
        raise ValueError(f"threads={threads}: at least one has to read")
    location = locate(urlpath, offset, storage_options, component)
    return Frame(frame_at(location, dtype, uninit, verify), threads)


def frame_at(
    location: Location, dtype: Any = None, uninit: Any = None, verify: Verify = "auto"
) -> FrameReference:
    """Open the frame at a location, as it is now; other arguments as for `open_b2nd`."""
    opened = process_cache().current(location)
    fill = Fill.of(_choose_dtype(opened, dtype), uninit)
    frame = FrameReference.of(opened, location, fill, verify)
    # here, where a user named the frame, and not in each process that uses it
    warn_of_remedy(replace(opened, verify=verify))
    return frame


def _choose_dtype(opened: OpenedFrame, request: Any) -> np.dtype[Any]:
    """The dtype that the frame stores, or the user's where it stores none."""
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
            f"{label}: the frame's elements have {itemsize} bytes, dtype {wanted} does not fit"
        )
    return wanted


def locate(
    urlpath: Any,
    offset: int,
    storage_options: Mapping[str, Any] | None,
    component: str | None = None,
) -> Location:
    """Find the location of what a user named; arguments as for `open_b2nd`."""
    if is_opened_array(urlpath):
        urlpath = source_of_array(urlpath, offset)
    if isinstance(urlpath, StoredArray):
        if offset or component is not None:
            raise ValueError(
                f"{urlpath.store.label}: this names a member of the store already: give no "
                "offset= and component="
            )
        return locate_member(urlpath.store, urlpath.key)
    _refuse_several(urlpath)
    if component is None and not offset:
        urlpath, component = split_store(urlpath)
    location = Location.of(urlpath, offset=offset, storage_options=storage_options)
    if component is not None:
        return locate_member(location, component)
    require_no_link_out(location)
    return location


def _refuse_several(given: Any) -> None:
    """Say how to read what holds several arrays."""
    name = type(given).__name__
    if isinstance(given, np.ndarray) and given.dtype.kind not in "OSTU":
        raise TypeError(
            "an array of elements, where the path of a frame is needed: an opened array of "
            "python-blosc2 is taken as it is, but not a slice of it, which NumPy holds"
        )
    if isinstance(given, list | tuple | set | frozenset | Iterator | np.ndarray):
        # Path.glob gives the order of the file system
        ordered = "; pass sorted(...), or list(...) where the order is that of the frames already"
        more = "" if isinstance(given, list | tuple) else ordered
        raise TypeError(f"a {name}, where the path of one frame is needed: {TOGETHER}{more}")
    if type(given).__module__.startswith("blosc2.") and hasattr(given, "keys"):
        raise TypeError(f"a {name} holds several arrays: pass one of them, as store[KEY]")
