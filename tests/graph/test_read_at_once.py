"""One task reads a slice that `compute()` returns, with the result of dask's own tasks."""

import itertools
import pickle
import threading
from unittest.mock import Mock

import blosc2
import dask
import dask.array as da
import numpy as np
import pytest
from dask.callbacks import Callback
from dask.utils import key_split
from distributed import Client, LocalCluster
from hypothesis import assume, given
from hypothesis import strategies as st

from b2nd_dask import CorruptChunkError, StaleFrameError, UninitializedChunkError, from_b2nd, seal
from b2nd_dask.frame.open import cache
from b2nd_dask.frame.reference import FrameReference
from b2nd_dask.graph.optimize import at_once
from b2nd_dask.graph.tasks import read_at_once
from tests.graph.pushdown import MODES
from tests.strategies import dask_chunks, examples, grids, indices
from tests.vectors import same

SWITCH = "b2nd_dask.optimize"


class Counted(Callback):
    """The tasks that a local scheduler runs."""

    def __init__(self):
        super().__init__(pretask=lambda key, *_: self.keys.append(key))
        self.keys = []


def tasks_for(function):
    """The result of a function, and the number of its tasks."""
    with Counted() as counted:
        found = function()
    return found, len(counted.keys)


@st.composite
def frames(draw):
    """A frame as a dask array, and its elements; some chunks are special."""
    shape = tuple(draw(st.lists(st.integers(0, 9), max_size=3)))
    array = np.arange(1, 1 + np.prod(shape, dtype=int)).reshape(shape)
    array = array.astype(draw(st.sampled_from(["<f8", ">i4", "M8[D]", "S3", "?"])))
    if array.size:
        array[tuple(slice(draw(st.integers(0, n))) for n in shape)] = np.zeros((), array.dtype)
    grid = {}
    if array.size:
        grid["chunks"], grid["blocks"] = draw(grids(shape))
    stored = blosc2.asarray(array, **grid)
    chunks = draw(st.none() | dask_chunks(shape)) if array.size else None
    return from_b2nd(stored, chunks=chunks), array


@examples(150)
@given(frames(), st.data())
def test_chained_slices(case, data):
    x, array = case
    scalar = not array.ndim
    for _ in range(data.draw(st.integers(0, 3))):
        index = data.draw(indices(array.shape))
        x, array = x[index], np.asarray(array[index])
        scalar = scalar or not array.ndim
        # dask moves the start of a reversed slice into the array
        assume(x.shape == array.shape)
    got, count = tasks_for(lambda: x.compute(scheduler="sync"))
    # an empty result with a new axis has dask's own tasks
    assert count == 1 or not array.size
    if isinstance(got, np.ndarray):
        assert got.flags.writeable
        assert got.flags.c_contiguous
    again = MODES[data.draw(st.sampled_from(sorted(MODES)))](x).compute(scheduler="sync")
    for found in (got, again):
        np.testing.assert_array_equal(found, array)
        # a scalar may have lost its byte order, and the zeros at the end of a string
        assert scalar or same(found, np.array(array, order="C"))


@pytest.fixture
def image(tmp_path):
    array = np.random.default_rng(4).integers(0, 9, (60, 80)).astype("f4")
    array[20:40, :40] = 0
    path = tmp_path / "image.b2nd"
    blosc2.asarray(array, urlpath=str(path), chunks=(10, 10), blocks=(5, 10))
    return path, array


def test_joined_frames(tmp_path, image):
    path, array = image
    other = tmp_path / "other.b2nd"
    blosc2.asarray(array[:25], urlpath=str(other), chunks=(8, 9), blocks=(4, 4))
    for options in ({}, {"axis": 0}):
        x = from_b2nd([path, other, path], **options)
        whole = np.concatenate([array, array[:25], array])
        for index in (np.s_[55:90:3, 7], np.s_[70:], np.s_[::-9, 3:5], np.s_[3], np.s_[:0]):
            got, count = tasks_for(x[index].compute)
            assert same(got, whole[index])
            assert count == 1
    stacked = from_b2nd([path, path], axis=1, stack=True)
    assert same(stacked[5, 1, ::-2].compute(), array[5, ::-2])


def test_several_results(image):
    path, array = image
    x = from_b2nd(path)
    (row, column), count = tasks_for(lambda: dask.compute(x[3], x[::-1, 5]))
    assert same(row, array[3])
    assert same(column, np.ascontiguousarray(array[::-1, 5]))
    assert count == 2
    row, total = dask.compute(x[3], x[:20].sum())
    assert same(row, array[3])
    assert total == array[:20].sum()


def test_each_of_many_results_is_looked_at_alone(image, monkeypatch):
    path, array = image
    touched = Mock(wraps=at_once._touched_nbytes)
    monkeypatch.setattr(at_once, "_touched_nbytes", touched)
    x = from_b2nd(path)
    indices = list(itertools.product(range(10), range(10)))
    found, count = tasks_for(lambda: dask.compute([x[i, j:] for i, j in indices]))
    assert all(same(row, array[i, j:]) for row, (i, j) in zip(found[0], indices, strict=True))
    assert count == 100
    assert touched.call_count == 2 * 100


@pytest.mark.parametrize("scheduler", ["sync", "threads", "processes"])
def test_schedulers_of_one_machine(image, scheduler):
    path, array = image
    x = from_b2nd(path)[5:45:2, ::-1]
    assert same(x.compute(scheduler=scheduler), np.ascontiguousarray(array[5:45:2, ::-1]))


def test_a_cluster_joins_small_reads_only(image, monkeypatch):
    path, array = image
    x = from_b2nd(path)
    with (
        LocalCluster(
            1, processes=False, threads_per_worker=2, dashboard_address="127.0.0.1:0"
        ) as c,
        Client(c) as client,
    ):
        assert same(x[7].compute(), array[7])
        assert read_at_once_is_used(x[7])
        assert "read(image)" in map(key_split, graph_of(x[7]))
        assert same(client.compute(x[7:9]).result(), array[7:9])
        monkeypatch.setattr(at_once, "SMALL_NBYTES", 1000)
        assert not read_at_once_is_used(x[7])
        assert same(x[7].compute(), array[7])


def test_large_reads_are_left_to_tasks_where_these_read_together(image, monkeypatch):
    path, _ = image
    monkeypatch.setattr(at_once, "SMALL_NBYTES", 1000)
    assert read_at_once_is_used(from_b2nd(path)[7])
    assert not read_at_once_is_used(from_b2nd([path, path])[7:70])
    with dask.config.set(scheduler="processes"):
        assert not read_at_once_is_used(from_b2nd(path)[7])
    monkeypatch.setattr(at_once, "MOST_NBYTES", 79 * 4)
    assert not read_at_once_is_used(from_b2nd(path)[7])


def test_large_reads_of_stores_are_read_at_once(image, http_server, monkeypatch):
    path, array = image
    http_server.put("image.b2nd", path.read_bytes())
    monkeypatch.setattr(at_once, "SMALL_NBYTES", 1000)
    x = from_b2nd(f"{http_server.url}/image.b2nd")
    assert read_at_once_is_used(x)
    assert same(x.compute(), array)


def read_at_once_is_used(x):
    nodes = graph_of(x).values()
    return any(getattr(node, "func", None) is read_at_once for node in nodes)


def graph_of(x):
    """The graph that `compute()` sends to a scheduler."""
    seen = []

    def get(graph, keys, **_):
        seen.append(dict(graph.__dask_graph__()) if hasattr(graph, "__dask_graph__") else graph)
        return [0]

    x.compute(scheduler=get)
    return seen[0]


def test_more_threads_than_one_read(image, monkeypatch):
    path, array = image
    seen = set()
    decoding = FrameReference.read_axes

    def noted(self, axes, threads=1, *rest):
        seen.add((threading.current_thread() is threading.main_thread(), threads))
        return decoding(self, axes, threads, *rest)

    monkeypatch.setattr(FrameReference, "read_axes", noted)
    with dask.config.set(num_workers=3):
        assert same(from_b2nd(path)[5:50].compute(scheduler="threads"), array[5:50])
    assert seen == {(False, 3)}


def test_what_is_more_than_slices_is_left_to_others(image):
    path, array = image
    x = from_b2nd(path)
    for program in (
        lambda x: x[5:30] + 1,
        lambda x: x[5:30].T,
        lambda x: x[[3, 50, 3], 2:9],
        lambda x: x[5:30].rechunk((7, 7))[1:],
        lambda x: x.map_blocks(np.negative)[5],
        lambda x: da.concatenate([x, x])[50:70, 3],
        lambda x: x[5:30].reshape(-1)[::7],
    ):
        np.testing.assert_array_equal(program(x).compute(), program(da.from_array(array)).compute())


def test_the_users_own_optimizer_and_fusion_win(image):
    path, array = image
    x = from_b2nd(path)[5:30]
    for setting in (
        {SWITCH: False},
        {SWITCH: ["slices"]},
        {"array_optimize": da.optimization.optimize},
        {"optimization.fuse.active": False},
    ):
        with dask.config.set(setting):
            got, count = tasks_for(x.compute)
            assert same(got, array[5:30])
            assert count > 1


def test_a_scheduler_that_sees_no_files(image):
    path, array = image
    # a frame without checksums is stale after a rename
    seal(path)
    x = from_b2nd(path)[5:30:7]
    sent = pickle.dumps((x.__dask_optimize__, x.dask, x.__dask_keys__()))
    path.rename(path.with_name("elsewhere"))
    cache.process_cache.clear()
    optimizer, graph, keys = pickle.loads(sent)
    y = da.Array(graph, x.name, x.chunks, x.dtype)
    found = graph_of(y)
    assert len(found) == 1
    path.with_name("elsewhere").rename(path)
    got = dask.get(pickle.loads(pickle.dumps(found)), next(iter(found)))
    assert same(got, np.ascontiguousarray(array[5:30:7]))
    assert optimizer(graph, keys)


def test_errors_are_those_of_reads(tmp_path, image):
    path, array = image
    x = from_b2nd(path)
    blosc2.asarray(array + 1, urlpath=str(tmp_path / "new.b2nd"), chunks=(10, 10), blocks=(5, 10))
    (tmp_path / "new.b2nd").replace(path)
    with pytest.raises(StaleFrameError, match="image"):
        x[3].compute()
    empty = blosc2.uninit((20,), dtype="f8", chunks=(5,), blocks=(5,))
    with pytest.raises(UninitializedChunkError):
        from_b2nd(empty, uninit="raise")[3:9].compute()
    data = bytearray(path.read_bytes())
    data[200:2000] = bytes(1800)
    path.write_bytes(data)
    with pytest.raises(CorruptChunkError, match="image"):
        from_b2nd(path)[...].compute()


def test_results_share_no_memory(tmp_path):
    blosc2.asarray(np.arange(48.0).reshape(6, 8), urlpath=str(tmp_path / "x.b2nd"), chunks=(3, 3))
    x = from_b2nd(tmp_path / "x.b2nd")
    one, other = dask.compute(x[1:5], x[0:5][1:5])
    assert not np.shares_memory(one, other)


@pytest.mark.parametrize("alone", [True, False])
def test_single_elements_are_scalars_whatever_else_is_computed(tmp_path, alone):
    blosc2.asarray(np.arange(48.0).reshape(6, 8), urlpath=str(tmp_path / "x.b2nd"), chunks=(3, 3))
    x = from_b2nd(tmp_path / "x.b2nd")
    for element in (x[2, 3], x[2, 3] * 2, (x * 2)[2, 3], x[2, 3] > 2):
        (found, *_) = dask.compute(element, *([] if alone else [x + 1]))
        assert isinstance(found, np.generic)
