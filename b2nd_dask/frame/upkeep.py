"""Upkeep of local frames: free superseded chunks; add checksums and statistics.

Elements and attributes stay. The old frame remains until publication, and after any error.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from b2nd_dask.errors import (
    ChecksumError,
    CorruptChunkError,
    FrameFormatError,
    UninitializedChunkError,
    UnsupportedFrameError,
    locating,
)
from b2nd_dask.format.header import odd_byte, with_new_tail
from b2nd_dask.format.index import stored_chunks
from b2nd_dask.format.integrity import IF_RIGHT, ChecksumState, Verdict, has_room
from b2nd_dask.format.metalayers import MAX_METALAYERS
from b2nd_dask.format.statistics import chunk_statistics, statistics_row
from b2nd_dask.frame.chunk_table import superseded_at
from b2nd_dask.frame.members.writable import local_frame
from b2nd_dask.frame.open.cache import OpenedFrame, process_cache
from b2nd_dask.frame.open.opening import parse_frame
from b2nd_dask.frame.read.decode import Fill
from b2nd_dask.frame.read.fetch import chunk_requests, fetch_all
from b2nd_dask.frame.read.scan import digests_on_disk, stored_extents
from b2nd_dask.frame.reference import FrameReference
from b2nd_dask.frame.write.new_frame import check_statistics
from b2nd_dask.frame.write.records import ChunkBox, ChunkRecords, row_dtype
from b2nd_dask.frame.write.transaction import Envelope, publish
from b2nd_dask.frame.write.update import history_with, state_of
from b2nd_dask.frame.write.writer import StagedBatches
from b2nd_dask.storage import (
    Location,
    Staging,
    frame_locked,
    require_end,
    staging_for,
    update_staging_for,
)
from b2nd_dask.system import opened as opened_file
from b2nd_dask.system import usable_cores

#: Chunks that are requested together, or wait for the threads.
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
        opened.require_checksums()
        before = _size(path)
        # another write may replace the frame: during the wait, or later, since it needs no lock
        with frame_locked(path, identity=parsed.identity), _unless_replaced(opened):
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
    parsed, header = opened.parsed, opened.parsed.header
    location, length = Location.of(path), header.header_len
    staging = staging_for(location, sparse=header.sparse, replace=True, header_len=length)
    staging = replace(staging, replaces=parsed.identity)
    with staging.prepared():
        batches = StagedBatches(row_dtype(), staging)
        for first in range(0, len(chunks), _AT_ONCE):
            some = chunk_requests(opened, chunks[first : first + _AT_ONCE])
            for fetched in fetch_all(opened, some):
                batches.add(fetched.chunk, bytes(fetched.data[: fetched.header.cbytes]))
        stored = batches.finish()
        with staging.exclusive():
            envelope = Envelope.of(opened.reader, parsed, next(iter(parsed.keys), None))
            if len(parsed.keys) > 1:
                # recorded as an update of all chunks, it conflicts with updates planned earlier
                everything = ChunkBox.between(0, parsed.grid.nchunks - 1, parsed.grid)
                past = history_with(parsed, staging.key, everything, parsed.grid)
                envelope = replace(envelope, key=staging.key, past=past)
            publish(stored, parsed.columns.table(), envelope, staging)
    return staging


@contextmanager
def _unless_replaced(opened: OpenedFrame) -> Iterator[None]:
    """Raise StaleFrameError if chunks are missing because another frame replaced the opened one."""
    try:
        yield
    except (CorruptChunkError, FileNotFoundError):
        opened.require_current()
        raise


def _size(path: Path) -> int:
    return sum(file.lstat().st_size for file in (path.iterdir() if path.is_dir() else [path]))


def seal(urlpath: str | os.PathLike[str], *, threads: int | None = None) -> bool:
    """Add checksums to a local frame without valid ones.

    The checksums are those of the current bytes, so they reveal later damage, but not existing
    damage. A crash leaves the old frame. A frame with valid checksums is unchanged.

    Parameters
    ----------
    urlpath : str or os.PathLike
        Path of a contiguous or sparse frame.
    threads : int, optional
        One per processor by default.

    Returns
    -------
    bool
        Whether checksums were added. False for a frame with valid checksums: `verify` checks its
        chunks.

    Raises
    ------
    FileNotFoundError
        No such file.
    ChecksumError
        The frame has checksums, and they or the frame's metadata are damaged.
    CorruptChunkError
        A chunk is invalid, or shares bytes with another.
    FrameFormatError
        The header is damaged, or of the first betas of the format.
    UnsupportedFrameError
        The frame has as much variable-length metadata as the format allows.
    StaleFrameError
        The frame was changed during the call.
    ValueError
        The path is not a local file.

    Examples
    --------
    >>> import tempfile, pathlib, blosc2
    >>> from b2nd_dask import verify
    >>> path = str(pathlib.Path(tempfile.mkdtemp(), "a.b2nd"))
    >>> _ = blosc2.linspace(0, 1, 1000, shape=(1000,), urlpath=path)
    >>> seal(path)
    True
    >>> verify(path).ok
    True
    """
    location = local_frame(urlpath, "can get checksums and statistics")
    opened = process_cache.open(location)
    opened.require_checksums()
    if opened.parsed.columns.checksums.is_valid:
        return False
    _add_columns(opened, location, None, threads)
    return True


def add_stats(urlpath: str | os.PathLike[str], *, threads: int | None = None) -> bool:
    """Add statistics of the chunks to a local frame without them.

    Every chunk is read and verified, in parallel. A frame without checksums gets these as by
    `seal`, which reads its current bytes once more. A crash leaves the old frame. Open the frame
    again afterwards; earlier `Frame` objects are stale.

    Parameters
    ----------
    urlpath : str or os.PathLike
        Path of a contiguous or sparse frame.
    threads : int, optional
        One per processor by default.

    Returns
    -------
    bool
        Whether statistics were added: False if the frame has statistics of all its chunks.

    Raises
    ------
    FileNotFoundError
        No such file.
    TypeError
        The dtype has no statistics.
    ChecksumError
        A chunk or the metadata is damaged, or the frame needs `seal` first.
    CorruptChunkError
        A chunk cannot be decoded.
    UnsupportedFrameError
        The frame has as much variable-length metadata as the format allows.
    StaleFrameError
        The frame was changed during the call.
    ValueError
        The path is not a local file.

    Examples
    --------
    >>> import tempfile, pathlib, blosc2
    >>> path = str(pathlib.Path(tempfile.mkdtemp(), "a.b2nd"))
    >>> _ = blosc2.arange(1000, shape=(1000,), chunks=(100,), urlpath=path)
    >>> add_stats(path)
    True
    >>> from b2nd_dask import open_b2nd
    >>> open_b2nd(path).stats.max
    np.int64(999)
    """
    location = local_frame(urlpath, "can get checksums and statistics")
    opened = process_cache.open(location)
    parsed = opened.parsed
    if parsed.stored_dtype is None:
        raise TypeError(f"{location.label}: a frame without a dtype has no statistics")
    check_statistics(parsed.stored_dtype)
    opened.require_checksums()
    statistics, stored = parsed.statistics, stored_chunks(parsed.index.offsets)
    if statistics is not None and statistics.known[stored].all():
        return False
    checksums = parsed.columns.checksums
    if checksums.state is ChecksumState.STALE:
        raise ChecksumError(f"{checksums.reason}. {IF_RIGHT}", path=opened.reader.label)
    fill = Fill.of(parsed.stored_dtype, "raise")
    frame = FrameReference(location, parsed.version, parsed.grid, fill, "auto", parsed=parsed)
    _add_columns(opened, location, frame, threads)
    return True


def _require_usual_header(opened: OpenedFrame, head: bytes) -> None:
    """Raise FrameFormatError for a header that would count as damage in a sealed frame."""
    header = opened.parsed.header
    head = with_new_tail(head, cbytes=header.cbytes, frame_len=header.frame_len)
    odd = odd_byte(head, header, has_vlmeta=True)
    if odd is not None:
        # a concurrent update changes the header, too
        opened.require_current()
        raise FrameFormatError(
            "no known software writes such a header, and the frame was not changed; check the "
            "values, and rewrite the frame if they are right",
            path=opened.reader.label,
            offset=odd,
        )


def _add_columns(
    opened: OpenedFrame, location: Location, frame: FrameReference | None, threads: int | None
) -> None:
    """Publish the frame with checksums, and with chunk statistics if `frame` is given."""
    parsed = opened.parsed
    vlmeta = parsed.vlmeta
    if not has_room(vlmeta, parsed.index.nstored, statistics=frame is not None):
        raise UnsupportedFrameError(
            f"its {len(vlmeta)} entries of vlmeta leave no room for checksums or statistics; the "
            f"maximum is {MAX_METALAYERS} entries",
            path=opened.reader.label,
        )
    staging = update_staging_for(location, state_of(parsed))
    envelope = Envelope.of(opened.reader, parsed, staging.key)
    _require_usual_header(opened, envelope.head)
    rows = None if frame is None else _compute_statistics(frame, threads or usable_cores())
    columns = parsed.columns
    if not columns.checksums.is_valid:
        with _unless_replaced(opened):
            digests = digests_on_disk(opened, stored_extents(opened)[0], threads)
        valid = Verdict(ChecksumState.VALID)
        columns = replace(columns, checksums=valid, stored=digests)
    with staging.prepared(), staging.exclusive():
        if parsed.columns.checksums.is_valid:
            # recorded as an update of no chunks, it does not conflict with updates planned earlier
            nothing = ChunkBox.between(1, 0, parsed.grid)
            past = history_with(parsed, staging.key, nothing, parsed.grid)
            envelope = replace(envelope, past=past)
        publish(ChunkRecords.of_special(row_dtype()), columns.table(rows), envelope, staging)
    staging.clean_up()


def _compute_statistics(frame: FrameReference, threads: int) -> NDArray[Any]:
    """Compute the statistics of all stored chunks; verify the chunks if there are checksums."""
    rows = np.zeros(frame.grid.nchunks, statistics_row(frame.dtype))
    chunks = stored_chunks(frame.parsed.index.offsets)

    def enter(chunk: int) -> None:
        # chunks that were never written have no statistics
        with suppress(UninitializedChunkError):
            rows[chunk] = chunk_statistics(frame.read_axes(frame.grid.extent(chunk)))

    with ThreadPoolExecutor(threads) as pool:
        for first in range(0, len(chunks), _AT_ONCE):
            list(pool.map(enter, chunks[first : first + _AT_ONCE].tolist()))
    return rows
