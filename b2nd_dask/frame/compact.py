"""`compact`: free the space of superseded chunks in a local frame."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from b2nd_dask.errors import (
    ChecksumError,
    StaleFrameError,
    locating,
)
from b2nd_dask.format.chunk.chunk_header import whole_chunk
from b2nd_dask.format.integrity import ChecksumState
from b2nd_dask.frame.members.writable import local_frame
from b2nd_dask.frame.open.opening import OpenedFrame, ParsedFrame, located, parse_frame
from b2nd_dask.frame.read.fetch import verify_chunk
from b2nd_dask.frame.read.scan import stored_extents
from b2nd_dask.frame.write.records import row_dtype
from b2nd_dask.frame.write.transaction import (
    Envelope,
    keys_of,
    publish,
)
from b2nd_dask.frame.write.writer import StagedBatches
from b2nd_dask.storage import (
    CHUNK_MEMBER,
    MAIN_MEMBER,
    Location,
    Span,
    Staging,
    chunk_member,
    frame_locked,
    identity_at,
    require_end,
    staging_for,
)


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
        member = path / MAIN_MEMBER if reader.is_directory else path
        with frame_locked(member, str(path), identity=parsed.identity):
            # check the name: the opened file may have lost it while this call waited for the lock
            if identity_at(str(path)) != parsed.identity:
                raise StaleFrameError("the frame changed in the meantime: not compacted")
            if not reader.is_directory:
                require_end(reader, parsed.header.frame_len)
            spans = stored_extents(opened)
            if _is_compact(path, parsed, spans):
                return 0
            staging = _rewrite(opened, spans, path)
        # after the lock: NFS keeps an open file, and thus its directory
        staging.clean_up()
    return before - _size(path)


def _is_compact(path: Path, parsed: ParsedFrame, used: NDArray[np.int64]) -> bool:
    chunks, starts, stops = used
    nbytes = int((stops - starts).sum())
    if not parsed.header.sparse:
        return nbytes == parsed.header.cbytes and parsed.header.frame_len == path.stat().st_size
    files = sum(1 for member in path.iterdir() if CHUNK_MEMBER.fullmatch(member.name))
    return files == len(chunks) and nbytes == parsed.header.cbytes


def _rewrite(opened: OpenedFrame, used: NDArray[np.int64], path: Path) -> Staging:
    """Publish a copy of the frame; return its staging area, which the caller must clean up."""
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
        staging.clean_up()
        raise
    return staging


def _payloads(opened: OpenedFrame, used: NDArray[np.int64]) -> Iterator[tuple[int, bytes]]:
    """Read the compressed chunks one at a time, and verify their checksums."""
    offsets, sparse = opened.parsed.index.offsets, opened.parsed.header.sparse
    for chunk, start, stop in used.T.tolist():
        name = chunk_member(int(offsets[chunk])) if sparse else ""
        (payload,) = opened.reader.read([Span(start, stop)], name)
        with located(opened, chunk):
            whole_chunk(payload)
            verify_chunk(opened, chunk, payload)
        yield chunk, payload


def _size(path: Path) -> int:
    if not path.is_dir():
        return path.stat().st_size
    return sum(member.lstat().st_size for member in path.iterdir())
