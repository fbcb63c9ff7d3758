"""Cost estimates of reads: chunks, blocks and bytes, before anything is read.

They follow from the offset index and the grid, except for the compressed lengths of a chunk's
blocks, which are taken as equal.

Regions are columns: a hundred thousand of them share a few cuts of an axis. For an array that is
read in boxes, the decoded work is counted in blocks: a block that several boxes touch is decoded
for each. The estimate ignores that a task reads all blocks of a chunk if it touches nearly all
(`plan.NEARLY_ALL`), since this adds little.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from b2nd_dask.format.chunk.chunk_header import HEADER_LEN, head_nbytes
from b2nd_dask.format.grid import AxisCells, Grid
from b2nd_dask.format.index import ChunkKind
from b2nd_dask.frame.open.cache import OpenedFrame
from b2nd_dask.frame.open.opening import ParsedFrame
from b2nd_dask.frame.read.buffers import BOX_NBYTES, MAX_SCRATCH_NBYTES
from b2nd_dask.frame.read.plan import (
    Axes,
    ReadLimits,
    blocks_at,
    is_in_one_round,
    located_chunks,
    reads_in_boxes,
    touched_along,
    witnesses,
)


class Region(NamedTuple):
    """A region to read: ascending positions along each axis."""

    axes: Axes
    claims: Axes = ()
    """See `RegionPlan`; a region claims its own positions by default."""
    is_decoded: bool = True
    """False for whole chunks that are only fetched."""


#: Visits of chunks to process together, unless a single region has more.
_BATCH = 1 << 20
#: The limits of local files.
_LOCAL = ReadLimits(max_gap=0, batch_nbytes=1 << 20, is_far=False)


@dataclass(frozen=True, eq=False)
class ReadCosts:
    """Cost of reads, with a row for each region."""

    visits: NDArray[np.int64]
    """Number of chunks with data."""
    constants: NDArray[np.int64]
    """Number of chunks that the index marks as zeros, NaN or never written: they are not read."""
    blocks: NDArray[np.int64]
    """Number of blocks to decode, which include the padding of chunks."""
    fetched: NDArray[np.float64]
    """Bytes to fetch."""
    buffers: NDArray[np.float64]
    """Most bytes that are fetched at a time."""
    largest: NDArray[np.int64]
    """Most bytes that are decoded at a time."""
    whole: NDArray[np.bool_]
    """Whether the region consists of whole chunks with elements in C order."""
    direct: NDArray[np.bool_]
    """Whether the chunks are decoded directly into the result, without a scratch buffer."""
    nchunks: int
    """Number of chunks of the frame that are read."""


def read_costs(opened: OpenedFrame, regions: Sequence[Region]) -> ReadCosts:
    """Estimate the cost of reading regions."""
    parsed, limits = opened.parsed, ReadLimits.of(opened)
    stored = _Stored(
        parsed.grid,
        parsed.index.kinds,
        None if parsed.index.single_kind else _compressed_lengths(parsed),
        limits,
        opened.verify is True,
        opened.digests,
        reads_in_boxes(parsed, limits.batch_nbytes),
    )
    return stored.costs(regions)


def uncompressed_costs(grid: Grid, regions: Sequence[Region]) -> ReadCosts:
    """Estimate the cost of reading regions of a future local frame, as if it were uncompressed."""
    kinds = np.full(grid.nchunks, ChunkKind.STORED, np.uint8)
    lengths = np.full(grid.nchunks, float(HEADER_LEN + grid.chunk_nbytes))
    # any element may be the witness
    digests = np.zeros(kinds.size, np.uint64)
    in_boxes = grid.chunk_nbytes > MAX_SCRATCH_NBYTES
    return _Stored(grid, kinds, lengths, _LOCAL, False, digests, in_boxes).costs(regions)


class _AxisCuts:
    """The cuts of regions by the chunks of one axis; equal cuts are computed once."""

    def __init__(self, chunk: int, padded: int, block: int, along: Iterable[range]) -> None:
        known: dict[range, int] = {}
        self.which = np.array([known.setdefault(each, len(known)) for each in along], np.int64)
        cut = [AxisCells(positions, chunk) for positions in known]
        touched: dict[tuple[int, ...], int] = {}
        parts = (tuple(touched_along(part.inner, block)) for cells in cut for part in cells)
        self.patterns = np.array([touched.setdefault(t, len(touched)) for t in parts], np.int64)
        """Pattern of touched blocks for each cell, for all cuts one after the other."""
        self.touched = list(touched)
        self.numbers = np.concatenate([np.zeros(0, np.int64), *(cells.numbers for cells in cut)])
        self.lengths = np.array([len(cells) for cells in cut], np.int64)
        self.starts = np.cumsum(self.lengths) - self.lengths
        # ranges of one element are equal whatever their steps are
        whole = [
            (p.step == 1 or len(p) == 1) and p.start % padded == 0 and len(p) % padded == 0
            for p in known
        ]
        self.whole = np.array(whole, np.bool_)
        """Whether each cut has whole chunks only."""


class _Visits(NamedTuple):
    """Visits of chunks by some regions."""

    rows: NDArray[np.int64]
    """Numbers of the regions."""
    chunks: NDArray[np.int64]
    patterns: NDArray[np.int64]
    """Touched blocks of each chunk, as a pattern number for `_Cuts.blocks_of`."""


class _Cuts:
    """The cuts of regions along all axes."""

    def __init__(self, grid: Grid, regions: Sequence[Region]) -> None:
        self._grid = grid
        ends = [[(r.start, r.stop, r.step) for r in each.claims or each.axes] for each in regions]
        self.claims = np.array(ends, np.int64).reshape(len(regions), grid.ndim, 3)
        """Start, stop and step of the positions that each region claims along each axis."""
        self.decoded = np.array([each.is_decoded for each in regions], np.bool_)
        """Whether each region is decoded."""
        boxes = (each.axes for each in regions)
        along = zip(*boxes, strict=True) if regions else ((),) * grid.ndim
        self.axes = list(map(_AxisCuts, grid.chunks, grid.padded_chunk, grid.blocks, along))
        self.whole = np.full(len(regions), grid.chunk_is_c_order)
        """Whether each region consists of whole chunks with elements in C order."""
        for axis in self.axes:
            self.whole &= axis.whole[axis.which]
        counts = [axis.lengths[axis.which] for axis in self.axes]
        self.counts = np.array(counts, np.int64).reshape(grid.ndim, len(regions)).T
        """Number of touched chunks along each axis for each region."""
        self.totals: NDArray[np.int64] = self.counts.prod(axis=1)
        """Number of touched chunks of each region."""

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
        return _Visits(rows, chunks, patterns)

    def blocks_of(self, pattern: int) -> NDArray[np.int64] | None:
        """Ascending numbers of the blocks of a pattern; None for whole chunks."""
        numbers = np.unravel_index(pattern, [len(axis.touched) for axis in self.axes])
        touched = [axis.touched[at] for axis, at in zip(self.axes, numbers, strict=True)]
        return blocks_at(touched, self._grid)


class _Stored(NamedTuple):
    """Storage of a frame's chunks, limits of its reader, and the costs of reads."""

    grid: Grid
    kinds: NDArray[np.uint8]
    lengths: NDArray[np.float64] | None
    """Compressed bytes of each chunk; None if no chunk has data."""
    limits: ReadLimits
    fetches_whole: bool
    """Whether chunks are always fetched as a whole."""
    digests: NDArray[np.uint64] | None
    """Checksums of the chunks; a chunk whose witness is read is fetched as a whole."""
    in_boxes: bool
    """Whether chunks are decoded in boxes of blocks, unless directly into the result."""

    def costs(self, regions: Sequence[Region]) -> ReadCosts:
        """Estimate the cost of reading regions."""
        cuts = _Cuts(self.grid, regions)
        direct = cuts.whole & (cuts.counts[:, 1:] == 1).all(axis=1)
        columns: dict[str, Any] = {"whole": cuts.whole, "direct": direct}
        if self.lengths is None:
            # read-only columns may share memory
            none, nothing = (np.broadcast_to(zero, len(regions)) for zero in (np.int64(0), 0.0))
            columns |= dict.fromkeys(("visits", "blocks", "largest"), none)
            columns |= dict.fromkeys(("fetched", "buffers"), nothing)
            return ReadCosts(**columns, constants=cuts.totals, nchunks=0)
        is_read = np.zeros(len(self.kinds), np.bool_)
        found = []
        for visits in cuts.visits():
            found.append(self._costs(visits, cuts, self.lengths[visits.chunks], direct))
            is_read[visits.chunks] = True
        is_read &= self.kinds == ChunkKind.STORED
        columns |= {name: sum(each[name] for each in found) for name in found[0]}
        return ReadCosts(**columns, nchunks=int(is_read.sum()))

    def _costs(
        self, visits: _Visits, cuts: _Cuts, lengths: NDArray[np.float64], direct: NDArray[np.bool_]
    ) -> dict[str, NDArray[Any]]:
        """Columns of `ReadCosts`; `lengths` are the compressed bytes of the visited chunks."""
        grid, rows = self.grid, visits.rows

        def total(values: NDArray[Any], dtype: Any = np.int64) -> NDArray[Any]:
            return np.bincount(rows, values, len(direct)).astype(dtype)

        def most(values: NDArray[Any]) -> NDArray[Any]:
            found = np.zeros(len(direct), values.dtype)
            np.maximum.at(found, rows, values)
            return found

        stored = self.kinds[visits.chunks] == ChunkKind.STORED
        blocks, fetched, copied = self._fetched(visits, cuts, lengths)
        # a header and one element: all elements are equal, and nothing is decoded
        repeated = (lengths == HEADER_LEN + grid.itemsize) & (grid.chunk_nbytes > grid.itemsize)
        blocks = np.where(stored & ~repeated & cuts.decoded[rows], blocks, 0)
        largest = most(blocks) * grid.block_nbytes
        if self.in_boxes:
            # a chunk is verified first, then the blocks of each box are fetched
            is_whole = blocks == math.prod(grid.blocks_per_chunk)
            again = ~direct[rows] & is_whole & (self.digests is not None)
            fetched += np.where(again, lengths, 0.0)
            divided = ~direct & (largest > MAX_SCRATCH_NBYTES)
            largest = np.where(divided, max(BOX_NBYTES, grid.block_nbytes), largest)
        at_once = self.limits.batch_nbytes + most(lengths + copied)
        return {
            "visits": total(stored),
            "constants": total(~stored),
            "blocks": total(blocks),
            "fetched": total(fetched, float),
            "largest": largest,
            "buffers": np.minimum(total(fetched + copied, float), at_once),
        }

    def _fetched(
        self, visits: _Visits, cuts: _Cuts, lengths: NDArray[np.float64]
    ) -> tuple[NDArray[np.int64], NDArray[np.float64], NDArray[np.float64]]:
        """Blocks to decode and bytes to fetch of each visit, and the fetched bytes to copy."""
        nblocks = math.prod(self.grid.blocks_per_chunk)
        patterns, which = np.unique(visits.patterns, return_inverse=True)
        wanted = [cuts.blocks_of(pattern) for pattern in patterns.tolist()]
        counts = np.array([nblocks if each is None else len(each) for each in wanted], np.int64)
        blocks = counts[which]
        partial = np.array([each is not None for each in wanted], np.bool_)[which]
        partial &= cuts.decoded[visits.rows]
        verified = self._verified(visits, cuts)
        requests = np.bincount(visits.rows, partial & ~verified & (lengths > 0))[visits.rows]
        in_vain = self.limits.most_in_vain(requests)
        some = lengths.copy()
        for number, each in enumerate(wanted):
            if each is not None:
                here = which == number
                some[here] = self._of_blocks(lengths[here], each)
        in_one_round = ~partial | is_in_one_round(lengths, blocks / nblocks, in_vain)
        some = np.where(in_one_round, lengths, some)
        # a long chunk is verified first, then its blocks are fetched; for other chunks they are
        # copied from the verified bytes
        again = partial & verified & (lengths > self.limits.batch_nbytes)
        fetched = np.where(verified, lengths, some) + np.where(again, some, 0.0)
        copied = np.where(partial & verified & ~again, lengths * blocks / nblocks, 0.0)
        return blocks, fetched, copied

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
            fetched += np.where(gap * block <= self.limits.max_gap, count * gap * block, 0)
        return fetched

    def _verified(self, visits: _Visits, cuts: _Cuts) -> NDArray[np.bool_]:
        """Whether each visit fetches its chunk as a whole to verify it."""
        chunks, digests = visits.chunks, self.digests
        if digests is None or self.fetches_whole:
            return np.full(chunks.shape, self.fetches_whole)
        found = np.ones(chunks.shape, np.bool_)
        positions = witnesses(chunks, digests[chunks], self.grid)
        for axis, at in enumerate(positions):
            start, stop, step = cuts.claims[visits.rows, axis].T
            found &= (start <= at) & (at < stop) & ((at - start) % step == 0)
        return found


def _compressed_lengths(frame: ParsedFrame) -> NDArray[np.float64]:
    """Compressed bytes of each chunk; for a sparse frame their mean, since its index has none."""
    kinds = frame.index.kinds
    lengths = np.zeros(kinds.size)
    stored = np.flatnonzero(kinds == ChunkKind.STORED)
    if frame.header.sparse:
        lengths[stored] = frame.header.cbytes / max(1, len(stored))
    else:
        _, lengths[stored] = located_chunks(frame, stored)
    return lengths
