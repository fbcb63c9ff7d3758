"""The last step of a write: join staged chunks, build what surrounds them, publish the frame."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from b2nd_dask.format.array_meta import name_of_array
from b2nd_dask.format.header import with_new_tail
from b2nd_dask.format.history import History, build_history, metadata_digest
from b2nd_dask.format.index import build_index, stored_chunks
from b2nd_dask.format.integrity import build_stamped_tail, has_room, record_digest
from b2nd_dask.format.metalayers import STATISTICS_NAME
from b2nd_dask.format.statistics import ROW as STATISTICS_ROW
from b2nd_dask.format.statistics import build_statistics, has_room_for_statistics
from b2nd_dask.format.trailer import Trailer, build_trailer, build_write_id
from b2nd_dask.frame.open.opening import ParsedFrame
from b2nd_dask.frame.write.idempotent import RAN_BEFORE, clean_up, is_published
from b2nd_dask.frame.write.records import ChunkRecords, require_all
from b2nd_dask.frame.write.writer import FramePlan
from b2nd_dask.storage import ByteReader, Span, StagedChunks, Staging


class ChunkRows(NamedTuple):
    """Statistics of all chunks of a frame, whatever those of special chunks are."""

    rows: NDArray[Any]
    dtype: np.dtype[Any]
    """Of the elements."""

    @classmethod
    def unknown(cls, nchunks: int, dtype: np.dtype[Any]) -> Self:
        """Rows of chunks of which nothing is known."""
        return cls(np.zeros(nchunks, STATISTICS_ROW), dtype)

    @classmethod
    def of(cls, frame: ParsedFrame) -> Self | None:
        """Take those of an existing frame, if it has some."""
        statistics = frame.statistics
        return None if statistics is None else cls(statistics.rows(), statistics.least.dtype)

    def carried(self, before: tuple[int, ...], after: tuple[int, ...]) -> Self:
        """Carry them over into a grid that is as large or larger."""
        if before == after:
            return self
        rows = carried(self.rows, np.zeros((), STATISTICS_ROW), before, after)
        return self._replace(rows=rows)


class ChunkIndex(NamedTuple):
    """What a frame says of each of its chunks; the arrays may be changed in place."""

    offsets: NDArray[np.int64]
    """The offset index; the entries of chunks that are still staged have any value."""
    digests: NDArray[np.uint64] | None
    """Checksums of the chunks, 0 for special ones; None for a frame without checksums."""
    statistics: ChunkRows | None = None
    """Statistics of the chunks; None for a frame without."""


@dataclass(frozen=True, eq=False, slots=True)
class Envelope:
    """The envelope of a frame: header, metalayers and vlmeta, without index and checksums."""

    head: bytes
    """The header; its lengths are replaced."""
    sparse: bool
    array_meta: bytes
    """Content of the metalayer that gives the array's shape."""
    vlmeta: Mapping[str, bytes]
    """The user's entries."""
    marks: bytes
    """The write id, and a history before it: go behind the index, if there is one; or nothing."""

    @classmethod
    def of(cls, reader: ByteReader, parsed: ParsedFrame, marks: bytes) -> Self:
        """Take the envelope of an existing frame, but for its write id and history."""
        header = parsed.header
        (head,) = reader.read([Span(0, header.header_len)])
        array_meta = header.metalayers[name_of_array(header.metalayers)]
        return cls(head, header.sparse, array_meta, parsed.trailer.vlmeta, marks)

    @classmethod
    def planned(cls, plan: FramePlan, key: str, past: History | None = None) -> Self:
        """Make the envelope of a planned frame, which the write of a key makes."""
        array_meta = plan.own_meta["b2nd"]
        marks = build_write_id(key)
        if past is not None:
            marks = build_history(past, metadata_digest(array_meta, plan.vlmeta)) + marks
        return cls(plan.header(), plan.sparse, array_meta, plan.vlmeta, marks)


def carried(
    column: NDArray[Any], fill: Any, before: tuple[int, ...], after: tuple[int, ...]
) -> NDArray[Any]:
    """Move one entry for each chunk of a grid into a larger grid, of which the rest gets `fill`."""
    moved = np.full(after, fill, column.dtype)
    moved[tuple(slice(0, n) for n in before)] = column.reshape(before)
    return moved.reshape(-1)


def commit_frame(records: ChunkRecords, plan: FramePlan, staging: Staging) -> str:
    """Make staged chunks a new frame: lock, join, build, publish, clean up.

    A task that runs again finds that the same write has published already, and is content.

    Parameters
    ----------
    records : ChunkRecords
        Of every chunk of the frame.

    Returns
    -------
    str
        Path or URL of the frame.

    Raises
    ------
    B2ndError
        Chunks are missing: the target stays as it was.
    OSError
        The store raises it; the target stays as it was.
    """
    try:
        with staging.exclusive():
            commit_records(records, plan, staging, Envelope.planned(plan, staging.key))
    except RAN_BEFORE:
        if not is_published(plan, staging):
            raise
    # not under the lock: NFS keeps a file that is open, and with it the directory
    clean_up(staging)
    return staging.label


def commit_records(
    records: ChunkRecords, plan: FramePlan, staging: Staging, envelope: Envelope
) -> None:
    """Publish a new frame, of which there must be a record of each chunk."""
    publish_records(records, _empty_index(records, plan, staging), envelope, staging)


def publish_records(
    records: ChunkRecords, index: ChunkIndex, envelope: Envelope, staging: Staging
) -> None:
    """Enter what tasks report of the chunks into an index, and publish the frame."""
    index.offsets[records.rows["chunk"]] = records.rows["code"]
    stored = records.rows[records.rows["code"] == 0]
    if index.digests is not None:
        index.digests[stored["chunk"]] = stored["digest"]
    if index.statistics is not None:
        index.statistics.rows[records.rows["chunk"]] = records.statistics
    staged = StagedChunks(records.parts, stored["part"], stored["start"], stored["nbytes"])
    publish(staged, stored["chunk"], index, envelope, staging)


def publish(
    staged: StagedChunks,
    chunks: NDArray[np.int64],
    index: ChunkIndex,
    envelope: Envelope,
    staging: Staging,
) -> None:
    """Join staged chunks, build header, index and trailer, and publish the frame.

    Parameters
    ----------
    chunks : ndarray of int64
        Their numbers in the frame.
    index : ChunkIndex
        Of all chunks; gets the offsets of the staged ones.
    """
    placement = staging.join(staged)
    if len(chunks):
        index.offsets[chunks] = placement.positions
    tail, has_vlmeta = build_tail(index, envelope)
    data_len = 0 if envelope.sparse else placement.data_nbytes
    frame_len = len(envelope.head) + data_len + len(tail)
    head = with_new_tail(
        envelope.head, cbytes=placement.data_nbytes, frame_len=frame_len, has_vlmeta=has_vlmeta
    )
    staging.publish(placement, head, tail)


def _empty_index(records: ChunkRecords, plan: FramePlan, staging: Staging) -> ChunkIndex:
    """Make the index of a new frame, which must have a record of each chunk."""
    nchunks = plan.grid.nchunks
    require_all(records, np.arange(nchunks), staging.label)
    statistics = ChunkRows.unknown(nchunks, plan.dtype) if plan.stats else None
    return ChunkIndex(np.zeros(nchunks, np.int64), np.zeros(nchunks, np.uint64), statistics)


def build_tail(index: ChunkIndex, envelope: Envelope) -> tuple[bytes, bool]:
    """Build index and trailer, with checksums where there are chunks; tell if there is vlmeta."""
    offsets, digests = index.offsets, index.digests
    index_bytes = build_index(offsets) + envelope.marks if len(offsets) else b""
    if index_bytes and digests is not None:
        of_stored = digests[stored_chunks(offsets)]
        if has_room(envelope.vlmeta, len(of_stored)):
            bound = partial(_statistics_entry, index, envelope.vlmeta)
            tail = build_stamped_tail(
                index_bytes, envelope.vlmeta, envelope.array_meta, of_stored, bound
            )
            return tail, True
    vlmeta = envelope.vlmeta
    if not len(offsets):
        # of a frame without chunks, to which some may be appended
        vlmeta = {**vlmeta, **_statistics_entry(index, vlmeta, record_digest(b""))}
    return index_bytes + build_trailer(Trailer(vlmeta, b"")), bool(vlmeta)


def _statistics_entry(
    index: ChunkIndex, vlmeta: Mapping[str, bytes], digest: bytes
) -> Mapping[str, bytes]:
    """Build the statistics of a frame whose record of checksums has a digest, if they have room."""
    if index.statistics is None:
        return {}
    rows = index.statistics.rows[stored_chunks(index.offsets)]
    if not has_room_for_statistics(vlmeta, len(rows)):
        return {}
    return {STATISTICS_NAME: build_statistics(rows, index.statistics.dtype, digest)}
