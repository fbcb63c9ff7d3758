"""Manifests in staging areas: what is written is read, and nothing else is believed."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from b2nd_dask.format.index import special_code
from b2nd_dask.format.statistics import ROW, chunk_statistics
from b2nd_dask.frame.write.records import ChunkRecords, merge_records, with_digest
from b2nd_dask.storage import Run
from tests.strategies import examples

PARTS = [f"{number:032x}{suffix}" for number, suffix in enumerate(("", ".part", ".chunk"))]
NCHUNKS = 50


@st.composite
def tables(draw: st.DrawFn) -> ChunkRecords:
    """Draw records of some chunks: stored ones and special ones, with statistics or without."""
    chunks = draw(st.lists(st.integers(0, NCHUNKS - 1), unique=True, max_size=8))
    count = draw(st.integers(0, len(chunks)))
    runs = {
        chunk: Run(draw(st.sampled_from(PARTS)), start, start + draw(st.integers(32, 2**40)))
        for chunk in chunks[:count]
        for start in [draw(st.integers(0, 2**40))]
    }
    codes = {chunk: special_code(draw(st.integers(1, 2))) for chunk in chunks[count:]}
    digests = {chunk: draw(st.integers(0, 2**64 - 1)) for chunk in runs}
    row = chunk_statistics(np.arange(5.0))
    known = {chunk: row for chunk in runs if draw(st.booleans())}
    return ChunkRecords.of(codes, runs, digests, known)


@examples(60)
@given(tables())
def test_what_is_written_is_read(records: ChunkRecords) -> None:
    found = ChunkRecords.from_bytes(records.to_bytes(), NCHUNKS)
    assert found is not None
    assert found.parts == records.parts
    np.testing.assert_array_equal(found.rows, records.rows)
    # and merges with others as before
    other = ChunkRecords.of({NCHUNKS: special_code(1)}, {}, {})
    merged = merge_records([found, other])
    assert len(merged.statistics) == len(records.rows) + 1
    assert merged.statistics.dtype == ROW


@examples(60)
@given(tables(), st.data())
def test_a_damaged_manifest_is_none(records: ChunkRecords, data: Any) -> None:
    raw = bytearray(records.to_bytes())
    cut = data.draw(st.integers(0, len(raw) - 1))
    assert ChunkRecords.from_bytes(bytes(raw[:cut]), NCHUNKS) is None
    raw[cut] ^= 1 << data.draw(st.integers(0, 7))
    assert ChunkRecords.from_bytes(bytes(raw), NCHUNKS) is None


@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("chunk", -1),
        ("chunk", NCHUNKS),
        ("chunk", 8),
        ("code", 5),
        ("part", 1),
        ("part", -1),
        ("start", -1),
        ("nbytes", -1),
        ("nbytes", 31),
    ],
)
def test_a_manifest_of_what_cannot_be_is_none(column: str, value: int) -> None:
    runs = {7: Run(PARTS[1], 0, 50), 8: Run(PARTS[1], 50, 90)}
    records = ChunkRecords.of({}, runs, {7: 1, 8: 2})
    assert ChunkRecords.from_bytes(records.to_bytes(), NCHUNKS) is not None
    records.rows[column][0] = value
    assert ChunkRecords.from_bytes(records.to_bytes(), NCHUNKS) is None


def test_a_manifest_that_says_it_has_more_than_it_has_is_none() -> None:
    raw = bytearray(ChunkRecords.of({}, {7: Run(PARTS[1], 0, 50)}, {7: 1}).to_bytes()[:-8])
    for count in (0, 2, 2**64 - 1):
        raw[8:16] = count.to_bytes(8, "little")
        assert ChunkRecords.from_bytes(with_digest(bytes(raw)), NCHUNKS) is None
    for length in (0, 8, 16):
        assert ChunkRecords.from_bytes(with_digest(bytes(raw[:length])), NCHUNKS) is None
