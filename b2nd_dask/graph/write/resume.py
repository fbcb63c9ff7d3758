"""Going on with a write that was interrupted: its key, and the blocks that it still lacks."""

from __future__ import annotations

import itertools
import logging

import dask.array as da
import numpy as np
from dask.base import tokenize
from numpy.typing import NDArray

from b2nd_dask.format.grid import Grid
from b2nd_dask.frame.write.publication import write_key_of
from b2nd_dask.frame.write.records import ChunkRecords
from b2nd_dask.frame.write.writer import FramePlan
from b2nd_dask.storage import Location, list_staging

logger = logging.getLogger("b2nd_dask")

#: Changes with what is staged and how: what another version left is then no one's.
_LAYOUT = 1


def resume_key(
    elements: da.Array, origin: tuple[int, ...], plan: FramePlan, label: str, state: str
) -> str:
    """What all runs of one write have in common, and no other write has.

    Parameters
    ----------
    elements : dask.array.Array
        Its name stands for its data, as everywhere in dask.
    origin : tuple of int
    plan : FramePlan
    label : str
        Path or URL of the target; without secrets.
    state : str
        How the target is treated.

    Returns
    -------
    str
        16 hexadecimal digits.
    """
    return tokenize(_LAYOUT, elements, origin, plan, label, state)[:16]


def update_call(elements: da.Array, where: object, label: str) -> str:
    """What all runs of one call have in common that changes a frame, whatever that holds.

    Parameters
    ----------
    elements : dask.array.Array
        The new elements.
    where : object
        The region, or the axis.
    label : str
        Path of the target.

    Returns
    -------
    str
        8 hexadecimal digits, with which the keys of these runs begin.
    """
    return tokenize(_LAYOUT, elements, where, label)[:8]


def update_key(call: str, corner: tuple[int, ...], plan: FramePlan, content: str) -> str:
    """Name a change of a frame: one call, applied to one state of it.

    The old elements that get into new chunks are named by what they are. Their file's time and size
    change when a commit is killed, and the name of the tasks that read them with these.

    Parameters
    ----------
    call : str
        From `update_call`.
    corner : tuple of int
        Where the first new element goes.
    plan : FramePlan
    content : str
        Digest of the frame as it is, at least of the chunks that keep some elements.

    Returns
    -------
    str
        16 hexadecimal digits.
    """
    return call + tokenize(corner, plan, content)[:8]


def finished_key(location: Location, call: str) -> str | None:
    """Find out whether a call has changed a frame already, and did not come to its end.

    Then the frame has the mark of that write, whose staging area is still there: it was killed, or
    failed, behind the switch to the new state. To do the same again would append twice.

    Parameters
    ----------
    location : Location
        Of a local frame.
    call : str
        From `update_call`.

    Returns
    -------
    str or None
        The key of that write.
    """
    reader = location.open()
    try:
        key = write_key_of(reader)
    finally:
        reader.close()
    if key is None or not key.startswith(call):
        return None
    return key if any(info.key == key for info in list_staging(location.urlpath)) else None


def unstaged_blocks(
    chunks: tuple[tuple[int, ...], ...], origin: tuple[int, ...], grid: Grid, staged: ChunkRecords
) -> tuple[NDArray[np.bool_], ChunkRecords]:
    """Tell which blocks have to be computed.

    Parameters
    ----------
    chunks : tuple of tuple of int
        Of the dask array; each block is made of whole chunks of the frame.
    origin : tuple of int
        Where the array goes in the frame.
    grid : Grid
        Of the frame.
    staged : ChunkRecords
        Chunks that are staged already.

    Returns
    -------
    missing : ndarray of bool
        One for each block.
    reused : ChunkRecords
        Those of the other blocks.
    """
    there = np.zeros(grid.counts, bool)
    there.reshape(-1)[staged.rows["chunk"]] = True
    reused = np.zeros(grid.counts, bool)
    missing = np.ones(tuple(map(len, chunks)), bool)
    axes = [_chunk_ranges(*axis) for axis in zip(chunks, origin, grid.chunks, strict=True)]
    for block in np.ndindex(missing.shape):
        place = tuple(axis[i] for axis, i in zip(axes, block, strict=True))
        if there[place].all():
            missing[block], reused[place] = False, True
    rows = staged.rows[reused.reshape(-1)[staged.rows["chunk"]]]
    return missing, ChunkRecords(staged.parts, rows)


def say_reused(label: str, reused: int, nchunks: int) -> None:
    """Log how much of a write need not be done again."""
    logger.info("%s: %d of %d chunks are reused", label, reused, nchunks)


def _chunk_ranges(sizes: tuple[int, ...], start: int, chunk: int) -> list[slice]:
    edges = itertools.accumulate(sizes, initial=start)
    return [slice(a // chunk, -(-b // chunk)) for a, b in itertools.pairwise(edges)]
