"""What reading regions takes, before anything is read: chunks, blocks, bytes.

All follows from the offset index and the grid. One thing does not: how long the compressed blocks
of a chunk are. They count as equal parts of it.

Regions are columns: a hundred thousand of them share a few ways in which an axis is cut.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from b2nd_dask.format.chunk.blocks import head_nbytes
from b2nd_dask.format.chunk.chunk_header import HEADER_LEN, longest_chunk
from b2nd_dask.format.grid import AxisCells, Grid
from b2nd_dask.format.index import ChunkKind
from b2nd_dask.frame.open.opening import OpenedFrame, ParsedFrame
from b2nd_dask.frame.read.buffers import BOX_NBYTES, MAX_SCRATCH_NBYTES
from b2nd_dask.frame.read.chunk_requests import most_in_vain, witnesses
from b2nd_dask.frame.read.plan import is_nearly_all, reads_in_boxes, touched_along


class ChunkRange(NamedTuple):
    """Whole chunks that are fetched and not decoded, by their numbers."""

    first: int
    last: int
    """Not included."""


Region = tuple[range, ...] | ChunkRange
#: Visits of chunks that are looked at together.
_BATCH = 1 << 20
#: What readers of local files have as `max_gap` and `batch_nbytes`; and they are not far.
_LOCAL = 512, 1 << 20, False


@dataclass(frozen=True, eq=False)
class ReadCosts:
    """What reading takes, with a row for each region."""

    visits: NDArray[np.int64]
    """Chunks with data."""
    constants: NDArray[np.int64]
    """Chunks that the index marks as zeros, NaN or never written: they are not read."""
    blocks: NDArray[np.int64]
    """Blocks to decode."""
    fetched: NDArray[np.float64]
    """Bytes to fetch."""
    decoded: NDArray[np.int64]
    """Bytes to decode, padding included."""
    buffers: NDArray[np.float64]
    """Bytes that are fetched at a time."""
    largest: NDArray[np.int64]
    """Bytes that are decoded at a time."""
    direct: NDArray[np.bool_]
    """Whether they are decoded to where their elements belong, without a scratch buffer."""
    touched: NDArray[np.bool_]
    """For each chunk of the frame whether its data are read; no row for each region."""


def read_costs(opened: OpenedFrame, regions: Sequence[Region]) -> ReadCosts:
    """Say what reading takes.

    Parameters
    ----------
    regions : sequence of tuple of range, or of ChunkRange
        Ascending positions along each axis.
    """
    index, reader = opened.parsed.index, opened.reader
    constant = bool(index.single_kind)
    lengths = np.zeros(0) if constant else _compressed_lengths(opened.parsed)
    stored = _Stored(
        opened.parsed.grid,
        index.kinds,
        lengths,
        constant,
        reader.max_gap,
        reader.batch_nbytes,
        not reader.identity_is_cheap,
        opened.verify is True,
        opened.digests,
        reads_in_boxes(opened.parsed, reader.batch_nbytes),
    )
    return _costs(stored, regions)


def uncompressed_costs(grid: Grid, regions: Sequence[Region]) -> ReadCosts:
    """Say what reading a local frame takes that is not there yet, as if nothing compressed.

    Parameters
    ----------
    grid : Grid
        Of the frame.
    regions
        As for `read_costs`.
    """
    kinds = np.full(grid.nchunks, ChunkKind.STORED, np.uint8)
    lengths = np.full(grid.nchunks, float(HEADER_LEN + grid.chunk_nbytes))
    # any element may be the witness
    digests = np.zeros(kinds.size, np.uint64)
    in_boxes = grid.chunk_nbytes > MAX_SCRATCH_NBYTES
    stored = _Stored(grid, kinds, lengths, False, *_LOCAL, False, digests, in_boxes)
    return _costs(stored, regions)


def _costs(frame: _Stored, regions: Sequence[Region]) -> ReadCosts:
    count, number = len(regions), frame.kinds.size
    costs = ReadCosts(
        visits=np.zeros(count, np.int64),
        constants=np.zeros(count, np.int64),
        blocks=np.zeros(count, np.int64),
        fetched=np.zeros(count),
        decoded=np.zeros(count, np.int64),
        buffers=np.zeros(count),
        largest=np.zeros(count, np.int64),
        direct=np.zeros(count, np.bool_),
        touched=np.zeros(0 if frame.is_constant else number, np.bool_),
    )
    whole = {row: found for row, found in enumerate(regions) if isinstance(found, ChunkRange)}
    nothing = (range(0),) * frame.grid.ndim
    boxes = [nothing if isinstance(found, ChunkRange) else found for found in regions]
    cuts = _Cuts(frame.grid, boxes)
    if frame.is_constant:
        costs.constants[:] = cuts.counts.prod(axis=1)
        for row, (first, last) in whole.items():
            costs.constants[row] = last - first
        return costs
    costs.direct[:] = [is_direct(frame.grid, box) for box in boxes]
    costs.direct[:] &= (cuts.counts[:, 1:] == 1).all(axis=1)
    for rows in cuts.alike():
        visits = cuts.visits(rows)
        for name, values in frame.costs(visits, cuts, costs.direct[rows]).items():
            getattr(costs, name)[rows] = values
        stored = visits.numbers[frame.kinds[visits.numbers] == ChunkKind.STORED]
        costs.touched[stored] = True
    for row, found in whole.items():
        frame.fetch_whole(found, row, costs)
    return costs


class _Visits(NamedTuple):
    """Chunks of some regions that are cut into as many along each axis."""

    numbers: NDArray[np.int64]
    """Of chunks: a row for each region."""
    patterns: NDArray[np.int64]
    """Which blocks of each chunk are touched, by numbers for `_Cuts.blocks_of`."""
    regions: NDArray[np.int64]
    """Start, stop and step of the positions along each axis: a row for each region."""


class _Cuts:
    """How regions are cut by chunks along each axis; equal cuts are made once."""

    def __init__(self, grid: Grid, regions: Sequence[tuple[range, ...]]) -> None:
        self._grid = grid
        self._touched: list[dict[tuple[int, ...], int]] = [{} for _ in grid.shape]
        known: list[dict[range, int]] = [{} for _ in grid.shape]
        self._cells: list[list[NDArray[np.int64]]] = [[] for _ in grid.shape]
        self._patterns: list[list[NDArray[np.int64]]] = [[] for _ in grid.shape]
        rows = np.zeros((len(regions), grid.ndim), np.int64)
        for row, region in enumerate(regions):
            for axis, positions in enumerate(region):
                if positions not in known[axis]:
                    known[axis][positions] = len(known[axis])
                    self._cut(axis, positions)
                rows[row, axis] = known[axis][positions]
        self._rows = rows
        self._regions = np.array(
            [[(along.start, along.stop, along.step) for along in region] for region in regions],
            np.int64,
        ).reshape(len(regions), grid.ndim, 3)
        lengths = [np.array([len(c) for c in along] or [0]) for along in self._cells]
        #: Chunks along each axis that each region touches.
        self.counts = (
            np.stack([along[rows[:, axis]] for axis, along in enumerate(lengths)], axis=1)
            if grid.ndim
            else np.zeros((len(regions), 0), np.int64)
        )

    def _cut(self, axis: int, positions: range) -> None:
        parts = AxisCells(positions, self._grid.chunks[axis])
        numbers = self._touched[axis]
        along = []
        for part in parts:
            touched = tuple(touched_along(part.inner, self._grid.blocks[axis]))
            along.append(numbers.setdefault(touched, len(numbers)))
        self._cells[axis].append(parts.numbers)
        self._patterns[axis].append(np.array(along, np.int64))

    def alike(self) -> Iterator[NDArray[np.int64]]:
        """Numbers of regions that touch as many chunks along each axis, some at a time."""
        if not self._grid.ndim:
            yield np.arange(len(self.counts))
        if not self.counts.size:
            return
        shapes, which = np.unique(self.counts, axis=0, return_inverse=True)
        for number, shape in enumerate(shapes):
            rows = np.flatnonzero(which.reshape(-1) == number)
            if 0 in shape:
                continue
            step = max(1, _BATCH // math.prod(shape.tolist()))
            yield from (rows[at : at + step] for at in range(0, len(rows), step))

    def visits(self, rows: NDArray[np.int64]) -> _Visits:
        """Chunks that regions touch, which are alike."""
        numbers = np.zeros((len(rows), 1), np.int64)
        patterns = np.zeros((len(rows), 1), np.int64)
        for axis, count in enumerate(self._grid.counts):
            distinct, which = np.unique(self._rows[rows, axis], return_inverse=True)
            cells = np.stack([self._cells[axis][i] for i in distinct])[which]
            along = np.stack([self._patterns[axis][i] for i in distinct])[which]
            numbers = (numbers[:, :, None] * count + cells[:, None]).reshape(len(rows), -1)
            radix = len(self._touched[axis])
            patterns = (patterns[:, :, None] * radix + along[:, None]).reshape(len(rows), -1)
        return _Visits(numbers, patterns, self._regions[rows])

    def blocks_of(self, pattern: int) -> NDArray[np.int64]:
        """Ascending numbers of the blocks that a pattern touches."""
        along: list[tuple[int, ...]] = []
        for touched in reversed(self._touched):
            pattern, last = divmod(pattern, len(touched))
            along.insert(0, next(found for found, number in touched.items() if number == last))
        numbers = np.zeros(1, np.int64)
        for found, count in zip(along, self._grid.blocks_per_chunk, strict=True):
            numbers = (numbers[:, None] * count + np.array(found, np.int64)).reshape(-1)
        return numbers


class _Stored(NamedTuple):
    """How the chunks of a frame are stored, how its reader reads them, and what that costs."""

    grid: Grid
    kinds: NDArray[np.uint8]
    lengths: NDArray[np.float64]
    """Compressed bytes of each chunk."""
    is_constant: bool
    """Whether no chunk has data."""
    max_gap: int
    batch_nbytes: int
    is_far: bool
    """Whether the frame lies in a store."""
    fetches_whole: bool
    """Whether chunks are always fetched as a whole."""
    digests: NDArray[np.uint64] | None
    """Checksums of the chunks; those whose witness is read are fetched as a whole."""
    in_boxes: bool
    """Whether chunks are decoded in boxes of blocks, unless to where their elements belong."""

    def costs(
        self, visits: _Visits, cuts: _Cuts, direct: NDArray[np.bool_]
    ) -> dict[str, NDArray[Any]]:
        """Costs of each row of visits, by the names of `ReadCosts`."""
        grid = self.grid
        stored = self.kinds[visits.numbers] == ChunkKind.STORED
        lengths = np.where(stored, self.lengths[visits.numbers], 0.0)
        # a header and one element: all elements are equal, and nothing is decoded
        repeated = (lengths == HEADER_LEN + grid.itemsize) & (grid.chunk_nbytes > grid.itemsize)
        filled = stored & ~repeated
        nblocks, blocks = math.prod(grid.blocks_per_chunk), np.zeros(stored.shape, np.int64)
        fetched, copied = lengths.copy(), np.zeros(stored.shape)
        verified = self._verified(visits)
        most = self._most_in_vain(visits, cuts, stored & ~verified)
        for pattern in np.unique(visits.patterns).tolist():
            here = visits.patterns == pattern
            numbers = cuts.blocks_of(pattern)
            if is_nearly_all(len(numbers), grid):
                blocks[here] = nblocks
                continue
            blocks[here] = len(numbers)
            some = here & ~verified
            fetched[some] = self._fetched(lengths[some], numbers, most[some])
            # a long chunk is verified first, and then its blocks are fetched; of others they are
            # copied out of the chunk
            long = here & verified & (lengths > self.batch_nbytes)
            fetched[long] += self._fetched(lengths[long], numbers, most[long])
            short = here & verified & ~long
            copied[short] = lengths[short] * len(numbers) / nblocks
        blocks *= filled
        largest = blocks.max(axis=1) * grid.block_nbytes
        if self.in_boxes:
            # a chunk is verified first, and then the blocks of each box are fetched
            again = ~direct[:, None] & (blocks == nblocks) & (self.digests is not None)
            fetched += np.where(again, lengths, 0.0)
            divided = ~direct & (largest > MAX_SCRATCH_NBYTES)
            largest = np.where(divided, max(BOX_NBYTES, grid.block_nbytes), largest)
        return {
            "visits": stored.sum(axis=1),
            "constants": (~stored).sum(axis=1),
            "blocks": blocks.sum(axis=1),
            "fetched": fetched.sum(axis=1),
            "decoded": blocks.sum(axis=1) * grid.block_nbytes,
            "largest": largest,
            "buffers": np.minimum(
                (fetched + copied).sum(axis=1),
                self.batch_nbytes + (lengths + copied).max(axis=1),
            ),
        }

    def _most_in_vain(
        self, visits: _Visits, cuts: _Cuts, chosen: NDArray[np.bool_]
    ) -> NDArray[np.float64]:
        """As `most_in_vain`, for each visit; of the chosen ones some blocks may be wanted."""
        patterns, which = np.unique(visits.patterns, return_inverse=True)
        some = [
            not is_nearly_all(len(cuts.blocks_of(each)), self.grid) for each in patterns.tolist()
        ]
        partial = chosen & np.array(some)[which.reshape(chosen.shape)]
        most = most_in_vain(self.max_gap, partial.sum(axis=1, keepdims=True), is_far=self.is_far)
        return np.broadcast_to(most, chosen.shape)

    def _verified(self, visits: _Visits) -> NDArray[np.bool_]:
        """Whether each visit fetches its chunk as a whole to verify it."""
        numbers, digests = visits.numbers, self.digests
        if digests is None or self.fetches_whole:
            return np.full(numbers.shape, self.fetches_whole)
        found = np.ones(numbers.shape, np.bool_)
        positions = witnesses(numbers.reshape(-1), digests[numbers.reshape(-1)], self.grid)
        for axis, flat in enumerate(positions):
            start, stop, step = visits.regions[:, axis].T[..., None]
            at = flat.reshape(numbers.shape)
            found &= (start <= at) & (at < stop) & ((at - start) % step == 0)
        return found

    def fetch_whole(self, chunks: ChunkRange, row: int, costs: ReadCosts) -> None:
        """Enter what fetching whole chunks costs, of which nothing is decoded."""
        stored = np.flatnonzero(self.kinds[chunks.first : chunks.last] == ChunkKind.STORED)
        stored += chunks.first
        costs.visits[row] = len(stored)
        costs.constants[row] = chunks.last - chunks.first - len(stored)
        costs.blocks[row] = costs.decoded[row] = costs.largest[row] = 0
        costs.fetched[row] = self.lengths[stored].sum()
        largest = self.lengths[stored].max(initial=0)
        costs.buffers[row] = min(costs.fetched[row], self.batch_nbytes + largest)
        costs.touched[stored] = True

    def _fetched(
        self, lengths: NDArray[np.float64], blocks: NDArray[np.int64], most: NDArray[np.float64]
    ) -> NDArray[np.float64]:
        """Bytes to fetch for some blocks of chunks of these compressed lengths.

        Those of which no more than `most` bytes are fetched in vain are fetched whole.
        """
        max_gap, nblocks = self.max_gap, math.prod(self.grid.blocks_per_chunk)
        head = head_nbytes(nblocks)
        block = np.maximum(lengths - head, 0) / nblocks
        fetched = np.minimum(lengths, head) + block * len(blocks)
        between, often = np.unique(np.diff(blocks) - 1, return_counts=True)
        for gap, count in zip(between.tolist(), often.tolist(), strict=True):
            # what lies between two blocks is read, too, where it is little
            fetched += np.where(gap * block <= max_gap, count * gap * block, 0)
        is_whole = lengths * (1 - len(blocks) / nblocks) <= most
        return np.where(is_whole, lengths, fetched)


def is_direct(grid: Grid, region: tuple[range, ...]) -> bool:
    """Whether a region has whole chunks alone, whose elements are stored in C order."""
    return grid.chunk_is_c_order and all(
        positions.step == 1 and positions.start % n == 0 and len(positions) % n == 0
        for positions, n in zip(region, grid.padded_chunk, strict=True)
    )


def _compressed_lengths(frame: ParsedFrame) -> NDArray[np.float64]:
    """Compressed bytes of each chunk; of a sparse frame, whose index has none, their mean."""
    kinds = frame.index.kinds
    lengths = np.zeros(kinds.size)
    stored = np.flatnonzero(kinds == ChunkKind.STORED)
    if frame.header.sparse:
        lengths[stored] = frame.header.cbytes / max(1, len(stored))
        return lengths
    starts, stops = frame.index.extents(stored)
    longest = longest_chunk(frame.grid.chunk_nbytes, frame.grid.block_nbytes)
    lengths[stored] = np.minimum(stops - starts, longest)
    return lengths
