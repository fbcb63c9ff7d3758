"""Compression parameters against those of python-blosc2."""

from __future__ import annotations

import blosc2
import numpy as np
import pytest

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
        None,
        {"clevel": 9},
        {"codec": blosc2.Codec.LZ4, "clevel": 1, "splitmode": blosc2.SplitMode.NEVER_SPLIT},
        {"filters": [blosc2.Filter.BITSHUFFLE]},
        {"filters": [blosc2.Filter.TRUNC_PREC, blosc2.Filter.SHUFFLE], "filters_meta": [10, 0]},
        {"codec": blosc2.Codec.ZSTD, "use_dict": True},
        blosc2.CParams(codec=blosc2.Codec.BLOSCLZ, clevel=2),
    ],
)
def test_what_is_not_given_is_python_blosc2s_default(cparams: object) -> None:
    assert compression_of(cparams, 8) == written(cparams)


@pytest.mark.parametrize("itemsize", [1, 3, 300])
def test_elements_of_any_width(itemsize: int) -> None:
    assert compression_of(None, itemsize) == written(None, itemsize)


def test_names_stand_for_codecs_and_filters() -> None:
    named = compression_of({"codec": "LZ4hc", "filters": ["bitshuffle", "delta"]}, 4)
    members = [blosc2.Filter.BITSHUFFLE, blosc2.Filter.DELTA]
    assert named == compression_of({"codec": blosc2.Codec.LZ4HC, "filters": members}, 4)
    assert compression_of({"filters": "shuffle"}, 4).filters == (1, 0, 0, 0, 0, 0)


@pytest.mark.parametrize(
    ("cparams", "error", "match"),
    [
        ([], TypeError, "a blosc2.CParams or a dict"),
        ({"level": 3}, TypeError, "cparams have no 'level'"),
        ({"codec": "gzip"}, TypeError, "codec='gzip'; known are"),
        ({"codec": True}, TypeError, "codec=True"),
        ({"filters": ["sort"]}, TypeError, "filters='sort'"),
        ({"clevel": 10}, ValueError, "levels go from 0 to 9"),
        ({"clevel": "high"}, ValueError, "levels go from 0 to 9"),
        ({"typesize": 4}, ValueError, "cparams say typesize 4"),
        ({"blocksize": 4096}, ValueError, "give the shape of blocks by blocks="),
        ({"codec": blosc2.Codec.ZFP_ACC}, UnsupportedFrameError, "needs the array's shape"),
        ({"filters": [blosc2.Filter.NDCELL]}, UnsupportedFrameError, "needs the array's shape"),
    ],
)
def test_parameters_that_cannot_be(cparams: object, error: type[Exception], match: str) -> None:
    with pytest.raises(error, match=match):
        compression_of(cparams, 8)


@pytest.mark.parametrize("shape", [(1000, 1000), (7,), (64, 3, 500)])
@pytest.mark.parametrize("dtype", ["u1", "f8"])
def test_default_blocks_are_python_blosc2s(shape: tuple[int, ...], dtype: str) -> None:
    chunks = tuple(min(n, 200) for n in shape)
    found = default_blocks(shape, chunks, np.dtype(dtype), compression_of(None, 8))
    assert found == blosc2.empty(shape, dtype=dtype, chunks=chunks).blocks


def test_parameters_as_python_blosc2_shows_them() -> None:
    given = blosc2.CParams(codec=blosc2.Codec.LZ4, clevel=3, typesize=8, use_dict=False)
    shown = cparams_of(compression_of(given, 8), 8)
    assert isinstance(shown, blosc2.CParams)
    assert (shown.codec, shown.clevel, shown.typesize) == (blosc2.Codec.LZ4, 3, 8)
    assert shown.filters[-1] == given.filters[-1] == blosc2.Filter.SHUFFLE
