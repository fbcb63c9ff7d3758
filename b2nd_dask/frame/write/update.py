"""Changing a frame: its requirements, the retained chunks, and the index of old and new ones."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from b2nd_dask.errors import UnsupportedFrameError
from b2nd_dask.format.array_meta import array_meta_of
from b2nd_dask.format.grid import Grid
from b2nd_dask.format.index import ChunkKind, special_code
from b2nd_dask.format.integrity import ChecksumState
from b2nd_dask.format.labels.labels import COORDS
from b2nd_dask.frame.access import frame_at
from b2nd_dask.frame.info import dims_of
from b2nd_dask.frame.open.opening import ParsedFrame, parse_frame
from b2nd_dask.frame.reference import FrameReference
from b2nd_dask.frame.write.conflicts import (
    UpdateBase,
    history_with,
    renumbered,
    require_disjoint,
)
from b2nd_dask.frame.write.new_frame import FramePlan
from b2nd_dask.frame.write.records import ChunkRecords, require_all
from b2nd_dask.frame.write.transaction import Envelope, Transaction, publish_records
from b2nd_dask.storage import LocalUpdate, Location, update_staging_for


def update_plan(old: ParsedFrame, shape: tuple[int, ...]) -> FramePlan:
    """Plan the frame after an update of its shape and some of its chunks.

    `shape` is the one after the update, not smaller along any axis. UnsupportedFrameError: a frame
    of an older format would have to be rewritten.
    """
    header = old.header
    grid = Grid(shape, old.grid.chunks, old.grid.blocks, old.grid.itemsize)
    in_elements = len(array_meta_of(header.metalayers).shape) < grid.ndim
    if old.stored_dtype is None or 0 in old.grid.chunks or in_elements:
        raise UnsupportedFrameError(
            "a frame without a dtype, with chunks of 0 elements, or with elements that are arrays "
            'cannot be updated; rewrite it with mode="w"'
        )
    if header.compression.needs_shape:
        raise UnsupportedFrameError(
            "its codec or filter needs the array's shape, but b2nd_dask compresses each chunk "
            "alone; change the frame with python-blosc2"
        )
    stats = old.statistics is not None
    plan = FramePlan.of_header(header, grid, old.stored_dtype, old.vlmeta, stats=stats)
    if len(plan.header()) != header.header_len:
        raise UnsupportedFrameError(
            'the header of this frame would change its length; rewrite the frame with mode="w"'
        )
    return plan


def require_no_coordinates(frame: FrameReference, axis: int) -> None:
    """Check that no coordinate inside a frame has the dim of an axis that grows.

    Raises ValueError, since the coordinate would become too short.
    """
    dims = dims_of(frame) or ()
    stored = frame.vlmeta[COORDS] if dims and COORDS in frame.vlmeta else None
    for name, raw in stored.items() if isinstance(stored, dict) else ():
        # other values are a user's own
        own = dims_of(frame_at(Location.of(raw))) if isinstance(raw, bytes) else None
        if dims[axis] in (own or ()):
            raise ValueError(
                f"{frame.label}: its coordinate {name!r} has the dim {dims[axis]!r} and would "
                "be too short; append an xarray.DataArray, with coordinates, by append_dim="
            )


def update_staging(
    location: Location, old: ParsedFrame, *, resume_key: str | None = None, fsync: bool = True
) -> LocalUpdate:
    """Create the staging of a change; ValueError if the frame cannot be changed in place."""
    header = old.header
    return update_staging_for(
        location,
        identity=old.identity,
        sparse=header.sparse,
        header_len=header.header_len,
        frame_len=header.frame_len,
        cbytes=header.cbytes,
        resume_key=resume_key,
        fsync=fsync,
    )


@dataclass(frozen=True, eq=False)
class Update(Transaction):
    """A change of a frame, published on top of concurrent updates.

    The plan describes the frame without these updates.
    """

    staging: LocalUpdate
    base: UpdateBase
    """The state that the update was planned on."""
    entries: Mapping[str, bytes]
    """Entries of vlmeta that the update changes."""

    def publish(self, records: ChunkRecords) -> None:
        """Publish the update; see `Transaction.publish`.

        Raises `StaleFrameError` if another update wrote the same chunks, or the frame is not the
        planned one. It is unchanged.
        """
        plan, staging, base = self.plan, self.staging, self.base
        with closing(staging.reader()) as reader:
            present = parse_frame(reader)
        if staging.key in (update.key for update in present.history.updates):
            return
        require_all(records, base.box.chunks(plan.grid), staging.label)
        shape = require_disjoint(base, plan, present, staging.label)
        now = update_plan(present, shape)
        now = replace(now, vlmeta={**now.vlmeta, **self.entries})
        rows = records.rows.copy()
        rows["chunk"] = renumbered(rows["chunk"], plan.grid, now.grid)
        history = history_with(present, staging.key, base.box, now.grid)
        header = present.header
        rebased = replace(
            staging, identity=present.identity, frame_len=header.frame_len, cbytes=header.cbytes
        )
        publish_records(
            ChunkRecords(records.parts, rows),
            _carried(present.columns.table(), present.grid.counts, now.grid.counts),
            Envelope.planned(now, staging.key, history),
            rebased,
        )


def _carried(table: NDArray[Any], before: tuple[int, ...], after: tuple[int, ...]) -> NDArray[Any]:
    """Copy a table of chunks into a grid that is at least as large.

    If the retained chunks have no checksums, the new ones get none: `seal` can read all chunks and
    add them.
    """
    moved = np.zeros(after, table.dtype)
    moved["offset"] = special_code(ChunkKind.ZEROS)
    moved[tuple(slice(0, n) for n in before)] = table.reshape(before)
    return moved.reshape(-1)


def open_for_update(location: Location) -> FrameReference:
    """Open a frame for an update; verify all reads of it, unless it has no checksums.

    Old elements in new chunks get new checksums, and a new header certifies the shape: they must
    not hide damage. Raises FileNotFoundError if there is no frame, `ChecksumError` if its checksums
    are not valid.
    """
    checksums = frame_at(location, verify=False).parsed.columns.checksums
    is_absent = checksums.state is ChecksumState.ABSENT
    return frame_at(location, verify="auto" if is_absent else True)


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
