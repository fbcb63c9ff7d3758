"""`compact`: free the space of superseded chunks in a local frame."""

from __future__ import annotations

import os
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from b2nd_dask.errors import ChecksumError, locating
from b2nd_dask.format.integrity import ChecksumState
from b2nd_dask.frame.chunk_table import superseded_at
from b2nd_dask.frame.members.writable import local_frame
from b2nd_dask.frame.open.cache import OpenedFrame, unless_replaced
from b2nd_dask.frame.open.opening import parse_frame
from b2nd_dask.frame.read.fetch import chunk_requests, fetch_all
from b2nd_dask.frame.read.scan import stored_extents
from b2nd_dask.frame.write.records import row_dtype
from b2nd_dask.frame.write.transaction import Envelope, publish
from b2nd_dask.frame.write.writer import StagedBatches
from b2nd_dask.storage import Location, Staging, frame_locked, require_end, staging_for
from b2nd_dask.system import opened as opened_file

#: Chunks that are requested together.
_AT_ONCE = 1024


def compact(urlpath: Any) -> int:
    """Free the space of chunks that updates or other software superseded.

    The chunks in use are copied unchanged, in the order of the array, into a new frame, which then
    replaces the old one atomically. Until then, and after any error, the old frame remains. The
    disk needs room for both.

    Parameters
    ----------
    urlpath : str or os.PathLike
        Path of a local frame.

    Returns
    -------
    int
        Freed bytes; 0 if no chunk was superseded.

    Raises
    ------
    FileNotFoundError
        No such frame.
    ValueError
        `urlpath` is a URL or bytes: objects can only be replaced as a whole.
    CorruptChunkError
        The header of a chunk is damaged, or the chunk shares bytes with another.
    ChecksumError
        A chunk or the metadata does not match its checksum.
    StaleFrameError
        The frame was changed or replaced during the call.

    Examples
    --------
    >>> import pathlib, tempfile
    >>> import dask.array as da
    >>> path = pathlib.Path(tempfile.mkdtemp(), "ones.b2nd")
    >>> x = da.to_b2nd(da.arange(1000, chunks=100), path)
    >>> x = da.to_b2nd(da.arange(100), path, mode="r+", region=(slice(0, 100),))
    >>> compact(path) > 0
    True
    """
    location = local_frame(urlpath, "are compacted")
    path = Path(os.path.realpath(location.url))
    with locating(path=location.label), closing(Location.of(path).open()) as reader:
        opened = OpenedFrame(reader, parse_frame(reader))
        parsed = opened.parsed
        checksums = parsed.columns.checksums
        if checksums.state is ChecksumState.DAMAGED:
            raise ChecksumError(f"{checksums.reason}: not compacted")
        before = _size(path)
        # another write may replace the frame during the wait for the lock, or in spite of the lock
        with frame_locked(path, identity=parsed.identity), unless_replaced(opened):
            opened.require_current()
            if not reader.is_directory:
                with opened_file(path, os.O_RDONLY) as fd:
                    require_end(fd, parsed.header.frame_len, location.label)
            chunks, starts, stops = stored_extents(opened)
            if not superseded_at(path, parsed, int((stops - starts).sum())):
                return 0
            staging = _rewrite(opened, chunks, path)
        # after the lock: NFS keeps an open file, and thus its directory
        staging.clean_up()
    return before - _size(path)


def _rewrite(opened: OpenedFrame, chunks: NDArray[np.int64], path: Path) -> Staging:
    """Publish a copy of the frame; return its staging area, which the caller must clean up.

    The chunks are verified by their checksums.
    """
    parsed = opened.parsed
    header = parsed.header
    staging = staging_for(
        Location.of(path),
        sparse=header.sparse,
        replace=True,
        header_len=header.header_len,
        replaces=parsed.identity,
    )
    with staging.prepared():
        batches = StagedBatches(row_dtype(), staging)
        for first in range(0, len(chunks), _AT_ONCE):
            some = chunk_requests(opened, chunks[first : first + _AT_ONCE])
            for fetched in fetch_all(opened, some):
                batches.add(fetched.chunk, bytes(fetched.data[: fetched.header.cbytes]))
        stored = batches.finish()
        with staging.exclusive():
            envelope = Envelope.of(opened.reader, parsed, next(iter(parsed.keys), None))
            publish(stored, parsed.columns.table(), envelope, staging)
    return staging


def _size(path: Path) -> int:
    if not path.is_dir():
        return path.stat().st_size
    return sum(member.lstat().st_size for member in path.iterdir())
