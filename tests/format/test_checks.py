"""What must not be, though C-Blosc2 or NumPy would take it: refused, with the reason."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

import msgpack
import pytest

from b2nd_dask.errors import FrameFormatError
from b2nd_dask.format.dtypes import parse_dtype
from b2nd_dask.format.metalayers import build_metalayers, parse_metalayers
from b2nd_dask.format.values import MAX_EQUAL_HASHES, pack_value, unpack_value

if TYPE_CHECKING:
    from collections.abc import Mapping


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
    with pytest.raises(FrameFormatError, match="overlap"):
        parse_metalayers(cut, 4, len(cut))
