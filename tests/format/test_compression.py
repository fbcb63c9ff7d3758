"""Compression parameters against those of python-blosc2."""

from __future__ import annotations

import itertools
import math

import blosc2
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from b2nd_dask import UnsupportedFrameError
from b2nd_dask.format.chunk.compression import compression_of, cparams_of, default_blocks
from b2nd_dask.format.header import parse_header


def written(cparams: object, itemsize: int = 8):
    """Compression that python-blosc2 puts into the header of an array."""
    values = np.zeros((10, 10), f"V{itemsize}")
    raw = blosc2.asarray(values, **({} if cparams is None else {"cparams": cparams})).to_cframe()
    return parse_header(raw, len(raw)).compression


@pytest.mark.parametrize(
    "cparams",
    [
        {},
        {"clevel": 9},
        {"codec": blosc2.Codec.LZ4, "clevel": 1, "splitmode": blosc2.SplitMode.NEVER_SPLIT},
        {"filters": [blosc2.Filter.BITSHUFFLE]},
        {"filters": [blosc2.Filter.TRUNC_PREC, blosc2.Filter.SHUFFLE], "filters_meta": [10, 0]},
        {"codec": blosc2.Codec.ZSTD, "use_dict": True},
    ],
)
def test_what_is_not_given_is_python_blosc2s_default_but_for_the_level(cparams: dict) -> None:
    assert compression_of(cparams, 8) == written({"clevel": 1} | cparams)
    assert compression_of(None, 3) == written({"clevel": 1}, 3)


@pytest.mark.parametrize("itemsize", [1, 3, 300])
def test_parameters_of_python_blosc2_are_taken_whole(itemsize: int) -> None:
    for cparams in (blosc2.CParams(), blosc2.CParams(codec=blosc2.Codec.BLOSCLZ, clevel=2)):
        assert compression_of(cparams, itemsize) == written(cparams, itemsize)


@pytest.mark.parametrize("itemsize", [1, 300])
def test_what_the_codec_sees_as_bytes_is_not_shuffled(itemsize: int) -> None:
    assert compression_of(None, itemsize) == written({"clevel": 1, "filters": []}, itemsize)
    given = {"clevel": 1, "filters": [blosc2.Filter.BITSHUFFLE]}
    assert compression_of({"filters": "bitshuffle"}, itemsize) == written(given, itemsize)


def test_names_stand_for_codecs_and_filters() -> None:
    named = compression_of({"codec": "LZ4hc", "filters": ["bitshuffle", "delta"]}, 4)
    members = [blosc2.Filter.BITSHUFFLE, blosc2.Filter.DELTA]
    assert named == compression_of({"codec": blosc2.Codec.LZ4HC, "filters": members}, 4)
    assert compression_of({"filters": "shuffle"}, 4).filters == (1, 0, 0, 0, 0, 0)


@pytest.mark.parametrize(
    ("cparams", "error", "match"),
    [
        ([], TypeError, "a blosc2.CParams or a dict"),
        ({"level": 3}, TypeError, "cparams has no 'level'"),
        ({"codec": "gzip"}, TypeError, "known are blosc2.Codec and (?!.*(ndlz|grok)).*zstd$"),
        ({"codec": True}, TypeError, "codec=True"),
        ({"filters": ["sort"]}, TypeError, "filters='sort'; known are (?!.*ndcell).*bytedelta$"),
        ({"clevel": 10}, ValueError, "give an int from 0 to 9"),
        ({"clevel": "high"}, ValueError, "give an int from 0 to 9"),
        ({"typesize": 4}, ValueError, "cparams has typesize 4"),
        ({"blocksize": 4096}, ValueError, "give the shape of blocks by blocks="),
        ({"codec": blosc2.Codec.ZFP_ACC}, UnsupportedFrameError, "needs the array's shape"),
        ({"filters": [blosc2.Filter.NDCELL]}, UnsupportedFrameError, "needs the array's shape"),
    ],
)
def test_parameters_that_cannot_be(cparams: object, error: type[Exception], match: str) -> None:
    with pytest.raises(error, match=match):
        compression_of(cparams, 8)


CHUNKS = st.lists(st.integers(1, 5000), max_size=6).map(tuple)


@given(CHUNKS, st.sampled_from([1, 2, 8, 16, 300, 1 << 18]))
def test_default_blocks_are_small_and_hardly_fill_up(chunks: tuple[int, ...], item: int) -> None:
    blocks = default_blocks(chunks, item)
    nbytes = math.prod(blocks) * item
    assert nbytes <= 1 << 17 or math.prod(blocks[:-1]) == 1
    assert all(1 <= b <= c for b, c in zip(blocks, chunks, strict=True))
    for b, c in zip(blocks, chunks, strict=True):
        assert -(-c // b) * b <= c * 17 / 16
    if math.prod(chunks) * item <= 1 << 17:
        assert blocks == chunks


@given(st.lists(st.integers(128, 512), min_size=2, max_size=3).map(tuple))
def test_default_blocks_are_cut_alike_along_all_axes(chunks: tuple[int, ...]) -> None:
    blocks = default_blocks(chunks, item := 16)
    cuts = [c / b for b, c in zip(blocks, chunks, strict=True)]
    for one, other in itertools.permutations(cuts, 2):
        assert one < 3 * other
    # no smaller than need be: all have to find and to decode them
    if math.prod(chunks) * item > 1 << 17:
        assert math.prod(blocks) * item > 1 << 15


def test_rows_of_a_few_elements_stay_whole() -> None:
    assert default_blocks((2000, 2000, 3), 1)[-1] == 3
    assert default_blocks((3, 2000, 2000), 1)[0] == 1


def test_few_positions_are_cut_singly_rather_than_filled_up() -> None:
    assert default_blocks((5, 200, 200), 8)[0] == 1


def test_parameters_as_python_blosc2_shows_them() -> None:
    given = blosc2.CParams(codec=blosc2.Codec.LZ4, clevel=3, typesize=8, use_dict=False)
    shown = cparams_of(compression_of(given, 8), 8)
    assert isinstance(shown, blosc2.CParams)
    assert (shown.codec, shown.clevel, shown.typesize) == (blosc2.Codec.LZ4, 3, 8)
    assert shown.filters[-1] == given.filters[-1] == blosc2.Filter.SHUFFLE
