"""Manifests in staging areas: what is written is read, and nothing else is believed."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from b2nd_dask.format.index import special_code
from b2nd_dask.format.statistics import chunk_statistics
from b2nd_dask.frame.write.records import ChunkRecords, merge_records, row_dtype, with_digest
from b2nd_dask.storage import Run
from tests.strategies import examples

PARTS = [f"{number:032x}{suffix}" for number, suffix in enumerate(("", ".part", ".chunk"))]
NCHUNKS = 50
ROW = row_dtype()


@st.composite
def tables(draw: st.DrawFn) -> ChunkRecords:
    """Draw rows of some chunks: stored ones and special ones, with statistics or without."""
    chunks = draw(st.lists(st.integers(0, NCHUNKS - 1), unique=True, max_size=8))
    count = draw(st.integers(0, len(chunks)))
    runs = {
        chunk: Run(draw(st.sampled_from(PARTS)), start, start + draw(st.integers(32, 2**40)))
        for chunk in chunks[:count]
        for start in [draw(st.integers(0, 2**40))]
    }
    dtype = draw(st.sampled_from([None, "<f8", ">i2", "c8", "M8[25us]"]))
    if dtype is None:
        row, statistics = row_dtype(), []
    else:
        row = row_dtype(np.dtype(dtype))
        statistics = [chunk_statistics(np.arange(5).astype(dtype))]
    entries = {
        chunk: (0, draw(st.integers(0, 2**64 - 1)), *statistics)
        if chunk in runs
        else (special_code(draw(st.integers(1, 2))), 0, *(np.zeros_like(s) for s in statistics))
        for chunk in chunks
    }
    return records_of(row, entries, runs)


def records_of(row: Any, entries: dict[int, Any], runs: dict[int, Run]) -> ChunkRecords:
    """Records with the entry of each chunk and, if it is staged, its location."""
    parts = sorted({run.part for run in runs.values()})
    where = {c: (parts.index(r.part), r.start, r.stop - r.start) for c, r in runs.items()}
    rows = [(c, *where.get(c, (-1, 0, 0)), entry) for c, entry in entries.items()]
    return ChunkRecords(tuple(parts), np.array(rows, row))


@examples(60)
@given(tables())
def test_what_is_written_is_read(records: ChunkRecords) -> None:
    row = records.rows.dtype
    found = ChunkRecords.from_bytes(records.to_bytes(), row, NCHUNKS)
    assert found is not None
    assert found.parts == records.parts
    np.testing.assert_array_equal(found.rows, records.rows)
    # and merges with others, whose parts are other ones
    run = Run("f" * 32, 5, 50)
    other = records_of(row, {NCHUNKS: tuple(np.zeros((), row["entry"])[()])}, {NCHUNKS: run})
    merged = merge_records([other, found])
    assert merged.rows.dtype == row
    assert runs_of(merged) == runs_of(other) | runs_of(records)
    np.testing.assert_array_equal(merged.rows["entry"][1:], records.rows["entry"])


def runs_of(records: ChunkRecords) -> dict[int, Run | None]:
    """Where each chunk is staged."""
    rows = records.rows[["chunk", "part", "start", "nbytes"]].tolist()
    return {
        chunk: Run(records.parts[part], start, start + nbytes) if part >= 0 else None
        for chunk, part, start, nbytes in rows
    }


@examples(60)
@given(tables(), st.data())
def test_a_damaged_manifest_is_none(records: ChunkRecords, data: Any) -> None:
    raw, row = bytearray(records.to_bytes()), records.rows.dtype
    cut = data.draw(st.integers(0, len(raw) - 1))
    assert ChunkRecords.from_bytes(bytes(raw[:cut]), row, NCHUNKS) is None
    raw[cut] ^= 1 << data.draw(st.integers(0, 7))
    assert ChunkRecords.from_bytes(bytes(raw), row, NCHUNKS) is None


@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("chunk", -1),
        ("chunk", NCHUNKS),
        ("chunk", 8),
        ("entry", 5),
        ("part", 1),
        ("part", -1),
        ("start", -1),
        ("nbytes", -1),
        ("nbytes", 31),
    ],
)
def test_a_manifest_of_what_cannot_be_is_none(column: str, value: int) -> None:
    runs = {7: Run(PARTS[1], 0, 50), 8: Run(PARTS[1], 50, 90)}
    records = records_of(ROW, {7: (0, 1), 8: (0, 2)}, runs)
    assert ChunkRecords.from_bytes(records.to_bytes(), ROW, NCHUNKS) is not None
    changed = records.rows["entry"]["offset"] if column == "entry" else records.rows[column]
    changed[0] = value
    assert ChunkRecords.from_bytes(records.to_bytes(), ROW, NCHUNKS) is None


def test_a_manifest_that_says_it_has_more_than_it_has_is_none() -> None:
    records = records_of(ROW, {7: (0, 1)}, {7: Run(PARTS[1], 0, 50)})
    raw = bytearray(records.to_bytes()[:-8])
    for count in (0, 2, 2**64 - 1):
        raw[8:16] = count.to_bytes(8, "little")
        assert ChunkRecords.from_bytes(with_digest(bytes(raw)), ROW, NCHUNKS) is None
    for length in (0, 8, 16):
        assert ChunkRecords.from_bytes(with_digest(bytes(raw[:length])), ROW, NCHUNKS) is None
