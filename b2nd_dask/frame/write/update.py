"""Updates of frames: which chunks stay, and how the new index is put together."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from b2nd_dask.errors import UnsupportedFrameError
from b2nd_dask.format.grid import Grid
from b2nd_dask.format.index import ChunkKind, special_code
from b2nd_dask.frame.open.opening import OWN_METALAYERS, ParsedFrame
from b2nd_dask.frame.reference import FrameReference
from b2nd_dask.frame.write.commit import publish_frame, publish_once
from b2nd_dask.frame.write.records import ChunkRecords
from b2nd_dask.frame.write.writer import FramePlan
from b2nd_dask.storage import Location, Staging, update_staging_for


def update_plan(old: ParsedFrame, shape: tuple[int, ...]) -> FramePlan:
    """Plan the frame after an update: as it is, but for its shape and some of its chunks.

    Parameters
    ----------
    old : ParsedFrame
    shape : tuple of int
        After the update; not smaller along any axis.

    Returns
    -------
    FramePlan

    Raises
    ------
    UnsupportedFrameError
        A frame of an older format, which would have to be written anew.
    """
    header = old.header
    meta = {name: raw for name, raw in header.metalayers.items() if name not in OWN_METALAYERS}
    grid = Grid(shape, old.grid.chunks, old.grid.blocks, old.grid.itemsize)
    if old.stored_dtype is None or 0 in old.grid.chunks:
        raise UnsupportedFrameError(
            "a frame without a dtype or with chunks of 0 elements is not updated; write it anew "
            'with mode="w"'
        )
    if header.compression.needs_shape:
        raise UnsupportedFrameError(
            "its codec or filter needs the array's shape, which chunks that are compressed one by "
            "one do not have; change it with python-blosc2"
        )
    plan = FramePlan(
        grid=grid,
        dtype=old.stored_dtype,
        compression=header.compression,
        sparse=header.sparse,
        meta=meta,
        vlmeta=old.trailer.vlmeta,
        caterva="caterva" in header.metalayers,
    )
    if len(plan.header()) != header.header_len:
        raise UnsupportedFrameError(
            'the header of this frame would change its length; write the frame anew with mode="w"'
        )
    return plan


def update_staging(
    location: Location, old: ParsedFrame, *, resume_key: str | None = None
) -> Staging:
    """Choose how to change a frame that is there.

    Parameters
    ----------
    location : Location
    old : ParsedFrame
    resume_key : str, optional
        As for `staging_for`.

    Returns
    -------
    Staging

    Raises
    ------
    ValueError
        A frame that cannot be changed in its place.
    """
    header = old.header
    return update_staging_for(
        location,
        identity=old.identity,
        sparse=header.sparse,
        header_len=header.header_len,
        frame_len=header.frame_len,
        cbytes=header.cbytes,
        resume_key=resume_key,
    )


def commit_update(
    records: ChunkRecords, plan: FramePlan, staging: Staging, old: FrameReference
) -> str:
    """Publish a frame of which some chunks are new.

    Parameters
    ----------
    records : ChunkRecords
        Of the new chunks.
    plan : FramePlan
    staging : Staging
    old : FrameReference
        As it was when the update was planned.

    Returns
    -------
    str
        Path of the frame.
    """
    return publish_once(partial(_commit_update, records, plan, staging, old), plan, staging)


def _commit_update(
    records: ChunkRecords, plan: FramePlan, staging: Staging, old: FrameReference
) -> None:
    before = old.parsed
    counts = before.grid.counts, plan.grid.counts
    offsets = carried(before.index.offsets, special_code(ChunkKind.ZEROS), *counts)
    offsets[records.rows["chunk"]] = records.rows["code"]
    digests = before.integrity.lasting
    # the chunks that stay have none, and reading them all to make some is for `seal` to do
    placed = None if digests is None else carried(digests, 0, *counts)
    publish_frame(offsets, placed, records, plan, staging)


def carried(
    column: NDArray[Any], fill: int, before: tuple[int, ...], after: tuple[int, ...]
) -> NDArray[Any]:
    """What stood for each old chunk, at its place in the new grid.

    Parameters
    ----------
    column : ndarray
        One entry for each old chunk.
    fill : int
        For new chunks.
    before, after : tuple of int
        Chunks along each axis.

    Returns
    -------
    ndarray
        1-D, writable.
    """
    placed = np.full(after, fill, column.dtype)
    placed[tuple(slice(0, n) for n in before)] = column.reshape(before)
    return placed.reshape(-1)
