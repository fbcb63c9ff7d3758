"""Adding statistics of the chunks to a frame that has none."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from b2nd_dask.errors import ChecksumError, UninitializedChunkError, UnsupportedFrameError
from b2nd_dask.format.history import build_history, metadata_digest
from b2nd_dask.format.index import stored_chunks
from b2nd_dask.format.metalayers import MAX_METALAYERS
from b2nd_dask.format.statistics import ROW as STATISTICS_ROW
from b2nd_dask.format.statistics import chunk_statistics, has_room_for_statistics
from b2nd_dask.format.trailer import build_write_id
from b2nd_dask.frame.members.writable import frame_to_change
from b2nd_dask.frame.open.cache import process_cache
from b2nd_dask.frame.open.opening import OpenedFrame
from b2nd_dask.frame.read.decode import Fill
from b2nd_dask.frame.read.region import usable_cores
from b2nd_dask.frame.reference import FrameReference
from b2nd_dask.frame.verify import digests_of, require_usual_header
from b2nd_dask.frame.write.commit import ChunkIndex, ChunkRows, Envelope, publish
from b2nd_dask.frame.write.idempotent import clean_up
from b2nd_dask.frame.write.new_frame import check_statistics
from b2nd_dask.frame.write.others import ChunkBox, history_with
from b2nd_dask.frame.write.update import update_staging
from b2nd_dask.storage import StagedChunks, Staging

#: Chunks that wait for threads at a time.
_AT_ONCE = 4096


def add_stats(urlpath: str | os.PathLike[str], *, threads: int | None = None) -> bool:
    """Add statistics of the chunks to a local frame that has none.

    Every chunk is read and verified, in parallel. A frame without checksums gets these, too, as by
    `seal`: of the bytes as they are now, which are read once more for that. New metadata goes
    behind the frame's end before its header names it, so that a crash leaves the frame as it was.
    What was opened of the frame before has to be opened anew.

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
    location = frame_to_change(urlpath)
    if isinstance(location.urlpath, bytes) or location.is_url:
        raise ValueError(f"{location.label}: statistics are added to frames in local files")
    opened = process_cache().open(location)
    # of chunks that were never written nothing is known
    frame = FrameReference.of(opened, location, Fill.of(_dtype_of(opened), "raise"), "auto")
    if _has_all(frame):
        return False
    _require_possible(opened)
    staging = update_staging(location, opened.parsed)
    rows = _rows_of(frame, threads or usable_cores())
    digests = opened.parsed.integrity.by_chunk
    if digests is None:
        digests = digests_of(opened, threads)
    staging.prepare()
    try:
        with staging.exclusive():
            _publish(opened, ChunkIndex(opened.parsed.index.offsets, digests, rows), staging)
    finally:
        clean_up(staging)
    return True


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


def _require_possible(opened: OpenedFrame) -> None:
    """Check that the frame's state may be vouched for, and that there is room."""
    integrity, vlmeta = opened.parsed.integrity, opened.parsed.trailer.vlmeta
    if integrity.remedy:
        raise ChecksumError(f"{integrity.reason}. {integrity.remedy}", path=opened.reader.label)
    if not has_room_for_statistics(vlmeta, opened.parsed.index.nstored):
        raise UnsupportedFrameError(
            f"its {len(vlmeta)} entries of vlmeta leave no room for checksums and statistics; the "
            f"format allows {MAX_METALAYERS}",
            path=opened.reader.label,
        )
    require_usual_header(opened)


def _rows_of(frame: FrameReference, threads: int) -> ChunkRows:
    """Compute the statistics of all stored chunks; they are verified if there are checksums."""
    rows = ChunkRows.unknown(frame.grid.nchunks, frame.dtype)
    chunks = stored_chunks(frame.parsed.index.offsets)

    def enter(chunk: int) -> None:
        rows.rows[chunk] = _row_of(frame, chunk)

    with ThreadPoolExecutor(threads) as pool:
        for first in range(0, len(chunks), _AT_ONCE):
            for _ in pool.map(enter, chunks[first : first + _AT_ONCE].tolist()):
                pass
    return rows


def _row_of(frame: FrameReference, chunk: int) -> NDArray[Any]:
    try:
        row = chunk_statistics(frame.read_axes(frame.grid.extent(chunk)))
    except UninitializedChunkError:
        return np.zeros((), STATISTICS_ROW)
    return np.frombuffer(row, STATISTICS_ROW).reshape(())


def _publish(opened: OpenedFrame, index: ChunkIndex, staging: Staging) -> None:
    """Put index and trailer with the statistics instead of the old ones."""
    parsed = opened.parsed
    none = np.empty(0, np.int64)
    # an update of no chunks: those that were planned before are not disturbed by it
    corner = (0,) * parsed.grid.ndim
    history = history_with(parsed, staging.key, ChunkBox(corner, corner), parsed.grid)
    marks = build_write_id(staging.key)
    envelope = Envelope.of(opened.reader, parsed, marks)
    past = build_history(history, metadata_digest(envelope.array_meta, envelope.vlmeta))
    envelope = replace(envelope, marks=past + marks)
    publish(StagedChunks((), none, none, none), none, index, envelope, staging)
