"""A selection reads and decodes the blocks that it touches, and no others."""

import math
import os
import struct

import blosc2
import numpy as np
import pytest
from blosc2 import Codec, SplitMode
from hypothesis import given
from hypothesis import strategies as st

from b2nd_dask import open_b2nd
from b2nd_dask.errors import CorruptChunkError
from b2nd_dask.frame.array import reference_of
from b2nd_dask.frame.read import plan
from b2nd_dask.frame.read.positions import read_pointwise
from tests import strategies
from tests.counting import bytes_read


@pytest.fixture(scope="module")
def smooth():
    rng = np.random.default_rng(1)
    return np.cumsum(rng.normal(size=(300, 200, 40)), axis=0).astype("f4")


CHUNKS, BLOCKS = (100, 200, 20), (25, 50, 20)


def write(path, array, **cparams):
    contiguous = cparams.pop("contiguous", True)
    blosc2.asarray(
        array,
        urlpath=str(path),
        chunks=CHUNKS,
        blocks=BLOCKS,
        cparams=cparams,
        contiguous=contiguous,
    )
    return path


def block_nbytes(path):
    """Compressed bytes of each block of each chunk, from the bytes that python-blosc2 gives."""
    stored = blosc2.open(str(path))
    found = []
    for number in range(stored.schunk.nchunks):
        chunk = stored.schunk.get_chunk(number)
        nblocks = math.prod(-(-c // b) for c, b in zip(CHUNKS, BLOCKS, strict=True))
        starts = struct.unpack_from(f"<{nblocks}i", chunk, 32)
        edges = sorted([*starts, len(chunk)])
        found.append([edges[edges.index(s) + 1] - s for s in starts])
    return np.array(found).reshape(3, 1, 2, 4, 4, 1)


@pytest.mark.parametrize("contiguous", [True, False])
@pytest.mark.parametrize(
    ("index", "blocks"),
    [
        ((slice(None), 7), np.s_[:, :, :, :, 0]),
        (30, np.s_[0, :, :, 1]),
        ((slice(None, None, 150), slice(60, 70), slice(25, 30)), np.s_[[0, 1], :, 1, [0, 2], 1]),
        ((299, 199, 39), np.s_[2, 0, 1, 3, 3, 0]),
    ],
)
def test_bytes_read(tmp_path, smooth, contiguous, index, blocks):
    path = write(tmp_path / "x.b2nd", smooth, codec=Codec.ZSTD, contiguous=contiguous)
    frame = open_b2nd(path)
    nbytes, items = bytes_read(lambda: reference_of(frame).read(index))
    np.testing.assert_array_equal(items, smooth[index])
    wanted = block_nbytes(path)[blocks]
    heads = 6 * (32 + 4 * 16)
    assert wanted.sum() < nbytes <= 1.1 * wanted.sum() + heads


@pytest.mark.parametrize(
    "cparams",
    [
        {"codec": Codec.LZ4, "clevel": 5},
        {"codec": Codec.ZSTD, "clevel": 1, "use_dict": True},
        {"codec": Codec.BLOSCLZ, "clevel": 0},
        {
            "codec": Codec.ZLIB,
            "filters": [blosc2.Filter.DELTA, blosc2.Filter.SHUFFLE],
            "nthreads": 1,
        },
        {"codec": Codec.ZSTD, "splitmode": SplitMode.ALWAYS_SPLIT},
    ],
)
@pytest.mark.parametrize("contiguous", [True, False])
def test_every_kind_of_chunk(tmp_path, smooth, cparams, contiguous):
    path = write(tmp_path / "x.b2nd", smooth, contiguous=contiguous, **cparams)
    frame = open_b2nd(path)
    for index in [(5,), (slice(None), 3), (slice(40, 130), slice(None, None, 7), 21), (..., 39)]:
        np.testing.assert_array_equal(frame[index], smooth[index])


@given(case=strategies.cases(), data=st.data())
def test_two_rounds_of_reads(fresh_path, case, data):
    """What large chunks take two reads for, with small ones."""
    path = fresh_path()
    values = case.write(path)
    frame = open_b2nd(path)
    index = tuple(
        slice(
            data.draw(st.integers(0, n)), data.draw(st.integers(0, n)), data.draw(st.integers(1, 5))
        )
        for n in case.array.shape
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(plan, "SMALL_WASTE", 0)
        values.assert_read(frame[index], index)


def test_a_damaged_place_of_a_block_is_an_error_not_other_data(tmp_path, smooth):
    path = write(tmp_path / "x.b2nd", smooth, codec=Codec.ZSTD)
    frame = open_b2nd(path)
    start = reference_of(frame).parsed.header.header_len + int(
        reference_of(frame).parsed.index.offsets[0]
    )
    for place in (0, 1, -5, 2**31 - 1):
        with path.open("r+b") as file:
            file.seek(start + 32 + 4 * 5)
            file.write(struct.pack("<i", place))
        os.utime(path)
        with pytest.raises(Exception, match="chunk 0"):
            open_b2nd(path)[30, 60, 3]


def test_a_damaged_place_in_one_of_several_chunks_names_that_chunk(tmp_path, smooth):
    path = write(tmp_path / "x.b2nd", smooth, codec=Codec.ZSTD)
    index = reference_of(open_b2nd(path)).parsed
    with path.open("r+b") as file:
        file.seek(index.header.header_len + int(index.index.offsets[2]) + 32 + 4 * 5)
        file.write(struct.pack("<i", 1))
    os.utime(path)
    with pytest.raises(CorruptChunkError, match="chunk 2"):
        open_b2nd(path)[:, 60, 3]


def test_points(tmp_path, smooth):
    path = write(tmp_path / "x.b2nd", smooth)
    rng = np.random.default_rng(2)
    coords = tuple(rng.integers(0, n, 500) for n in smooth.shape)
    np.testing.assert_array_equal(reference_of(open_b2nd(path)).read_points(coords), smooth[coords])


@given(case=strategies.cases(), data=st.data())
def test_points_of_any_frame(fresh_path, case, data):
    path = fresh_path()
    values = case.write(path)
    shape = case.array.shape
    if not shape or 0 in shape:
        return
    count = data.draw(st.integers(0, 20))
    rng = np.random.default_rng(data.draw(st.integers(0, 99)))
    coords = tuple(rng.integers(0, n, count) for n in shape)
    values.assert_read(reference_of(open_b2nd(path)).read_points(coords), coords)


def test_points_out_of_bounds(tmp_path, smooth):
    frame = reference_of(open_b2nd(write(tmp_path / "x.b2nd", smooth)))
    axes = tuple(map(range, frame.shape))
    for wrong in (200, -201):
        with pytest.raises(IndexError, match=f"index {wrong} is out of bounds"):
            read_pointwise(frame, ([0], [wrong], [0]), axes)
