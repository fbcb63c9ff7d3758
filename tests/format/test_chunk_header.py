"""Chunk headers: fields against `struct`, and everything that must be refused."""

from __future__ import annotations

import struct

import blosc2
import numpy as np
import pytest

from b2nd_dask.errors import CorruptChunkError, UnsupportedFrameError
from b2nd_dask.format.chunk.chunk_header import (
    MAX_BLOCKSIZE,
    ChunkKind,
    chunk_length,
    longest_chunk,
    parse_chunk_header,
    whole_chunk,
)
from b2nd_dask.format.chunk.codec import encode_repeated
from tests.format.by_hand import changed

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
def test_the_delta_flag_is_checked_against_the_filters(filters: list[blosc2.Filter]) -> None:
    data = chunk(filters)
    data[2] ^= 0x08
    with pytest.raises(CorruptChunkError, match="disagree on the delta filter"):
        check(data)


def test_blocks_hold_whole_elements() -> None:
    data = chunk(SHUFFLE)
    struct.pack_into("<i", data, 8, 8001)
    with pytest.raises(CorruptChunkError, match="not hold a whole number of elements"):
        check(data)


def test_blocks_are_not_longer_than_the_chunk() -> None:
    data = chunk(SHUFFLE)
    struct.pack_into("<i", data, 8, DATA.nbytes + 8)
    with pytest.raises(CorruptChunkError, match="impossible sizes: 32000 bytes in blocks of 32008"):
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


RAW = bytes(chunk(SHUFFLE))


@pytest.mark.parametrize("codec", list(blosc2.Codec)[:5], ids=lambda codec: codec.name)
@pytest.mark.parametrize("typesize", [1, 4, 8, 200])
def test_fields_are_those_of_the_bytes(codec: blosc2.Codec, typesize: int) -> None:
    filters = [blosc2.Filter.NOFILTER, blosc2.Filter.BITSHUFFLE]
    raw = blosc2.compress2(DATA, typesize=typesize, codec=codec, filters=filters, blocksize=8000)
    header = parse_chunk_header(raw)
    assert (header.version, header.typesize) == (5, typesize)
    assert (header.nbytes, header.blocksize, header.cbytes) == struct.unpack_from("<iii", raw, 4)
    assert (header.nbytes, header.cbytes) == (DATA.nbytes, len(raw))
    assert (header.header_len, header.nblocks) == (32, 4)
    assert header.filters == (0, 2, 0, 0, 0, 0)
    assert header.flags >> 5 == {0: 0, 1: 1, 2: 1, 4: 3, 5: 4}[codec.value]
    assert header.codec_id == -1
    assert not any([header.memcpyed, header.has_dict, header.special, header.needs_shape])


def test_other_kinds_of_chunks() -> None:
    plain = parse_chunk_header(blosc2.compress2(DATA, clevel=0))
    assert plain.memcpyed
    assert plain.cbytes == DATA.nbytes + 32
    zeros = parse_chunk_header(blosc2.compress2(np.zeros(500)))
    assert (zeros.special, zeros.cbytes, zeros.nbytes) == (ChunkKind.ZEROS, 32, 4000)
    repeated = parse_chunk_header(encode_repeated(b"12345678", nbytes=800, blocksize=80))
    assert (repeated.special, repeated.cbytes, repeated.nblocks) == (ChunkKind.ONE_VALUE, 40, 10)
    texts = np.array([b"some text that comes again and again, %d" % i for i in range(5000)])
    use_dict = blosc2.compress2(texts, codec=blosc2.Codec.ZSTD, use_dict=True, typesize=1)
    assert parse_chunk_header(use_dict).has_dict


def test_a_header_of_blosc1_has_16_bytes() -> None:
    raw = struct.pack("<BBBBiii", 2, 1, 0x02, 8, 80, 80, 96) + bytes(80)
    header = parse_chunk_header(raw)
    assert (header.header_len, header.memcpyed, header.filters) == (16, True, (0,) * 6)
    with pytest.raises(CorruptChunkError, match="15 bytes are left for a header of 16"):
        parse_chunk_header(raw[:15])


def test_data_that_ends_in_the_header() -> None:
    with pytest.raises(CorruptChunkError, match="31 bytes are left for a header of 32") as caught:
        parse_chunk_header(RAW[:31])
    assert caught.value.offset == 0


def test_what_the_frame_promises() -> None:
    parse_chunk_header(RAW, nbytes=32000, blocksize=8000, typesize=8)
    for promised, offset in [
        ({"nbytes": 31992}, 4),
        ({"blocksize": 4000}, 8),
        ({"typesize": 4}, 3),
    ]:
        with pytest.raises(CorruptChunkError, match="are expected") as caught:
            parse_chunk_header(RAW, **promised)
        assert caught.value.offset == offset
    # any frame may have chunks that were compressed as bytes
    parse_chunk_header(blosc2.compress2(DATA, typesize=1), typesize=8)


@pytest.mark.parametrize("cbytes", [-1, 0, 31, len(RAW) + 1, 2**31 - 1])
def test_lengths_that_cannot_be(cbytes: int) -> None:
    damaged = changed(RAW, 12, struct.pack("<i", cbytes))
    for read in (parse_chunk_header, whole_chunk, lambda data: chunk_length(data, len(RAW))):
        with pytest.raises(CorruptChunkError, match=f"chunk.s length is {cbytes} bytes") as caught:
            read(damaged)
        assert caught.value.offset == 12


def test_only_the_header_has_to_be_there() -> None:
    header = parse_chunk_header(RAW[:32], len(RAW) + 10)
    assert header == parse_chunk_header(RAW)
    assert chunk_length(RAW[:32], len(RAW)) == len(RAW)
    assert whole_chunk(RAW + b"more") == RAW
    with pytest.raises(CorruptChunkError):
        parse_chunk_header(RAW[:32], len(RAW) - 1)


@pytest.mark.parametrize(
    ("at", "new", "error", "offset"),
    [
        (3, 0, CorruptChunkError, 3),
        (4, struct.pack("<i", -1), CorruptChunkError, 3),
        (8, struct.pack("<i", 0), CorruptChunkError, 8),
        (8, struct.pack("<i", -8), CorruptChunkError, 8),
        (8, struct.pack("<i", MAX_BLOCKSIZE + 8), CorruptChunkError, 8),
        (30, 1, CorruptChunkError, 30),
        (31, 0x08, CorruptChunkError, 30),
        (31, 0x80, CorruptChunkError, 30),
        (31, 0x50, CorruptChunkError, 30),
        # special, stored plain: the body has another length
        (31, 0x10, CorruptChunkError, 12),
        (31, 0x30, CorruptChunkError, 12),
        (2, RAW[2] | 0x02, CorruptChunkError, 12),
        (8, struct.pack("<i", 8), CorruptChunkError, 12),
        (16, 77, UnsupportedFrameError, 16),
        (2, RAW[2] & 0x1F | 2 << 5, UnsupportedFrameError, 2),
        (2, RAW[2] & 0x1F | 6 << 5, UnsupportedFrameError, 2),
    ],
)
def test_headers_that_contradict_themselves(
    at: int, new: bytes | int, error: type[Exception], offset: int
) -> None:
    with pytest.raises(error) as caught:
        parse_chunk_header(changed(RAW, at, new))
    assert caught.value.offset == offset


@pytest.mark.parametrize("width", [1, 7, 8, 300, 800])
def test_lengths_of_repeated_elements(width: int) -> None:
    raw = encode_repeated(bytes(range(1, 8)) * 200, nbytes=1400, blocksize=1400)[: 32 + width]
    raw = changed(changed(raw, 12, struct.pack("<i", len(raw))), 3, 8 if width == 8 else 1)
    if 1400 % width:
        with pytest.raises(CorruptChunkError):
            parse_chunk_header(raw)
    else:
        assert parse_chunk_header(raw).special == ChunkKind.ONE_VALUE


@pytest.mark.parametrize(
    ("codec", "filters", "shaped"),
    [(32, 0, True), (33, 0, True), (160, 0, True), (0, 32, True), (0, 161, True), (0, 35, False)],
)
def test_codecs_and_filters_that_look_at_shapes(codec: int, filters: int, shaped: bool) -> None:
    raw = changed(changed(RAW, 22, codec), 16, filters)
    if codec:
        raw = changed(raw, 2, raw[2] & 0x1F | 6 << 5)
    header = parse_chunk_header(raw)
    assert header.needs_shape == shaped
    assert header.codec_id == (codec or -1)


@pytest.mark.parametrize("blocksize", [64, 4096, 32000])
@pytest.mark.parametrize("splitmode", [blosc2.SplitMode.ALWAYS_SPLIT, blosc2.SplitMode.NEVER_SPLIT])
def test_no_chunk_is_longer_than_the_longest(blocksize: int, splitmode: blosc2.SplitMode) -> None:
    noise = np.random.default_rng(4).bytes(32000)
    raw = blosc2.compress2(noise, typesize=8, blocksize=blocksize, clevel=9, splitmode=splitmode)
    assert DATA.nbytes < len(raw) <= longest_chunk(32000, blocksize)
