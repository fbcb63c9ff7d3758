"""Chunk properties that need no decoding: kind, compressed bytes, codec, statistics."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from b2nd_dask.errors import B2ndError
from b2nd_dask.format.chunk.chunk_header import ChunkKind, parse_chunk_header
from b2nd_dask.format.grid import Grid
from b2nd_dask.format.index import stored_chunks
from b2nd_dask.format.statistics import ChunkStatistics, element_counts
from b2nd_dask.frame.open.opening import ParsedFrame
from b2nd_dask.frame.read.plan import located_chunks
from b2nd_dask.frame.read.scan import chunk_heads
from b2nd_dask.frame.reference import FrameReference
from b2nd_dask.storage import CHUNK_MEMBER, chunk_member

_CODEC_NAMES = {0: "blosclz", 1: "lz4", 3: "zlib", 4: "zstd"}
_AS_IS, _NO_CODEC, _UNREADABLE = "stored as is", "one value", "unreadable"
_NAMES = ("min", "max", "sum", "mean", "size", "nans", "nonzeros")


@dataclass(frozen=True, eq=False)
class ChunkTable:
    """The chunks of a frame; the columns have one row per stored chunk."""

    kinds: NDArray[np.uint8]
    """`ChunkKind` of each chunk, in the shape of the chunk grid."""
    stored: NDArray[np.int64]
    """Numbers of the stored chunks, ascending."""
    nbytes: NDArray[np.int64]
    """Bytes of each stored chunk. Without headers an upper bound, the distance to the next chunk;
    empty if that is unknown."""
    codecs: NDArray[np.uint8] | None
    """For each stored chunk, its position in `codec_names`; None if headers were not read."""
    codec_names: tuple[str, ...]
    chunk_nbytes: int
    """Uncompressed bytes of a chunk, padding included."""

    @property
    def is_exact(self) -> bool:
        """Whether the chunk headers were read."""
        return self.codecs is not None

    @cached_property
    def data(self) -> NDArray[np.bool_]:
        """Whether each stored chunk holds more than one value; all True without headers."""
        return np.equal(self.kinds.reshape(-1)[self.stored], np.uint8(ChunkKind.STORED))

    @cached_property
    def counts(self) -> dict[int, int]:
        """Number of chunks of each kind that occurs."""
        return counts_of(self.kinds)


def counts_of(codes: NDArray[np.uint8]) -> dict[int, int]:
    """Number of chunks with each code that occurs."""
    if codes.size and not any(codes.strides):
        return {int(codes.flat[0]): codes.size}
    return {code: int(n) for code, n in enumerate(np.bincount(codes.reshape(-1))) if n}


def chunk_table(reference: FrameReference, most: int | None = None) -> ChunkTable:
    """Describe the chunks of a frame.

    Reads the chunk headers if at most `most` chunks are stored, by default any number; never those
    of a frame in a store, since each may be a request. Raises `StaleFrameError` if the frame was
    changed during the call.
    """
    parsed = reference.parsed
    kinds, stored = reference.chunk_kinds(), stored_chunks(parsed.index.offsets)
    chunk_nbytes, none = parsed.grid.chunk_nbytes, np.empty(0, np.int64)
    if not len(stored):
        return ChunkTable(kinds, stored, none, none.astype(np.uint8), (), chunk_nbytes)
    _, available = located_chunks(parsed, stored)
    if reference.is_remote or (most is not None and len(stored) > most):
        nbytes = none if parsed.header.sparse else available
        return ChunkTable(kinds, stored, nbytes, None, (), chunk_nbytes)
    with reference.reading() as (opened, _):
        heads = chunk_heads(opened, stored, is_lenient=True)
        rows = [_facts_of(*each) for each in zip(heads, available.tolist(), strict=True)]
    nbytes = np.array([row[0] for row in rows], np.int64)
    every = kinds.reshape(-1).copy()
    every[stored] = [row[1] for row in rows]
    named = [row[2] for row in rows]
    names = tuple(sorted(set(named), key=lambda name: (name == _NO_CODEC, name)))
    codecs = np.array([names.index(name) for name in named], np.uint8)
    return ChunkTable(every.reshape(kinds.shape), stored, nbytes, codecs, names, chunk_nbytes)


def superseded_in(reference: FrameReference, table: ChunkTable) -> int | None:
    """Compute the bytes that `compact` would free, except a few bytes of metadata.

    None if unknown: headers of chunks were not read, or the frame is not a separate local file or
    directory.
    """
    location = reference.location
    is_inside = location.is_url or location.offset or location.member
    if is_inside or isinstance(location.urlpath, bytes) or not table.is_exact:
        return None
    try:
        return superseded_at(Path(location.urlpath), reference.parsed, int(table.nbytes.sum()))
    except OSError:
        return None


def superseded_at(path: Path, frame: ParsedFrame, used: int) -> int:
    """Compute the unused bytes in the files of a local frame, whose chunks have `used` bytes."""
    header, offsets = frame.header, frame.index.offsets
    if not header.sparse:
        behind = path.stat().st_size - header.frame_len
        return max(header.cbytes - used + behind, 0)
    members = {chunk_member(number) for number in offsets[stored_chunks(offsets)].tolist()}
    with os.scandir(path) as entries:
        chunks = (entry for entry in entries if CHUNK_MEMBER.fullmatch(entry.name))
        unused = (entry for entry in chunks if entry.name not in members)
        return sum(entry.stat(follow_symlinks=False).st_size for entry in unused)


def _facts_of(head: bytes, available: int) -> tuple[int, int, str]:
    """Bytes, `ChunkKind` and codec of a chunk; its header may be damaged or missing."""
    try:
        header = parse_chunk_header(head, available)
    except B2ndError:
        return available, ChunkKind.STORED, _UNREADABLE
    if header.special:
        codec = _NO_CODEC
    elif header.memcpyed:
        codec = _AS_IS
    elif header.codec_id >= 0:
        codec = f"plug-in {header.codec_id}"
    else:
        codec = _CODEC_NAMES[header.flags >> 5]
    return header.cbytes, header.special, codec


@dataclass(frozen=True, eq=False)
class FrameStats:
    """Statistics of all elements of a frame, and of each chunk, from the frame's records.

    Chunks are not read. A statistic is None if the dtype has none (order of complex numbers, sum of
    dates), if all elements are NaN, or if some chunks have no statistics (see `chunks.known`).
    """

    chunks: ChunkStats
    """Statistics of each chunk: arrays in the shape of the chunk grid."""

    @property
    def min(self) -> Any:
        """Least element, without NaN and NaT."""
        return self._end(self.chunks.min, np.min)

    @property
    def max(self) -> Any:
        """Greatest element, without NaN and NaT."""
        return self._end(self.chunks.max, np.max)

    @cached_property
    def sum(self) -> Any:
        """Sum without NaN and NaT; for integers modulo 2**64, as in NumPy."""
        dtype = self.chunks._dtype
        if dtype.kind == "M" or not self._all_known:
            return None
        with np.errstate(all="ignore"):
            total = np.add.reduce(self.chunks._columns.total)
        return total if dtype.kind != "m" else total.astype(dtype)

    @cached_property
    def mean(self) -> Any:
        """Mean without NaN and NaT."""
        dtype, n = self.chunks._dtype, 0 if self.nans is None else self.size - self.nans
        if not n or not self.chunks._are_exact.all():
            return None
        if dtype.kind in "fc":
            return self.sum / n
        # a Python sum, which does not wrap around
        total = sum(self.chunks._columns.total.tolist())
        if dtype.kind in "mM":
            # rounded towards zero, like NumPy's means of time spans
            ticks = abs(total) // n * (1 if total > 0 else -1)
            return np.array(ticks, np.int64).view(dtype)[()]
        return np.float64(total / n)

    @property
    def size(self) -> int:
        """Number of elements, NaN included."""
        return math.prod(self.chunks._grid.shape)

    @property
    def nans(self) -> int | None:
        """Number of elements that are NaN or NaT."""
        return int(self.chunks._columns.nans.sum()) if self._all_known else None

    @property
    def nonzeros(self) -> int | None:
        """Number of elements that differ from zero, NaN and NaT included."""
        return int(self.chunks._columns.nonzeros.sum()) if self._all_known else None

    def __repr__(self) -> str:
        values = ", ".join(f"{name}={text}" for name, text in self._texts())
        unknown = np.count_nonzero(~self.chunks.known)
        return f"<FrameStats {values}{f', {unknown} chunks unknown' * bool(unknown)}>"

    def _repr_html_(self) -> str:
        rows = (f"<tr><th>{name}</th><td>{text}</td></tr>" for name, text in self._texts())
        return f"<table>{''.join(rows)}</table>"

    def _texts(self) -> Iterator[tuple[str, str]]:
        for name in _NAMES:
            value = getattr(self, name)
            # there is a mean, but the sum may have wrapped around
            wrapped = name == "mean" and self.size != self.nans
            missing = "none" if self._all_known and not wrapped else "unknown"
            text = f"{value:.6g}" if isinstance(value, float) else str(value)
            yield name, missing if value is None else text

    @cached_property
    def _all_known(self) -> bool:
        return bool(self.chunks.known.all())

    def _end(self, ends: NDArray[Any] | None, choose: Any) -> Any:
        if ends is None or not self._all_known:
            return None
        found = np.ma.compressed(ends)
        return choose(found) if len(found) else None


@dataclass(frozen=True, eq=False, repr=False)
class ChunkStats:
    """Statistics of each chunk, in the shape of the chunk grid.

    Arrays are masked for chunks without statistics, or without this statistic.
    """

    _columns: ChunkStatistics
    _grid: Grid
    _dtype: np.dtype[Any]
    """Dtype of the elements, in native byte order."""

    @property
    def known(self) -> NDArray[np.bool_]:
        """Whether each chunk has statistics."""
        return self._columns.known.reshape(self._grid.counts)

    @property
    def min(self) -> NDArray[Any] | None:
        """Least elements; None for complex numbers."""
        return self._masked(self._columns.least, some=True) if self._columns.has_range else None

    @property
    def max(self) -> NDArray[Any] | None:
        """Greatest elements; None for complex numbers."""
        return self._masked(self._columns.greatest, some=True) if self._columns.has_range else None

    @property
    def sum(self) -> NDArray[Any] | None:
        """Sums without NaN and NaT; None for dates."""
        total = self._columns.total
        if self._dtype.kind == "M":
            return None
        return self._masked(total if self._dtype.kind != "m" else total.view(self._dtype))

    @property
    def mean(self) -> NDArray[Any]:
        """Means without NaN and NaT; also masked if a sum may have wrapped around."""
        n = np.maximum(1, element_counts(self._grid) - self._columns.nans)
        if self._dtype.kind in "mM":
            ticks = np.abs(self._columns.total) // n * np.sign(self._columns.total)
            means: NDArray[Any] = ticks.view(self._dtype)
        else:
            means = self._columns.total / n
        found = self._masked(means, some=True)
        inexact = ~self._are_exact.reshape(found.shape)
        return np.ma.masked_array(found, mask=np.ma.getmaskarray(found) | inexact)

    @property
    def size(self) -> NDArray[np.int64]:
        """Number of elements, without the padding behind the array's edge."""
        return element_counts(self._grid).reshape(self._grid.counts)

    @property
    def nans(self) -> NDArray[Any]:
        """Number of elements that are NaN or NaT."""
        return self._masked(self._columns.nans)

    @property
    def nonzeros(self) -> NDArray[Any]:
        """Number of elements that differ from zero, NaN and NaT included."""
        return self._masked(self._columns.nonzeros)

    def __repr__(self) -> str:
        return f"<ChunkStats of {' x '.join(map(str, self._grid.counts))} chunks>"

    def _masked(self, column: NDArray[Any], *, some: bool = False) -> NDArray[Any]:
        """Shape a column like the grid; mask unknown chunks and, with `some`, all-NaN chunks."""
        mask = ~self._columns.known
        if some:
            mask = mask | (self._columns.nans >= element_counts(self._grid))
        return np.ma.masked_array(column.copy(), mask=mask).reshape(self._grid.counts)

    @cached_property
    def _are_exact(self) -> NDArray[np.bool_]:
        return self._columns.exact_totals(element_counts(self._grid))
