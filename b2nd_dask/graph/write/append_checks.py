"""What a change of a frame keeps: arguments that ask for something else are refused."""

from __future__ import annotations

from typing import Any

import numpy as np

from b2nd_dask.frame.reference import FrameReference
from b2nd_dask.frame.write.writer import FramePlan
from b2nd_dask.graph.write.write_job import FrameOptions


def check_append_options(frame: FrameReference, asked: FramePlan, form: FrameOptions) -> None:
    """Refuse to append to a frame that is not what a new one would be.

    Parameters
    ----------
    frame : FrameReference
        That is there.
    asked : FramePlan
        Of the frame that the same call would make.
    form : Form
        By which it would be made; what was left out of it is kept, whatever it is.

    Raises
    ------
    ValueError
        They contradict each other.
    """
    header, grid = frame.parsed.header, frame.parsed.grid
    kept = {
        "chunks": not _are_sizes(form.chunks) or asked.grid.chunks == grid.chunks,
        "blocks": asked.grid.blocks == grid.blocks,
        "cparams": asked.compression == header.compression,
        "meta": asked.meta == frame.meta.stored,
        "vlmeta": asked.vlmeta == frame.vlmeta.stored,
    }
    other = [name for name in form.given if not kept[name]]
    if other:
        raise ValueError(
            f"{' and '.join(other)}: the frame that is there has other ones, and an append keeps "
            f'them; leave out what it has, or write a new frame with mode="w"'
        )


def check_region_options(frame: FrameReference, form: FrameOptions) -> None:
    """Refuse to make a frame sparse, or one of Caterva, by changing it.

    Parameters
    ----------
    frame : FrameReference
    form : Form
        Its booleans; their defaults say nothing.

    Raises
    ------
    ValueError
        The frame is not so.
    """
    header = frame.parsed.header
    if not form.contiguous and not header.sparse:
        raise ValueError("contiguous=False: the frame that is there is one file, and stays so")
    if form.caterva and "caterva" not in header.metalayers:
        raise ValueError("caterva=True: the frame that is there has no metalayer of Caterva")


def _are_sizes(chunks: Any) -> bool:
    """Whether chunks are numbers of elements; -1, "auto" and others depend on the array."""
    parts = np.ravel(np.array(chunks, object))
    return all(isinstance(part, int | np.integer) and part > 0 for part in parts)
