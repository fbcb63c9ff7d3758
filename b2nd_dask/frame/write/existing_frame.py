"""A frame that is to be changed, or copied in other chunks."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from b2nd_dask.format.integrity import ChecksumState
from b2nd_dask.frame.access import frame_at
from b2nd_dask.frame.open.cache import process_cache
from b2nd_dask.frame.read.contents import content_digest
from b2nd_dask.frame.reference import FrameReference
from b2nd_dask.frame.write.writer import FramePlan
from b2nd_dask.storage import Location


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
