"""Check all checksums of a frame, and add them to a frame that has none."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from b2nd_dask.errors import B2ndError, ChecksumError, FrameFormatError, UnsupportedFrameError
from b2nd_dask.format.header import odd_byte, with_new_tail
from b2nd_dask.format.integrity import ChecksumState, digest_column, has_room, require_digest
from b2nd_dask.format.metalayers import MAX_METALAYERS
from b2nd_dask.format.trailer import build_write_id
from b2nd_dask.frame.access import UrlPath, locate
from b2nd_dask.frame.members.writable import frame_to_change
from b2nd_dask.frame.open.cache import process_cache
from b2nd_dask.frame.open.opening import OpenedFrame
from b2nd_dask.frame.open.validity import require_current
from b2nd_dask.frame.read.scan import digests_on_disk, scan_chunks, stored_extents
from b2nd_dask.frame.write.commit import ChunkIndex, Envelope, publish
from b2nd_dask.frame.write.idempotent import clean_up
from b2nd_dask.frame.write.update import update_staging
from b2nd_dask.storage import Span, StagedChunks, Staging


@dataclass(frozen=True)
class Verification:
    """What `verify` found."""

    path: str
    """Path or URL of the frame."""
    checksum_state: ChecksumState
    """Whether the frame's checksums are valid, absent or damaged, whatever its chunks are."""
    reason: str
    """Why they are absent, or what is damaged; empty where they are valid."""
    nchunks: int
    """Chunks that were read and checked. Constant chunks have no data: the index says all."""
    bad: tuple[B2ndError, ...]
    """One error for each chunk that is not what was written, in the order of the chunks; see
    `B2ndError.chunk`."""
    bad_statistics: str = ""
    """What is damaged of the statistics of the chunks, which are not used then; mostly nothing."""

    @property
    def ok(self) -> bool:
        """Whether there are valid checksums, and chunks and statistics match their own."""
        intact = not self.bad and not self.bad_statistics
        return self.checksum_state is ChecksumState.VALID and intact

    def __str__(self) -> str:
        if self.checksum_state is ChecksumState.ABSENT and not self.bad:
            return f"{self.path}: no valid checksums: {self.reason}"
        if self.checksum_state is ChecksumState.DAMAGED:
            return f"{self.path}: damaged: {self.reason}"
        if self.bad:
            return f"{self.path}: damaged: {len(self.bad)} of {self.nchunks} stored chunks"
        if self.bad_statistics:
            return (
                f"{self.path}: all {self.nchunks} stored chunks are as they were written, but the "
                f"statistics are damaged: {self.bad_statistics}; add_stats writes them anew"
            )
        return f"{self.path}: verified: all {self.nchunks} stored chunks are as they were written"


def verify(
    urlpath: UrlPath | Any,
    *,
    threads: int | None = None,
    storage_options: Mapping[str, Any] | None = None,
    offset: int = 0,
) -> Verification:
    """Check a whole frame against its checksums.

    Every stored chunk is read once, none is decoded.

    Parameters
    ----------
    urlpath : str, os.PathLike, bytes or blosc2.NDArray
        As for `open_b2nd`.
    threads : int, optional
        One for each processor by default.
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
        Not a frame, or so damaged that its chunks cannot be found.
    StaleFrameError
        The frame was changed meanwhile.

    Examples
    --------
    >>> import tempfile, pathlib, numpy as np, b2nd_dask
    >>> path = pathlib.Path(tempfile.mkdtemp(), "a.b2nd")
    >>> _ = b2nd_dask.to_b2nd(np.arange(1000.0), path, chunks=250)
    >>> result = verify(path)
    >>> result.ok, result.nchunks
    (True, 4)
    """
    return verify_noting(
        urlpath, lambda *_: None, threads=threads, storage_options=storage_options, offset=offset
    )


def verify_noting(
    urlpath: UrlPath | Any,
    note: Callable[[int, int], None],
    *,
    threads: int | None = None,
    storage_options: Mapping[str, Any] | None = None,
    offset: int = 0,
) -> Verification:
    """Verify, and call a function after each chunk with how many are done, and of how many."""
    opened = process_cache().open(locate(urlpath, offset, storage_options))
    integrity = opened.parsed.integrity
    digests = integrity.by_chunk
    bad: dict[int, B2ndError] = {}
    nchunks = 0
    if digests is not None:
        for chunk, result in scan_chunks(opened, partial(_check, digests), threads):
            nchunks += 1
            note(nchunks, opened.parsed.index.nstored)
            if isinstance(result, B2ndError):
                bad[chunk] = result
    # what another program changed meanwhile is no damage
    require_current(opened)
    return Verification(
        path=opened.reader.label,
        checksum_state=integrity.checksum_state,
        reason=integrity.reason,
        nchunks=nchunks,
        bad=tuple(bad[chunk] for chunk in sorted(bad)),
        bad_statistics=entry.problem if (entry := opened.parsed.statistics_entry) else "",
    )


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
    >>> path = str(pathlib.Path(tempfile.mkdtemp(), "a.b2nd"))
    >>> _ = blosc2.linspace(0, 1, 1000, shape=(1000,), urlpath=path)
    >>> print(verify(path).checksum_state.value)
    absent
    >>> seal(path)
    True
    >>> verify(path).ok
    True
    """
    location = frame_to_change(urlpath)
    if isinstance(location.urlpath, bytes) or location.is_url:
        raise ValueError(f"{location.label}: only frames in local files are sealed")
    opened = process_cache().open(location)
    parsed = opened.parsed
    if parsed.integrity.checksum_state is ChecksumState.VALID:
        return False
    if parsed.integrity.checksum_state is ChecksumState.DAMAGED:
        raise ChecksumError(f"{parsed.integrity.reason}: not sealed", path=opened.reader.label)
    if not has_room(parsed.trailer.vlmeta, parsed.index.nstored):
        raise UnsupportedFrameError(
            f"its {len(parsed.trailer.vlmeta)} entries of vlmeta leave no room for checksums; the "
            f"format allows {MAX_METALAYERS}",
            path=opened.reader.label,
        )
    require_usual_header(opened)
    staging = update_staging(location, parsed)
    digests = digests_of(opened, threads)
    staging.prepare()
    try:
        with staging.exclusive():
            _publish(opened, digests, staging)
    finally:
        clean_up(staging)
    return True


def require_usual_header(opened: OpenedFrame) -> None:
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


def _check(digests: NDArray[np.uint64], chunk: int, data: memoryview) -> int:
    expected = int(digests[chunk])
    require_digest(data, expected)
    return expected


def digests_of(opened: OpenedFrame, threads: int | None) -> NDArray[np.uint64]:
    """Digests of all chunks as they are, 0 for special ones."""
    chunks = stored_extents(opened)[0]
    return digest_column(opened.parsed.index.offsets, digests_on_disk(opened, chunks, threads))


def _publish(opened: OpenedFrame, digests: NDArray[np.uint64], staging: Staging) -> None:
    """Put index and trailer with the checksums instead of the old ones."""
    none = np.empty(0, np.int64)
    index = ChunkIndex(opened.parsed.index.offsets, digests)
    envelope = Envelope.of(opened.reader, opened.parsed, build_write_id(staging.key))
    publish(StagedChunks((), none, none, none), none, index, envelope, staging)
