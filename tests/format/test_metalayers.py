"""Sections of metalayers against msgpack, and damaged byte by byte."""

from __future__ import annotations

import struct

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from b2nd_dask import FrameFormatError
from b2nd_dask.format.metalayers import MAX_METALAYERS, build_metalayers, parse_metalayers
from tests.format.by_hand import changed, frame_bytes, parts_of
from tests.strategies import examples

NAMES = st.text(max_size=31).filter(lambda name: len(name.encode()) <= 31)
ENTRIES = st.dictionaries(NAMES, st.binary(max_size=60), max_size=MAX_METALAYERS)


@examples(40)
@given(ENTRIES, st.integers(0, 200))
def test_what_is_written_is_msgpack_and_read_again(entries: dict[str, bytes], start: int) -> None:
    section = build_metalayers(entries, start, counted_from=start)
    size, offsets, contents = msgpack.unpackb(section, raw=False)
    assert contents == list(entries.values())
    assert list(offsets) == list(entries)
    for name, content in entries.items():
        at = offsets[name] - start
        assert (
            section[at : at + 5 + len(content)] == struct.pack(">BI", 0xC6, len(content)) + content
        )
    # behind the map its list of contents begins
    assert section[size] == 0xDC
    whole = bytes(start) + section
    assert parse_metalayers(whole, start + 1, len(whole)) == entries


def test_those_of_python_blosc2() -> None:
    meta = {"one": {"a": [1, 2]}, "two": b"\0\1", "n" * 31: None}
    head = parts_of(frame_bytes([1.0, 2.0], meta=meta)).head
    found = parse_metalayers(head, 88, len(head))
    assert list(found) == ["b2nd", *meta]
    assert {name: msgpack.unpackb(found[name]) for name in meta} == meta


def test_the_order_of_contents_is_free() -> None:
    section = bytearray(build_metalayers({"a": b"11", "b": b"22"}, 0, counted_from=0))
    first, second = section.index(b"\xa1a\xd2") + 3, section.index(b"\xa1b\xd2") + 3
    section[first : first + 4], section[second : second + 4] = (
        section[second : second + 4],
        section[first : first + 4],
    )
    assert parse_metalayers(bytes(section), 1, len(section)) == {"a": b"22", "b": b"11"}


SECTION = build_metalayers({"name": b"content", "other": b""}, 0, counted_from=0)
#: 93, cd u16, de u16, then the first name, its d2 and offset
NAME, OFFSET = 7, 12
CONTENT = SECTION.index(b"content") - 5


@pytest.mark.parametrize(
    ("at", "new", "problem", "offset"),
    [
        (1, 0xCC, "0xcc where 0xcd", 1),
        (4, 0xDF, "0xdf where 0xde", 4),
        (5, struct.pack(">H", 17), "17 metalayers", 5),
        (NAME, 0xC0, "0xc0 does not start a metalayer name", NAME),
        (NAME + 1, 0xFF, "is not UTF-8", NAME),
        (OFFSET, 0xD3, "0xd3 where 0xd2", OFFSET),
        (OFFSET + 1, struct.pack(">i", -1), "lies at -1, outside", 1),
        (OFFSET + 1, struct.pack(">i", len(SECTION)), "outside", 1),
        (CONTENT, 0xC5, "0xc5 where 0xc6", CONTENT),
        (CONTENT + 1, struct.pack(">I", 2**32 - 1), "bytes are needed", CONTENT + 5),
    ],
)
def test_damage_is_found_where_it_is(at: int, new: bytes | int, problem: str, offset: int) -> None:
    with pytest.raises(FrameFormatError, match=problem) as caught:
        parse_metalayers(changed(SECTION, at, new), 1, len(SECTION))
    assert caught.value.offset == offset


def test_seventeen_entries_are_too_many() -> None:
    entries = {str(n): b"" for n in range(17)}
    section = build_metalayers(entries, 0, counted_from=0)
    with pytest.raises(FrameFormatError, match="17 metalayers"):
        parse_metalayers(section, 1, len(section))
