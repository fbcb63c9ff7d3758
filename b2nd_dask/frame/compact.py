"""Giving back the space of chunks that updates have superseded."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from b2nd_dask.errors import B2ndError, ChecksumError, CorruptChunkError, StaleFrameError
from b2nd_dask.format.chunk import HEADER_LEN, parse_chunk_header
from b2nd_dask.format.header import with_new_tail
from b2nd_dask.format.integrity import Trust, name_of_array, require_digest
from b2nd_dask.format.write_mark import build_mark
from b2nd_dask.frame.commit import build_frame_tail
from b2nd_dask.frame.opening import ParsedFrame, parse_frame
from b2nd_dask.frame.publication import write_key_of
from b2nd_dask.storage import (
    MAIN_MEMBER,
    ByteReader,
    Joined,
    Location,
    Span,
    StagedChunks,
    Staging,
    frame_locked,
    staging_for,
)

#: Chunks whose headers are looked at together.
_AT_ONCE = 1024


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
        A chunk whose header is damaged.
    ChecksumError
        A chunk, or the metadata, is not what was written.
    StaleFrameError
        The frame was replaced meanwhile.
    B2ndError
        Another process is changing the frame.

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
    location = Location.of(urlpath)
    if isinstance(location.urlpath, bytes) or location.is_url:
        raise ValueError(f"{location.label}: only frames in local files are compacted")
    path = Path(os.path.realpath(location.urlpath))
    reader = Location.of(path).open()
    try:
        parsed = parse_frame(reader)
        if parsed.integrity.trust is Trust.DAMAGED:
            raise ChecksumError(f"{parsed.integrity.reason}: not compacted")
        before = _size(path)
        member = path / MAIN_MEMBER if reader.is_directory else path
        with frame_locked(member, str(path), parsed.identity):
            spans = _used(reader, parsed)
            if _is_compact(path, parsed, spans):
                return 0
            _rewrite(reader, parsed, spans, path)
    except B2ndError as error:
        raise error.located(path=location.label) from error.__cause__
    finally:
        reader.close()
    return before - _size(path)


def _used(reader: ByteReader, parsed: ParsedFrame) -> NDArray[np.int64]:
    """Where each stored chunk begins and ends, in the data region or in its file."""
    offsets = parsed.index.offsets
    chunks = np.flatnonzero(offsets >= 0)
    sparse, base = parsed.header.sparse, parsed.header.header_len
    starts = np.zeros(len(chunks), np.int64) if sparse else offsets[chunks] + base
    nbytes = np.empty(len(chunks), np.int64)
    for first in range(0, len(chunks), _AT_ONCE):
        batch = slice(first, first + _AT_ONCE)
        heads = [Span(at, at + HEADER_LEN) for at in starts[batch].tolist()]
        names = [_member(number) if sparse else "" for number in offsets[chunks[batch]].tolist()]
        raw = (
            [reader.read([head], name)[0] for head, name in zip(heads, names, strict=True)]
            if sparse
            else reader.read(heads)
        )
        for at, (chunk, head) in enumerate(zip(chunks[batch].tolist(), raw, strict=True), first):
            nbytes[at] = _checked_length(head, chunk, parsed)
    return np.stack([chunks, starts, starts + nbytes])


def _checked_length(head: bytes, chunk: int, parsed: ParsedFrame) -> int:
    try:
        header = parse_chunk_header(head)
    except CorruptChunkError as error:
        raise error.located(chunk=chunk) from None
    if not header.header_len <= header.cbytes <= max(parsed.header.cbytes, HEADER_LEN):
        raise CorruptChunkError(f"a chunk of {header.cbytes} bytes, which cannot be", chunk=chunk)
    return header.cbytes


def _is_compact(path: Path, parsed: ParsedFrame, used: NDArray[np.int64]) -> bool:
    chunks, starts, stops = used
    nbytes = int((stops - starts).sum())
    if not parsed.header.sparse:
        return nbytes == parsed.header.cbytes and parsed.header.frame_len == path.stat().st_size
    return len(list(path.glob("*.chunk"))) == len(chunks) and nbytes == parsed.header.cbytes


def _rewrite(reader: ByteReader, parsed: ParsedFrame, used: NDArray[np.int64], path: Path) -> None:
    header = parsed.header
    staging = staging_for(
        Location.of(path), sparse=header.sparse, replace=True, header_len=header.header_len
    )
    staging.prepare()
    try:
        runs = [run for batch in _payloads(reader, parsed, used) for run in staging.append(batch)]
        number = {name: i for i, name in enumerate(dict.fromkeys(run.part for run in runs))}
        columns = [(number[run.part], run.start, run.stop - run.start) for run in runs]
        part, start, nbytes = np.array(columns, np.int64).reshape(-1, 3).T
        joined = staging.join(StagedChunks(tuple(number), part, start, nbytes))
        offsets = parsed.index.offsets.copy()
        offsets[used[0]] = joined.positions
        _publish(reader, parsed, offsets, joined, staging)
    except BaseException:
        staging.discard()
        raise


def _payloads(
    reader: ByteReader, parsed: ParsedFrame, used: NDArray[np.int64]
) -> Iterator[list[bytes]]:
    """The chunks as they are, one at a time, held against their checksums."""
    digests = parsed.integrity.by_chunk
    for chunk, start, stop in used.T.tolist():
        name = _member(int(parsed.index.offsets[chunk])) if parsed.header.sparse else ""
        (payload,) = reader.read([Span(start, stop)], name)
        if len(payload) != stop - start:
            raise CorruptChunkError("it is cut off", chunk=chunk)
        if digests is not None:
            _require_digest(payload, int(digests[chunk]), chunk)
        yield [payload]


def _require_digest(payload: bytes, expected: int, chunk: int) -> None:
    try:
        require_digest(payload, expected)
    except B2ndError as error:
        raise error.located(chunk=chunk) from None


def _publish(
    reader: ByteReader,
    parsed: ParsedFrame,
    offsets: NDArray[np.int64],
    joined: Joined,
    staging: Staging,
) -> None:
    header = parsed.header
    (head,) = reader.read([Span(0, header.header_len)])
    key, metalayers = write_key_of(reader), header.metalayers
    tail, has_vlmeta = build_frame_tail(
        offsets,
        parsed.integrity.by_chunk,
        parsed.trailer.vlmeta,
        metalayers[name_of_array(metalayers)],
        build_mark(key) if key else b"",
    )
    data_len = 0 if header.sparse else joined.data_nbytes
    frame_len = len(head) + data_len + len(tail)
    head = with_new_tail(
        head, cbytes=joined.data_nbytes, frame_len=frame_len, has_vlmeta=has_vlmeta
    )
    if reader.identity() != parsed.identity:
        raise StaleFrameError("the frame was replaced while it was compacted")
    staging.publish(joined, head, tail)


def _member(number: int) -> str:
    return f"{number:08X}.chunk"


def _size(path: Path) -> int:
    if not path.is_dir():
        return path.stat().st_size
    return sum(member.stat().st_size for member in path.iterdir())
