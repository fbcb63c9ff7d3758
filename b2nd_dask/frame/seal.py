"""Adding to what a local frame says of its chunks: checksums, and statistics."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from b2nd_dask.errors import (
    ChecksumError,
    FrameFormatError,
    UninitializedChunkError,
    UnsupportedFrameError,
)
from b2nd_dask.format.chunk_statistics import chunk_statistics
from b2nd_dask.format.header import odd_byte, with_new_tail
from b2nd_dask.format.history import build_history, metadata_digest
from b2nd_dask.format.index import stored_chunks
from b2nd_dask.format.integrity import ChecksumState, has_room
from b2nd_dask.format.metalayers import MAX_METALAYERS
from b2nd_dask.format.statistics import statistics_row
from b2nd_dask.format.trailer import build_write_id
from b2nd_dask.frame.members.writable import frame_to_change
from b2nd_dask.frame.open.cache import process_cache
from b2nd_dask.frame.open.opening import OpenedFrame
from b2nd_dask.frame.open.validity import require_current
from b2nd_dask.frame.read.decode import Fill
from b2nd_dask.frame.read.region import usable_cores
from b2nd_dask.frame.read.scan import digests_on_disk, stored_extents
from b2nd_dask.frame.reference import FrameReference
from b2nd_dask.frame.write.commit import Envelope, publish, table_of
from b2nd_dask.frame.write.conflicts import ChunkBox, history_with
from b2nd_dask.frame.write.new_frame import check_statistics
from b2nd_dask.frame.write.records import ChunkRecords, row_dtype
from b2nd_dask.frame.write.transaction import clean_up
from b2nd_dask.frame.write.update import update_staging
from b2nd_dask.storage import LocalUpdate, Location, Span

#: Chunks that wait for threads at a time.
_AT_ONCE = 4096


def seal(urlpath: str | os.PathLike[str], *, threads: int | None = None) -> bool:
    """Add checksums to a local frame that has none, or none that are valid any more.

    The checksums are those of the bytes as they are now: they tell of later damage, not of damage
    that is there already. New metadata goes behind the frame's end before its header names it, so
    that a crash leaves the frame as it was. A frame with valid checksums is left alone.

    Parameters
    ----------
    urlpath : str or os.PathLike
        Path of a contiguous or sparse frame.
    threads : int, optional
        One for each processor by default.

    Returns
    -------
    bool
        Whether it was sealed: False for a frame with valid checksums. Its chunks were not looked
        at; `verify` does that.

    Raises
    ------
    FileNotFoundError
        No such file.
    ChecksumError
        The frame has checksums, and it or they are damaged.
    CorruptChunkError
        A chunk that cannot be one, or that shares bytes with another.
    FrameFormatError
        A header as no software writes it: damaged, or of the first betas of the format.
    UnsupportedFrameError
        No room: the frame has as much variable-length metadata as the format allows.
    StaleFrameError
        The frame was changed meanwhile.
    ValueError
        Not a local file.

    Examples
    --------
    >>> import tempfile, pathlib, blosc2
    >>> from b2nd_dask import verify
    >>> path = str(pathlib.Path(tempfile.mkdtemp(), "a.b2nd"))
    >>> _ = blosc2.linspace(0, 1, 1000, shape=(1000,), urlpath=path)
    >>> print(verify(path).checksum_state.value)
    absent
    >>> seal(path)
    True
    >>> verify(path).ok
    True
    """
    location, opened = _opened(urlpath)
    integrity = opened.parsed.integrity
    if integrity.checksum_state is ChecksumState.VALID:
        return False
    if integrity.checksum_state is ChecksumState.DAMAGED:
        raise ChecksumError(f"{integrity.reason}: not sealed", path=opened.reader.label)
    _add(opened, location, None, threads)
    return True


def add_stats(urlpath: str | os.PathLike[str], *, threads: int | None = None) -> bool:
    """Add statistics of the chunks to a local frame that has none.

    Every chunk is read and verified, in parallel. A frame without checksums gets these, too, as by
    `seal`: of the bytes as they are now, which are read once more for that. New metadata goes
    behind the frame's end before its header names it, so that a crash leaves the frame as it was.
    What was opened of the frame before has to be opened again.

    Parameters
    ----------
    urlpath : str or os.PathLike
        Path of a contiguous or sparse frame.
    threads : int, optional
        One for each processor by default.

    Returns
    -------
    bool
        Whether they were added: False for a frame that has statistics of all its chunks.

    Raises
    ------
    FileNotFoundError
        No such file.
    TypeError
        A dtype of which there are no statistics.
    ChecksumError
        A chunk or the metadata is damaged, or `seal` has to accept the frame first.
    CorruptChunkError
        A chunk that cannot be decoded.
    UnsupportedFrameError
        No room: the frame has as much variable-length metadata as the format allows.
    StaleFrameError
        The frame was changed meanwhile.
    ValueError
        Not a local file.

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
    location, opened = _opened(urlpath)
    fill = Fill.of(_dtype_of(opened), "raise")
    frame = FrameReference.of(opened, location, fill, "auto")
    if _has_all(frame):
        return False
    integrity = opened.parsed.integrity
    if integrity.remedy:
        raise ChecksumError(f"{integrity.reason}. {integrity.remedy}", path=opened.reader.label)
    _add(opened, location, frame, threads)
    return True


def _opened(urlpath: str | os.PathLike[str]) -> tuple[Location, OpenedFrame]:
    location = frame_to_change(urlpath)
    if isinstance(location.urlpath, bytes) or location.is_url:
        raise ValueError(
            f"{location.label}: only frames in local files get checksums and statistics here"
        )
    return location, process_cache().open(location)


def _require_usual_header(opened: OpenedFrame) -> None:
    """Raise FrameFormatError for a header that would count as damaged once it is sealed."""
    header = opened.parsed.header
    (head,) = opened.reader.read([Span(0, header.header_len)])
    head = with_new_tail(head, cbytes=header.cbytes, frame_len=header.frame_len)
    odd = odd_byte(head, header, has_vlmeta=True)
    if odd is not None:
        # an update in the meantime has another header
        require_current(opened)
        raise FrameFormatError(
            "no software of today writes the header like this, and it is left as it is; look at "
            "the values, and write the frame anew if they are right",
            path=opened.reader.label,
            offset=odd,
        )


def _dtype_of(opened: OpenedFrame) -> np.dtype[Any]:
    dtype = opened.parsed.stored_dtype
    if dtype is None:
        raise TypeError(f"{opened.reader.label}: a frame without a dtype has no statistics")
    check_statistics(dtype)
    return dtype


def _has_all(frame: FrameReference) -> bool:
    statistics = frame.statistics
    stored = stored_chunks(frame.parsed.index.offsets)
    return statistics is not None and bool(statistics.known[stored].all())


def _add(
    opened: OpenedFrame, location: Location, frame: FrameReference | None, threads: int | None
) -> None:
    """Publish the frame with checksums, and with statistics of the chunks if it is given."""
    parsed = opened.parsed
    vlmeta = parsed.trailer.vlmeta
    if not has_room(vlmeta, parsed.index.nstored, statistics=frame is not None):
        raise UnsupportedFrameError(
            f"its {len(vlmeta)} entries of vlmeta leave no room for checksums or statistics; the "
            f"format allows {MAX_METALAYERS}",
            path=opened.reader.label,
        )
    _require_usual_header(opened)
    staging = update_staging(location, parsed)
    rows = None if frame is None else _rows_of(frame, threads or usable_cores())
    integrity = parsed.integrity
    if integrity.checksum_state is not ChecksumState.VALID:
        digests = digests_on_disk(opened, stored_extents(opened)[0], threads)
        integrity = replace(integrity, stored=digests)
    _publish(opened, table_of(parsed.index.offsets, integrity.by_chunk, rows), staging)


def _rows_of(frame: FrameReference, threads: int) -> NDArray[Any]:
    """Compute the statistics of all stored chunks; they are verified if there are checksums."""
    rows = np.zeros(frame.grid.nchunks, statistics_row(frame.dtype))
    chunks = stored_chunks(frame.parsed.index.offsets)

    def enter(chunk: int) -> None:
        # of chunks that were never written nothing is known
        with suppress(UninitializedChunkError):
            rows[chunk] = chunk_statistics(frame.read_axes(frame.grid.extent(chunk)))

    with ThreadPoolExecutor(threads) as pool:
        for first in range(0, len(chunks), _AT_ONCE):
            for _ in pool.map(enter, chunks[first : first + _AT_ONCE].tolist()):
                pass
    return rows


def _publish(opened: OpenedFrame, table: NDArray[Any], staging: LocalUpdate) -> None:
    """Put index and trailer with more about the chunks instead of the old ones."""
    parsed = opened.parsed
    staging.prepare()
    try:
        with staging.exclusive():
            envelope = Envelope.of(opened.reader, parsed, build_write_id(staging.key))
            if parsed.integrity.checksum_state is ChecksumState.VALID:
                # an update of no chunks: those that were planned before are not disturbed by it
                corner = (0,) * parsed.grid.ndim
                history = history_with(parsed, staging.key, ChunkBox(corner, corner), parsed.grid)
                past = build_history(history, metadata_digest(envelope.array_meta, envelope.vlmeta))
                envelope = replace(envelope, marks=past + envelope.marks)
            publish(ChunkRecords.of(row_dtype(), {}, {}), table, envelope, staging)
    finally:
        clean_up(staging)
