"""Parsing and building are inverse, byte for byte, on real files."""

import numpy as np
import pytest

from b2nd_dask import FrameFormatError
from b2nd_dask.format.grid import Grid
from b2nd_dask.format.header import build_header, header_len_of, parse_header
from b2nd_dask.format.index import build_index, parse_index
from b2nd_dask.format.metalayers import (
    array_meta_of,
    build_array_meta,
    build_metalayers,
    parse_array_meta,
    parse_metalayers,
)
from b2nd_dask.format.trailer import build_trailer, parse_trailer, trailer_len_of
from tests.vectors import rows

NATIVE = [
    row
    for row in rows("read")
    if row.path.is_file()
    and row.producer.startswith("python-blosc2 4.14.1")
    and not row.file.startswith("hostile/")
]


@pytest.mark.parametrize("row", NATIVE, ids=lambda row: row.file)
def test_header_index_and_trailer_are_built_as_upstream_writes_them(row):
    raw = row.path.read_bytes()
    header = parse_header(raw, len(raw))
    head = bytearray(raw[: header_len_of(raw)])
    head[62:68] = bytes.fromhex(
        "d10001d10001"
    )  # thread counts, which upstream takes from the machine
    trailer_len = trailer_len_of(raw, len(raw) - header.header_len)
    trailer = parse_trailer(raw[-trailer_len:])
    built = build_header(header, has_vlmeta=bool(raw[68] == 0xC3))
    assert built == bytes(head)
    assert build_trailer(trailer) == raw[-trailer_len:]

    meta = array_meta_of(header.metalayers)
    grid = Grid(meta.shape, meta.chunks, meta.blocks, header.typesize)
    content = build_array_meta(grid, meta.dtype)
    assert parse_array_meta(content) == meta
    # fields of bytes are spelled '|S5' by NumPy's descr, 'S5' where the user said so
    if b"|" not in content or meta.dtype.fields is None:
        assert content == header.metalayers["b2nd"]
    if grid.nchunks:
        data = raw[header.index_start : len(raw) - trailer_len]
        index = parse_index(data, header, grid.nchunks)
        again = parse_index(build_index(index.offsets), header, grid.nchunks)
        np.testing.assert_array_equal(again.offsets, index.offsets)
        if grid.nchunks == 1 or len(set(index.offsets.tolist())) > 1:
            assert build_index(index.offsets) == data


CATERVA = [row for row in rows("read") if row.file.startswith("caterva/")]


@pytest.mark.parametrize("row", CATERVA, ids=lambda row: row.file)
def test_the_caterva_metalayer_is_built_as_python_caterva_writes_it(row):
    path = row.path / "chunks.b2frame" if row.path.is_dir() else row.path
    raw = path.read_bytes()
    content = parse_header(raw, len(raw)).metalayers["caterva"]
    meta = parse_array_meta(content)
    assert build_array_meta(Grid(meta.shape, meta.chunks, meta.blocks, 1), None) == content


@pytest.mark.parametrize("counted_from", [0, 1])
def test_metalayers_round_trip(counted_from):
    entries = {"b2nd": b"\x97", "empty": b"", "n" * 31: bytes(300)}
    raw = build_metalayers(entries, 0, counted_from=counted_from)
    assert parse_metalayers(raw, 1, len(raw)) == entries


@pytest.mark.parametrize("cut", [1, 5, 12, 40, 100])
def test_cut_metalayers_are_an_error(cut):
    raw = build_metalayers({"name": bytes(50), "other": b"abc"}, 0, counted_from=0)
    with pytest.raises(FrameFormatError):
        parse_metalayers(raw[: len(raw) - cut], 1, len(raw) - cut)


def test_a_name_that_stands_twice_is_an_error():
    raw = build_metalayers({"aa": b"1", "ab": b"2"}, 0, counted_from=0).replace(b"ab", b"aa")
    with pytest.raises(FrameFormatError, match="'aa' occurs twice"):
        parse_metalayers(raw, 1, len(raw))


@pytest.mark.parametrize("kind", range(4))
def test_a_fingerprint_of_any_type_is_passed_over(kind):
    raw = build_trailer({"a": b"chunk"})
    assert parse_trailer(raw[:-17] + bytes([kind]) + b"0123456789abcdef") == {"a": b"chunk"}
