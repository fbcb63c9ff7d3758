"""The last step of a write: metadata around the staged chunks, then the new name."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from b2nd_dask.errors import B2ndError
from b2nd_dask.format.index import build_index
from b2nd_dask.format.integrity import build_sealed_tail, has_room
from b2nd_dask.format.trailer import Trailer, build_trailer
from b2nd_dask.frame.records import ChunkRecords
from b2nd_dask.frame.writer import FramePlan
from b2nd_dask.storage import StagedChunks, Staging


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
    rows = records.rows[np.argsort(records.rows["chunk"], kind="stable")]
    if not np.array_equal(rows["chunk"], np.arange(plan.grid.nchunks)):
        raise B2ndError(
            f"{len(rows)} chunk records for {plan.grid.nchunks} chunks: not published",
            path=staging.label,
        )
    digests = np.zeros(len(rows), np.uint64)
    return publish_frame(rows["code"].copy(), digests, records, plan, staging)


def publish_frame(
    offsets: NDArray[np.int64],
    digests: NDArray[np.uint64] | None,
    records: ChunkRecords,
    plan: FramePlan,
    staging: Staging,
) -> str:
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

    Returns
    -------
    str
        Path or URL of the frame.
    """
    stored = records.rows[records.rows["code"] == 0]
    joined = staging.join(
        StagedChunks(records.parts, stored["part"], stored["start"], stored["nbytes"])
    )
    offsets[stored["chunk"]] = joined.positions
    if digests is not None:
        digests[stored["chunk"]] = stored["digest"]
    array_meta = plan.own_meta["b2nd"]
    tail, has_vlmeta = build_frame_tail(offsets, digests, plan.vlmeta, array_meta)
    head_len = len(plan.header())
    data_len = 0 if plan.sparse else joined.data_nbytes
    head = plan.header(
        cbytes=joined.data_nbytes,
        frame_len=head_len + data_len + len(tail),
        has_vlmeta=has_vlmeta,
    )
    staging.publish(joined, head, tail)
    return staging.label


def build_frame_tail(
    offsets: NDArray[np.int64],
    digests: NDArray[np.uint64] | None,
    vlmeta: Mapping[str, bytes],
    array_meta: bytes,
) -> tuple[bytes, bool]:
    """Index chunk and trailer of a frame, with checksums where it has chunks.

    Parameters
    ----------
    offsets : ndarray of int64
    digests : ndarray of uint64 or None
        Of all chunks; None for a frame without checksums.
    vlmeta : mapping of str to bytes
        The user's entries.
    array_meta : bytes
        Content of the metalayer that gives the array's shape.

    Returns
    -------
    tail : bytes
    has_vlmeta : bool
        Whether the trailer has any vlmeta.
    """
    index = build_index(offsets) if len(offsets) else b""
    if index and digests is not None:
        of_stored = digests[offsets >= 0]
        if has_room(vlmeta, len(of_stored)):
            return build_sealed_tail(index, vlmeta, array_meta, of_stored), True
    return index + build_trailer(Trailer(vlmeta, b"")), bool(vlmeta)
