"""The array metalayer of all generations, against bytes put together by hand and python-blosc2."""

from __future__ import annotations

import struct
from typing import Any

import blosc2
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from b2nd_dask import FrameFormatError, UnsupportedFrameError
from b2nd_dask.format.grid import Grid
from b2nd_dask.format.metalayers import (
    ArrayMeta,
    array_meta_of,
    build_array_meta,
    name_of_array,
    parse_array_meta,
    with_shape,
)
from tests.format.by_hand import changed, parts_of
from tests.strategies import examples

SHAPE, CHUNKS, BLOCKS = (10**12, 7), (4000, 9), (40, 3)


def by_hand(fields: int, tail: bytes, ndim: int = 2) -> bytes:
    marker = bytes([0x90 + ndim])
    shape = b"".join(struct.pack(">Bq", 0xD3, n) for n in SHAPE)
    chunks, blocks = (b"".join(struct.pack(">Bi", 0xD2, n) for n in s) for s in (CHUNKS, BLOCKS))
    return (
        bytes([0x90 + fields, 0, ndim]) + marker + shape + marker + chunks + marker + blocks + tail
    )


DTYPE = b"\xdb\0\0\0\3<f8"
NOW = by_hand(7, b"\0" + DTYPE)


@pytest.mark.parametrize(
    ("name", "raw", "dtype"),
    [
        ("b2nd", NOW, "<f8"),
        ("b2nd", by_hand(6, DTYPE), "<f8"),
        ("b2nd", by_hand(6, b"\xdb\0\0\0\5int32"), "i4"),
        ("b2nd", by_hand(6, b"\xdb\0\0\0\x0edtype('int32')"), "i4"),
        # as a real file has it: six fields said, seven there
        ("b2nd", by_hand(6, b"\0" + DTYPE), "<f8"),
        ("b2nd", by_hand(5, b""), None),
        ("caterva", by_hand(5, b""), None),
    ],
)
def test_all_forms_are_read(name: str, raw: bytes, dtype: str | None) -> None:
    expected = None if dtype is None else np.dtype(dtype)
    assert array_meta_of({name: raw}) == ArrayMeta(SHAPE, CHUNKS, BLOCKS, expected)


def test_what_is_written() -> None:
    grid = Grid(SHAPE, CHUNKS, BLOCKS, 8)
    assert build_array_meta(grid, np.dtype("<f8")) == NOW
    assert build_array_meta(grid, None) == by_hand(5, b"")


@examples(40)
@given(
    st.integers(0, 16).flatmap(
        lambda ndim: st.tuples(
            st.lists(st.integers(1, 2**40), min_size=ndim, max_size=ndim),
            st.lists(st.integers(1, 2**31 - 1), min_size=ndim, max_size=ndim),
        )
    ),
    st.sampled_from(["<f8", ">i2", "|S7", "<M8[ns]", "|V300", [("a", "<i4"), ("b", ">f8", (2,))]]),
)
def test_round_trip(sizes: tuple[list[int], list[int]], dtype: Any) -> None:
    shape, chunks = map(tuple, sizes)
    meta = ArrayMeta(shape, chunks, tuple(max(1, c // 3) for c in chunks), np.dtype(dtype))
    grid = Grid(meta.shape, meta.chunks, meta.blocks, meta.dtype.itemsize)
    assert parse_array_meta(build_array_meta(grid, meta.dtype)) == meta


@pytest.mark.parametrize("shape", [(), (7,), (0,), (3, 0, 2), (2,) * 15, (1,) * 16])
def test_frames_of_python_blosc2(shape: tuple[int, ...]) -> None:
    array = blosc2.asarray(np.ones(shape, ">i4"))
    head = parts_of(array.to_cframe()).head
    # the content ends the header: an array has no other metalayer here
    content = head[head.index(b"\xc6") + 5 :]
    meta = parse_array_meta(content)
    assert (meta.shape, meta.chunks, meta.blocks) == (shape, array.chunks, array.blocks)
    assert meta.dtype == array.dtype
    assert build_array_meta(Grid(shape, meta.chunks, meta.blocks, 4), meta.dtype) == content


#: Where the second and the third list and what follows them begin.
LISTS = (3, 3 + 19, 3 + 19 + 11, 3 + 19 + 11 + 11)


@pytest.mark.parametrize(
    ("raw", "problem"),
    [
        (b"", "starts with"),
        (changed(NOW, 0, 0x87), "unlike an array of up to 16"),
        (changed(NOW, 2, 17), "unlike an array of up to 16"),
        (changed(NOW, 2, 3), "a list of 3 sizes is expected at byte 3"),
        (changed(NOW, LISTS[1], 0x91), f"a list of 2 sizes is expected at byte {LISTS[1]}"),
        (changed(NOW, LISTS[0] + 1, 0xD2), "0xd2 where 0xd3 is expected, at byte 4"),
        (changed(NOW, LISTS[2] + 6, 0xD3), f"0xd3 where 0xd2 is expected, at byte {LISTS[2] + 6}"),
        (NOW[: LISTS[2] + 5], f"a list of 2 sizes is expected at byte {LISTS[2]}"),
        (changed(NOW, LISTS[0] + 2, b"\xff"), "impossible sizes"),
        (changed(NOW, LISTS[1] + 2, bytes(4)), "impossible sizes"),
        (changed(NOW, LISTS[2] + 2, struct.pack(">i", 4001)), "impossible sizes"),
        (changed(NOW, LISTS[3] + 1, 0xDA), f"a dtype string is expected at byte {LISTS[3] + 1}"),
        (NOW + b"\0", "the dtype string should have 3 bytes, but 4 follow"),
        (NOW[:-1], "the dtype string should have 3 bytes, but 2 follow"),
    ],
)
def test_damage_is_named(raw: bytes, problem: str) -> None:
    with pytest.raises(FrameFormatError, match=problem):
        parse_array_meta(raw)


def test_other_formats_of_dtypes_are_unsupported() -> None:
    with pytest.raises(UnsupportedFrameError, match="dtype format 1"):
        parse_array_meta(changed(NOW, LISTS[3], 1))


@pytest.mark.parametrize("shell", ["b2o", "LazyArray", "proxy-source"])
def test_shells_of_other_objects_are_no_arrays(shell: str) -> None:
    with pytest.raises(UnsupportedFrameError, match=shell):
        array_meta_of({"b2nd": NOW, shell: b""})


def test_which_metalayer_counts() -> None:
    caterva = by_hand(5, b"")
    assert array_meta_of({"caterva": caterva}).dtype is None
    assert array_meta_of({"caterva": caterva, "b2nd": NOW}).dtype == "<f8"
    assert name_of_array({"caterva": caterva, "b2nd": NOW}) == "b2nd"
    assert name_of_array({"caterva": caterva}) == "caterva"
    with pytest.raises(FrameFormatError, match="in the b2nd metalayer: it starts"):
        array_meta_of({"b2nd": b"", "caterva": caterva})
    for others in ({}, {"user": b""}, {"b2embed": b""}):
        with pytest.raises(UnsupportedFrameError):
            array_meta_of(others)


def test_a_resize_changes_the_shape_alone() -> None:
    array = blosc2.asarray(np.arange(70), chunks=(40,), blocks=(10,))
    before = parts_of(array.to_cframe()).head[-60:]
    content = before[before.index(b"\xc6") + 5 :]
    array.resize((75,))
    after = parts_of(array.to_cframe()).head[-60:]
    assert with_shape(content, (75,)) == after[after.index(b"\xc6") + 5 :]
    assert with_shape(NOW, SHAPE) == NOW
