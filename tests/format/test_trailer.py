"""The trailer, its fingerprint and the write id before it."""

from __future__ import annotations

import struct

import blosc2
import msgpack
import numpy as np
import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from b2nd_dask import FrameFormatError
from b2nd_dask.format.trailer import (
    TAIL_LEN,
    WRITE_ID_NBYTES,
    History,
    build_marks,
    build_trailer,
    check_trailer_start,
    fingerprint_matches,
    has_no_fingerprint,
    parse_marks,
    parse_trailer,
    trailer_len_of,
)
from tests.format.by_hand import changed, frame_bytes, parts_of
from tests.strategies import examples

EMPTY = bytes.fromhex("9401 93 cd0006 de0000 dc0000 ce00000023 d800") + bytes(16)


def of_python_blosc2(**vlmeta: object) -> bytes:
    array = blosc2.asarray(np.arange(5))
    for name, value in vlmeta.items():
        array.schunk.vlmeta[name] = value
    return parts_of(array.to_cframe()).trailer


def test_a_trailer_without_entries() -> None:
    assert of_python_blosc2() == EMPTY == build_trailer({})
    assert parse_trailer(EMPTY) == {}


def test_entries_of_python_blosc2() -> None:
    values = {"one": [1, "two"], "other": {"a": b"\0" * 1000}}
    raw = of_python_blosc2(**values)
    assert trailer_len_of(raw, len(raw)) == len(raw)
    vlmeta = parse_trailer(raw)
    found = {n: msgpack.unpackb(blosc2.decompress2(c)) for n, c in vlmeta.items()}
    assert found == values
    assert build_trailer(vlmeta) == raw


@examples(40)
@given(
    st.dictionaries(st.text("abc", max_size=9), st.binary(max_size=50), max_size=16),
    st.booleans(),
)
def test_what_is_written_is_msgpack(entries: dict[str, bytes], fingerprint: bool) -> None:
    raw = build_trailer(entries, fingerprint=fingerprint)
    version, section, length, signed = msgpack.unpackb(raw)
    assert (version, length) == (1, len(raw))
    digest = xxhash.xxh3_128_digest(raw[:-16])
    assert signed == (msgpack.ExtType(3, digest) if fingerprint else msgpack.ExtType(0, bytes(16)))
    size, offsets, contents = section
    assert contents == list(entries.values())
    # in a trailer the size counts from behind the 93, and offsets from the first byte
    assert raw[3 + size] == 0xDC
    for name, content in entries.items():
        assert raw[offsets[name] + 5 :].startswith(content)
    assert trailer_len_of(bytes(50) + raw, 1000) == len(raw)
    assert parse_trailer(raw) == entries


def test_the_fingerprint_covers_all_bytes_before_it() -> None:
    raw = build_trailer({"a": b"chunk"}, fingerprint=True)
    assert raw[-16:] == xxhash.xxh3_128(raw[:-16]).digest()
    assert raw[-17] == 3
    assert fingerprint_matches(raw)
    assert not has_no_fingerprint(raw)
    for at in range(len(raw)):
        assert not fingerprint_matches(changed(raw, at, raw[at] ^ 0x10))
    assert has_no_fingerprint(EMPTY)
    assert not fingerprint_matches(EMPTY)


@pytest.mark.parametrize("at", [-TAIL_LEN, -18])
def test_markers_of_the_tail(at: int) -> None:
    with pytest.raises(FrameFormatError, match="no trailer at the frame's end"):
        trailer_len_of(changed(EMPTY, len(EMPTY) + at, 0), 1000)
    with pytest.raises(FrameFormatError, match="no trailer at the frame's end"):
        trailer_len_of(EMPTY[-TAIL_LEN + 1 :], 1000)


@pytest.mark.parametrize("length", [0, 34, 1001, 2**32 - 1])
def test_lengths_that_cannot_be(length: int) -> None:
    raw = changed(EMPTY, len(EMPTY) - 22, struct.pack(">I", length))
    with pytest.raises(FrameFormatError, match=f"a trailer of {length} bytes, not .* to 1000"):
        trailer_len_of(raw, 1000)


@pytest.mark.parametrize(("at", "new"), [(0, 0x93), (1, 2), (2, 0x94)])
def test_its_first_bytes(at: int, new: int) -> None:
    for parse in (check_trailer_start, parse_trailer):
        with pytest.raises(FrameFormatError, match="a trailer starts with 94 01 93") as caught:
            parse(changed(EMPTY, at, new))
        assert caught.value.offset == 0
    # version 0 is that of betas
    check_trailer_start(changed(EMPTY, 1, 0))


def test_fingerprints_of_unknown_type() -> None:
    with pytest.raises(FrameFormatError, match="fingerprint type 4") as caught:
        parse_trailer(changed(EMPTY, len(EMPTY) - 17, 4))
    assert caught.value.offset == len(EMPTY) - 17


def test_entries_that_reach_into_the_tail() -> None:
    raw = build_trailer({"a": b"12345678"})
    at = raw.index(b"12345678") - 4
    with pytest.raises(FrameFormatError, match="9 bytes are needed"):
        parse_trailer(changed(raw, at, struct.pack(">I", 9)))


def test_python_blosc2_finds_index_and_trailer_around_a_write_id() -> None:
    raw = frame_bytes(np.arange(100), chunks=(10,))
    parts = parts_of(raw)
    mark = build_marks("0123456789abcdef", None, b"")
    assert mark == b"b2ndmark" + bytes.fromhex("0123456789abcdef")
    head = changed(parts.head, 16, struct.pack(">Q", len(raw) + WRITE_ID_NBYTES))
    marked = head + parts.data + parts.index + mark + parts.trailer
    np.testing.assert_array_equal(blosc2.ndarray_from_cframe(marked)[:], np.arange(100))


@given(st.binary(min_size=8, max_size=8).map(bytes.hex))
def test_a_write_id_is_read_again(key: str) -> None:
    mark = build_marks(key, None, b"")
    assert len(mark) == WRITE_ID_NBYTES
    for before in (b"", b"an index chunk"):
        assert parse_marks(before + mark) == (key, History(), b"")
        assert parse_marks(before + mark[:-1]) == (None, History(), b"")
        assert parse_marks(before + changed(mark, 0, 0)) == (None, History(), b"")
