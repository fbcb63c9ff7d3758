"""Many frames as one dask array: against NumPy's concatenate and stack."""

import os
import pickle
import threading
import zipfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import blosc2
import dask
import dask.array as da
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from b2nd_dask import (
    CorruptChunkError,
    FrameFormatError,
    StaleFrameError,
    from_b2nd,
    open_b2nd,
    plan,
    to_b2nd,
)
from b2nd_dask.frame import joined
from b2nd_dask.frame.open import cache
from b2nd_dask.graph import _dask_compat
from b2nd_dask.graph.tasks import index_block, reduce_block
from tests.counting import bytes_read
from tests.forked import run_forked
from tests.graph.pushdown import computing_with, elements_read, tasks_of
from tests.strategies import dask_chunks, examples, grids, indices
from tests.vectors import same

REDUCTIONS = ("sum", "mean", "var", "min", "max", "argmin", "nansum", "any")


@st.composite
def parts(draw):
    """Arrays that fit, the axis, whether to stack them, and a frame of each."""
    shape = draw(st.lists(st.integers(1, 7), min_size=1, max_size=3))
    stack = draw(st.booleans())
    axis = draw(st.integers(0, len(shape) - 1 + stack))
    arrays = []
    for seed in range(draw(st.integers(1, 5))):
        own = list(shape)
        if not stack:
            own[axis] = draw(st.integers(0, 6))
        rng = np.random.default_rng(seed)
        kind = draw(st.sampled_from(["noise", "zeros", "half"]))
        values = np.zeros(own) if kind == "zeros" else rng.normal(size=own)
        if kind == "half":
            values[: own[0] // 2] = 0
        arrays.append(values)
    frames = []
    for values in arrays:
        if values.size:
            chunks, blocks = draw(grids(values.shape))
            grid = {"chunks": chunks, "blocks": blocks}
        else:
            grid = {}
        stored = blosc2.zeros(values.shape, dtype="f8", **grid)
        # chunks without writes stay special
        if values.any():
            stored[...] = values
        frames.append(stored)
    return arrays, frames, axis, stack


def _want(arrays, axis, stack):
    return (np.stack if stack else np.concatenate)(arrays, axis)


@examples(25)
@given(parts(), st.data())
def test_frames_are_read_as_one_array(case, data):
    arrays, frames, axis, stack = case
    want = _want(arrays, axis, stack)
    grouped = st.sampled_from([None, "auto", "200 B"])
    chunks = data.draw(grouped if 0 in want.shape else grouped | dask_chunks(want.shape))
    x = from_b2nd(frames, axis=axis, stack=stack, chunks=chunks)
    assert (x.shape, x.dtype) == (want.shape, want.dtype)
    assert same(x.compute(scheduler="sync"), want)
    index = data.draw(indices(want.shape))
    # dask itself differs from NumPy for some slices that select nothing
    plain = da.from_array(want, chunks=x.chunks)[index].compute(scheduler="sync")
    assert same(np.asarray(x[index].compute(scheduler="sync")), np.asarray(plain))
    if want.size:
        name = data.draw(st.sampled_from(REDUCTIONS))
        along = data.draw(st.none() | st.integers(0, want.ndim - 1))
        got = getattr(da, name)(x[..., ::2] * 2 - 1, axis=along).compute(scheduler="sync")
        np.testing.assert_allclose(got, getattr(np, name)(want[..., ::2] * 2 - 1, axis=along))


def _zeros(size):
    return np.zeros(size)


@pytest.fixture
def days(tmp_path):
    """Twelve frames of one to three days each, number 3 all zeros, and their elements."""
    rng = np.random.default_rng(5)
    arrays = [
        (rng.normal if i != 3 else _zeros)(size=(1 + i % 3, 6, 8)).astype("f4") for i in range(12)
    ]
    paths = [tmp_path / f"day{i}.b2nd" for i in range(12)]
    for path, values in zip(paths, arrays, strict=True):
        to_b2nd(values, path, chunks=(1, 6, 8), blocks=(1, 3, 4))
    return paths, np.concatenate(arrays)


def test_patterns_sort_numbers_by_value(days, tmp_path, monkeypatch):
    paths, want = days
    monkeypatch.chdir(tmp_path)
    (tmp_path / ".day0.b2nd").write_bytes(b"a file that is being written")
    for pattern in ("day*.b2nd", tmp_path / "day*.b2nd", f"file://{tmp_path}/day*.b2nd"):
        x = from_b2nd(pattern)
        assert x.numblocks[0] == len(want)
        assert same(x.compute(), want)
    assert same(from_b2nd("day[0-4].b2nd")[::2].compute(), want[:9][::2])
    assert from_b2nd("day*.b2nd").name == from_b2nd([str(path) for path in paths]).name
    assert from_b2nd("day*.b2nd").name != from_b2nd(paths[::-1]).name
    with pytest.raises(FileNotFoundError, match=r"night\*\.b2nd: nothing matches"):
        from_b2nd("night*.b2nd")


def test_a_file_with_marks_in_its_name_is_no_pattern(tmp_path):
    for name in ("a[1].b2nd", "a1.b2nd"):
        to_b2nd(np.full(3, len(name)), tmp_path / name)
    assert from_b2nd(tmp_path / "a[1].b2nd").compute()[0] == len("a[1].b2nd")


def test_opened_frames_and_paths_together(days):
    paths, want = days
    mixed = [open_b2nd(paths[0]), blosc2.open(str(paths[1])), *map(str, paths[2:])]
    assert same(from_b2nd(mixed).compute(), want)
    with pytest.raises(ValueError, match="a Frame is read as it was opened"):
        from_b2nd(mixed, verify=True)


def test_patterns_of_urls(days, http_server, s3_server):
    paths, want = days
    for path in paths:
        http_server.put(path.name, path.read_bytes())
        s3_server.client.put_object(
            Bucket=s3_server.bucket, Key=f"days/{path.name}", Body=path.read_bytes()
        )
    options = s3_server.storage_options
    x = from_b2nd(f"s3://{s3_server.bucket}/days/*.b2nd", storage_options=options)
    assert same(x.compute(scheduler="sync"), want)
    with pytest.raises(FileNotFoundError, match="nothing matches"):
        from_b2nd(f"s3://{s3_server.bucket}/nights/*.b2nd", storage_options=options)
    y = from_b2nd([f"{http_server.url}/{path.name}" for path in paths])
    assert same(y[3:].compute(scheduler="sync"), want[3:])


def test_other_marks_in_patterns_of_urls_belong_to_names(days, s3_server):
    paths, want = days
    options = s3_server.storage_options
    for folder in ("m/x?[1]", "m/xy1", "m/x?1"):
        for path in paths[: None if "[" in folder else 1]:
            s3_server.put(f"{folder}/{path.name}", path.read_bytes())
    x = from_b2nd(f"s3://{s3_server.bucket}/m/x?[1]/*.b2nd", storage_options=options)
    assert same(x.compute(scheduler="sync"), want)


def test_patterns_in_a_chain_of_urls(days, tmp_path):
    paths, want = days
    with zipfile.ZipFile(tmp_path / "days.zip", "w") as archive:
        for path in paths:
            archive.write(path, f"d/{path.name}")
    x = from_b2nd(f"zip://d/*.b2nd::file://{tmp_path}/days.zip")
    assert same(x.compute(scheduler="sync"), want)


def test_reductions_and_slices_are_pushed_into_the_reads(days):
    paths, want = days
    x = from_b2nd(paths)
    with computing_with(threads=1):
        # all frames in a few tasks, which the number of threads decides
        assert 1 <= tasks_of(reduce_block, x.sum()) < 12
        assert 1 <= tasks_of(reduce_block, x.mean(axis=0)) < 12
        np.testing.assert_allclose(x.sum().compute(), want.sum(dtype="f8"), rtol=1e-5)
        np.testing.assert_allclose(x.mean(axis=0).compute(), want.mean(axis=0), atol=1e-6)
    several = paths[::3] * 8
    stacked = from_b2nd(several, stack=True)
    with computing_with(threads=1):
        assert 1 <= tasks_of(reduce_block, stacked.std(axis=0)) <= 8
        wanted = np.stack([open_b2nd(path)[...] for path in several])
        np.testing.assert_allclose(stacked.std(axis=0).compute(), wanted.std(axis=0), rtol=1e-5)
    assert elements_read(x[5] + 1) == 6 * 8
    assert same((x + 1)[[20, 3, 3], 2].compute(), want[[20, 3, 3], 2] + 1)
    assert tasks_of(index_block, (x + 1)[:, [0, 2]]) > 1


def test_special_chunks_are_constants_of_the_graph(days):
    paths, want = days
    x = from_b2nd(paths)
    assert same(x[3 + 3 : 7].compute(), want[6:7])
    os.truncate(paths[3], 40)
    os.utime(paths[3])
    with pytest.raises(StaleFrameError, match=r"day3\.b2nd"):
        x[6:7].compute()
    zeros = [blosc2.zeros((2, 3), chunks=(1, 3)) for _ in range(4)]
    y = from_b2nd(zeros, chunks="auto")
    assert y.numblocks == (1, 1)
    read, elements = bytes_read(lambda: y.compute(scheduler="sync"))
    assert read == 0
    assert not elements.any()


def test_automatic_blocks_of_large_frames_are_no_larger_than_the_limit(tmp_path):
    """Chunks that are long along some axes, such as maps."""
    for number in range(3):
        path = tmp_path / f"{number}.b2nd"
        to_b2nd(da.zeros((100, 50, 60), dtype="f4"), path, chunks=(1, 50, 60))
    with dask.config.set({"array.chunk-size": "128 kB"}):
        x = from_b2nd(f"{tmp_path}/*.b2nd", chunks="auto")
    assert x.chunksize[1:] == (50, 60)
    assert 5 <= x.chunksize[0] <= 10


def test_only_what_is_selected_is_read(days):
    paths, want = days
    x = from_b2nd(paths)
    dask.compute(x[0, 0, 0])

    def read():
        assert same(x[4, :2, :2].compute(scheduler="sync"), want[4, :2, :2])

    some, _ = bytes_read(read)
    everything, _ = bytes_read(lambda: x.compute(scheduler="sync"))
    assert some < everything / 5


def test_small_frames_are_read_by_few_tasks(days):
    paths, want = days
    x = from_b2nd(paths, chunks="auto")
    assert x.numblocks == (1, 1, 1)
    y = from_b2nd(paths, chunks=f"{4 * 6 * 8 * 4} B")
    assert max(y.chunks[0]) == 4 < len(y.chunks[0])
    assert same(x[::-1].compute(), want[::-1])
    assert same(y[::-1].compute(), want[::-1])
    # frames above the limit are cut, and no block crosses frames
    z = from_b2nd(paths, chunks="200 B")
    assert z.numblocks[0] >= 12
    assert {1, 3, 6} <= {0, *np.cumsum(z.chunks[0]).tolist()}
    assert same(z.compute(), want)


def test_frames_that_do_not_fit_are_named(tmp_path):
    good = [tmp_path / f"good{i}.b2nd" for i in range(3)]
    for path in good:
        to_b2nd(np.zeros((2, 5)), path)
    wide, flat, other = (tmp_path / f"{name}.b2nd" for name in ("wide", "flat", "other"))
    to_b2nd(np.zeros((2, 6)), wide)
    to_b2nd(np.zeros(5), flat)
    to_b2nd(np.zeros((4, 5), "i2"), other)
    # the error does not assume that the first frame is right
    with pytest.raises(ValueError, match="do not fit") as error:
        from_b2nd([wide, *good, flat, other])
    lines = str(error.value).splitlines()
    assert lines[0].startswith("3 of 6 frames do not fit the others, which have shape (2, 5)")
    assert lines[1].endswith("wide.b2nd: shape (2, 6): 6 along axis 1, not 5")
    assert lines[2].endswith("flat.b2nd: 1 axes, not 2 (shape (5,))")
    assert lines[3].endswith("other.b2nd: dtype int16, not float64")
    with pytest.raises(ValueError, match=r"other\.b2nd: shape \(4, 5\): 4 along axis 0, not 2"):
        from_b2nd([*good, other], stack=True)
    with pytest.raises(ValueError, match="axis=2: the frames have 2 axes"):
        from_b2nd(good, axis=2)
    with pytest.raises(TypeError, match="axis='time': give the number"):
        from_b2nd(good, axis="time")
    assert from_b2nd(good, axis=2, stack=True).shape == (2, 5, 3)
    with pytest.raises(ValueError, match="an empty list"):
        from_b2nd([])
    with pytest.raises(ValueError, match="pass a list or a pattern"):
        from_b2nd(good[0], axis=0)


def test_one_bad_file_among_many_is_named(days):
    paths, _ = days
    x = from_b2nd(paths)
    data = bytearray(paths[7].read_bytes())
    start = open_b2nd(paths[7])._reference.parsed.header.header_len
    paths[7].write_bytes(data[: len(data) - 30])
    with pytest.raises(FrameFormatError, match=r"day7\.b2nd"):
        from_b2nd(paths)
    data[start + 40] ^= 255
    paths[7].write_bytes(data)
    with pytest.raises(CorruptChunkError, match=r"day7\.b2nd: chunk 0"):
        from_b2nd(paths).sum().compute()
    with pytest.raises(StaleFrameError, match=r"day7\.b2nd"):
        x.sum().compute()
    paths[7].unlink()
    with pytest.raises(FileNotFoundError, match=r"day7\.b2nd"):
        from_b2nd(paths)


def test_all_bad_files_are_named(days, tmp_path):
    paths, _ = days
    paths[2].unlink()
    paths[5].unlink()
    paths[7].write_bytes(b"no frame at all" * 20)
    with pytest.raises(FileNotFoundError, match=r"^3 of 12 frames cannot be opened:") as error:
        from_b2nd(paths)
    lines = str(error.value).splitlines()
    assert all(f"day{i}.b2nd" in line for i, line in zip((2, 5, 7), lines[1:], strict=True))
    assert "not a Blosc2 frame" in lines[3]
    gone = [tmp_path / f"gone{i}.b2nd" for i in range(15)]
    with pytest.raises(FileNotFoundError) as error:
        from_b2nd([*paths[:2], *gone])
    lines = str(error.value).splitlines()
    assert lines[0] == "15 of 17 frames cannot be opened:"
    assert all(f"gone{i}.b2nd" in lines[1 + i] for i in range(10))
    assert lines[11:] == ["  and 5 others"]
    paths[2].write_bytes(b"")
    with pytest.raises(FrameFormatError, match="2 of 2 frames"):
        from_b2nd([paths[2], paths[7]])
    for path in gone:
        to_b2nd(np.zeros((1, 7, 8), "f4"), path)
    with pytest.raises(ValueError, match=r"gone9\.b2nd: .*\n  and 5 others$"):
        from_b2nd([*gone, *paths[8:] * 4])
    with pytest.raises(ValueError, match=r"^verify='no'; known"):
        from_b2nd(paths[:2], verify="no")


@pytest.mark.parametrize("kind", [ValueError, PermissionError])
def test_what_is_wrong_for_all_frames_is_raised_at_the_first(monkeypatch, kind):
    cancelled, opened = threading.Event(), []

    class Pool(ThreadPoolExecutor):
        def shutdown(self, wait=True, **keywords):
            super().shutdown(wait=False, **keywords)
            cancelled.set()
            super().shutdown(wait)

    def fail(source):
        opened.append(source)
        # the others start only after the error of the first one is raised
        if source and not cancelled.wait(10):
            cancelled.set()
        raise kind(f"frame {source}")

    monkeypatch.setattr(joined, "ThreadPoolExecutor", Pool)
    with pytest.raises(kind, match=r"^frame 0$"):
        joined.open_all(range(500), fail)
    assert len(opened) <= joined.THREADS + 1


def test_an_order_that_nobody_chose_is_an_error(days, tmp_path):
    paths, want = days
    assert same(from_b2nd(tuple(paths)).compute(), want)
    for several in (
        tmp_path.glob("day*.b2nd"),
        (path for path in paths),
        iter(paths),
        {*paths},
        np.array([str(path) for path in paths]),
    ):
        with pytest.raises(TypeError, match=r"pass sorted\(.*, or list\(.* if the frames are in"):
            from_b2nd(several)


def _open_files():
    return len(list(Path("/proc/self/fd").iterdir()))


def test_files_stay_few(days, monkeypatch):
    paths, want = days
    monkeypatch.setattr(cache, "MAX_OPEN_FRAMES", 3)
    # forget files that other tests, and the write, left open
    cache.process_cache.clear()
    monkeypatch.setattr(joined, "THREADS", 2)
    before = _open_files()
    x = from_b2nd(paths)
    assert same(x.compute(), want)
    assert _open_files() <= before + 3 + 4


def test_metadata_of_an_evicted_frame_are_not_parsed_again(days, monkeypatch):
    paths, want = days
    monkeypatch.setattr(cache, "MAX_OPEN_FRAMES", 1)
    x = from_b2nd(paths)
    monkeypatch.setattr(cache, "parse_frame", None)
    assert same(x.compute(), want)


def _computed(array):
    return pickle.loads(array).compute(scheduler="sync")


def test_graphs_are_small_and_travel(tmp_path):
    x = from_b2nd([blosc2.full((2, 3), i) for i in range(40)])
    again = pickle.loads(pickle.dumps(x))
    assert same(again.compute(), x.compute())
    names = []
    for i in range(150):
        names.append(tmp_path / f"{i}.b2nd")
        blosc2.full((2, 3), i, urlpath=str(names[-1]))
    y = from_b2nd(names)
    # versions and paths, not whole references
    assert len(pickle.dumps(y.dask)) < 150 * 120
    assert run_forked(_computed, pickle.dumps(y[7])).tolist() == [3, 3, 3]


@pytest.mark.parametrize("stack", [False, True])
def test_without_layers_dask_slices_the_array_itself(days, monkeypatch, stack):
    paths, want = days
    monkeypatch.setattr(_dask_compat, "has_layers", lambda: False)
    # as with arrays that are expressions
    monkeypatch.setattr(_dask_compat, "has_query_planning", lambda: True)
    x = from_b2nd(paths[::3] if stack else paths, stack=stack)
    want = np.stack([open_b2nd(p)[...] for p in paths[::3]]) if stack else want
    assert same(x[1:, ..., 2].compute(), want[1:, ..., 2])
    np.testing.assert_allclose((x + 1).sum(axis=0).compute(), (want + 1).sum(axis=0), rtol=1e-5)


def test_joined_frames_are_written(days, tmp_path):
    paths, want = days
    to_b2nd(from_b2nd(paths) * 2, tmp_path / "all.b2nd", chunks=(5, 6, 8), vlmeta={})
    assert same(open_b2nd(tmp_path / "all.b2nd")[...], want * 2)
    # also where one of the frames that are read is replaced
    to_b2nd(from_b2nd(paths[:2]), paths[0], mode="w")
    assert same(open_b2nd(paths[0])[...], want[:3])


def test_elements_by_points(days):
    paths, want = days
    points = ([0, 22, 6, 7], [5, 0, 1, 5], [7, 1, 2, 0])
    assert same(from_b2nd(paths).vindex[points].compute(), want[points])
    stacked = from_b2nd(paths[::3], axis=1, stack=True)
    wanted = np.stack([open_b2nd(path)[...] for path in paths[::3]], axis=1)
    chosen = ([0, 0, 0], [3, 0, 1], [5, 0, 1], [7, 1, 2])
    assert same(stacked.vindex[chosen].compute(), wanted[chosen])


def test_codecs_that_take_the_shape_from_the_frame(tmp_path):
    path, values = tmp_path / "x.b2nd", np.random.default_rng(0).normal(size=(12, 20))
    cparams = {"codec": blosc2.Codec.ZFP_PREC, "codec_meta": 40, "filters": []}
    blosc2.asarray(values, chunks=(8, 16), blocks=(4, 8), cparams=cparams, urlpath=str(path))
    wanted = np.stack([open_b2nd(path)[...]] * 2, axis=1)
    np.testing.assert_allclose(wanted[:, 0], values, rtol=1e-3)
    assert same(from_b2nd([path, path], axis=1, stack=True).compute(), wanted)


def test_a_plan_has_the_shape_of_each_frame(days):
    paths, _ = days
    frames = plan(from_b2nd(paths[:1] * 2, stack=True).sum() + from_b2nd(paths[0]).sum()).frames
    assert {frame.shape for frame in frames} == {open_b2nd(paths[0]).shape}
