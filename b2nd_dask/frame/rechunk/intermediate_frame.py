"""Intermediate frames: written into the staging area of the target, and removed with it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np

from b2nd_dask.format.grid import Grid
from b2nd_dask.frame.access import frame_at
from b2nd_dask.frame.read.read_cost import ReadCosts, Region, uncompressed_costs
from b2nd_dask.frame.rechunk.source import RegionSource, View
from b2nd_dask.frame.write.new_frame import plan_frame
from b2nd_dask.frame.write.records import ChunkRecords
from b2nd_dask.frame.write.transaction import Transaction
from b2nd_dask.storage import Location, Staging

#: They are read once, soon: fast is better than small.
_CPARAMS = {"codec": "lz4", "clevel": 1}


@dataclass(frozen=True, eq=False)
class IntermediateFrame(Transaction):
    """An intermediate frame, to be written."""

    location: Location
    is_skipped: bool = False
    """Whether nothing is staged: the target was published before."""

    @classmethod
    def of(cls, outer: Staging, grid: Grid, dtype: np.dtype[Any], key: str) -> Self:
        """Plan one.

        Parameters
        ----------
        outer : Staging
            Of the target.
        grid : Grid
            Its blocks are chosen anew.
        key : str
            Of 16 hexadecimal digits: the same for all runs of a write that can be resumed.
        """
        location = outer.inside(f"{key}.b2nd")
        plan = plan_frame(grid.shape, dtype, chunks=grid.chunks, cparams=_CPARAMS)
        staging = plan.staging(
            location,
            resume_key=key if outer.resumable else None,
            # otherwise nobody reads it after a power cut
            fsync=outer.resumable,
        )
        return cls(plan, staging, location)

    @property
    def grid(self) -> Grid:
        """Its chunks and blocks."""
        return self.plan.grid

    @property
    def dtype(self) -> np.dtype[Any]:
        """Dtype of its elements."""
        return self.plan.dtype

    def read_costs(self, regions: Sequence[Region]) -> ReadCosts:
        """As `FrameReference.read_costs`, as if nothing compressed: how well it does is unknown."""
        return uncompressed_costs(self.plan.grid, regions)

    def stage(self, write: Callable[[], ChunkRecords]) -> ChunkRecords:
        """See `Transaction.stage`."""
        return ChunkRecords.of(self.plan.row, {}, {}) if self.is_skipped else super().stage(write)

    def commit(self, records: ChunkRecords) -> str:
        """See `Transaction.commit`; empty where nothing is staged."""
        return "" if self.is_skipped else super().commit(records)


def begin_intermediate(
    intermediate: IntermediateFrame, outer: Transaction, is_needed: bool
) -> IntermediateFrame:
    """Task that begins an intermediate frame, inside the staging area of the target.

    Parameters
    ----------
    is_needed : bool
        Whether functions read the frame, which dask calls again where the tasks run again.
    """
    if outer.was_published and not is_needed:
        return replace(intermediate, was_published=True, is_skipped=True)
    if outer.was_published:
        # the commit of the target, which runs again too, removes it
        outer.staging.make_area()
    return intermediate.begin()


def open_view(
    intermediate: IntermediateFrame, view: View, batch_nbytes: int, published: str
) -> RegionSource | None:
    """Task that opens a view of an intermediate frame; `published` is what its commit returned."""
    if not published:
        return None
    return RegionSource(frame_at(intermediate.location), view, batch_nbytes)
