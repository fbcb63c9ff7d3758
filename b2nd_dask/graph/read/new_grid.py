"""Whether a frame is read anew in other blocks, or its blocks are cut and joined by dask."""

from __future__ import annotations

import math
import warnings
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from b2nd_dask.errors import level_of_caller
from b2nd_dask.format.grid import Grid
from b2nd_dask.frame.joined import JoinedReference, Readable
from b2nd_dask.frame.read.decode_cost import decodes_per_block, relative_work
from b2nd_dask.frame.reference import FrameReference
from b2nd_dask.graph.read.blocks import Chunks
from b2nd_dask.graph.resources import available

#: A frame of at most this share of the memory may be held whole, as dask's rechunk does.
HELD_SHARE = 1 / 8
#: How much longer reading in other blocks may take than reading each once: as long as dask's
#: rechunk takes, by tasks and copies.
MOST_WORK = 2.0
#: The same for a larger frame.
MOST_WORK_LARGE = 16.0

#: Blocks that take so much longer, for so many bytes, are warned of.
_MUCH_WORK, _MANY_NBYTES = 4.0, 1 << 30


class Boxes(NamedTuple):
    """The parts of blocks that lie in one frame."""

    grid: Grid
    """Of the frame."""
    sizes: Chunks
    corner: tuple[int, ...]
    """Where the first one begins."""

    @property
    def nbytes(self) -> int:
        """Bytes of all elements."""
        return math.prod(map(sum, self.sizes)) * self.grid.itemsize

    @property
    def visits_per_chunk(self) -> float:
        """How many of them read from a chunk, on average."""
        whole = replace(self.grid, blocks=self.grid.chunks)
        return decodes_per_block(whole, self.sizes, self.corner)


def is_read_anew(source: Readable, sizes: Chunks, corner: tuple[int, ...]) -> bool:
    """Whether to read (a part of) a frame, or of joined frames, in other blocks.

    Parameters
    ----------
    sizes : tuple of tuple of int
        Lengths of the blocks along each axis.
    corner : tuple of int
        Where the first block begins.
    """
    if not all(map(sum, sizes)):
        return False
    # of chunks that repeat one element nothing is read
    found = Counter(
        boxes
        for frame, boxes in _boxes(source, sizes, corner)
        if not frame.parsed.index.single_kind
    )
    if source.is_remote:
        # each request costs more than what it brings: no chunk is asked for twice
        return all(boxes.visits_per_chunk == 1.0 for boxes in found)
    is_large = source.nbytes > available().memory * HELD_SHARE
    most = MOST_WORK_LARGE if is_large else MOST_WORK
    once = sum(count * boxes.nbytes for boxes, count in found.items())
    work = sum(count * boxes.nbytes * relative_work(*boxes) for boxes, count in found.items())
    return work <= most * once


def _boxes(
    source: Readable, sizes: Chunks, corner: tuple[int, ...]
) -> Iterator[tuple[FrameReference, Boxes]]:
    """Cut blocks at the ends of frames; frames that none lies in are left out."""
    if not isinstance(source, JoinedReference):
        yield source, Boxes(source.grid, sizes, corner)
        return
    axis, starts = source.axis, source.starts
    edges = corner[axis] + np.cumsum([0, *sizes[axis]])
    firsts = np.maximum(np.searchsorted(edges, starts[:-1], side="right") - 1, 0).tolist()
    lasts = np.searchsorted(edges, starts[1:], side="left").tolist()
    for number, frame in enumerate(source.frames):
        begin, stop = starts[number : number + 2].tolist()
        inner = np.clip(edges[firsts[number] : lasts[number] + 1], begin, stop)
        lengths = tuple(filter(None, np.diff(inner).tolist()))
        if not lengths:
            continue
        own, at = ((), ()) if source.stacked else ((lengths,), (int(inner[0]) - begin,))
        along = (*sizes[:axis], *own, *sizes[axis + 1 :])
        yield frame, Boxes(frame.grid, along, (*corner[:axis], *at, *corner[axis + 1 :]))


def warn_of_work(source: Readable, sizes: Chunks) -> None:
    """Warn where all of a frame, or of joined ones, takes much longer in these blocks."""
    stored, work = 0.0, 0.0
    known: dict[Boxes, float] = {}
    for frame, boxes in _boxes(source, sizes, (0,) * source.ndim):
        kinds = frame.chunk_kinds()
        # special chunks have a kind other than 0, and are not decoded
        nbytes = (kinds.size - np.count_nonzero(kinds)) * frame.grid.chunk_nbytes
        if nbytes and boxes.nbytes:
            if boxes not in known:
                known[boxes] = relative_work(*boxes)
            stored += nbytes
            work += nbytes * known[boxes]
    if work > _MUCH_WORK * stored and work > _MANY_NBYTES:
        warnings.warn(
            f"{source.description}: to compute all of it in the blocks of chunks= takes about "
            f"{work / stored:.0f} times as long as in its own, since each reads parts of many "
            "chunks. Give larger blocks, or multiples of its own; from_b2nd(...).rechunk(chunks) "
            "leaves it to dask, which may hold the whole array; written by to_b2nd(..., max_mem=) "
            "it becomes a frame of such chunks in little memory",
            stacklevel=level_of_caller(),
        )
