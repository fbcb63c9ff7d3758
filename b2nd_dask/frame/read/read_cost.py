"""Estimates of the work of reads, before anything is read.

`read_costs` estimates the chunks, blocks and bytes of regions from the offset index and the grid.
The index lacks the compressed lengths of a chunk's blocks, which are assumed to be equal. Regions
are columns: a hundred thousand of them share a few cuts of an axis.

`Boxes` estimates reads of an array in boxes: a block that several boxes touch is decoded for each.
It ignores that a task reads all blocks of a chunk if it touches nearly all (`plan.NEARLY_ALL`),
since this adds little.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from b2nd_dask.format.chunk.chunk_header import HEADER_LEN, head_nbytes
from b2nd_dask.format.grid import AxisCells, Grid
from b2nd_dask.format.index import stored_chunks
from b2nd_dask.frame.open.cache import OpenedFrame
from b2nd_dask.frame.read.buffers import BOX_NBYTES, MAX_SCRATCH_NBYTES
from b2nd_dask.frame.read.plan import (
    Axes,
    block_number,
    blocks_at,
    claimed,
    is_in_one_round,
    located_chunks,
    max_waste,
    reads_in_boxes,
)
from b2nd_dask.storage import ByteReader


class Region(NamedTuple):
    """A region to read: ascending positions along each axis."""

    axes: Axes
    claims: Axes = ()
    """See `RegionPlan`; a region claims its own positions by default."""
    is_decoded: bool = True
    """False for whole chunks that are only fetched."""


#: To find a chunk and its blocks takes 0.1 ms, as long as to decode this many bytes.
VISIT_NBYTES = 1 << 17
#: Visits of chunks to process together, unless a single region has more.
_BATCH = 1 << 20


@dataclass(frozen=True, eq=False)
class ReadCosts:
    """Cost of reads: totals, and columns with a row for each region."""

    nchunks: int
    """Number of chunks of the frame that are read."""
    visits: int
    """Number of reads of these chunks."""
    constants: int
    """Number of chunks that the index marks as zeros, NaN or never written: they are not read."""
    blocks: int
    """Number of blocks to decode, which include the padding of chunks."""
    fetched: NDArray[np.float64]
    """Bytes to fetch."""
    buffers: NDArray[np.float64]
    """Most bytes that are fetched at a time."""
    largest: NDArray[np.float64]
    """Most bytes that are decoded at a time."""
    whole: NDArray[np.bool_]
    """Whether the region consists of whole chunks with elements in C order."""
    direct: NDArray[np.bool_]
    """Whether the chunks are decoded directly into the result, without a scratch buffer."""


def read_costs(opened: OpenedFrame, regions: Sequence[Region]) -> ReadCosts:
    """Estimate the cost of reading regions."""
    parsed, reader = opened.parsed, opened.reader
    if opened.verify is True:
        everything = tuple(map(range, parsed.grid.shape))
        regions = [region._replace(claims=everything) for region in regions]
    stored = stored_chunks(parsed.index.offsets)
    lengths = np.zeros(parsed.grid.nchunks if len(stored) else 0)
    if parsed.header.sparse:
        # the mean length, since the index of a sparse frame has no lengths
        lengths[stored] = max(HEADER_LEN, parsed.header.cbytes / max(1, len(stored)))
    else:
        _, lengths[stored] = located_chunks(parsed, stored)
    in_boxes = reads_in_boxes(parsed, reader.batch_nbytes)
    return _Stored(parsed.grid, lengths, reader, opened.digests, in_boxes).costs(regions)


def uncompressed_costs(grid: Grid, regions: Sequence[Region]) -> ReadCosts:
    """Estimate the cost of reading regions of a future local frame, as if it were uncompressed."""
    lengths = np.full(grid.nchunks, float(HEADER_LEN + grid.chunk_nbytes))
    # any element may be the witness
    digests = np.zeros(grid.nchunks, np.uint64)
    in_boxes = grid.chunk_nbytes > MAX_SCRATCH_NBYTES
    return _Stored(grid, lengths, ByteReader, digests, in_boxes).costs(regions)


class _AxisCuts:
    """The cuts of regions by the chunks along one axis; equal cuts are computed once."""

    def __init__(self, chunk: int, block: int, along: Iterable[range]) -> None:
        # python-blosc2 has chunks and blocks of 0 elements along empty axes
        chunk, block = max(1, chunk), max(1, block)
        known: dict[range, int] = {}
        self.which = np.array([known.setdefault(each, len(known)) for each in along], np.int64)
        cut = [AxisCells(positions, chunk) for positions in known]
        touched: dict[tuple[int, ...], int] = {}

        # most cells have equal selections
        @cache
        def pattern(inner: range) -> int:
            numbers = tuple(AxisCells(inner, block).numbers.tolist())
            return touched.setdefault(numbers, len(touched))

        parts = [pattern(part.inner) for cells in cut for part in cells]
        self.patterns = np.array(parts, np.int64)
        """Pattern of touched blocks for each cell, for all cuts one after the other."""
        self.touched = list(map(np.array, touched))
        self.numbers = np.concatenate([cells.numbers for cells in cut])
        self.lengths = np.array([len(cells) for cells in cut], np.int64)
        self.starts = np.cumsum(self.lengths) - self.lengths
        # ranges of one element are equal whatever their steps are
        whole = [
            (p.step == 1 or len(p) == 1) and p.start % chunk == 0 and len(p) % chunk == 0
            for p in known
        ]
        self.whole = np.array(whole, np.bool_)
        """Whether each cut has whole chunks only."""


#: Visits of chunks by regions: numbers of the regions, of the chunks, and of the patterns of their
#: touched blocks (`_Cuts.blocks_of`).
_Visits = tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]


class _Cuts:
    """The cuts of regions along all axes."""

    def __init__(self, grid: Grid, regions: Sequence[Region]) -> None:
        self._grid = grid
        ends = [[(r.start, r.stop, r.step) for r in each.claims or each.axes] for each in regions]
        shape = len(regions), grid.ndim, 3
        self.claims = np.array(ends, np.int64).reshape(shape).transpose(1, 2, 0).copy()
        """For each axis start, stop and step of the positions that each region claims."""
        self.decoded = np.array([each.is_decoded for each in regions], np.bool_)
        """Whether each region is decoded."""
        along = zip(*(each.axes for each in regions), strict=True)
        self.axes = list(map(_AxisCuts, grid.chunks, grid.blocks, along))
        counts = [axis.lengths[axis.which] for axis in self.axes]
        self.totals = math.prod(counts, start=np.ones(len(regions), np.int64))
        """Number of touched chunks of each region."""
        wholes = [axis.whole[axis.which] for axis in self.axes]
        is_c_order = grid.chunk_is_c_order and grid.chunks == grid.padded_chunk
        in_order = np.full(len(regions), is_c_order)
        self.whole = np.logical_and.reduce([in_order, *wholes])
        """Whether each region consists of whole chunks with elements in C order."""
        # several chunks along an axis are contiguous only if they have length 1 along those before
        undivided = (
            each == 1 for axis, each in enumerate(counts) if math.prod(grid.chunks[:axis]) > 1
        )
        self.direct = np.logical_and.reduce([self.whole, *undivided])
        """Whether these chunks are also contiguous in the region."""

    def visits(self) -> Iterator[_Visits]:
        """Iterate over the visited chunks, for some regions at a time."""
        edges = np.flatnonzero(np.diff(np.cumsum(self.totals) // _BATCH)) + 1
        return map(self._touched, np.split(np.arange(len(self.totals)), edges))

    def _touched(self, rows: NDArray[np.int64]) -> _Visits:
        chunks = patterns = np.zeros(len(rows), np.int64)
        for axis, count in zip(self.axes, self._grid.counts, strict=True):
            cut = axis.which[rows]
            counts = axis.lengths[cut]
            repeats = np.repeat(np.arange(len(rows)), counts)
            first = axis.starts[cut] - (np.cumsum(counts) - counts)
            at = np.arange(len(repeats)) + first[repeats]
            rows, chunks = rows[repeats], chunks[repeats] * count + axis.numbers[at]
            patterns = patterns[repeats] * len(axis.touched) + axis.patterns[at]
        return rows, chunks, patterns

    def blocks_of(self, pattern: int) -> NDArray[np.int64] | None:
        """Ascending numbers of the blocks of a pattern; None for whole chunks."""
        numbers = np.unravel_index(pattern, [len(axis.touched) for axis in self.axes])
        touched = [axis.touched[at] for axis, at in zip(self.axes, numbers, strict=True)]
        return blocks_at(touched, self._grid)


class _Stored(NamedTuple):
    """Storage of a frame's chunks, its reader, and the costs of reads."""

    grid: Grid
    lengths: NDArray[np.float64]
    """Compressed bytes of each chunk, 0 without data; empty if no chunk has data."""
    reader: ByteReader | type[ByteReader]
    """Only its limits are used; those of the class are those of local files."""
    digests: NDArray[np.uint64] | None
    """Checksums of the chunks; a chunk whose witness is read is fetched as a whole."""
    in_boxes: bool
    """Whether chunks are decoded in boxes of blocks, unless directly into the result."""

    def costs(self, regions: Sequence[Region]) -> ReadCosts:
        """Estimate the cost of reading regions."""
        grid, cuts = self.grid, _Cuts(self.grid, regions)
        is_read, nvisits, nblocks = np.zeros(grid.nchunks, np.bool_), 0, 0
        fetched, held, longest, largest = np.zeros((4, len(regions)))
        # without stored chunks this takes constant time
        for rows, chunks, patterns in cuts.visits() if self.lengths.size else ():
            lengths = self.lengths[chunks]
            is_read[chunks] = lengths > 0
            nvisits += int(np.count_nonzero(lengths))
            verified = np.zeros(chunks.shape, np.bool_)
            if self.digests is not None:
                claims = (along[:, rows] for along in cuts.claims)
                verified = claimed(chunks, self.digests[chunks], grid, claims)
            blocks, its_bytes, copied = self._of_visits(rows, patterns, lengths, verified, cuts)
            nblocks += int(blocks.sum())
            fetched += np.bincount(rows, its_bytes, len(regions))
            held += np.bincount(rows, its_bytes + copied, len(regions))
            np.maximum.at(longest, rows, lengths + copied)
            np.maximum.at(largest, rows, blocks * float(grid.block_nbytes))
        if self.in_boxes:
            divided = ~cuts.direct & (largest > MAX_SCRATCH_NBYTES)
            largest = np.where(divided, max(BOX_NBYTES, grid.block_nbytes), largest)
        return ReadCosts(
            nchunks=int(np.count_nonzero(is_read)),
            visits=nvisits,
            constants=int(cuts.totals.sum()) - nvisits,
            blocks=nblocks,
            fetched=fetched,
            buffers=np.minimum(held, self.reader.batch_nbytes + longest),
            largest=largest,
            whole=cuts.whole,
            direct=cuts.direct,
        )

    def _of_visits(
        self,
        rows: NDArray[np.int64],
        patterns: NDArray[np.int64],
        lengths: NDArray[np.float64],
        verified: NDArray[np.bool_],
        cuts: _Cuts,
    ) -> tuple[NDArray[np.int64], NDArray[np.float64], NDArray[np.float64]]:
        """Compute the blocks to decode, bytes to fetch and fetched bytes to copy per visit."""
        grid = self.grid
        nblocks = math.prod(grid.blocks_per_chunk)
        patterns, which = np.unique(patterns, return_inverse=True)
        wanted = [cuts.blocks_of(pattern) for pattern in patterns.tolist()]
        counts = np.array([nblocks if each is None else len(each) for each in wanted], np.int64)
        blocks, decoded = counts[which], cuts.decoded[rows]
        partial = np.array([each is not None for each in wanted], np.bool_)[which] & decoded
        requests = np.bincount(rows, partial & ~verified & (lengths > 0))[rows]
        waste = max_waste(self.reader, requests)
        some = lengths.copy()
        for number, each in enumerate(wanted):
            if each is not None:
                here = which == number
                some[here] = self._of_blocks(lengths[here], each)
        in_one_round = ~partial | is_in_one_round(lengths, blocks / nblocks, waste)
        some = np.where(in_one_round, lengths, some)
        # a long chunk is verified first, then its blocks are fetched; for other chunks they are
        # copied from the verified bytes
        again = partial & verified & (lengths > self.reader.batch_nbytes)
        copied = np.where(partial & verified & ~again, lengths * blocks / nblocks, 0.0)
        # a header and one element: all elements are equal, and nothing is decoded
        repeated = (lengths == HEADER_LEN + grid.itemsize) & (grid.chunk_nbytes > grid.itemsize)
        blocks = np.where((lengths > 0) & ~repeated & decoded, blocks, 0)
        if self.in_boxes and self.digests is not None:
            # a chunk is verified first, then the blocks of each box are fetched
            again |= ~cuts.direct[rows] & (blocks == nblocks)
        return blocks, np.where(verified, lengths, some) + np.where(again, some, 0.0), copied

    def _of_blocks(
        self, lengths: NDArray[np.float64], blocks: NDArray[np.int64]
    ) -> NDArray[np.float64]:
        """Compute the bytes to fetch for some blocks of chunks with these compressed lengths."""
        nblocks = math.prod(self.grid.blocks_per_chunk)
        head = head_nbytes(nblocks)
        block = np.maximum(lengths - head, 0) / nblocks
        fetched = np.minimum(lengths, head) + block * len(blocks)
        between, often = np.unique(np.diff(blocks) - 1, return_counts=True)
        for gap, count in zip(between.tolist(), often.tolist(), strict=True):
            # a small gap between two blocks is read, too
            fetched += np.where(gap * block <= self.reader.max_gap, count * gap * block, 0)
        return fetched


class Boxes(NamedTuple):
    """The boxes in which an array, or a part of it, is read; it is not empty.

    Examples
    --------
    Maps as time series, in boxes of whole blocks. Chunks of 40 kB are found four times, and not
    decoded more often for that:

    >>> maps = Grid((6, 100, 100), chunks=(1, 100, 100), blocks=(1, 50, 50), itemsize=4)
    >>> series = Boxes(maps, ((6,), (50, 50), (50, 50)))
    >>> series.decodes, series.visits, round(series.work, 1)
    (1.0, 4.0, 3.3)
    >>> Boxes(maps, ((6,), (25,) * 4, (100,))).decodes
    2.0
    """

    grid: Grid
    """The array's grid."""
    sizes: tuple[tuple[int, ...], ...]
    """Lengths of the boxes along each axis."""
    corner: tuple[int, ...] = ()
    """Index of the first element; empty for the array's first one."""

    @property
    def nbytes(self) -> int:
        """Bytes of all elements."""
        return math.prod(map(sum, self.sizes)) * self.grid.itemsize

    @property
    def decodes(self) -> float:
        """How often a touched block is decoded on average."""
        often, grid = 1.0, self.grid
        corner = self.corner or (0,) * grid.ndim
        for along, start, chunk, block in zip(
            self.sizes, corner, grid.chunks, grid.blocks, strict=True
        ):
            edges = np.cumsum((start, *filter(None, along)))
            first, last = block_number(edges[[0, -1]] - (0, 1), chunk, block).tolist()
            blocks = last - first + 1
            # a block is decoded once more for each edge inside it
            cut = int(np.count_nonzero(edges[1:-1] % chunk % block))
            often *= (blocks + cut) / blocks
        return often

    @property
    def visits(self) -> float:
        """How many boxes read from a touched chunk on average."""
        return self._replace(grid=replace(self.grid, blocks=self.grid.chunks)).decodes

    @property
    def work(self) -> float:
        """Time of reading the boxes relative to decoding each touched chunk once."""
        nbytes = self.grid.chunk_nbytes
        return (self.visits * VISIT_NBYTES + self.decodes * nbytes) / (VISIT_NBYTES + nbytes)
