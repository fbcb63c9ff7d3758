"""Coding of single chunks, each way against python-blosc2."""

from __future__ import annotations

import struct
from dataclasses import replace

import blosc2
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from b2nd_dask import CorruptChunkError, UnsupportedFrameError
from b2nd_dask.format.chunk.chunk_header import parse_chunk_header
from b2nd_dask.format.chunk.codec import decode_chunk, decode_shaped_chunk, encode_chunk
from b2nd_dask.format.chunk.compression import Compression
from b2nd_dask.format.grid import Grid
from tests.format.by_hand import changed, parts_of
from tests.strategies import examples

VALUES = np.linspace(0, 1, 2000)
PLAIN = Compression(codec=5, clevel=5, filters=(0, 0, 0, 0, 0, 1))


def decoded(raw: bytes, like: np.ndarray) -> np.ndarray:
    out = np.full_like(like, 99)
    decode_chunk(raw, parse_chunk_header(raw), out)
    return out


@examples(40)
@given(
    codec=st.sampled_from([0, 1, 2, 4, 5]),
    clevel=st.integers(0, 9),
    filters=st.sampled_from([(), (1,), (2,), (3, 1), (1, 2), (35,)]),
    splitmode=st.integers(1, 4),
    use_dict=st.booleans(),
    values=st.sampled_from([VALUES, np.zeros(40), np.arange(3000, dtype="f8") % 7, np.ones(1)]),
)
def test_both_ways(codec, clevel, filters, splitmode, use_dict, values) -> None:
    metas = tuple(8 if f == 35 else 0 for f in filters)
    padding = (0,) * (6 - len(filters))
    slots, metas = filters + padding, metas + padding
    how = Compression(codec, clevel, slots, metas, splitmode, use_dict=use_dict and codec == 5)
    raw = encode_chunk(values, how, typesize=8, blocksize=0)
    header = parse_chunk_header(raw, nbytes=values.nbytes, typesize=8)
    if not (header.special or header.memcpyed):
        assert header.filters == how.filters
    assert blosc2.decompress2(raw) == values.tobytes()
    if not header.special:
        np.testing.assert_array_equal(decoded(raw, values), values)


def test_compression_is_that_of_python_blosc2() -> None:
    how = Compression(1, 7, (2, 1, 0, 0, 0, 0), splitmode=1)
    filters = [blosc2.Filter.BITSHUFFLE, blosc2.Filter.SHUFFLE]
    expected = blosc2.compress2(
        VALUES, codec=blosc2.Codec.LZ4, clevel=7, filters=filters, typesize=8, blocksize=800,
        splitmode=blosc2.SplitMode.ALWAYS_SPLIT, nthreads=1,
    )  # fmt: skip
    assert encode_chunk(VALUES, how, typesize=8, blocksize=800) == expected


def test_metas_of_more_than_127() -> None:
    how = Compression(5, 5, (1, 0, 0, 0, 0, 0), (200, 0, 0, 0, 0, 0))
    raw = encode_chunk(VALUES, how, typesize=8, blocksize=0)
    assert raw[24] == 200


def test_a_chunk_without_a_dictionary_is_not_marked_as_having_one() -> None:
    noise = np.frombuffer(np.random.default_rng(0).bytes(8000), "f8")
    raw = encode_chunk(noise, replace(PLAIN, use_dict=True), typesize=8, blocksize=0)
    header = parse_chunk_header(raw)
    assert header.memcpyed
    assert not header.has_dict
    assert blosc2.decompress2(raw) == noise.tobytes()
    # others have written it with the mark
    assert decoded(changed(raw, 31, raw[31] | 1), noise).tobytes() == noise.tobytes()


@pytest.mark.parametrize(
    "how",
    [
        replace(PLAIN, codec=3),
        replace(PLAIN, codec=160),
        replace(PLAIN, filters=(77, 0, 0, 0, 0, 0)),
    ],
)
def test_what_python_blosc2_does_not_compress(how: Compression) -> None:
    with pytest.raises(UnsupportedFrameError):
        encode_chunk(VALUES, how, typesize=8, blocksize=0)


def test_damaged_streams_are_an_error() -> None:
    raw = encode_chunk(VALUES, PLAIN, typesize=8, blocksize=0)
    (first,) = struct.unpack_from("<i", raw, 32)
    for at, new in [(first, 2**31 - 1), (first, -(2**31)), (32, 0), (32, 2**31 - 1)]:
        with pytest.raises(CorruptChunkError, match="cannot be decoded"):
            decoded(changed(raw, at, struct.pack("<i", new)), VALUES)


SMOOTH = np.add.outer(np.arange(32.0), np.arange(48.0) / 7)
SHAPED = [
    {"codec": blosc2.Codec.ZFP_RATE, "codec_meta": 50, "filters": []},
    {"codec": blosc2.Codec.ZFP_PREC, "codec_meta": 40, "filters": []},
    {"filters": [blosc2.Filter.NDCELL], "filters_meta": [4]},
    {"filters": [blosc2.Filter.NDMEAN], "filters_meta": [4]},
]


@pytest.mark.parametrize("cparams", SHAPED, ids=["rate", "precision", "ndcell", "ndmean"])
def test_codecs_and_filters_that_look_at_shapes(cparams: dict) -> None:
    array = blosc2.asarray(SMOOTH, chunks=(16, 24), blocks=(8, 8), cparams=cparams)
    raw = array.to_cframe()
    grid = Grid((32, 48), (16, 24), (8, 8), 8)
    chunk = array.schunk.get_chunk(1)
    header = parse_chunk_header(chunk, nbytes=grid.chunk_nbytes, blocksize=512, typesize=8)
    assert header.needs_shape
    out = np.empty(16 * 24)
    decode_shaped_chunk(chunk, header, grid, out)
    blocks = out.reshape(2, 3, 8, 8).transpose(0, 2, 1, 3).reshape(16, 24)
    np.testing.assert_array_equal(blocks, array[:16, 24:])
    np.testing.assert_allclose(blocks, SMOOTH[:16, 24:], rtol=1e-3, atol=5)
    # bare, the chunk has no shape
    with pytest.raises(CorruptChunkError):
        decode_chunk(chunk, header, out)
    broken = changed(chunk, 32, b"\xff\xff\xff\x7f")
    with pytest.raises(CorruptChunkError, match="not registered in this process"):
        decode_shaped_chunk(broken, header, grid, out)
    assert parts_of(raw).data
