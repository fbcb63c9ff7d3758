"""Verify checksums and statistics of whole frames, and add them to local frames."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from b2nd_dask.errors import (
    B2ndError,
    ChecksumError,
    FrameFormatError,
    UninitializedChunkError,
    UnsupportedFrameError,
)
from b2nd_dask.format.header import odd_byte, with_new_tail
from b2nd_dask.format.index import stored_chunks
from b2nd_dask.format.integrity import IF_RIGHT, ChecksumState, Verdict, has_room
from b2nd_dask.format.metalayers import MAX_METALAYERS
from b2nd_dask.format.statistics import chunk_statistics, statistics_row
from b2nd_dask.frame.access import UrlPath, locate
from b2nd_dask.frame.members.writable import local_frame
from b2nd_dask.frame.open.cache import OpenedFrame, process_cache, unless_replaced
from b2nd_dask.frame.read.decode import Fill
from b2nd_dask.frame.read.scan import digests_on_disk, scan_digests, stored_extents
from b2nd_dask.frame.reference import FrameReference
from b2nd_dask.frame.write.new_frame import check_statistics
from b2nd_dask.frame.write.records import ChunkBox, ChunkRecords, row_dtype
from b2nd_dask.frame.write.transaction import Envelope, publish
from b2nd_dask.frame.write.update import history_with, update_staging
from b2nd_dask.lazy import lazy
from b2nd_dask.storage import Location
from b2nd_dask.system import usable_cores


@dataclass(frozen=True)
class Verification:
    """The result of `verify`."""

    path: str
    """Path or URL of the frame."""
    checksum_state: ChecksumState
    """Whether the frame's checksums are valid, absent, stale or damaged, independent of its
    chunks."""
    reason: str
    """Why they are absent or stale, or what is damaged; empty if they are valid."""
    nchunks: int
    """Number of verified chunks. Constant chunks have no data, so the index suffices."""
    bad: tuple[B2ndError, ...]
    """One error per damaged chunk, in the order of the chunks; `B2ndError.chunk` is its
    number."""
    bad_statistics: str = ""
    """Damage in the statistics of the chunks, which are then ignored; usually empty."""

    _repr_html_ = lazy("b2nd_dask.edges.display.pages", "verification_html")

    @property
    def ok(self) -> bool:
        """Whether valid checksums match all chunks, and the statistics are undamaged."""
        intact = not self.bad and not self.bad_statistics
        return self.checksum_state is ChecksumState.VALID and intact

    def __str__(self) -> str:
        if lacks_checksums(self):
            return f"{self.path}: no valid checksums: {self.reason}"
        if self.checksum_state is ChecksumState.DAMAGED:
            return f"{self.path}: damaged: {self.reason}"
        if self.bad:
            return f"{self.path}: damaged: {len(self.bad)} of {self.nchunks} stored chunks"
        if self.bad_statistics:
            return (
                f"{self.path}: all {self.nchunks} stored chunks are as they were written, but the "
                f"statistics are damaged: {self.bad_statistics}; add_stats writes them again"
            )
        return f"{self.path}: verified: all {self.nchunks} stored chunks are as they were written"


def lacks_checksums(found: Verification) -> bool:
    """Whether no damage was found, for lack of valid checksums."""
    return found.checksum_state in (ChecksumState.ABSENT, ChecksumState.STALE) and not found.bad


def verify(
    urlpath: UrlPath | Any,
    *,
    threads: int | None = None,
    storage_options: Mapping[str, Any] | None = None,
    offset: int = 0,
) -> Verification:
    """Check a whole frame against its checksums.

    Reads every stored chunk once and decodes none.

    Parameters
    ----------
    urlpath : str, os.PathLike, bytes or blosc2.NDArray
        As for `open_b2nd`.
    threads : int, optional
        One per processor by default.
    storage_options : mapping, optional
        For the fsspec filesystem of a URL.
    offset : int, optional
        Bytes before the frame inside its file.

    Returns
    -------
    Verification

    Raises
    ------
    FileNotFoundError
        No such file.
    FrameFormatError
        The path is not a frame, or damage prevents locating its chunks.
    StaleFrameError
        The frame was changed during the call.

    Examples
    --------
    >>> import tempfile, pathlib, numpy as np, b2nd_dask
    >>> path = pathlib.Path(tempfile.mkdtemp(), "a.b2nd")
    >>> _ = b2nd_dask.to_b2nd(np.arange(1000.0), path, chunks=250)
    >>> result = verify(path)
    >>> result.ok, result.nchunks
    (True, 4)
    """
    return verify_noting(locate(urlpath, offset, storage_options), lambda *_: None, threads)


def verify_noting(
    location: Location, note: Callable[[int, int], None], threads: int | None = None
) -> Verification:
    """Verify, and call `note` after each chunk with the number of finished and of all chunks."""
    opened = process_cache().open(location)
    columns = opened.parsed.columns
    bad: dict[int, B2ndError] = {}
    nchunks = 0
    if columns.digests is not None:
        for chunk, result in scan_digests(opened, threads=threads):
            nchunks += 1
            note(nchunks, opened.parsed.index.nstored)
            if isinstance(result, B2ndError):
                bad[chunk] = result
    # a change by another program during the reads is not damage
    opened.require_current()
    return Verification(
        path=opened.reader.label,
        checksum_state=columns.checksums.state,
        reason=columns.checksums.reason,
        nchunks=nchunks,
        bad=tuple(bad[chunk] for chunk in sorted(bad)),
        bad_statistics=columns.bad_statistics,
    )


#: Most chunks in the queue of the threads.
_AT_ONCE = 4096


def seal(urlpath: str | os.PathLike[str], *, threads: int | None = None) -> bool:
    """Add checksums to a local frame without valid ones.

    The checksums are those of the current bytes, so they reveal later damage, but not existing
    damage. New metadata is written behind the frame's end before the header refers to it, so a
    crash leaves the old frame. A frame with valid checksums is unchanged.

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
    >>> print(verify(path).checksum_state.value)
    absent
    >>> seal(path)
    True
    >>> verify(path).ok
    True
    """
    location = local_frame(urlpath, "can get checksums and statistics")
    opened = process_cache().open(location)
    checksums = opened.parsed.columns.checksums
    if checksums.is_valid:
        return False
    if checksums.state is ChecksumState.DAMAGED:
        raise ChecksumError(f"{checksums.reason}: not sealed", path=opened.reader.label)
    _add(opened, location, None, threads)
    return True


def add_stats(urlpath: str | os.PathLike[str], *, threads: int | None = None) -> bool:
    """Add statistics of the chunks to a local frame without them.

    Every chunk is read and verified, in parallel. A frame without checksums gets these as by
    `seal`, which reads its current bytes once more. New metadata is written behind the frame's end
    before the header refers to it, so a crash leaves the old frame. Open the frame again
    afterwards; earlier `Frame` objects are stale.

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
    opened = process_cache().open(location)
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
    _add(opened, location, frame, threads)
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


def _add(
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
    staging = update_staging(location, parsed)
    envelope = Envelope.of(opened.reader, parsed, staging.key)
    _require_usual_header(opened, envelope.head)
    rows = None if frame is None else _rows_of(frame, threads or usable_cores())
    columns = parsed.columns
    if not columns.checksums.is_valid:
        with unless_replaced(opened):
            digests = digests_on_disk(opened, stored_extents(opened)[0], threads)
        valid = Verdict(ChecksumState.VALID)
        columns = replace(columns, checksums=valid, stored=digests)
    with staging.prepared(), staging.exclusive():
        if parsed.columns.checksums.is_valid:
            # an update of no chunks does not conflict with updates that were planned before
            nothing = ChunkBox.between(1, 0, parsed.grid)
            past = history_with(parsed, staging.key, nothing, parsed.grid)
            envelope = replace(envelope, past=past)
        publish(ChunkRecords.of_special(row_dtype()), columns.table(rows), envelope, staging)
    staging.clean_up()


def _rows_of(frame: FrameReference, threads: int) -> NDArray[Any]:
    """Compute the statistics of all stored chunks; verify the chunks if there are checksums."""
    rows = np.zeros(frame.grid.nchunks, statistics_row(frame.dtype))
    chunks = stored_chunks(frame.parsed.index.offsets)

    def enter(chunk: int) -> None:
        # chunks that were never written have no statistics
        with suppress(UninitializedChunkError):
            rows[chunk] = chunk_statistics(frame.read_axes(frame.grid.extent(chunk)))

    with ThreadPoolExecutor(threads) as pool:
        for first in range(0, len(chunks), _AT_ONCE):
            for _ in pool.map(enter, chunks[first : first + _AT_ONCE].tolist()):
                pass
    return rows
