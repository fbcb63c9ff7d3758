"""Where each chunk was staged, or what it stands for: as tasks report it, and in journals.

With `resume` a task also notes every chunk in a journal beside what it stages: a row with its
position, its digest, and a check of the row itself. A later run of the same write believes a row
only after it has read the staged bytes and found their digest.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
import xxhash
from numpy.typing import NDArray

from b2nd_dask.errors import B2ndError
from b2nd_dask.format.index import MAX_CHUNKS, ChunkKind, special_code
from b2nd_dask.format.integrity import chunk_digest
from b2nd_dask.format.statistics import ROW as STATISTICS_ROW
from b2nd_dask.storage import Run, Staging

_COLUMNS = ("chunk", "code", "part", "start", "nbytes")
_ROW = np.dtype([*((name, "i8") for name in _COLUMNS), ("digest", "u8")])
_NAMES = _ROW.names or ()
_UNKNOWN = bytes(STATISTICS_ROW.itemsize)
#: Of frames with statistics.
_WIDE_ROW = np.dtype([*_ROW.descr, ("statistics", STATISTICS_ROW)])

_JOURNAL_ROW = np.dtype(
    [
        ("chunk", "<i8"),
        ("code", "<i8"),
        ("start", "<i8"),
        ("nbytes", "<i8"),
        ("digest", "<u8"),
        ("statistics", STATISTICS_ROW),
        ("part", "S40"),
        ("check", "<u8"),
    ]
)
#: Names of what stagings append to.
_PART = re.compile(rb"[0-9a-f]{32}(\.part|\.chunk)?")
_CHECKED = _JOURNAL_ROW.itemsize - 8
_CODES = [special_code(kind) if kind else 0 for kind in ChunkKind]
#: Bytes and rows that one thread checks at a time.
_BATCH_NBYTES, _BATCH_ROWS = 32 << 20, 4096
_THREADS = 4


@dataclass(frozen=True, eq=False, slots=True)
class ChunkRecords:
    """Records of some chunks of a frame: a few bytes each, in a table."""

    parts: tuple[str, ...]
    """Names of staged parts."""
    rows: NDArray[Any]
    """Columns chunk; code (0 where stored, else the special code of the offset index); part, as a
    position in `parts`; start and nbytes in the part; digest (0 unless stored); and statistics in
    tables in which a chunk has some."""

    @classmethod
    def of(
        cls,
        codes: dict[int, int],
        runs: dict[int, Run],
        digests: dict[int, int],
        statistics: Mapping[int, bytes] | None = None,
    ) -> ChunkRecords:
        """Make a table.

        Parameters
        ----------
        runs : dict of chunk to Run
            Where stored chunks were staged.
        digests : dict of chunk to int
            Of the same chunks.
        statistics : mapping of chunk to bytes, optional
            Rows of statistics of some of the same chunks.
        """
        parts = tuple(dict.fromkeys(run.part for run in runs.values()))
        number = {name: i for i, name in enumerate(parts)}
        stored = [
            (c, 0, number[r.part], r.start, r.stop - r.start, digests[c]) for c, r in runs.items()
        ]
        special = [(chunk, code, -1, 0, 0, 0) for chunk, code in codes.items()]
        rows = np.array(special + stored, _ROW)
        if statistics:
            rows = _widened(rows)
            found = b"".join(statistics.get(chunk, _UNKNOWN) for chunk in runs)
            rows["statistics"][len(special) :] = np.frombuffer(found, STATISTICS_ROW)
        return cls(parts, rows)

    @classmethod
    def of_special(cls, chunks: NDArray[np.int64], code: int) -> ChunkRecords:
        """Make a table of chunks that stand for one special code."""
        rows = np.zeros(len(chunks), _ROW)
        rows["chunk"], rows["code"], rows["part"] = chunks, code, -1
        return cls((), rows)

    @property
    def statistics(self) -> NDArray[Any]:
        """Rows of statistics, which are unknown in a table without."""
        if _has_statistics(self.rows):
            return self.rows["statistics"]
        return np.zeros(len(self.rows), STATISTICS_ROW)


def _has_statistics(rows: NDArray[Any]) -> bool:
    return rows.dtype == _WIDE_ROW


def _widened(rows: NDArray[Any]) -> NDArray[Any]:
    """The same rows with a column for statistics."""
    if _has_statistics(rows):
        return rows
    wide = np.zeros(len(rows), _WIDE_ROW)
    for name in _NAMES:
        wide[name] = rows[name]
    return wide


def merge_records(tables: Sequence[ChunkRecords]) -> ChunkRecords:
    """Put tables together."""
    parts = tuple(dict.fromkeys(name for table in tables for name in table.parts))
    number = {name: i for i, name in enumerate(parts)}
    wide = any(_has_statistics(table.rows) for table in tables)
    rows = []
    for table in tables:
        # one more for the -1 of special chunks
        renumbered = np.array([*(number[name] for name in table.parts), -1])
        moved = (_widened(table.rows) if wide else table.rows).copy()
        moved["part"] = renumbered[moved["part"]]
        rows.append(moved)
    none = np.empty(0, _WIDE_ROW if wide else _ROW)
    return ChunkRecords(parts, np.concatenate([none, *rows]))


def require_all(
    records: ChunkRecords, chunks: NDArray[np.int64], label: str, outcome: str = "not published"
) -> None:
    """Raise B2ndError unless each of some chunks, in ascending order, has a record."""
    if not np.array_equal(np.sort(records.rows["chunk"]), chunks):
        raise B2ndError(
            f"{len(records.rows)} chunk records for {len(chunks)} chunks: {outcome}",
            path=label,
        )


def journal_rows(
    codes: Mapping[int, int],
    runs: Mapping[int, Run],
    payloads: Mapping[int, bytes],
    statistics: Mapping[int, bytes] | None = None,
) -> bytes:
    """Write rows of a journal.

    Parameters
    ----------
    runs : mapping of chunk to Run
        Where stored chunks were staged.
    payloads : mapping of chunk to bytes
        What was staged there.
    statistics : mapping of chunk to bytes, optional
        Of these chunks and maybe others.
    """
    digests = {chunk: chunk_digest(payload) for chunk, payload in payloads.items()}
    return table_of(ChunkRecords.of(dict(codes), dict(runs), digests, statistics))


def table_of(records: ChunkRecords) -> bytes:
    """Write records as rows of a journal."""
    rows = np.zeros(len(records.rows), _JOURNAL_ROW)
    for name in ("chunk", "code", "start", "nbytes", "digest"):
        rows[name] = records.rows[name]
    rows["statistics"] = records.statistics
    # one more for the -1 of special chunks
    parts = np.array([*(part.encode() for part in records.parts), b""], "S40")
    rows["part"] = parts[records.rows["part"]]
    rows["check"] = _checks(rows.tobytes())
    return rows.tobytes()


def parse_table(raw: bytes) -> ChunkRecords | None:
    """Read what `table_of` wrote; None where it is not whole, or names what is no staged part."""
    rows = _intact_rows(raw, MAX_CHUNKS)
    named = all(_PART.fullmatch(part) for part in np.unique(rows["part"][rows["code"] == 0]))
    whole = len(rows) * _JOURNAL_ROW.itemsize == len(raw)
    unique = len(np.unique(rows["chunk"])) == len(rows)
    return _records_of(rows) if whole and named and unique else None


def _records_of(rows: NDArray[Any]) -> ChunkRecords:
    stored = rows[rows["code"] == 0]
    special = rows[rows["code"] != 0]
    runs = {
        chunk: Run(part.decode(), start, start + nbytes)
        for chunk, start, nbytes, part in stored[["chunk", "start", "nbytes", "part"]].tolist()
    }
    codes = dict(zip(special["chunk"].tolist(), special["code"].tolist(), strict=True))
    digests = dict(zip(stored["chunk"].tolist(), stored["digest"].tolist(), strict=True))
    statistics = {}
    if stored["statistics"]["known"].any():
        found = stored["statistics"].copy()
        statistics = {
            chunk: found[at : at + 1].tobytes() for at, chunk in enumerate(stored["chunk"].tolist())
        }
    return ChunkRecords.of(codes, runs, digests, statistics)


def read_journals(staging: Staging, nchunks: int) -> ChunkRecords:
    """Find the chunks that were staged by earlier runs of a write, and are as they were.

    Parameters
    ----------
    nchunks : int
        Chunks of the frame.

    Returns
    -------
    ChunkRecords
        One row for each such chunk.
    """
    found = [_intact_rows(raw, nchunks) for raw in staging.journals()]
    rows = np.concatenate([np.empty(0, _JOURNAL_ROW), *found])
    with ThreadPoolExecutor(_THREADS) as threads:
        good = threads.map(lambda batch: _same_as_staged(batch, staging), _batches(rows))
        rows = np.concatenate([np.empty(0, _JOURNAL_ROW), *good])
    # what ran twice was staged twice
    _, first = np.unique(rows["chunk"], return_index=True)
    return _records_of(rows[first])


def damaged_chunks(records: ChunkRecords, staging: Staging) -> NDArray[np.int64]:
    """Number the chunks whose staged bytes are not those that were staged; reads all of them."""
    rows = np.frombuffer(table_of(records), _JOURNAL_ROW)
    with ThreadPoolExecutor(_THREADS) as threads:
        good = threads.map(lambda batch: _same_as_staged(batch, staging), _batches(rows))
        found = [batch["chunk"] for batch in good]
    return np.setdiff1d(rows["chunk"], np.concatenate([np.empty(0, np.int64), *found]))


def _checks(raw: bytes) -> list[int]:
    view = memoryview(raw)
    return [
        xxhash.xxh3_64_intdigest(view[at : at + _CHECKED])
        for at in range(0, len(raw), _JOURNAL_ROW.itemsize)
    ]


def _intact_rows(raw: bytes, nchunks: int) -> NDArray[Any]:
    """The rows that were written whole and can be of this frame; a crash may have cut the last."""
    whole = raw[: len(raw) // _JOURNAL_ROW.itemsize * _JOURNAL_ROW.itemsize]
    rows = np.frombuffer(whole, _JOURNAL_ROW)
    good = rows["check"] == np.array(_checks(whole), np.uint64)
    good &= (rows["chunk"] >= 0) & (rows["chunk"] < nchunks)
    good &= (rows["start"] >= 0) & (rows["nbytes"] >= 0) & np.isin(rows["code"], _CODES)
    intact: NDArray[Any] = rows[good]
    return intact


def _batches(rows: NDArray[Any]) -> Iterator[NDArray[Any]]:
    rows = rows[np.lexsort((rows["start"], rows["part"]))]
    filled = np.cumsum(rows["nbytes"]) // _BATCH_NBYTES + np.arange(len(rows)) // _BATCH_ROWS
    yield from np.split(rows, np.flatnonzero(np.diff(filled)) + 1)


def _same_as_staged(rows: NDArray[Any], staging: Staging) -> NDArray[Any]:
    stored = rows[rows["code"] == 0]
    runs = [
        Run(part.decode(), start, start + nbytes)
        for start, nbytes, part in stored[["start", "nbytes", "part"]].tolist()
    ]
    found = [chunk_digest(chunk) for chunk in staging.fetch(runs)]
    good = stored["digest"] == np.array(found, np.uint64)
    return np.concatenate([rows[rows["code"] != 0], stored[good]])
