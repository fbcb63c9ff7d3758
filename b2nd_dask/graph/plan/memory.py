"""Memory that tasks need for their reads and writes.

Programs and chunk steps run on an empty array, or on one element, to measure their memory.
"""

from __future__ import annotations

import functools
import math
import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, cast

import numpy as np

from b2nd_dask.frame.joined import JoinedReference, Readable
from b2nd_dask.frame.read.read_cost import ReadCosts, Region
from b2nd_dask.frame.rechunk.work import IntermediateFrame
from b2nd_dask.frame.reference import FrameReference
from b2nd_dask.frame.write.transaction import Transaction
from b2nd_dask.graph.expression.chunk_steps import Fold
from b2nd_dask.graph.expression.program import Program
from b2nd_dask.graph.expression.tiles import in_place

ReadFrame = FrameReference | IntermediateFrame

#: Measured factor for partial results: of chunks, merged, and the copies of both.
_COPIES_OF_RESULTS = 5.6

#: Caches the memory of a program or chunk step, which the tasks of a layer share.
_once = functools.lru_cache(64)


class Piece(NamedTuple):
    """A region of one frame."""

    frame: ReadFrame
    region: Region
    is_contiguous: bool = True
    """Whether the elements are contiguous in the array that is read."""


@dataclass(eq=False)
class ReadEstimate:
    """The cost of an array that a task reads; `add` adds the bytes of its pieces."""

    pieces: list[Piece]
    """The pieces, which are read one after another."""
    is_joined: bool = False
    """Whether the pieces are parts of one array."""
    is_copied: bool = False
    """Whether the pieces are copied to that array, not decoded into it."""
    held: float = 0.0
    """Additional bytes that functions hold, per byte of elements."""
    is_streamed: bool = False
    """Whether chunks are reduced one by one, without an array of the region."""
    temporary: float = 0.0
    """Bytes of partial results and of tiles."""
    buffers: float = 0.0
    """Maximum bytes of read buffers over all pieces."""
    elements: int = 0
    """Maximum bytes of an array of elements over all pieces."""
    nelements: int = 0
    """Total over all pieces, as are `nbytes` and `fetched`; only decoded chunks count."""
    nbytes: int = 0
    fetched: float = 0.0

    def add(self, piece: Piece, costs: ReadCosts, row: int, group: int) -> None:
        """Add the cost of a piece, in a row of the costs of its frame.

        The frame's chunks are reduced in groups of `group` bytes, or one by one if it is 0.
        """
        region, largest = piece.region, int(costs.largest[row])
        nelements = math.prod(map(len, region.axes)) if region.is_decoded else 0
        nbytes = elements = nelements * piece.frame.grid.itemsize
        buffers, fetched = float(costs.buffers[row]), float(costs.fetched[row])
        direct = costs.direct[row] and piece.is_contiguous
        scratch = 0 if direct else largest
        if self.is_streamed:
            # elements need a copy if they are decoded in another order, or gathered into a group
            in_place = not largest or (costs.whole[row] and not group)
            elements = 0 if in_place else min(max(largest, group), nbytes)
            scratch = 0 if direct and group else largest
            if group and nbytes > group:
                # buffers of one group
                buffers = min(buffers, fetched * group / nbytes)
        self.buffers = max(self.buffers, buffers + scratch)
        self.elements = max(self.elements, elements)
        self.nelements += nelements
        self.nbytes += nbytes
        self.fetched += fetched

    @property
    def copied(self) -> int:
        """Bytes of a piece that is copied to the array."""
        return self.elements if self.is_copied else 0

    @property
    def peak(self) -> float:
        """Bytes of the elements and of results of functions."""
        nbytes = self.nbytes if self.is_joined and not self.is_streamed else self.elements
        # the array, and either a copied piece or results of functions of the array
        return nbytes + max(self.copied, nbytes * self.held) + self.temporary


class TaskEstimate(NamedTuple):
    """The cost of the reads and the write of one task."""

    reads: list[ReadEstimate]
    writes: Transaction | None
    """The transaction of the frame whose chunks the task writes."""

    @property
    def peak(self) -> float:
        """Maximum bytes that the task holds."""
        # a thread reuses its buffers
        buffers = max((read.buffers for read in self.reads), default=0.0)
        reading = buffers + sum(read.peak for read in self.reads)
        if self.writes is None:
            return reading
        block = max((read.nelements for read in self.reads), default=0)
        buffers += sum(read.copied for read in self.reads)
        fetched = sum(read.fetched for read in self.reads)
        return max(reading, _nbytes_of_write(self.writes, block, fetched, buffers))


def _nbytes_of_write(write: Transaction, nelements: int, fetched: float, buffers: float) -> float:
    """Bytes for writing a block of `nelements` elements, made of `fetched` compressed bytes.

    Includes `buffers`, the bytes that the thread already has.
    """
    grid = write.plan.grid
    block = nelements * write.plan.dtype.itemsize
    one = fetched * min(1, grid.chunk_nbytes / max(block, 1))
    encoded = min(fetched, max(write.staging.batch_nbytes, one))
    if not block and fetched:
        # stored chunks are copied
        return buffers + encoded
    # A chunk with its blocks in order, unless the block itself is in that order; and as many bytes
    # for its compressed blocks, whose size is about that of the source.
    direct = block <= grid.chunk_nbytes and grid.chunk_is_c_order
    gathered = 0 if direct else grid.chunk_nbytes
    return block + max(gathered, buffers) + grid.chunk_nbytes + encoded


def read_of(regions: Iterable[tuple[Readable, Region]], held: float = 0.0) -> ReadEstimate:
    """The read of regions; a region of joined frames becomes one piece per frame."""
    pieces: list[Piece] = []
    for frame, region in regions:
        if isinstance(frame, JoinedReference):
            is_contiguous = all(len(along) == 1 for along in region.axes[: frame.axis])
            pieces += (
                Piece(each.frame, Region(each.axes, each.claims), is_contiguous)
                for each in frame.split(region.axes, region.claims)
            )
        else:
            pieces.append(Piece(cast(ReadFrame, frame), region))
    return ReadEstimate(pieces, is_joined=len(pieces) > 1, held=held)


@_once
def nbytes_of_program(
    program: Program, dtypes: Sequence[np.dtype[Any]], *, is_own: bool
) -> tuple[int, int]:
    """Bytes that a program holds beside the elements: per element of a block, and of a tile.

    The elements, of the first dtype, are freed when no further step needs them. Steps may write
    into them if `is_own`.
    """
    arrays = [np.empty(0, dtype) for dtype in dtypes]
    found = _value_or(
        lambda: (in_place(program, arrays, (0,), is_own=is_own), program.examples(arrays)), None
    )
    if found is None:
        # a guess: a result, and two arrays of a tile
        return dtypes[0].itemsize, 2 * dtypes[0].itemsize
    work, sizes = found[0], [each.itemsize for each in found[1]]
    made = zip(sizes[1:], work.program.steps, strict=True)
    fresh = max((size for size, step in made if "out" not in step.kwargs), default=0)
    in_tile = sum(dtype.itemsize for dtype in work.memory) + fresh
    if program.steps and not program.filters:
        held = 0 if work.result == 0 else sizes[-1]
        return held, in_tile
    peak = held = sizes[0]
    for new, last_uses in zip(sizes[1:], program.last_uses, strict=True):
        held += new
        peak = max(peak, held)
        held -= sum(sizes[number] for number in last_uses)
    return peak - sizes[0], in_tile


@_once
def nbytes_of_results(fold: Fold, dtype: np.dtype[Any], ndim: int) -> float:
    """Bytes of partial results, per element of the result of a chunk step."""
    known = fold.bound([np.zeros((), dtype)] * fold.program.inputs)
    fields = _value_or(lambda: known.result_of_one(dtype, ndim), {"": np.ones(1)})
    return _COPIES_OF_RESULTS * sum(np.asarray(field).nbytes for field in fields.values())


def _value_or(call: Callable[[], Any], default: Any) -> Any:
    """The result of a function, or the default if it raises an exception."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return call()
    except Exception:  # noqa: BLE001 - the default is the best guess
        return default
