"""The frame header against python-blosc2, `struct` and msgpack."""

from __future__ import annotations

import struct
from dataclasses import replace

import blosc2
import msgpack
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from b2nd_dask import FrameFormatError, UnsupportedFrameError
from b2nd_dask.format.chunk.compression import Compression
from b2nd_dask.format.header import (
    MAX_HEADER_LEN,
    FrameHeader,
    build_header,
    header_len_of,
    odd_byte,
    parse_header,
    with_new_tail,
)
from tests.format.by_hand import changed, frame_bytes, parts_of
from tests.strategies import examples

VALUES = np.arange(3000, dtype="<i4").reshape(50, 60)
RAW = frame_bytes(VALUES, chunks=(20, 30), blocks=(10, 10), meta={"user": 1})


@pytest.mark.parametrize("codec", list(blosc2.Codec)[:5], ids=lambda codec: codec.name)
@pytest.mark.parametrize("splitmode", list(blosc2.SplitMode)[:3], ids=lambda mode: mode.name)
def test_fields_are_those_of_python_blosc2(
    codec: blosc2.Codec, splitmode: blosc2.SplitMode
) -> None:
    cparams = {"codec": codec, "clevel": 9, "splitmode": splitmode, "use_dict": False}
    array = blosc2.asarray(VALUES, chunks=(20, 30), blocks=(10, 10), cparams=cparams)
    raw = array.to_cframe()
    header = parse_header(raw, len(raw))
    schunk = array.schunk
    assert (header.nbytes, header.typesize) == (schunk.nbytes, 4)
    assert (header.chunksize, header.blocksize) == (schunk.chunksize, schunk.blocksize)
    assert (header.header_len, header.frame_len) == (len(parts_of(raw).head), len(raw))
    assert header.cbytes == len(parts_of(raw).data)
    assert header.index_start == header.header_len + header.cbytes
    how = header.compression
    assert (how.codec, how.clevel, how.splitmode) == (codec.value, 9, splitmode.value)
    assert how.filters == tuple(getattr(f, "value", f) for f in schunk.cparams.filters)
    assert list(header.metalayers) == ["b2nd"]
    assert not header.sparse


def test_a_codec_that_has_no_nibble_stands_in_byte_77() -> None:
    how = Compression(codec=33, clevel=5, filters=(0,) * 6, codec_meta=7)
    raw = build_header(parse_header(RAW, len(RAW)), has_vlmeta=False)
    head = build_header(replace(parse_header(RAW, len(RAW)), compression=how), has_vlmeta=False)
    assert (head[27], head[77], head[78]) == (0x56, 33, 7)
    assert (raw[27] & 15, raw[77]) == (5, 5)
    assert parse_header(head + RAW[len(head) :], len(RAW)).compression == how


def test_a_stock_msgpack_decoder_reads_what_is_written() -> None:
    how = Compression(5, 3, (0, 1, 2, 3, 4, 35), (0, 0, 0, 0, 9, 8), 4, 0, use_dict=True)
    header = FrameHeader(0, 10**12, True, 2**40, 123456, 300, 600, 1200, how, {"one": b"\x01"})
    built = build_header(header, has_vlmeta=True)
    values = msgpack.unpackb(built, raw=True)
    assert values[:3] == [b"b2frame\0", len(built), 10**12]
    assert values[3] == bytes([0x12, 1, 0x35, 3])
    assert values[4:11] == [2**40, 123456, 300, 600, 1200, 1, 1]
    assert values[11] is True
    assert values[12] == msgpack.ExtType(
        6, bytes([0, 1, 2, 3, 4, 35, 5, 0, 0, 0, 0, 0, 9, 8, 1, 0])
    )
    size, offsets, contents = values[13]
    # up to the end of the map: 93, cd u16, de u16, a3 "one", d2 i32
    assert size == 1 + 3 + 3 + 4 + 5
    assert contents == [b"\x01"]
    assert built[offsets[b"one"] :] == b"\xc6\0\0\0\1\x01"


@examples(40)
@given(
    numbers=st.tuples(st.integers(0, 2**63 - 1), st.integers(0, 2**63 - 1)),
    sizes=st.tuples(st.integers(1, 2**31 - 1), *[st.integers(0, 2**31 - 1)] * 2),
    sparse=st.booleans(),
    codec=st.sampled_from([0, 1, 2, 4, 5, 32, 33, 160, 255]),
    slots=st.tuples(*[st.integers(0, 255)] * 12),
    level=st.integers(0, 9),
    mode=st.integers(1, 4),
    meta=st.dictionaries(st.text("abcé", min_size=1, max_size=9), st.binary(max_size=99)),
)
def test_round_trip(numbers, sizes, sparse, codec, slots, level, mode, meta) -> None:
    how = Compression(codec, level, slots[:6], slots[6:], mode, 3 if codec > 5 else 0, True)
    # the chunk size of an array that has no chunks stands for chunks of any size
    nbytes = numbers[0] if sizes[2] else 0
    meta = dict(list(meta.items())[:16])
    header = FrameHeader(0, 2**62, sparse, nbytes, numbers[1], *sizes, how, meta)
    built = build_header(header, has_vlmeta=False)
    found = parse_header(built, 2**62)
    assert found == replace(header, header_len=len(built))
    assert header_len_of(built.ljust(112, b"\0")) == len(built)
    assert odd_byte(built, found, has_vlmeta=False) is None


@pytest.mark.parametrize("at", [0, 1, 10, 15, 24, 29, 38, 47, 52, 57, 62, 65, 69, 87])
def test_each_marker_must_stand(at: int) -> None:
    with pytest.raises(FrameFormatError, match=f"0x00 where 0x{RAW[at]:02x} is expected") as caught:
        parse_header(changed(RAW, at, 0), len(RAW))
    assert caught.value.offset == at


@pytest.mark.parametrize(
    ("at", "new", "error", "offset"),
    [
        (25, 0x14, UnsupportedFrameError, 25),
        (25, 0x22, FrameFormatError, 25),
        (25, 0x92, UnsupportedFrameError, 25),
        (25, 0x52, UnsupportedFrameError, 25),
        (26, 2, FrameFormatError, 26),
        (70, 7, FrameFormatError, 70),
        (30, b"\xff", FrameFormatError, 29),
        (39, b"\xff", FrameFormatError, 29),
        (48, struct.pack(">i", 0), FrameFormatError, 29),
        (53, b"\xff", FrameFormatError, 29),
        (58, b"\xff", FrameFormatError, 29),
        (91, 0, FrameFormatError, 91),
    ],
)
def test_damaged_fields(at: int, new: bytes | int, error: type[Exception], offset: int) -> None:
    with pytest.raises(error) as caught:
        parse_header(changed(RAW, at, new), len(RAW))
    assert caught.value.offset == offset


@pytest.mark.parametrize("length", [0, -1, 96, len(RAW) + 1, MAX_HEADER_LEN + 1])
def test_lengths_of_headers_that_cannot_be(length: int) -> None:
    with pytest.raises(FrameFormatError, match="a header of") as caught:
        header_len_of(changed(RAW, 11, struct.pack(">i", length)))
    assert caught.value.offset == 11


def test_what_is_cut_off() -> None:
    with pytest.raises(FrameFormatError, match="the file is cut off: it has") as caught:
        parse_header(RAW, len(RAW) - 1)
    assert caught.value.offset == 16
    length = header_len_of(RAW)
    with pytest.raises(FrameFormatError, match="ends inside the header") as caught:
        parse_header(RAW[: length - 1], len(RAW))
    assert caught.value.offset == length - 1
    cut_off = [(RAW[:length], "the file is cut off") for length in (2, 9, 111)]
    for short, problem in [(b"", "the file is empty"), *cut_off]:
        with pytest.raises(FrameFormatError, match=problem) as caught:
            header_len_of(short)
        assert caught.value.offset == len(short)
    with pytest.raises(FrameFormatError, match="not a Blosc2 frame: b'ab'"):
        header_len_of(b"ab")


@pytest.mark.parametrize(
    ("start", "hint"),
    [(b"\x89HDF\r\n\x1a\n", "h5py"), (b"\x93NUMPY\x01\0", "numpy.load"), (b"PK\x03\x04", "zip://")],
)
def test_other_formats_are_named(start: bytes, hint: str) -> None:
    with pytest.raises(FrameFormatError, match=hint) as caught:
        header_len_of(start.ljust(200, b"\0"))
    assert caught.value.offset == 0


def test_odd_byte_finds_every_byte_that_is_not_free() -> None:
    head = parts_of(RAW).head
    free = {27, 28, 63, 64, 66, 67, *range(71, 86)}
    for at in range(len(head)):
        damaged = changed(head, at, head[at] ^ 1)
        # the values of fields are checked elsewhere: only what they are written as counts here
        found = odd_byte(damaged, parse_header(RAW, len(RAW)), has_vlmeta=False)
        assert found == (None if at in free else at)
    assert odd_byte(head + b"\0", parse_header(RAW, len(RAW)), has_vlmeta=False) == len(head)


def test_a_new_tail_changes_three_fields() -> None:
    head = parts_of(RAW).head
    new = with_new_tail(head, cbytes=77, frame_len=2**40)
    expected = changed(head, 16, struct.pack(">Q", 2**40))
    expected = changed(changed(expected, 39, struct.pack(">q", 77)), 68, 0xC3)
    assert new == expected
    assert with_new_tail(head, cbytes=77, frame_len=1, has_vlmeta=False)[68] == 0xC2
