"""Intermediate frames: written into the staging area of the target, and removed with it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np

from b2nd_dask.format.grid import Grid
from b2nd_dask.frame.access import frame_at
from b2nd_dask.frame.read.read_cost import ReadCosts, Region, uncompressed_costs
from b2nd_dask.frame.rechunk.source import RegionSource, View
from b2nd_dask.frame.write.idempotent import (
    OpenedStaging,
    is_published,
    open_staging,
)
from b2nd_dask.frame.write.new_frame import FramePlan, plan_frame
from b2nd_dask.storage import Location, Staging, staging_for

#: They are read once, soon: fast is better than small.
_CPARAMS = {"codec": "lz4", "clevel": 1}


@dataclass(frozen=True, eq=False, slots=True)
class IntermediateFrame:
    """An intermediate frame, to be written."""

    location: Location
    plan: FramePlan
    staging: Staging

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
        plan = plan_frame(
            grid.shape,
            dtype,
            chunks=grid.chunks,
            blocks=None,
            cparams=_CPARAMS,
            meta={},
            vlmeta={},
            sparse=False,
            caterva=False,
        )
        staging = staging_for(
            location,
            sparse=False,
            replace=False,
            header_len=len(plan.header()),
            resume_key=key if outer.resumable else None,
            # otherwise nobody reads it after a power cut
            fsync=outer.resumable,
        )
        return cls(location, plan, staging)

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

    def is_done(self) -> bool:
        """Whether an earlier run of the same write has finished it."""
        return is_published(self.plan, self.staging)


def open_intermediate(
    intermediate: IntermediateFrame, outer: OpenedStaging, is_needed: bool
) -> OpenedStaging:
    """Make the staging area of an intermediate frame, inside that of the target.

    Parameters
    ----------
    is_needed : bool
        Whether functions read the frame, which dask calls again where the tasks run again.
    """
    if outer.was_published and not is_needed:
        return OpenedStaging(intermediate.staging, was_published=True, is_skipped=True)
    if outer.was_published:
        # the commit of the target, which runs again too, removes it
        outer.staging.make_area()
    return open_staging(intermediate.plan, intermediate.staging)


def open_view(
    intermediate: IntermediateFrame, view: View, batch_nbytes: int, published: str
) -> RegionSource | None:
    """Task that opens a view of an intermediate frame; `published` is what its commit returned."""
    if not published:
        return None
    return RegionSource(frame_at(intermediate.location), view, batch_nbytes)
