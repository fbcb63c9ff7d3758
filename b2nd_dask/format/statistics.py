"""Chunk statistics: computed from elements, and the entry of vlmeta for all chunks of a frame.

docs/statistics.md, Entry: the entry contains the digest of the record of checksums of the same
write. While this record is valid, no other software has changed a chunk. An entry with another
digest is old, or a copy from another frame, and is ignored. The digest of the entry itself reveals
damage.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import xxhash
from numpy.typing import NDArray

from b2nd_dask.errors import B2ndError
from b2nd_dask.format.chunk.chunk_header import ChunkKind
from b2nd_dask.format.chunk.compression import Compression
from b2nd_dask.format.grid import Grid, per_chunk
from b2nd_dask.format.index import OffsetIndex
from b2nd_dask.format.metalayers import OWN_VLMETA, STATISTICS_NAME, is_own_value
from b2nd_dask.format.values import pack_entry, pack_value, unpack_entry, unpack_value

_VERSION = 1
_KEYS = OWN_VLMETA[STATISTICS_NAME]
_TYPES = (int, bytes, str, bytes, bytes)
#: The widest row: a sum of 16 bytes, or a range of 16 and a sum of 8; two counts of 4; one flag.
MAX_ROW_NBYTES = 33
#: Most bytes of an entry beside its columns.
_ROOM = 4096
#: zstd and a shuffle of 8 bytes.
_COMPRESSION = Compression(codec=5, clevel=1, filters=(0, 0, 0, 0, 0, 1))
#: Kinds of dtype, and the dtypes of their sums.
_TOTALS = {"b": "<i8", "i": "<i8", "u": "<u8", "f": "<f8", "c": "<c16", "m": "<i8", "M": "<i8"}
_WIDTHS = {"f": (2, 4, 8), "c": (8, 16)}

#: Statistics are computed in pieces that stay in the L2 cache. Smaller pieces cost more calls
#: (docs/decisions.md, Statistics).
_PIECE_NBYTES = 1 << 19
_NAT = np.int64(np.iinfo(np.int64).min)
#: Functions that merge the columns of several pieces into those of the chunk.
_MERGES = {"total": np.add, "least": np.fmin, "greatest": np.fmax, "nans": np.add}
_MERGES |= {"nonzeros": np.add, "known": np.minimum}


class ChunkStatistics(NamedTuple):
    """Statistics of the elements of each chunk, without the padding behind the array's edge."""

    known: NDArray[np.bool_]
    """Whether a chunk has statistics; if not, its other columns are meaningless."""
    least: NDArray[Any]
    """Least element in the frame's dtype, without NaN and NaT; NaN or NaT if all elements are."""
    greatest: NDArray[Any]
    total: NDArray[Any]
    """Sum without NaN and NaT, in float64 or complex128. Sums of integers, bools and time ticks are
    int64 or uint64 modulo 2**64, as in NumPy. NaN for infinities of both signs."""
    nans: NDArray[np.int64]
    """Number of elements that are NaN or NaT."""
    nonzeros: NDArray[np.int64]
    """Number of elements that differ from zero, NaN and NaT included."""

    @property
    def has_range(self) -> bool:
        """Whether `least` and `greatest` are meaningful: complex numbers have no order."""
        return self.least.dtype.kind != "c"

    def exact_totals(self, counts: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Mask of the chunks, of `counts` elements each, whose integer sum cannot have wrapped."""
        if self.total.dtype.kind not in "iu":
            return np.ones(len(counts), np.bool_)
        low, high = (np.abs(end.astype(np.float64)) for end in (self.least, self.greatest))
        # the margin allows for rounding in float64
        most = (2.0**64 if self.total.dtype.kind == "u" else 2.0**63) * (1 - 1e-12)
        exact: NDArray[np.bool_] = (np.maximum(low, high) * counts < most) | (self.nans >= counts)
        return exact

    def of_chunks(self, chunks: NDArray[np.int64]) -> ChunkStatistics:
        """Select chunks by their numbers."""
        if len(chunks) == len(self.known) and np.array_equal(chunks, np.arange(len(chunks))):
            return self
        return ChunkStatistics._make(column[chunks] for column in self)

    def rows(self) -> NDArray[Any]:
        """Convert to a `statistics_row` per chunk."""
        rows = np.empty(len(self.known), statistics_row(self.least.dtype))
        for name, column in self._asdict().items():
            rows[name] = column
        return rows


def supports_statistics(dtype: np.dtype[Any] | None) -> bool:
    """Whether elements of a dtype have statistics: only numbers, bools and times do."""
    if dtype is None or dtype.kind not in _TOTALS:
        return False
    return dtype.itemsize in _WIDTHS.get(dtype.kind, (1, 2, 4, 8))


@lru_cache
def statistics_row(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """Build the dtype of one chunk's statistics, with the fields of `ChunkStatistics`.

    Order and width of the fields are those of the stored entry.
    """
    ends = [("least", dtype), ("greatest", dtype)]
    counts = [("nans", "<u4"), ("nonzeros", "<u4"), ("known", "u1")]
    return np.dtype([("total", _TOTALS[dtype.kind]), *ends, *counts])


def with_special_chunks(stored: ChunkStatistics, index: OffsetIndex, grid: Grid) -> ChunkStatistics:
    """Add the statistics of special chunks to those of stored chunks.

    The special value of a chunk determines its statistics.
    """
    if index.nstored == len(index) and len(index):
        return stored
    kinds, dtype = index.kinds, stored.least.dtype
    if index.single_kind and index.single_kind != ChunkKind.NAN:
        # equal for all chunks: use no memory per chunk
        kinds = kinds[:1]
    at = kinds == ChunkKind.STORED
    every = ChunkStatistics(*(np.zeros(len(at), column.dtype) for column in stored))
    for column, values in zip(every, stored, strict=True):
        column[at] = values
    every.known[kinds == ChunkKind.ZEROS] = True
    is_nan = kinds == ChunkKind.NAN
    # reads of NaN chunks of other dtypes raise errors
    if dtype.kind == "f" and dtype.itemsize in (4, 8) and is_nan.any():
        every.known[is_nan] = True
        every.least[is_nan] = every.greatest[is_nan] = np.nan
        every.nans[is_nan] = every.nonzeros[is_nan] = element_counts(grid)[is_nan]
    return ChunkStatistics(*(np.broadcast_to(column, (len(index),)) for column in every))


def element_counts(grid: Grid) -> NDArray[np.int64]:
    """Count the elements of each chunk, without the padding behind the array's edge."""
    return per_chunk(grid.lengths(map(np.arange, grid.counts)))


def parse_statistics(
    entry: bytes, record_digest: bytes, dtype: np.dtype[Any], grid: Grid, index: OffsetIndex
) -> ChunkStatistics | str | None:
    """Parse the stored entry into statistics of all chunks, or return a description of damage.

    `record_digest` is the XXH3-64 of the frame's record of checksums. Returns None for an entry of
    another state of the frame or of an unknown version.
    """
    try:
        value = unpack_value(unpack_entry(entry, _ROOM + MAX_ROW_NBYTES * index.nstored))
        if not is_own_value(STATISTICS_NAME, value):
            return "it is not a map of the known keys"
        if value["version"] != _VERSION:
            return None
        if not all(map(isinstance, (value[key] for key in _KEYS), _TYPES)):
            return "its values have wrong types"
        if value["digest"] != _digest(*(value[key] for key in _KEYS[1:4])):
            return "it does not match its checksum"
        if value["record"] != record_digest or value["dtype"] != dtype.str:
            return None
        return _parse_columns(value["columns"], dtype, grid, index)
    except (B2ndError, TypeError, ValueError) as error:
        return f"it cannot be read ({error})"


def _parse_columns(
    raw: bytes, dtype: np.dtype[Any], grid: Grid, index: OffsetIndex
) -> ChunkStatistics | str:
    nstored, row = index.nstored, statistics_row(dtype)
    names = _stored_columns(dtype)
    if len(raw) != nstored * sum(row[name].itemsize for name in names):
        return f"its columns do not fit {nstored} stored chunks"
    columns, start = {}, 0
    for name in names:
        columns[name] = np.frombuffer(raw, row[name], nstored, start)
        start += nstored * row[name].itemsize
    blank = np.broadcast_to(np.zeros((), dtype), (nstored,))
    stored = ChunkStatistics(
        columns["known"] != 0,
        columns.get("least", blank),
        columns.get("greatest", blank),
        columns["total"],
        columns["nans"].astype(np.int64),
        columns["nonzeros"].astype(np.int64),
    )
    most = math.prod(grid.chunks)
    if nstored and max(stored.nans.max(), stored.nonzeros.max()) > most:
        return f"it counts more than the {most} elements of a chunk"
    return with_special_chunks(stored, index, grid)


def build_statistics(rows: NDArray[Any], record_digest: bytes) -> bytes:
    """Build the entry from a `statistics_row` for each stored chunk, in the order of the chunks.

    `record_digest` is the XXH3-64 of the record of checksums.
    """
    dtype = rows.dtype["least"]
    columns = b"".join(rows[name].tobytes() for name in _stored_columns(dtype))
    digest = _digest(record_digest, dtype.str, columns)
    values = [_VERSION, record_digest, dtype.str, columns, digest]
    return pack_entry(pack_value(dict(zip(_KEYS, values, strict=True))), _COMPRESSION, typesize=8)


def _stored_columns(dtype: np.dtype[Any]) -> list[str]:
    """List the columns of an entry in order, for complex numbers without those of the range."""
    names = statistics_row(dtype).names or ()
    return [name for name in names if dtype.kind != "c" or name not in ("least", "greatest")]


def _digest(record_digest: bytes, dtype: str, columns: bytes) -> bytes:
    digest = xxhash.xxh3_64(record_digest)
    digest.update(dtype.encode())
    digest.update(columns)
    return digest.digest()


def chunk_statistics(elements: NDArray[Any]) -> Any:
    """Compute the statistics of a chunk's valid elements, at least one, as a `statistics_row`.

    Their dtype is one that `supports_statistics`.

    Examples
    --------
    >>> row = chunk_statistics(np.array([1.0, np.nan, -2.0]))
    >>> float(row["least"]), float(row["total"]), int(row["nans"]), int(row["nonzeros"])
    (-2.0, -1.0, 1, 3)
    """
    dtype, size = elements.dtype, elements.size
    is_time = dtype.kind in "mM"
    if is_time:
        # ticks, which are integers
        elements = elements.view(f"{dtype.str[0]}i8")
    steps = zip(elements.strides, elements.shape, strict=True)
    is_repeated = all(stride == 0 or n == 1 for stride, n in steps)
    if is_repeated:
        corner: tuple[Any, ...] = (*(slice(0, 1),) * elements.ndim, ...)
        elements = elements[corner]
    with np.errstate(all="ignore"):
        found = [_piece_row(piece, is_time) for piece in _pieces(elements)]
        # native byte order, since NumPy 2.5 does not swap the bytes of timedelta64 without a unit
        rows = np.array(found, statistics_row(elements.dtype.newbyteorder("=")))
        if is_repeated:
            for name in ("total", "nans", "nonzeros"):
                rows[name] = multiplied(rows[name], np.array(size))
        elif len(rows) > 1:
            times = rows.view(statistics_row(dtype.newbyteorder("=")))
            times[0] = tuple(_MERGES[name].reduce(times[name]) for name in times.dtype.names or ())
    return (
        rows[:1].astype(statistics_row(elements.dtype), copy=False).view(statistics_row(dtype))[0]
    )


def _pieces(elements: NDArray[Any]) -> Iterator[NDArray[Any]]:
    """Iterate in any order over contiguous pieces of elements, in the machine's byte order."""
    dtype = elements.dtype.newbyteorder("=")
    # NumPy compares and adds half floats one by one, which is slow
    wide = np.dtype(np.float32) if dtype == np.float16 else dtype
    # the stubs of NumPy do not know "contig"
    pieces: Any = np.nditer(  # type: ignore[call-overload]
        elements,
        ["external_loop", "buffered"],
        ["readonly", "contig"],
        op_dtypes=wide,
        casting="safe",
        buffersize=_PIECE_NBYTES // elements.itemsize,
    )
    return iter(pieces)


def _piece_row(piece: NDArray[Any], is_time: bool) -> tuple[Any, ...]:
    """Compute the statistics of a contiguous piece, in the order of `statistics_row`."""
    kind, size = piece.dtype.kind, piece.size
    if kind == "b":
        count = np.count_nonzero(piece.view(np.uint8))
        return count, count == size, count > 0, 0, count, True
    if kind == "c":
        total = np.add.reduce(piece, dtype=np.complex128)
        if np.isnan(total):
            piece = piece[~np.isnan(piece)]
            total = np.add.reduce(piece, dtype=np.complex128)
        nans = size - piece.size
        return total, 0, 0, nans, nans + np.count_nonzero(piece != 0), True
    least = np.minimum.reduce(piece)
    # a NaN or NaT among the elements is the result of the minimum
    if least == _NAT if is_time else least != least:
        piece = piece[piece != _NAT if is_time else ~np.isnan(piece)]
        if not piece.size:
            return 0, least, least, size, size, True
        least = np.minimum.reduce(piece)
    greatest, nans = np.maximum.reduce(piece), size - piece.size
    nonzeros = size
    if least <= 0 <= greatest:
        nonzeros = nans + int(np.count_nonzero(piece != 0 if kind == "f" else piece))
    # integer sums wrap around as in NumPy
    total = np.add.reduce(piece, dtype=_TOTALS[kind])
    return total, least, greatest, nans, nonzeros, True


def multiplied(values: NDArray[Any], counts: NDArray[np.int64]) -> NDArray[Any]:
    """Multiply sums by counts, in their dtype."""
    if values.dtype.kind != "c":
        times: NDArray[Any] = values * counts.astype(values.dtype)
        return times
    # a complex product would multiply an infinite part by 0, which is NaN
    out = np.empty(np.broadcast_shapes(values.shape, counts.shape), values.dtype)
    out.real, out.imag = values.real * counts, values.imag * counts
    return out
