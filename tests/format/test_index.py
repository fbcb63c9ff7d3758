"""The offset index against python-blosc2's own decoder and bytes put together by hand."""

from __future__ import annotations

import itertools
import struct
import tracemalloc
from dataclasses import replace
from pathlib import Path

import blosc2
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from b2nd_dask import FrameFormatError, open_b2nd, seal
from b2nd_dask.format.chunk.chunk_header import ChunkKind
from b2nd_dask.format.header import parse_header
from b2nd_dask.format.index import (
    build_index,
    index_len_of,
    parse_index,
    special_code,
    stored_chunks,
)
from tests.format.by_hand import changed, frame_bytes, parts_of
from tests.strategies import examples

VALUES = np.random.default_rng(1).random((40, 25))
VALUES[10:20] = 0
RAW = frame_bytes(VALUES, chunks=(10, 10), blocks=(5, 5))
HEADER = parse_header(RAW, len(RAW))
INDEX = parts_of(RAW).index
NCHUNKS = 12
#: A header of a frame with very much data, for indexes put together by hand.
ROOMY = replace(HEADER, cbytes=2**40)


def compressed(offsets: np.ndarray, **how: object) -> bytes:
    how = {"typesize": 8, "clevel": 5, "blocksize": 0} | how
    return bytes(blosc2.compress2(offsets.astype("<i8"), **how))


def test_entries_are_what_python_blosc2_decompresses() -> None:
    index = parse_index(INDEX, HEADER, NCHUNKS)
    expected = np.frombuffer(blosc2.decompress2(INDEX), "<i8")
    np.testing.assert_array_equal(index.offsets, expected)
    assert len(index) == NCHUNKS
    assert index_len_of(INDEX[:32], len(INDEX), NCHUNKS) == len(INDEX)


def test_offsets_count_from_the_end_of_the_header() -> None:
    schunk = blosc2.schunk_from_cframe(RAW, copy=True)
    index = parse_index(INDEX, HEADER, NCHUNKS)
    starts, stops = index.extents(stored_chunks(index.offsets))
    infos = list(schunk.iterchunks_info())
    special = [info.nchunk for info in infos if info.special.value]
    assert special == [3, 4, 5]
    assert stored_chunks(index.offsets).tolist() == [n for n in range(12) if n not in special]
    for chunk, start, stop in zip(stored_chunks(index.offsets), starts, stops, strict=True):
        first = HEADER.header_len + start
        assert RAW[first : HEADER.header_len + stop] == schunk.get_chunk(int(chunk))


def test_kinds() -> None:
    offsets = np.arange(9) * 100
    codes = {ChunkKind.ZEROS: 0x81 << 56, ChunkKind.NAN: 0x82 << 56, ChunkKind.UNINIT: 0x84 << 56}
    for at, (kind, code) in enumerate(codes.items(), 2):
        assert special_code(kind) == code - 2**64
        offsets[at] = code - 2**64
    index = parse_index(compressed(offsets), ROOMY, 9)
    assert index.kinds.tolist() == [0, 0, 1, 2, 4, 0, 0, 0, 0]
    assert (index.nstored, index.single_kind) == (6, 0)
    # what stands below the high byte does not count
    offsets[3] |= 0x77
    assert parse_index(compressed(offsets), ROOMY, 9).kinds[3] == ChunkKind.NAN


@pytest.mark.parametrize(
    ("make", "kind"), [(blosc2.zeros, 1), (blosc2.nans, 2), (blosc2.uninit, 4)]
)
def test_one_value_for_all_chunks_is_not_expanded(make, kind: int, tmp_path: Path) -> None:
    path = tmp_path / "x.b2nd"
    make((5000,), dtype="f8", chunks=(5,), blocks=(5,), urlpath=str(path))
    raw = path.read_bytes()
    parts = parts_of(raw)
    assert len(parts.index) == 40
    index = parse_index(parts.index, parse_header(raw, len(raw)), 1000)
    assert (index.single_kind, index.nstored, len(index)) == (kind, 0, 1000)
    assert index.offsets.strides == index.kinds.strides == (0,)
    assert build_index(index.offsets) == parts.index


@examples(40)
@given(
    st.lists(st.integers(0, 2**40 - 32) | st.sampled_from([special_code(k) for k in (1, 2, 4)]),
             min_size=1, max_size=60)
)  # fmt: skip
def test_round_trip(entries: list[int]) -> None:
    offsets = np.array(entries, np.int64)
    raw = build_index(offsets)
    np.testing.assert_array_equal(np.frombuffer(blosc2.decompress2(raw), "<i8"), offsets)
    alike = len(set(entries)) == 1 < len(entries) and entries[0] >= 0
    if alike or entries.count(0) > 1:
        # all chunks at one offset, or several at the first
        with pytest.raises(FrameFormatError):
            parse_index(raw, ROOMY, len(entries))
        return
    index = parse_index(raw, ROOMY, len(entries))
    np.testing.assert_array_equal(index.offsets, offsets)
    assert index.nstored == sum(entry >= 0 for entry in entries)
    starts, stops = index.extents(stored_chunks(offsets))
    for start, stop in zip(starts.tolist(), stops.tolist(), strict=True):
        assert stop == min((e for e in entries if e > start), default=2**40)


#: Where entries that are looked at together end.
SLICE = 1 << 16


@pytest.mark.parametrize("descent", [None, 1, SLICE - 1, SLICE, SLICE + 1, SLICE + 9])
def test_ends_of_many_chunks(descent: int | None) -> None:
    count = SLICE + 10
    offsets = np.arange(count) * 40
    # two chunks may have one start
    offsets[7] = offsets[6]
    if descent is not None:
        offsets = np.roll(offsets, descent)
    index = parse_index(compressed(offsets), ROOMY, count)
    starts, stops = index.extents(np.arange(count))
    np.testing.assert_array_equal(starts, offsets)
    following = dict(itertools.pairwise([*sorted(set(offsets.tolist())), 2**40]))
    assert stops.tolist() == [following[start] for start in offsets.tolist()]


def test_the_starts_of_chunks_in_order_take_no_second_column() -> None:
    count = 100_000
    index = parse_index(compressed(np.arange(count) * 40), ROOMY, count)
    tracemalloc.start()
    try:
        index.extents(np.arange(3))
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert held < count


@pytest.mark.parametrize(
    "how",
    [
        {"codec": blosc2.Codec.ZSTD},
        {"clevel": 0},
        {"filters": [blosc2.Filter.DELTA, *[blosc2.Filter.NOFILTER] * 4, blosc2.Filter.SHUFFLE]},
        {"codec": blosc2.Codec.LZ4, "splitmode": blosc2.SplitMode.ALWAYS_SPLIT},
    ],
)
def test_any_compression_is_read(how: dict) -> None:
    offsets = np.random.default_rng(2).permutation(3000) * 40
    index = parse_index(compressed(offsets, **how), ROOMY, 3000)
    np.testing.assert_array_equal(index.offsets, offsets)


@pytest.mark.parametrize("nzeros", range(11, 64, 4))
@pytest.mark.parametrize("first", [16, 21])
@pytest.mark.parametrize("frame", ["python-blosc2", "sealed"])
def test_zeros_over_an_index(tmp_path: Path, first: int, nzeros: int, frame: str) -> None:
    path, values = tmp_path / "x.b2nd", np.random.default_rng(1).normal(size=40)
    blosc2.asarray(values, chunks=(10,), blocks=(10,), urlpath=str(path))
    if frame == "sealed":
        seal(path)
    content = bytearray(path.read_bytes())
    header = parse_header(bytes(content), len(content))
    at = header.header_len + header.cbytes + first
    content[at : at + nzeros] = bytes(nzeros)
    path.write_bytes(content)
    with pytest.raises(FrameFormatError, match=r"x\.b2nd"):
        open_b2nd(path)


def test_the_alpha_version_did_not_set_the_last_filter() -> None:
    offsets = np.arange(3) * 40
    raw = bytearray(compressed(offsets, clevel=0))
    raw[0], raw[21] = 3, 0
    np.testing.assert_array_equal(parse_index(bytes(raw), ROOMY, 3).offsets, offsets)


def test_several_chunks_at_the_first_offset() -> None:
    offsets = np.array([0, 40, 80, 0])
    with pytest.raises(FrameFormatError, match="puts 2 chunks at offset 0"):
        parse_index(compressed(offsets, clevel=0), ROOMY, 4)


def test_typesize_must_be_8() -> None:
    with pytest.raises(FrameFormatError, match="the offset index is damaged") as caught:
        parse_index(compressed(np.arange(100) * 40, typesize=1), ROOMY, 100)
    assert caught.value.offset == 3


def test_the_number_of_entries_is_that_of_the_chunks() -> None:
    for nchunks in (NCHUNKS - 1, NCHUNKS + 1):
        with pytest.raises(FrameFormatError, match=r"96 bytes, \d+ are expected") as caught:
            parse_index(INDEX, HEADER, nchunks)
        assert caught.value.offset == 4


@pytest.mark.parametrize("kind", [0x80, 0x83, 0x85, 0x86, 0x87, 0x88, 0x90, 0xFF])
def test_other_special_codes(kind: int) -> None:
    offsets = np.arange(5) * 100
    offsets[3] = (kind << 56) - 2**64
    with pytest.raises(FrameFormatError, match=f"special code {kind & 0x7F} for chunk 3"):
        parse_index(compressed(offsets), ROOMY, 5)


def test_entries_outside_of_the_data() -> None:
    offsets = np.arange(5) * 100
    for last, wrong in [(68 + 400, False), (31 + 400, True)]:
        header = replace(HEADER, cbytes=last)
        if wrong:
            with pytest.raises(FrameFormatError, match="puts chunk 4 at 400"):
                parse_index(compressed(offsets), header, 5)
        else:
            assert len(parse_index(compressed(offsets), header, 5)) == 5
    sparse = replace(HEADER, sparse=True, cbytes=1)
    assert parse_index(compressed(offsets), sparse, 5).nstored == 5
    offsets[1] = 2**32
    with pytest.raises(FrameFormatError, match="puts chunk 1 at 4294967296"):
        parse_index(compressed(offsets), sparse, 5)


def test_more_chunks_than_the_data_has_room_for() -> None:
    with pytest.raises(FrameFormatError, match="too short for the 5 stored chunks"):
        parse_index(compressed(np.arange(5)), replace(HEADER, cbytes=5 * 32 - 1), 5)


@pytest.mark.parametrize(
    ("at", "new", "offset"),
    [
        (4, struct.pack("<i", -8), 3),
        (8, bytes(4), 8),
        (12, struct.pack("<i", 31), 12),
        (31, 0x08, 30),
    ],
)
def test_a_damaged_header(at: int, new: bytes | int, offset: int) -> None:
    damaged = changed(INDEX, at, new)
    for parse in (
        lambda: parse_index(damaged, HEADER, NCHUNKS),
        lambda: index_len_of(damaged[:32], len(damaged), NCHUNKS),
    ):
        with pytest.raises(FrameFormatError, match="the offset index is damaged") as caught:
            parse()
        assert caught.value.offset == offset
