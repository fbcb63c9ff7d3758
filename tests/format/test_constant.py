"""Chunks that repeat one element, against python-blosc2 and NumPy."""

from __future__ import annotations

import struct

import blosc2
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from b2nd_dask import CorruptChunkError
from b2nd_dask.format.chunk.chunk_header import ChunkKind, parse_chunk_header
from b2nd_dask.format.chunk.codec import constant_of, encode_repeated, nan_element, read_only
from tests.strategies import examples


@examples(40)
@given(st.binary(min_size=1, max_size=600), st.integers(2, 50))
def test_repeated_elements_are_what_python_blosc2_decodes(value: bytes, count: int) -> None:
    nbytes = count * len(value)
    raw = encode_repeated(value, nbytes=nbytes, blocksize=nbytes)
    assert blosc2.decompress2(raw) == value * count
    header = parse_chunk_header(raw, nbytes=nbytes, typesize=len(value))
    element = constant_of(raw, header, np.dtype(f"V{len(value)}"))
    assert element.shape == ()
    assert element.tobytes() == value
    assert not element.flags.writeable


def test_the_bytes_of_a_repeated_element() -> None:
    head = struct.pack("<BBBBiii", 5, 1, 5, 4, 400, 40, 36) + bytes(15) + b"\x30"
    assert encode_repeated(b"abcd", nbytes=400, blocksize=40) == head + b"abcd"
    wide = encode_repeated(bytes(256), nbytes=2560, blocksize=2560)
    assert (wide[3], len(wide)) == (1, 288)


def test_an_element_that_repeats_a_shorter_value() -> None:
    raw = encode_repeated(b"\x07", nbytes=80, blocksize=80)
    element = constant_of(raw, parse_chunk_header(raw), np.dtype("<u4"))
    assert element == 0x07070707
    raw = encode_repeated(b"12345", nbytes=40, blocksize=40)
    assert constant_of(raw, parse_chunk_header(raw), np.dtype("<f8")) is None


def test_zeros_and_compressed_chunks() -> None:
    raw = blosc2.compress2(np.zeros(100), typesize=8)
    element = constant_of(raw, parse_chunk_header(raw), np.dtype("<M8[s]"))
    assert element == np.datetime64(0, "s")
    raw = blosc2.compress2(np.arange(1000.0), typesize=8)
    assert constant_of(raw, parse_chunk_header(raw), np.dtype("<f8")) is None


@pytest.mark.parametrize("dtype", ["<f4", "<f8", "c8", "V4", "V8"])
def test_nans_are_the_bytes_that_the_format_means(dtype: str) -> None:
    size = np.dtype(dtype).itemsize
    head = struct.pack("<BBBBiii", 5, 1, 5, size, 80, 80, 32) + bytes(15) + b"\x20"
    element = nan_element(np.dtype(dtype))
    assert blosc2.decompress2(head) == element.tobytes() * (80 // size)
    assert parse_chunk_header(head).special == ChunkKind.NAN
    assert not element.flags.writeable


@pytest.mark.parametrize("dtype", [">f4", ">f8"])
def test_big_endian_floats_are_nan(dtype: str) -> None:
    assert np.isnan(nan_element(np.dtype(dtype)))


@pytest.mark.parametrize("dtype", ["f2", "c16", "i4", "M8[s]", "V16", [("a", "f4")]])
def test_dtypes_that_have_no_nan(dtype: object) -> None:
    with pytest.raises(CorruptChunkError, match="marked as NaN"):
        nan_element(np.dtype(dtype))


def test_shared_elements_are_read_only() -> None:
    values = np.zeros(3)
    assert read_only(values) is values
    with pytest.raises(ValueError, match="read-only"):
        values[0] = 1
