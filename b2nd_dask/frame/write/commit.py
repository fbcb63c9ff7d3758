"""The last step of a write: metadata around the staged chunks, then the new name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Self

import numpy as np
from numpy.typing import NDArray

from b2nd_dask.errors import B2ndError
from b2nd_dask.format.array_meta import name_of_array
from b2nd_dask.format.header import with_new_tail
from b2nd_dask.format.index import build_index, stored_chunks
from b2nd_dask.format.integrity import build_stamped_tail, has_room
from b2nd_dask.format.trailer import Trailer, build_trailer, build_write_id
from b2nd_dask.frame.open.opening import ParsedFrame
from b2nd_dask.frame.write.publication import SEEN_AGAIN, clean_up, is_published
from b2nd_dask.frame.write.records import ChunkRecords
from b2nd_dask.frame.write.writer import FramePlan
from b2nd_dask.storage import ByteReader, Placement, Span, StagedChunks, Staging


def commit(records: ChunkRecords, plan: FramePlan, staging: Staging) -> str:
    """Publish a frame whose chunks are all staged.

    Parameters
    ----------
    records : ChunkRecords
        Of every chunk of the frame.
    plan : FramePlan
    staging : Staging

    Returns
    -------
    str
        Path or URL of the frame.

    Raises
    ------
    B2ndError
        Chunks are missing: the target stays as it was.
    OSError
        The store refuses; the target stays as it was.
    """
    return publish_once(partial(_commit, records, plan, staging), plan, staging)


def publish_once(publish: Callable[[], None], plan: FramePlan, staging: Staging) -> str:
    """Publish, unless the same write has done so: a task that runs again finds its own frame.

    Parameters
    ----------
    publish : callable
    plan : FramePlan
    staging : Staging

    Returns
    -------
    str
        Path or URL of the frame.
    """
    try:
        with staging.exclusive():
            publish()
    except SEEN_AGAIN:
        if not is_published(plan, staging):
            raise
    # not under the lock: NFS keeps a file that is open, and with it the directory
    clean_up(staging)
    return staging.label


def _commit(records: ChunkRecords, plan: FramePlan, staging: Staging) -> None:
    rows = records.rows[np.argsort(records.rows["chunk"], kind="stable")]
    if not np.array_equal(rows["chunk"], np.arange(plan.grid.nchunks)):
        raise B2ndError(
            f"{len(rows)} chunk records for {plan.grid.nchunks} chunks: not published",
            path=staging.label,
        )
    digests = np.zeros(len(rows), np.uint64)
    publish_frame(rows["code"].copy(), digests, records, plan, staging)


def publish_frame(
    offsets: NDArray[np.int64],
    digests: NDArray[np.uint64] | None,
    records: ChunkRecords,
    plan: FramePlan,
    staging: Staging,
) -> None:
    """Join the staged chunks and publish the frame.

    Parameters
    ----------
    offsets : ndarray of int64
        The new offset index, but for the chunks that `records` has as stored; changed in place.
    digests : ndarray of uint64 or None
        Digests of all chunks, but for those that `records` has as stored; changed in place. None
        for a frame without checksums.
    records : ChunkRecords
    plan : FramePlan
    staging : Staging
    """
    stored = records.rows[records.rows["code"] == 0]
    joined = staging.join(
        StagedChunks(records.parts, stored["part"], stored["start"], stored["nbytes"])
    )
    offsets[stored["chunk"]] = joined.positions
    if digests is not None:
        digests[stored["chunk"]] = stored["digest"]
    envelope = Envelope(
        head=plan.header(),
        sparse=plan.sparse,
        array_meta=plan.own_meta["b2nd"],
        vlmeta=plan.vlmeta,
        mark=build_write_id(staging.key),
    )
    publish_joined(offsets, digests, joined, envelope, staging)


@dataclass(frozen=True, eq=False, slots=True)
class Envelope:
    """What stands around the chunks of a frame, but for what depends on them."""

    head: bytes
    """The header; its lengths are replaced."""
    sparse: bool
    array_meta: bytes
    """Content of the metalayer that gives the array's shape."""
    vlmeta: Mapping[str, bytes]
    """The user's entries."""
    mark: bytes
    """Goes behind the index, if there is one; empty for none."""

    @classmethod
    def of(cls, reader: ByteReader, parsed: ParsedFrame, mark: bytes) -> Self:
        """Take it from a frame that is there.

        Parameters
        ----------
        reader : ByteReader
        parsed : ParsedFrame
        mark : bytes

        Returns
        -------
        Around
        """
        header = parsed.header
        (head,) = reader.read([Span(0, header.header_len)])
        array_meta = header.metalayers[name_of_array(header.metalayers)]
        return cls(head, header.sparse, array_meta, parsed.trailer.vlmeta, mark)


def publish_joined(
    offsets: NDArray[np.int64],
    digests: NDArray[np.uint64] | None,
    joined: Placement,
    envelope: Envelope,
    staging: Staging,
) -> None:
    """Put header, index and trailer around chunks that were joined; publish the frame.

    Parameters
    ----------
    offsets : ndarray of int64
        The offset index.
    digests : ndarray of uint64 or None
        Of all chunks; None for a frame without checksums.
    joined : Joined
    around : Around
    staging : Staging
    """
    tail, has_vlmeta = _build_tail(offsets, digests, envelope)
    data_len = 0 if envelope.sparse else joined.data_nbytes
    frame_len = len(envelope.head) + data_len + len(tail)
    head = with_new_tail(
        envelope.head, cbytes=joined.data_nbytes, frame_len=frame_len, has_vlmeta=has_vlmeta
    )
    staging.publish(joined, head, tail)


def _build_tail(
    offsets: NDArray[np.int64], digests: NDArray[np.uint64] | None, envelope: Envelope
) -> tuple[bytes, bool]:
    """Index and trailer, with checksums where there are chunks; whether there is any vlmeta."""
    index = build_index(offsets) + envelope.mark if len(offsets) else b""
    if index and digests is not None:
        of_stored = digests[stored_chunks(offsets)]
        if has_room(envelope.vlmeta, len(of_stored)):
            return build_stamped_tail(index, envelope.vlmeta, envelope.array_meta, of_stored), True
    return index + build_trailer(Trailer(envelope.vlmeta, b"")), bool(envelope.vlmeta)
