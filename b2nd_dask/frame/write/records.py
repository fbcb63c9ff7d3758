"""Boxes of chunks, and records of chunks: index entry and location in the staging area.

A task returns rows for the chunks that it has staged, and the rows are merged. The commit copies
the entry of each row into the table of all chunks of the frame.

A manifest is a small file in the staging area with the rows of a box of staged chunks. With
`resume` each task writes one; the write of a part of a pending frame also writes one. A resumed
write, or the commit of parts, reads the manifests, and verifies the staged bytes by their digests.
"""

from __future__ import annotations

import math
import re
import struct
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple, Self

import numpy as np
import xxhash
from numpy.typing import NDArray

from b2nd_dask.errors import B2ndError
from b2nd_dask.format.chunk.chunk_header import HEADER_LEN, chunk_digest
from b2nd_dask.format.grid import Grid
from b2nd_dask.format.index import INDEX_KINDS, special_code
from b2nd_dask.format.statistics import statistics_row
from b2nd_dask.storage import Run, Staging

#: First fields of a manifest: magic, number of parts. Then follow the names of the parts, the rows,
#: and a digest of all.
_FRONT = struct.Struct("<8sQ")
_MAGIC = b"b2ndrow2"
_NAME = np.dtype("S40")
_DIGEST_NBYTES = 8
#: Names of staged files. A manifest must not name others, which may lie outside of its area.
_PART = re.compile(rb"[0-9a-f]{32}(\.part|\.chunk)?")
#: Names of manifests, with the numbers of the first and of the last chunk.
MANIFEST = re.compile(r"part-([0-9a-f]{1,8})-([0-9a-f]{1,8})")
_CODES = [0, *map(special_code, INDEX_KINDS)]
#: Most regions that an error lists.
_MOST_LISTED = 5
#: Most bytes and rows that one thread verifies at a time.
_BATCH_NBYTES, _BATCH_ROWS = 32 << 20, 4096
_THREADS = 4
#: Most manifests to read concurrently; in stores each is a request.
_READERS = 32


@lru_cache
def row_dtype(elements: np.dtype[Any] | None = None) -> np.dtype[Any]:
    """Build the dtype of the rows, with statistics if a dtype of elements is given.

    An `entry` has a chunk's offset (or a special code), its checksum and its statistics. A chunk
    that is not stored has checksum 0 and unknown statistics.
    """
    statistics = [] if elements is None else [("statistics", statistics_row(elements))]
    entry = np.dtype([("offset", "<i8"), ("digest", "<u8"), *statistics])
    where = [(name, "<i8") for name in ("chunk", "part", "start", "nbytes")]
    return np.dtype([*where, ("entry", entry)])


class ChunkBox(NamedTuple):
    """The chunks of a region, by their coordinates in the chunk grid."""

    along: tuple[range, ...]

    @classmethod
    def of(cls, origin: tuple[int, ...], shape: tuple[int, ...], grid: Grid) -> Self:
        """Find the chunks that a region of elements touches."""
        if 0 in shape:
            return cls(tuple(range(0) for _ in shape))
        axes = zip(origin, shape, grid.chunks, strict=True)
        return cls(tuple(range(at // c, -(-(at + n) // c)) for at, n, c in axes))

    @classmethod
    def between(cls, first: int, last: int, grid: Grid) -> Self:
        """Build the box with these first and last chunks, without chunks if there are none."""
        if not first <= last < grid.nchunks:
            return cls((range(0),) * grid.ndim)
        ends = zip(grid.cell(first), grid.cell(last), strict=True)
        return cls(tuple(range(a, b + 1) for a, b in ends))

    @property
    def nchunks(self) -> int:
        """Number of chunks; the box of a 0-d array has one."""
        return math.prod(map(len, self.along))

    def within(self, grid: Grid) -> ChunkBox:
        """The chunks that exist in a grid."""
        return self.common(ChunkBox(tuple(map(range, grid.counts))))

    def chunks(self, grid: Grid) -> NDArray[np.int64]:
        """Number the chunks, ascending."""
        return grid.chunk_numbers(np.arange(cells.start, cells.stop) for cells in self.along)

    def ends(self, grid: Grid) -> tuple[int, int]:
        """Compute the first and last chunk number; the last is smaller for an empty box."""
        if not self.nchunks:
            return 1, 0
        corners = grid.chunk_numbers(np.array([cells[0], cells[-1]]) for cells in self.along)
        return int(corners[0]), int(corners[-1])

    def common(self, other: ChunkBox) -> ChunkBox:
        """Compute the intersection of two boxes."""
        pairs = zip(self.along, other.along, strict=True)
        return ChunkBox(tuple(range(max(a.start, b.start), min(a.stop, b.stop)) for a, b in pairs))

    def axes(self, grid: Grid) -> tuple[range, ...]:
        """Positions of the elements of the chunks along each axis."""
        axes = zip(self.along, grid.chunks, grid.shape, strict=True)
        return tuple(range(cells.start * c, min(cells.stop * c, n)) for cells, c, n in axes)

    def region(self, grid: Grid) -> str:
        """Format the positions as a NumPy index."""
        return "[" + ", ".join(f"{axis.start}:{axis.stop}" for axis in self.axes(grid)) + "]"


@dataclass(frozen=True, eq=False, slots=True)
class ChunkRecords:
    """Rows of the table: chunks that are staged or repeat one element."""

    parts: tuple[str, ...]
    """Names of the parts of the staging area."""
    rows: NDArray[Any]
    """One per chunk. Stored chunks have offset 0 until the commit. `part` is a position in `parts`,
    -1 for other chunks."""

    @classmethod
    def of_special(
        cls, row: np.dtype[Any], chunks: Sequence[int] | NDArray[np.int64] = (), code: int = 0
    ) -> Self:
        """Build records of chunks with one special code; by default there are no chunks."""
        rows = np.zeros(len(chunks), row)
        rows["chunk"], rows["part"], rows["entry"]["offset"] = chunks, -1, code
        return cls((), rows)

    def to_bytes(self) -> bytes:
        """Build a manifest."""
        front = _FRONT.pack(_MAGIC, len(self.parts))
        names = np.array([part.encode() for part in self.parts], _NAME)
        return with_digest(front + names.tobytes() + self.rows.tobytes())

    @classmethod
    def from_bytes(cls, raw: bytes, row: np.dtype[Any], nchunks: int) -> Self | None:
        """Parse a manifest of chunks of a frame; None if it is invalid."""
        body = body_of(raw, _MAGIC)
        if body is None or len(body) < _FRONT.size:
            return None
        _, count = _FRONT.unpack_from(body)
        start = _FRONT.size + count * _NAME.itemsize
        if start > len(body) or (len(body) - start) % row.itemsize:
            return None
        names = np.frombuffer(body, _NAME, count, _FRONT.size).tolist()
        rows = np.frombuffer(body, row, offset=start)
        if not all(map(_PART.fullmatch, names)) or not _are_possible(rows, count, nchunks):
            return None
        return cls(tuple(name.decode() for name in names), rows)


def with_digest(body: bytes) -> bytes:
    """Append a digest to a small file of the staging area, which reveals damage."""
    return body + xxhash.xxh3_64_digest(body)


def body_of(raw: bytes, magic: bytes) -> bytes | None:
    """Remove the digest of a small file with this magic; None if the file is damaged."""
    body = raw[:-_DIGEST_NBYTES]
    return body if body.startswith(magic) and with_digest(body) == raw else None


def _are_possible(rows: NDArray[Any], nparts: int, nchunks: int) -> bool:
    """Whether the rows of a manifest are valid for a frame, with one row for each chunk."""
    chunk, part, code = rows["chunk"], rows["part"], rows["entry"]["offset"]
    stored = code == 0
    good = (chunk >= 0) & (chunk < nchunks) & (rows["start"] >= 0)
    good &= rows["nbytes"] >= np.where(stored, HEADER_LEN, 0)
    good &= np.isin(code, _CODES) & (part < nparts) & (part >= np.where(stored, 0, -1))
    return bool(good.all()) and len(np.unique(chunk)) == len(rows)


def merge_records(tables: Sequence[ChunkRecords]) -> ChunkRecords:
    """Merge records with the same row dtype, at least one."""
    parts = tuple(dict.fromkeys(name for table in tables for name in table.parts))
    number = {name: i for i, name in enumerate(parts)}
    # by default NumPy would convert the columns to native byte order
    merged = np.concatenate([table.rows for table in tables], dtype=tables[0].rows.dtype)
    # the last entry maps the -1 of special chunks to itself
    renumbered = [np.array([*(number[name] for name in table.parts), -1]) for table in tables]
    part = [new[table.rows["part"]] for table, new in zip(tables, renumbered, strict=True)]
    merged["part"] = np.concatenate(part)
    return ChunkRecords(parts, merged)


def require_all(
    records: ChunkRecords, chunks: NDArray[np.int64], label: str, outcome: str = "not published"
) -> None:
    """Raise B2ndError unless each of some ascending chunks has a record."""
    if not np.array_equal(np.sort(records.rows["chunk"]), chunks):
        raise B2ndError(
            f"{len(records.rows)} chunk records for {len(chunks)} chunks: {outcome}",
            path=label,
        )


def put_manifest(records: ChunkRecords, staging: Staging, *, fsync: bool) -> None:
    """Write the manifest of some chunks into the staging area; it replaces one of the same box.

    With `fsync`, it is on the disk at return.
    """
    chunks = records.rows["chunk"]
    if len(chunks):
        name = f"part-{chunks.min():x}-{chunks.max():x}"
        staging.put(name, records.to_bytes(), fsync=fsync)


def read_manifests(staging: Staging) -> dict[str, bytes]:
    """Read all manifests of a staging area, by their names."""
    names = [name for name in staging.names() if MANIFEST.fullmatch(name)]

    def read(name: str) -> bytes:
        try:
            return staging.get(name)
        except FileNotFoundError:
            # another run of this write ended meanwhile
            return b""

    with ThreadPoolExecutor(_READERS) as threads:
        return dict(zip(names, threads.map(read, names), strict=True))


def boxes_of(names: Iterable[str], grid: Grid) -> list[ChunkBox]:
    """Parse the boxes of all staged parts from the names of their manifests."""
    named = filter(None, map(MANIFEST.fullmatch, names))
    ends = sorted((int(match[1], 16), int(match[2], 16)) for match in named)
    boxes = (ChunkBox.between(first, last, grid) for first, last in ends)
    return [box for box in boxes if box.nchunks]


def require_disjoint(pairs: Iterable[tuple[ChunkBox, ChunkBox]], grid: Grid, label: str) -> None:
    """Check that the parts of each pair do not overlap."""
    found = [(a, b) for a, b in pairs if a.common(b).nchunks]
    if found:
        named = [f"{a.region(grid)} and {b.region(grid)}" for a, b in found]
        raise B2ndError(
            f"parts overlap: {listed(named)}. Parts must be disjoint; only the same part may be "
            "staged again. To start again, remove all parts by remove_staging",
            path=label,
        )


def staged_records(
    manifests: Iterable[bytes], staging: Staging, row: np.dtype[Any], nchunks: int
) -> ChunkRecords:
    """Read records of chunks from manifests; keep those whose staged bytes are undamaged.

    Each chunk gets one row of the dtype `row`; the frame has `nchunks` chunks.
    """
    tables = (ChunkRecords.from_bytes(raw, row, nchunks) for raw in manifests)
    found = merge_records([ChunkRecords.of_special(row), *filter(None, tables)])
    intact = found.rows[are_intact(found, staging)]
    # regions may overlap if runs had different memory limits
    _, first = np.unique(intact["chunk"], return_index=True)
    return ChunkRecords(found.parts, intact[first])


def are_intact(records: ChunkRecords, staging: Staging) -> NDArray[np.bool_]:
    """Verify the staged bytes of each record; reads all of them."""
    rows = records.rows
    good = np.ones(len(rows), np.bool_)

    def compare(some: NDArray[np.int64]) -> None:
        runs = [
            Run(records.parts[part], start, start + nbytes)
            for part, start, nbytes in rows[some][["part", "start", "nbytes"]].tolist()
        ]
        found = [chunk_digest(chunk) for chunk in staging.fetch(runs)]
        good[some] = rows["entry"]["digest"][some] == np.array(found, np.uint64)

    with ThreadPoolExecutor(_THREADS) as threads:
        list(threads.map(compare, _batches(rows)))
    return good


def _batches(rows: NDArray[Any]) -> Iterator[NDArray[np.int64]]:
    """Yield numbers of the rows of stored chunks in batches, in the order of parts and offsets."""
    stored = np.flatnonzero(rows["entry"]["offset"] == 0)
    order = stored[np.lexsort((rows["start"][stored], rows["part"][stored]))]
    filled = np.cumsum(rows["nbytes"][order]) // _BATCH_NBYTES
    filled += np.arange(len(order)) // _BATCH_ROWS
    yield from np.split(order, np.flatnonzero(np.diff(filled)) + 1)


def regions_of(missing: NDArray[np.bool_], grid: Grid) -> str:
    """Format the regions of missing chunks as boxes."""
    left = missing.reshape(grid.counts).copy()
    regions: list[str] = []
    while left.any() and len(regions) <= _MOST_LISTED:
        box = _first_box(left)
        left.reshape(-1)[box.chunks(grid)] = False
        regions.append(box.region(grid))
    return listed(regions)


def listed(regions: Sequence[str]) -> str:
    """Format a list of regions for an error; of many, only the first ones."""
    return ", ".join(regions[:_MOST_LISTED]) + " and others" * (len(regions) > _MOST_LISTED)


def _first_box(mask: NDArray[np.bool_]) -> ChunkBox:
    """Find a box of true entries that starts at the first of them."""
    start = tuple(int(at) for at in np.unravel_index(int(np.argmax(mask)), mask.shape))
    stop = [at + 1 for at in start]
    # the last axis first, since its chunks are consecutive
    for axis in reversed(range(mask.ndim)):
        while stop[axis] < mask.shape[axis]:
            beside = [slice(a, b) for a, b in zip(start, stop, strict=True)]
            beside[axis] = slice(stop[axis], stop[axis] + 1)
            if not mask[tuple(beside)].all():
                break
            stop[axis] += 1
    return ChunkBox(tuple(map(range, start, stop)))
