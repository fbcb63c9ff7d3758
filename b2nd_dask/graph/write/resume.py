"""Resuming a write that was interrupted: its key, and the blocks that it still lacks."""

from __future__ import annotations

import itertools
import logging

import dask.array as da
import numpy as np
from dask.base import tokenize
from numpy.typing import NDArray

from b2nd_dask.format.grid import Grid
from b2nd_dask.frame.write.idempotent import keys_of
from b2nd_dask.frame.write.records import ChunkRecords
from b2nd_dask.frame.write.writer import FramePlan
from b2nd_dask.storage import Location, list_staging

logger = logging.getLogger("b2nd_dask")

#: Changes with what is staged and how, so that no version resumes what another one has staged.
_LAYOUT = 2


def resume_key(
    elements: object, origin: tuple[int, ...], plan: FramePlan, label: str, state: str
) -> str:
    """The key, of 16 hexadecimal digits, that all runs of one write share, and no other write.

    The array's name, or a frame's version, stands for its data. `label` is the target without
    secrets, `state` the mode.
    """
    return tokenize(_LAYOUT, elements, origin, plan, label, state)[:16]


def update_call(elements: da.Array, where: object, label: str) -> str:
    """The token, of 8 hexadecimal digits, that all runs of one update share.

    It does not depend on what the frame holds. `where` is the region or the axis.
    """
    return tokenize(_LAYOUT, elements, where, label)[:8]


def update_key(call: str, corner: tuple[int, ...], plan: FramePlan, content: str) -> str:
    """The key, of 16 hexadecimal digits, of one call applied to one state of a frame.

    A digest stands for the old elements that get into new chunks: the time and size of their file,
    and so the names of the tasks that read them, change when a commit is killed.

    Parameters
    ----------
    call : str
        From `update_call`.
    corner : tuple of int
        Index of the first new element.
    content : str
        Digest of the chunks of which some elements stay: what others write elsewhere in the frame
        does not matter.
    """
    return call + tokenize(corner, plan, content)[:8]


def finished_key(location: Location, call: str) -> str | None:
    """The key of the run of a call that has changed a frame already, but did not return; else None.

    Then the frame's history has that write, whose staging area is still there: it was killed, or
    failed, after the switch to the new state. To do the same again would append twice.
    """
    reader = location.open()
    try:
        keys = [key for key in keys_of(reader) if key.startswith(call)]
    finally:
        reader.close()
    # to list a directory takes long where it has many files
    left = {info.key for info in list_staging(location.urlpath)} if keys else set()
    return next((key for key in keys if key in left), None)


def unstaged_blocks(
    chunks: tuple[tuple[int, ...], ...], origin: tuple[int, ...], grid: Grid, staged: ChunkRecords
) -> tuple[NDArray[np.bool_], ChunkRecords]:
    """Find the blocks that have to be computed.

    Parameters
    ----------
    chunks : tuple of tuple of int
        Of the dask array; each block is made of whole chunks of the frame.
    origin : tuple of int
        Index of the array's first element in the frame.
    grid : Grid
        Of the frame.
    staged : ChunkRecords
        Chunks that are staged already.

    Returns
    -------
    missing : ndarray of bool
        One for each block.
    reused : ChunkRecords
        The records of the other blocks.
    """
    is_staged = np.zeros(grid.counts, bool)
    is_staged.reshape(-1)[staged.rows["chunk"]] = True
    reused = np.zeros(grid.counts, bool)
    missing = np.ones(tuple(map(len, chunks)), bool)
    axes = [_chunk_ranges(*axis) for axis in zip(chunks, origin, grid.chunks, strict=True)]
    for block in np.ndindex(missing.shape):
        cells = tuple(axis[i] for axis, i in zip(axes, block, strict=True))
        if is_staged[cells].all():
            missing[block], reused[cells] = False, True
    rows = staged.rows[reused.reshape(-1)[staged.rows["chunk"]]]
    return missing, ChunkRecords(staged.parts, rows)


def log_reused(label: str, reused: int, nchunks: int) -> None:
    """Log how many chunks of a write are not computed again."""
    logger.info("%s: %d of %d chunks are reused", label, reused, nchunks)


def _chunk_ranges(sizes: tuple[int, ...], start: int, chunk: int) -> list[slice]:
    edges = itertools.accumulate(sizes, initial=start)
    return [slice(a // chunk, -(-b // chunk)) for a, b in itertools.pairwise(edges)]
