"""Chunks and blocks of new frames: whole chunks, bounded bytes, no tiny chunks."""

import itertools
import math
import re

import dask
import dask.array as da
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from b2nd_dask import ChecksumError, from_b2nd, open_b2nd, to_b2nd
from b2nd_dask.graph.read import sizes as sizes_module
from b2nd_dask.graph.read.sizes import aligned_sizes
from b2nd_dask.graph.resources import Resources
from b2nd_dask.graph.write.chunk_sizes import aligned_to
from tests.peak import peak_growth

MIB = 1 << 20


def largest(sizes, itemsize):
    return math.prod(map(max, sizes)) * itemsize


def edges(axis):
    return set(itertools.accumulate(axis, initial=0))


@st.composite
def layouts(draw):
    """Blocks of any sizes along 0 to 4 axes, chunks that may exceed the axes, a limit."""
    ndim = draw(st.integers(0, 4))
    sizes = tuple(
        tuple(draw(st.lists(st.integers(1, 40), min_size=1, max_size=12))) for _ in range(ndim)
    )
    chunks = tuple(draw(st.integers(1, sum(axis) + 5)) for axis in sizes)
    return sizes, chunks, draw(st.sampled_from([1, 4, 16])), draw(st.integers(1, 10**6))


@given(case=layouts())
def test_blocks_are_whole_chunks_and_their_bytes_are_bounded(case):
    sizes, chunks, itemsize, limit = case
    with dask.config.set({"array.chunk-size": limit}):
        aligned = aligned_sizes(sizes, chunks, itemsize)
    shape = tuple(map(sum, sizes))
    assert tuple(map(sum, aligned)) == shape
    for axis, chunk in zip(aligned, chunks, strict=True):
        assert min(axis) > 0
        assert all(edge % chunk == 0 for edge in edges(axis) - {sum(axis)})
    chunk_nbytes = itemsize * math.prod(map(min, chunks, shape))
    # aligned blocks stay unchanged
    assert largest(aligned, itemsize) <= max(limit, chunk_nbytes, largest(sizes, itemsize))


@pytest.mark.parametrize(
    ("shape", "blocks", "chunks"),
    [
        ((3653, 180, 480), (10, 180, 480), (3653, 18, 48)),
        ((3653, 180, 480), (3653, 18, 48), (10, 180, 480)),
        ((36530, 721, 1440), (100, 721, 1440), (36530, 10, 10)),
        ((36530, 721, 1440), (1, 721, 1440), (36530, 1, 1)),
        ((10**5, 10**5), (10**5, 10), (10, 10**5)),
    ],
)
def test_maps_become_series_in_blocks_that_fit(shape, blocks, chunks):
    sizes = da.core.normalize_chunks(blocks, shape)
    aligned = aligned_sizes(sizes, chunks, 4)
    bound = max(128 * MIB, largest(sizes, 4))
    # and not so small that the graph grows without need
    assert bound / 4 < largest(aligned, 4) <= bound
    with dask.config.set({"array.chunk-size": "32MiB"}):
        bound = max(32 * MIB, largest(sizes, 4), 4 * math.prod(chunks))
        assert largest(aligned_sizes(sizes, chunks, 4), 4) <= bound


MAPS = """
maps = da.random.default_rng(7).integers(0, 999, (400, 90, 480), "i4", chunks=(10, 90, 480))
to_b2nd(maps, source)
"""


@pytest.mark.slow
@pytest.mark.parametrize("contents", ["frame", "memmap", "array"])
def test_memory_for_maps_that_become_series(tmp_path, contents):
    """The recipe of docs/recipes.md, on 69 MB."""
    target, file = str(tmp_path / "series.b2nd"), str(tmp_path / "maps.npy")
    source = str(tmp_path / "maps.b2nd")
    read = {
        "frame": "from_b2nd(source)",
        "memmap": "np.load(file, mmap_mode='r')",
        "array": "np.load(file)",
    }
    # dask rechunks a frame that is small for the memory: that is faster than a read in other blocks
    read_anew = "from b2nd_dask.graph.read import sizes\nsizes.HELD_SHARE = 0\n"
    before = f"{read_anew}{MAPS}np.save(file, maps.compute())\nx = {read[contents]}\ndel maps"
    growth = peak_growth(
        "to_b2nd(x, target, chunks=(400, 9, 48), blocks=(400, 3, 12))",
        before=before,
        config={"array.chunk-size": "8MiB"},
        source=source,
        target=target,
        file=file,
    )
    assert growth < 40 * MIB
    np.testing.assert_array_equal(open_b2nd(target)[...], np.load(file))
    assert open_b2nd(target).chunks == (400, 9, 48)


def optimized_tasks(array):
    (optimized,) = dask.optimize(array)
    return dict(optimized.dask)


def test_a_frame_is_read_in_the_blocks_that_are_written(tmp_path, monkeypatch):
    monkeypatch.setattr(sizes_module, "HELD_SHARE", 0)
    values = np.random.default_rng(1).normal(size=(120, 60, 60))
    to_b2nd(values, tmp_path / "maps.b2nd", chunks=(10, 60, 60))
    x = from_b2nd(tmp_path / "maps.b2nd")
    with dask.config.set({"array.chunk-size": "500kB"}):
        series = aligned_to(x, (120, 15, 15))
        # no other task holds a block
        assert len(optimized_tasks(series)) == series.npartitions
        assert series.npartitions > 4
        np.testing.assert_array_equal(series, values)
        # a frame that would be read too often is rechunked
        points = aligned_to(x, (120, 1, 1))
        np.testing.assert_array_equal(points, values)
        # and so is a function of a frame
        twice = aligned_to(x * 2, (120, 15, 15))
        np.testing.assert_array_equal(twice, values * 2)
        (done,) = dask.optimize(x * 2)
        np.testing.assert_array_equal(aligned_to(done, (120, 15, 15)), values * 2)


@pytest.mark.parametrize(("spare", "rechunked"), [(0, True), (-8, False)])
def test_a_frame_of_an_eighth_of_the_memory_is_rechunked(tmp_path, monkeypatch, spare, rechunked):
    values = np.random.default_rng(1).normal(size=(120, 60, 60))
    x = to_b2nd(values, tmp_path / "maps.b2nd", chunks=(10, 60, 60))
    monkeypatch.setattr(sizes_module, "available", lambda: Resources(2, 8 * values.nbytes + spare))
    with dask.config.set({"array.chunk-size": "500kB"}):
        series = aligned_to(x, (120, 15, 15))
    # read in the new blocks, each task reads one; rechunked, the tasks of the old blocks stay
    assert (len(optimized_tasks(series)) > series.npartitions) == rechunked
    np.testing.assert_array_equal(series, values)


def test_damage_does_not_hide_behind_new_checksums(tmp_path, monkeypatch):
    monkeypatch.setattr(sizes_module, "HELD_SHARE", 0)
    source = tmp_path / "maps.b2nd"
    values = np.random.default_rng(1).integers(0, 2**63, (40, 60, 60))
    # chunks of many blocks, of which each new chunk needs a part
    to_b2nd(values, source, chunks=(10, 60, 60), blocks=(1, 6, 60), cparams={"clevel": 0})
    raw = bytearray(source.read_bytes())
    raw[len(raw) // 2] ^= 1
    source.write_bytes(raw)
    with (
        dask.config.set({"array.chunk-size": "200kB"}),
        pytest.raises(ChecksumError, match=r"maps\.b2nd"),
    ):
        to_b2nd(from_b2nd(source), tmp_path / "series.b2nd", chunks=(40, 6, 60))
    assert not (tmp_path / "series.b2nd").exists()


@pytest.mark.parametrize(
    ("shape", "blocks", "expected"),
    [
        # as many neighbours as 1 MiB needs, a divisor of their number if possible
        ((1460, 180, 320), (1, 90, 160), (73, 90, 160)),
        ((1461, 180, 320), (1, 90, 160), (32, 90, 160)),
        ((100_000,), (10,), (100_000,)),
        ((2000, 2000), (10, 10), (1000, 1000)),
        # few blocks, or large ones, become chunks unchanged
        ((90, 180, 320), (1, 180, 320), (1, 180, 320)),
        ((400, 512, 512), (1, 512, 512), (1, 512, 512)),
    ],
)
def test_many_tiny_blocks_become_larger_chunks(shape, blocks, expected, tmp_path):
    x = da.zeros(shape, chunks=blocks, dtype="f4")
    assert to_b2nd(x, tmp_path / "a.b2nd").chunksize == expected
    assert to_b2nd(x, tmp_path / "b.b2nd", chunks=blocks).chunksize == blocks


def test_blocks_of_maps_that_are_merged_are_written_right(tmp_path):
    values = np.random.default_rng(1).normal(size=(300, 30, 40)).astype("f4")
    maps = da.from_array(values, chunks=(1, 15, 40))
    merged = to_b2nd(maps * 2, tmp_path / "a.b2nd")
    assert merged.npartitions < 10
    np.testing.assert_array_equal(merged, values * 2)
    # appends of as many elements begin with a chunk
    for first in range(0, 300, 100):
        part = maps[first : first + 100]
        grown = to_b2nd(part, tmp_path / "b.b2nd", mode="a", append_axis=0)
    np.testing.assert_array_equal(grown, values)
    assert 100 % grown.chunksize[0] == 0


@given(data=st.data())
def test_default_chunks_fit_any_blocks(fresh_path, data):
    shape = tuple(data.draw(st.lists(st.integers(1, 40), min_size=1, max_size=3)))
    sizes = tuple(data.draw(st.integers(1, n)) for n in shape)
    values = np.random.default_rng(1).integers(0, 99, shape)
    back = to_b2nd(da.from_array(values, chunks=sizes), fresh_path())
    np.testing.assert_array_equal(back.compute(scheduler="sync"), values)


@pytest.mark.parametrize(
    ("asked", "chunks"),
    [
        ({0: 1000, 1: 40}, (1000, 40)),
        ({-1: 1000}, (100, 1000)),
        ((1000, -1), (1000, 60)),
        ((None, np.int64(7)), (100, 7)),
        ({0: 1000, 1: "auto"}, (1000, 60)),
        ((50, "4kB"), (50, 10)),
        ({}, (100, 60)),
    ],
)
def test_sizes_by_axis_are_kept_like_those_of_a_tuple(asked, chunks, tmp_path):
    to_b2nd(da.zeros((100, 60), chunks=(25, 20)), tmp_path / "a.b2nd", chunks=asked)
    assert open_b2nd(tmp_path / "a.b2nd").chunks == chunks


@pytest.mark.parametrize(
    ("asked", "blocks"),
    [
        (-1, (50, 40)),
        ((-1, 8), (50, 8)),
        ({1: 5}, (50, 5)),
        ({0: 5, -1: 4}, (5, 4)),
    ],
)
def test_blocks_by_axis_and_of_whole_chunks(asked, blocks, tmp_path):
    to_b2nd(np.ones((100, 60)), tmp_path / "a.b2nd", chunks=(50, 40), blocks=asked)
    assert open_b2nd(tmp_path / "a.b2nd").blocks == blocks


@pytest.mark.parametrize("name", ["chunks", "blocks"])
@pytest.mark.parametrize(
    "bad", [0, True, -2, 2.5, b"ab", {1: 0}, {0: True, 1: 4}, (0, -1), (True, -1), (4, None, -1)]
)
def test_what_is_no_size_is_an_error_that_names_it(name, bad, tmp_path):
    message = rf"{name}={re.escape(repr(bad))} is neither a size nor one for each of 2 axes"
    with pytest.raises(ValueError, match=message):
        to_b2nd(np.ones((100, 60)), tmp_path / "a.b2nd", **{name: bad})
    with pytest.raises(ValueError, match=rf"{name}=.*'y' is not the number of one of 2 axes"):
        to_b2nd(np.ones((100, 60)), tmp_path / "a.b2nd", **{name: {"y": 4}})
