"""The last step of a write: join staged chunks, build what surrounds them, publish the frame."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from b2nd_dask.format.array_meta import name_of_array
from b2nd_dask.format.header import with_new_tail
from b2nd_dask.format.history import History, build_history, metadata_digest
from b2nd_dask.format.index import build_index, stored_chunks
from b2nd_dask.format.integrity import build_tail
from b2nd_dask.format.trailer import build_write_id
from b2nd_dask.frame.open.opening import ParsedFrame
from b2nd_dask.frame.write.new_frame import FramePlan
from b2nd_dask.frame.write.records import ChunkRecords
from b2nd_dask.storage import ByteReader, Span, Staging


def table_of(
    offsets: NDArray[np.int64], digests: NDArray[Any] | None, statistics: NDArray[Any] | None = None
) -> NDArray[Any]:
    """Make the table of all chunks of a frame: an entry for each, as in `row_dtype`.

    Without a column of what the frame does not have. Where one value in the file stands for the
    offsets of all chunks the table takes no memory for each, either.
    """
    given = {"offset": offsets, "digest": digests, "statistics": statistics}
    columns = {name: column for name, column in given.items() if column is not None}
    length = min(1, len(offsets)) if offsets.strides == (0,) else len(offsets)
    table = np.empty(length, [(name, column.dtype) for name, column in columns.items()])
    for name, column in columns.items():
        table[name] = column[:length]
    return table if length == len(offsets) else np.broadcast_to(table, offsets.shape)


def present_table(frame: ParsedFrame) -> NDArray[Any]:
    """Make the table of an existing frame; checksums that are not valid are left out."""
    statistics = frame.statistics
    rows = None if statistics is None else statistics.rows()
    return table_of(frame.index.offsets, frame.integrity.valid_by_chunk, rows)


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

    def tail(self, table: NDArray[Any]) -> tuple[bytes, bool]:
        """Build index and trailer of the table of all chunks; see `build_tail`."""
        index = build_index(table["offset"]) + self.marks if len(table) else b""
        stored = table[stored_chunks(table["offset"])]
        return build_tail(index, self.vlmeta, self.array_meta, stored)


def publish_records(
    records: ChunkRecords, table: NDArray[Any], envelope: Envelope, staging: Staging
) -> None:
    """Enter what tasks report of the chunks into the table of the frame, and publish it."""
    chunks, entries = records.rows["chunk"], records.rows["entry"]
    for name, dtype in (table.dtype.fields or {}).items():
        # of a frame that got statistics after the write was planned they are unknown
        known = name in (entries.dtype.names or ())
        table[name][chunks] = entries[name] if known else np.zeros((), dtype[0])
    stored = records.rows[entries["offset"] == 0]
    publish(ChunkRecords(records.parts, stored), table, envelope, staging)


def publish(
    stored: ChunkRecords, table: NDArray[Any], envelope: Envelope, staging: Staging
) -> None:
    """Join staged chunks, build header, index and trailer, and publish the frame.

    Parameters
    ----------
    table : ndarray
        Of all chunks; gets the offsets of the staged ones.
    """
    placement = staging.join(stored)
    if len(stored.rows):
        table["offset"][stored.rows["chunk"]] = placement.positions
    tail, has_vlmeta = envelope.tail(table)
    data_len = 0 if envelope.sparse else placement.data_nbytes
    frame_len = len(envelope.head) + data_len + len(tail)
    head = with_new_tail(
        envelope.head, cbytes=placement.data_nbytes, frame_len=frame_len, has_vlmeta=has_vlmeta
    )
    staging.publish(placement, head, tail)
