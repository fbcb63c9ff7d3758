"""The last step of a write: metadata around the staged chunks, then the new name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

import numpy as np
from numpy.typing import NDArray

from b2nd_dask.errors import B2ndError
from b2nd_dask.format.index import build_index
from b2nd_dask.format.integrity import build_sealed_tail, has_room
from b2nd_dask.format.trailer import Trailer, build_trailer
from b2nd_dask.format.write_mark import build_mark
from b2nd_dask.frame.publication import SEEN_AGAIN, is_published
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
    return once(partial(_commit, records, plan, staging), plan, staging)


def once(publish: Callable[[], str], plan: FramePlan, staging: Staging) -> str:
    """Publish, unless the same write has done so: a task that runs again finds its own frame.

    Parameters
    ----------
    publish : callable
        Gives the path or URL of the frame.
    plan : FramePlan
    staging : Staging

    Returns
    -------
    str
        Path or URL of the frame.
    """
    try:
        with staging.exclusive():
            return publish()
    except SEEN_AGAIN:
        if not is_published(plan, staging):
            raise
    staging.discard()
    return staging.label


def _commit(records: ChunkRecords, plan: FramePlan, staging: Staging) -> str:
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
    array_meta, mark = plan.own_meta["b2nd"], build_mark(staging.key)
    tail, has_vlmeta = build_frame_tail(offsets, digests, plan.vlmeta, array_meta, mark)
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
    mark: bytes,
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
    mark : bytes
        Goes behind the index, if there is one; empty for none.

    Returns
    -------
    tail : bytes
    has_vlmeta : bool
        Whether the trailer has any vlmeta.
    """
    index = build_index(offsets) + mark if len(offsets) else b""
    if index and digests is not None:
        of_stored = digests[offsets >= 0]
        if has_room(vlmeta, len(of_stored)):
            return build_sealed_tail(index, vlmeta, array_meta, of_stored), True
    return index + build_trailer(Trailer(vlmeta, b"")), bool(vlmeta)
