"""Upkeep of local frames, whose elements stay: checksums, statistics, and unused space."""

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from b2nd_dask.errors import (
    B2ndError,
    ChecksumError,
    FrameFormatError,
    StaleFrameError,
    UninitializedChunkError,
    UnsupportedFrameError,
)
from b2nd_dask.format.chunk.chunk_header import whole_chunk
from b2nd_dask.format.header import odd_byte, with_new_tail
from b2nd_dask.format.index import stored_chunks
from b2nd_dask.format.integrity import ChecksumState, Verdict, has_room, require_digest
from b2nd_dask.format.metalayers import MAX_METALAYERS
from b2nd_dask.format.statistics import chunk_statistics, statistics_row
from b2nd_dask.frame.members.writable import frame_to_change
from b2nd_dask.frame.open.cache import process_cache
from b2nd_dask.frame.open.opening import OpenedFrame, ParsedFrame, located, parse_frame
from b2nd_dask.frame.open.validity import require_current
from b2nd_dask.frame.read.decode import Fill
from b2nd_dask.frame.read.region import usable_cores
from b2nd_dask.frame.read.scan import digests_on_disk, stored_extents
from b2nd_dask.frame.reference import FrameReference
from b2nd_dask.frame.write.conflicts import ChunkBox, history_with
from b2nd_dask.frame.write.new_frame import check_statistics
from b2nd_dask.frame.write.records import ChunkRecords, row_dtype
from b2nd_dask.frame.write.transaction import (
    Envelope,
    clean_up,
    keys_of,
    publish,
)
from b2nd_dask.frame.write.update import update_staging
from b2nd_dask.frame.write.writer import StagedBatches
from b2nd_dask.storage import (
    CHUNK_MEMBER,
    MAIN_MEMBER,
    LocalUpdate,
    Location,
    Span,
    Staging,
    chunk_member,
    frame_locked,
    identity_at,
    require_end,
    staging_for,
)

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
    location = _local(urlpath, "get checksums and statistics here")
    opened = process_cache().open(location)
    checksums = opened.parsed.columns.checksums
    if checksums.is_valid:
        return False
    if checksums.is_damaged:
        raise ChecksumError(f"{checksums.reason}: not sealed", path=opened.reader.label)
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
    location = _local(urlpath, "get checksums and statistics here")
    opened = process_cache().open(location)
    fill = Fill.of(_dtype_of(opened), "raise")
    frame = FrameReference.of(opened, location, fill, "auto")
    if _has_all(frame):
        return False
    checksums = opened.parsed.columns.checksums
    if checksums.remedy:
        raise ChecksumError(f"{checksums.reason}. {checksums.remedy}", path=opened.reader.label)
    _add(opened, location, frame, threads)
    return True


def _local(urlpath: Any, doing: str) -> Location:
    location = frame_to_change(urlpath)
    if isinstance(location.urlpath, bytes) or location.is_url:
        raise ValueError(f"{location.label}: only frames in local files {doing}")
    return location


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
    vlmeta = parsed.vlmeta
    if not has_room(vlmeta, parsed.index.nstored, statistics=frame is not None):
        raise UnsupportedFrameError(
            f"its {len(vlmeta)} entries of vlmeta leave no room for checksums or statistics; the "
            f"format allows {MAX_METALAYERS}",
            path=opened.reader.label,
        )
    _require_usual_header(opened)
    staging = update_staging(location, parsed)
    rows = None if frame is None else _rows_of(frame, threads or usable_cores())
    columns = parsed.columns
    if not columns.checksums.is_valid:
        digests = digests_on_disk(opened, stored_extents(opened)[0], threads)
        valid = Verdict(ChecksumState.VALID)
        columns = replace(columns, checksums=valid, stored=digests)
    _publish(opened, columns.table(rows), staging)


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
            past = None
            if parsed.columns.checksums.is_valid:
                # an update of no chunks: those that were planned before are not disturbed by it
                corner = (0,) * parsed.grid.ndim
                past = history_with(parsed, staging.key, ChunkBox(corner, corner), parsed.grid)
            envelope = Envelope.of(opened.reader, parsed, staging.key, past)
            publish(ChunkRecords.of(row_dtype(), {}, {}), table, envelope, staging)
    finally:
        clean_up(staging)


def compact(urlpath: Any) -> int:
    """Give back the space of chunks that were superseded: by updates, or by other software.

    The chunks that the frame uses are copied as they are, in the order of the array, into a new
    frame, which then takes the place of the old one all at once. Until then, and if anything fails,
    the old frame stays. The disk needs room for both.

    Parameters
    ----------
    urlpath : str or os.PathLike
        Path of a local frame.

    Returns
    -------
    int
        Bytes that were given back; 0 where nothing was superseded.

    Raises
    ------
    FileNotFoundError
        No such frame.
    ValueError
        A URL, or bytes: objects are only ever replaced as a whole.
    CorruptChunkError
        A chunk whose header is damaged, or that shares bytes with another.
    ChecksumError
        A chunk, or the metadata, is not what was written.
    StaleFrameError
        The frame was changed or replaced meanwhile.

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
    location = _local(urlpath, "are compacted")
    path = Path(os.path.realpath(location.url))
    reader = Location.of(path).open()
    try:
        opened = OpenedFrame(reader, parse_frame(reader))
        parsed = opened.parsed
        if parsed.columns.checksums.is_damaged:
            raise ChecksumError(f"{parsed.columns.checksums.reason}: not compacted")
        before = _size(path)
        member = path / MAIN_MEMBER if reader.is_directory else path
        with frame_locked(member, str(path), identity=parsed.identity):
            # of the name: what was opened may have lost it while this waited
            if identity_at(str(path)) != parsed.identity:
                raise StaleFrameError("the frame changed meanwhile: not compacted")
            if not reader.is_directory:
                require_end(reader, parsed.header.frame_len)
            spans = stored_extents(opened)
            if _is_compact(path, parsed, spans):
                return 0
            staging = _rewrite(opened, spans, path)
        # not under the lock: NFS keeps a file that is open, and with it the directory
        clean_up(staging)
    except B2ndError as error:
        raise error.located(path=location.label) from error.__cause__
    finally:
        reader.close()
    return before - _size(path)


def _is_compact(path: Path, parsed: ParsedFrame, used: NDArray[np.int64]) -> bool:
    chunks, starts, stops = used
    nbytes = int((stops - starts).sum())
    if not parsed.header.sparse:
        return nbytes == parsed.header.cbytes and parsed.header.frame_len == path.stat().st_size
    files = sum(1 for member in path.iterdir() if CHUNK_MEMBER.fullmatch(member.name))
    return files == len(chunks) and nbytes == parsed.header.cbytes


def _rewrite(opened: OpenedFrame, used: NDArray[np.int64], path: Path) -> Staging:
    """Publish the frame anew; gives the staging, still to be cleaned up."""
    parsed = opened.parsed
    header = parsed.header
    staging = staging_for(
        Location.of(path),
        sparse=header.sparse,
        replace=True,
        header_len=header.header_len,
        replaces=parsed.identity,
    )
    staging.prepare()
    try:
        batches = StagedBatches(row_dtype(), staging)
        for chunk, payload in _payloads(opened, used):
            batches.add(chunk, payload)
        stored = batches.finish()
        with staging.exclusive():
            keys = keys_of(opened.reader)
            envelope = Envelope.of(opened.reader, parsed, keys[0] if keys else None)
            publish(stored, parsed.columns.table(), envelope, staging)
    except BaseException:
        clean_up(staging)
        raise
    return staging


def _payloads(opened: OpenedFrame, used: NDArray[np.int64]) -> Iterator[tuple[int, bytes]]:
    """Read the chunks as they are, one at a time, and verify their checksums."""
    offsets, sparse = opened.parsed.index.offsets, opened.parsed.header.sparse
    digests = opened.digests
    for chunk, start, stop in used.T.tolist():
        name = chunk_member(int(offsets[chunk])) if sparse else ""
        (payload,) = opened.reader.read([Span(start, stop)], name)
        with located(opened, chunk):
            whole_chunk(payload)
            if digests is not None:
                require_digest(payload, int(digests[chunk]))
        yield chunk, payload


def _size(path: Path) -> int:
    if not path.is_dir():
        return path.stat().st_size
    return sum(member.lstat().st_size for member in path.iterdir())
