"""Changing a frame: what it must be like, which chunks stay, and the index of old and new ones."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from b2nd_dask.errors import UnsupportedFrameError
from b2nd_dask.format.grid import Grid
from b2nd_dask.format.index import ChunkKind, special_code
from b2nd_dask.format.integrity import ChecksumState
from b2nd_dask.frame.access import frame_at
from b2nd_dask.frame.open.cache import process_cache
from b2nd_dask.frame.open.opening import OWN_METALAYERS, ParsedFrame
from b2nd_dask.frame.read.scan import content_digest
from b2nd_dask.frame.reference import FrameReference
from b2nd_dask.frame.write.commit import ChunkIndex, commit
from b2nd_dask.frame.write.records import ChunkRecords
from b2nd_dask.frame.write.writer import FramePlan
from b2nd_dask.storage import Location, Staging, update_staging_for


def update_plan(old: ParsedFrame, shape: tuple[int, ...]) -> FramePlan:
    """Plan the frame after an update: as it is, but for its shape and some of its chunks.

    `shape` is the one after the update, not smaller along any axis. UnsupportedFrameError says that
    a frame of an older format would have to be written anew.
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
    """Make the staging of a change; ValueError for a frame that cannot be changed in place."""
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
    """Commit a frame of which some chunks are new; `old` is the one that the update is planned for.

    Returns the path of the frame, as `commit` does.
    """
    return commit(records, plan, staging, partial(_index_before, old))


def _index_before(old: FrameReference, plan: FramePlan) -> ChunkIndex:
    """Carry offsets and checksums of the old chunks over into the grid of the plan."""
    before = old.parsed
    counts = before.grid.counts, plan.grid.counts
    offsets = _carried(before.index.offsets, special_code(ChunkKind.ZEROS), *counts)
    digests = before.integrity.lasting
    # the chunks that stay have none, and reading them all to make some is for `seal` to do
    return ChunkIndex(offsets, None if digests is None else _carried(digests, 0, *counts))


def _carried(
    column: NDArray[Any], fill: int, before: tuple[int, ...], after: tuple[int, ...]
) -> NDArray[Any]:
    """Move one entry for each chunk of a grid into a larger grid, of which the rest gets `fill`."""
    moved = np.full(after, fill, column.dtype)
    moved[tuple(slice(0, n) for n in before)] = column.reshape(before)
    return moved.reshape(-1)


def open_for_update(location: Location) -> FrameReference:
    """Open a frame that will be changed; verify all that is read of it, unless it has no checksums.

    Old elements that go into new chunks get new checksums, and a new header vouches for the shape:
    damage must not hide behind them.

    Raises
    ------
    FileNotFoundError
        There is no frame.
    ChecksumError
        It has checksums that are not valid.
    """
    integrity = frame_at(location, verify=False).parsed.integrity
    never_had_any = integrity.checksum_state is ChecksumState.ABSENT and not integrity.remedy
    return frame_at(location) if never_had_any else frame_at(location, verify=True)


def verified_whole(frame: FrameReference) -> FrameReference:
    """The same frame; where it has checksums, each chunk is verified, also if a part is read."""
    if frame.parsed.integrity.checksum_state is ChecksumState.VALID:
        return frame.verifying()
    return frame


def content_of(location: Location, frame: FrameReference, chunks: NDArray[np.int64]) -> str:
    """Digest the metadata of a frame, as it was opened, and some of its chunks."""
    return content_digest(process_cache().open(location, frame.version), chunks)


def differing_options(frame: FrameReference, asked: FramePlan) -> set[str]:
    """Names of the options of `to_b2nd` in which an existing frame differs from a planned one."""
    header, grid = frame.parsed.header, frame.parsed.grid
    same = {
        "chunks": asked.grid.chunks == grid.chunks,
        "blocks": asked.grid.blocks == grid.blocks,
        "cparams": asked.compression == header.compression,
        "meta": asked.meta == frame.meta.stored,
        "vlmeta": asked.vlmeta == frame.vlmeta.stored,
    }
    return {name for name, equal in same.items() if not equal}


def has_caterva(frame: FrameReference) -> bool:
    """Whether the header has the metalayer of Caterva."""
    return "caterva" in frame.parsed.header.metalayers
