"""Metadata values: against msgpack and python-blosc2, and those that try to break the reader."""

import struct

import blosc2
import msgpack
import numpy as np
import pytest
from blosc2 import msgpack_utils
from hypothesis import given
from hypothesis import strategies as st

from b2nd_dask import (
    B2ndError,
    CorruptChunkError,
    FrameFormatError,
    UnsupportedFrameError,
    open_b2nd,
    to_b2nd,
)
from b2nd_dask.format.trailer import parse_trailer
from b2nd_dask.format.values import (
    MAX_ITEMS,
    MetaView,
    most_unpacked,
    pack_metadata,
    pack_value,
    unpack_entry,
    unpack_value,
)
from tests.format.by_hand import parts_of
from tests.strategies import examples


@pytest.mark.parametrize("code", [45, 46])
def test_nested_extensions_end_before_the_stack_does(code):
    value = b"\x90"
    for _ in range(300):
        value = b"\xc9" + struct.pack(">IB", len(value), code) + value
    with pytest.raises(B2ndError, match="nests more than"):
        unpack_value(value)


def test_what_could_not_be_read_again_is_not_written(tmp_path):
    value = frozenset([1])
    for _ in range(20):
        value = frozenset([value])
    with pytest.raises(TypeError, match="'deep'"):
        to_b2nd(np.ones(3), tmp_path / "x.b2nd", vlmeta={"deep": value})
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("kind", [set, frozenset])
def test_a_set_of_times_is_refused_for_what_it_is(tmp_path, kind):
    """NumPy's times are stored as arrays, to keep their unit, and arrays have no hash."""
    with pytest.raises(TypeError, match=r"'t' cannot be stored: .* a set .* a time of NumPy"):
        to_b2nd(np.ones(3), tmp_path / "x.b2nd", vlmeta={"t": kind([np.datetime64("2020-01-01")])})
    with pytest.raises(FrameFormatError, match="a list in it"):
        unpack_value(msgpack.packb(msgpack.ExtType(45, msgpack.packb([[1]] * 100))))


def test_values_round_trip(tmp_path):
    values = {
        "t": (1, (2.5, "x")),
        "c": 1 - 2j,
        "s": {1, 2},
        "n": None,
        "b": b"\0",
        "i": np.int8(3),
    }
    to_b2nd(np.ones(3), tmp_path / "x.b2nd", vlmeta=values)
    assert dict(open_b2nd(tmp_path / "x.b2nd").vlmeta) == values
    assert unpack_value(pack_value({"a": [1]})) == {"a": [1]}


def test_scalars_of_numpy_keep_their_value_and_unit():
    assert unpack_value(pack_value([np.complex64(1 - 2j), np.complex128(3j)])) == [1 - 2j, 3j]
    for unit in ("ns", "D"):
        for kind in ("datetime64", "timedelta64"):
            for value in (np.array(3, f"{kind}[{unit}]"), np.array("NaT", f"{kind}[{unit}]")):
                found = unpack_value(pack_value({"t": value[()]}))["t"]
                assert found.dtype == value.dtype
                np.testing.assert_array_equal(found, value)


VALUES = {
    "plain": {"a": [1, -2, 2**63, 1.5, None, True, "text", b"bytes"], "b": {"c": []}},
    "tuple": (1, (2, [3])),
    "long": ["text"] * 5000,
}


def test_entries_are_what_python_blosc2_writes(tmp_path):
    array = blosc2.asarray(np.arange(3), urlpath=str(tmp_path / "x.b2nd"))
    for name, value in VALUES.items():
        array.schunk.vlmeta[name] = value
    raw = (tmp_path / "x.b2nd").read_bytes()
    entries = parse_trailer(parts_of(raw).trailer)
    view = MetaView(entries, "x.b2nd", compressed=True)
    assert dict(view) == VALUES
    assert list(view) == list(VALUES)
    assert pack_metadata(VALUES, compressed=True) == entries
    assert view.raw("long") == msgpack.packb(VALUES["long"])
    assert view.stored is entries


def test_python_blosc2_reads_what_is_packed():
    values = VALUES | {"n": np.float32(0.5), "c": 1 + 2j, "s": {1, "b"}}
    if tuple(map(int, blosc2.__version__.split(".")[:2])) >= (4, 14):
        values["a"] = np.arange(6.0)
    for name, raw in pack_metadata(values, compressed=False).items():
        np.testing.assert_equal(msgpack_utils.msgpack_unpackb(raw), values[name])


plain = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats(allow_nan=False)
    | st.text(max_size=20) | st.binary(max_size=300) | st.complex_numbers(allow_nan=False),
    lambda inner: st.lists(inner, max_size=20) | st.lists(inner, max_size=3).map(tuple)
    | st.dictionaries(st.text(max_size=3), inner, max_size=20),
    max_leaves=30,
)  # fmt: skip


@examples(60)
@given(plain)
def test_any_value_round_trips(value):
    try:
        raw = pack_value(value)
    except (ValueError, OverflowError):
        # msgpack has no text of lone surrogates
        return
    found = unpack_value(raw)
    assert found == value
    assert type(found) is type(value)
    assert pack_value(found) == raw


@examples(40)
@given(plain, st.data())
def test_a_value_that_is_cut_off_is_an_error(value, data):
    raw = pack_value(value)
    cut = data.draw(st.integers(0, len(raw) - 1))
    with pytest.raises(FrameFormatError):
        unpack_value(raw[:cut])
    with pytest.raises(FrameFormatError):
        unpack_value(raw + b"\xc0")


@pytest.mark.parametrize(
    ("raw", "error", "problem"),
    [
        (b"", FrameFormatError, "it ends too early"),
        (b"\xc1", FrameFormatError, "0xc1 starts none"),
        (b"\xdd\xff\xff\xff\xff", FrameFormatError, "holds more than"),
        (b"\xdf\x7f\xff\xff\xff", FrameFormatError, "holds more than"),
        (b"\xa1\xff", FrameFormatError, "not a msgpack value"),
        (b"\x81\x90\x01", FrameFormatError, "not a msgpack value"),
        (b"\xd4\x2a\x00", UnsupportedFrameError, "not followed"),
        (b"\xd4\x2b\x00", UnsupportedFrameError, "not followed"),
        (b"\xd4\x05\x00", UnsupportedFrameError, "unknown type 5"),
        (b"\xd4\x2d\x05", FrameFormatError, "a set that is not a list"),
        (b"\xd4\x2e\x90", UnsupportedFrameError, "an array of Python objects"),
    ],
)
def test_bytes_that_are_no_value(raw, error, problem):
    with pytest.raises(error, match=problem):
        unpack_value(raw)


def test_no_more_values_than_the_bound():
    with pytest.raises(FrameFormatError, match="holds more than"):
        unpack_value(msgpack.packb([None] * MAX_ITEMS))
    assert len(unpack_value(msgpack.packb([None] * (MAX_ITEMS - 1)))) == MAX_ITEMS - 1


def test_damaged_entries_name_the_entry_and_the_file():
    entries = dict(pack_metadata({"good": 1, "bad": "x" * 500}, compressed=True))
    entries["bad"] = entries["bad"][:12] + struct.pack("<i", 10**6) + entries["bad"][16:]
    view = MetaView(entries, "some/file.b2nd", compressed=True)
    assert view["good"] == 1
    with pytest.raises(CorruptChunkError, match="in the metadata entry 'bad'") as caught:
        view["bad"]
    assert "some/file.b2nd" in str(caught.value)
    with pytest.raises(KeyError):
        view["other"]


def test_an_entry_that_unpacks_to_too_much():
    entry = blosc2.compress2(bytes(70 << 20), typesize=1)
    with pytest.raises(CorruptChunkError, match="bytes unpack to"):
        unpack_entry(bytes(entry), most_unpacked(bytes(entry)))
    assert unpack_entry(bytes(entry), 70 << 20) == bytes(70 << 20)


@pytest.mark.parametrize(
    ("entries", "error", "problem"),
    [
        (["a"], TypeError, "a mapping of names to values"),
        ({1: 2}, TypeError, "1 is int"),
        ({"": 2}, ValueError, "1 to 31 bytes"),
        ({"ä" * 16: 2}, ValueError, "1 to 31 bytes"),
        ({"a": [{1: 2}]}, TypeError, "'a': keys must be text or bytes"),
        ({"a": object()}, TypeError, "'a' cannot be stored"),
        ({"a": 2**64}, TypeError, "'a' cannot be stored"),
        ({"a": np.array([object()])}, TypeError, "'a' cannot be stored"),
    ],
)
def test_entries_that_cannot_be_packed(entries, error, problem):
    with pytest.raises(error, match=problem):
        pack_metadata(entries, compressed=True)
