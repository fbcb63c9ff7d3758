"""What must not be, though C-Blosc2 or NumPy would take it: refused, with the reason."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

import blosc2
import msgpack
import numpy as np
import pytest

from b2nd_dask.errors import CorruptChunkError, FrameFormatError, UnsupportedFrameError
from b2nd_dask.format.chunk.chunk_header import parse_chunk_header
from b2nd_dask.format.dtypes import parse_dtype
from b2nd_dask.format.metalayers import build_metalayers, parse_metalayers
from b2nd_dask.format.msgpack_bounds import MAX_EQUAL_HASHES
from b2nd_dask.format.values import pack_value, unpack_value

if TYPE_CHECKING:
    from collections.abc import Mapping

DATA = np.arange(4000, dtype="<i8")


def chunk(filters: list[blosc2.Filter]) -> bytearray:
    return bytearray(
        blosc2.compress2(DATA, typesize=8, blocksize=8000, filters=filters, codec=blosc2.Codec.ZSTD)
    )


def check(data: bytes | bytearray, blocksize: int | None = None) -> None:
    parse_chunk_header(data, nbytes=DATA.nbytes, blocksize=blocksize, typesize=8)


SHUFFLE, DELTA = [blosc2.Filter.SHUFFLE], [blosc2.Filter.DELTA, blosc2.Filter.SHUFFLE]


@pytest.mark.parametrize("filters", [SHUFFLE, DELTA, []])
def test_chunks_as_blosc2_makes_them_pass(filters: list[blosc2.Filter]) -> None:
    check(chunk(filters), 8000)


@pytest.mark.parametrize("filters", [SHUFFLE, DELTA])
def test_the_delta_flag_is_held_against_the_filters(filters: list[blosc2.Filter]) -> None:
    data = chunk(filters)
    data[2] ^= 0x08
    with pytest.raises(CorruptChunkError, match="disagree on the delta filter"):
        check(data)


def test_blocks_hold_whole_items() -> None:
    data = chunk(SHUFFLE)
    struct.pack_into("<i", data, 8, 8001)
    with pytest.raises(CorruptChunkError, match="no whole number of elements"):
        check(data)


def test_blocks_are_not_longer_than_the_chunk() -> None:
    data = chunk(SHUFFLE)
    struct.pack_into("<i", data, 8, DATA.nbytes + 8)
    with pytest.raises(CorruptChunkError, match="32000 bytes in blocks of 32008 cannot be"):
        check(data)


def test_the_alpha_version_has_no_last_filter() -> None:
    # C-Blosc2 reads the slot as empty in version 3, whatever stands there
    data = chunk([])
    data[0], data[21] = 3, 77
    check(data)
    got = np.frombuffer(blosc2.decompress2(bytes(data)), "<i8")
    assert (got == DATA).all()


@pytest.mark.parametrize("version", [0, 7, 255])
def test_unknown_versions_of_chunks(version: int) -> None:
    data = chunk(SHUFFLE)
    data[0] = version
    with pytest.raises(UnsupportedFrameError, match=f"chunk format version {version}"):
        check(data)


@pytest.mark.parametrize(
    "text", ["V0", "S", "<U0", "V500000000", "<U20000000", "[('a', '<f8', (4096, 4096))]"]
)
def test_items_that_are_empty_or_too_wide(text: str) -> None:
    with pytest.raises(FrameFormatError, match="has elements of"):
        parse_dtype(text.encode())


@pytest.mark.parametrize("text", ["<M8[0s]", "<m8[00ns]", "a5", "<a5"])
def test_dtypes_that_numpy_mistakes(text: str) -> None:
    with pytest.raises(FrameFormatError, match="is not a dtype"):
        parse_dtype(text.encode())


def test_dtypes_in_dtypes_in_dtypes() -> None:
    def nested(depth: int) -> bytes:
        return b"[('a', " * depth + b"'<i4'" + b")]" * depth

    assert parse_dtype(nested(16)).itemsize == 4
    with pytest.raises(FrameFormatError):
        parse_dtype(nested(17))


@pytest.mark.parametrize("text", ["[('a', '<i4', 1)]", "[('a', '<i4', (1,))]"])
def test_a_field_of_one_item_is_an_array(text: str) -> None:
    # NumPy warns of the first, and pytest makes warnings errors
    assert parse_dtype(text.encode())["a"].shape == (1,)


def array_value(**changes: object) -> Mapping[str, object]:
    return {"dtype": {"str": "<f8"}, "shape": [2], "data": bytes(16)} | changes


@pytest.mark.parametrize(
    "changes",
    [
        {"shape": [2**62, 2**62, 0], "data": b""},
        {"shape": [2**63], "data": b""},
        {"shape": [2, *[1] * 70]},
        {"shape": [True, 2]},
        {"dtype": {"str": "V0"}, "shape": [2**40], "data": b""},
        {"dtype": {"descr": [["a", "<f8", [-1]]]}},
        {"dtype": {"descr": [["a", "<f8", [2**40]]]}},
        {"dtype": {"descr": [["a", "<f8", "b"]]}},
        {"dtype": {"descr": [[["t", "u", "v"], "<f8"]]}},
    ],
)
def test_arrays_in_metadata_that_cannot_be(changes: dict[str, object]) -> None:
    raw = msgpack.packb(msgpack.ExtType(46, msgpack.packb(array_value(**changes))))
    with pytest.raises(FrameFormatError):
        unpack_value(raw)


def test_honest_sets_and_maps_spread() -> None:
    n = 20 * MAX_EQUAL_HASHES
    value = {
        "s": {*range(n), *(float(2**i) for i in range(1000)), *((i, -i) for i in range(n))},
        "m": {str(i): i for i in range(n)},
    }
    assert unpack_value(pack_value(value)) == value


def test_metalayers_do_not_lie_in_each_other() -> None:
    section = b"\x9e" * 3 + build_metalayers(
        {"a": bytes(4000), "b": bytes(4000)}, 3, counted_from=3
    )
    offset = section.index(b"\xa1a\xd2") + 3
    (first,) = struct.unpack_from(">i", section, offset)
    both = bytearray(section)
    struct.pack_into(">i", both, section.index(b"\xa1b\xd2") + 3, first)
    cut = bytes(both[: first + 4005])
    with pytest.raises(FrameFormatError, match="lie in each other"):
        parse_metalayers(cut, 4, len(cut))
