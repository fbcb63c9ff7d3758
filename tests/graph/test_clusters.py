"""Clusters of several processes: results, writes, opened files, memory."""

from __future__ import annotations

import os
import pickle
import shutil
import signal

import blosc2
import dask
import numpy as np
import pytest
from distributed import Client, LocalCluster

from b2nd_dask import from_b2nd, persist_compressed, to_b2nd, verify
from b2nd_dask.frame.open import cache
from b2nd_dask.graph.resources import auto_limit
from tests.graph.gate import eventually, pass_gate

VALUES = np.random.default_rng(1).normal(size=(240, 90, 8)).astype("f4")
VALUES[120:180] = 0


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    path = tmp_path_factory.mktemp("clusters") / "field.b2nd"
    blosc2.asarray(VALUES, urlpath=str(path), chunks=(10, 30, 8), blocks=(10, 10, 4))
    return path


@pytest.fixture(
    scope="module",
    params=[2, pytest.param(8, marks=pytest.mark.slow)],
    ids=lambda n: f"{n} workers",
)
def cluster(request):
    # results above 1 % of the limit are spilled to the disk: 10 MB
    config = {"distributed.worker.memory.target": 0.01, "distributed.worker.memory.spill": False}
    with (
        dask.config.set(config),
        LocalCluster(
            n_workers=request.param,
            threads_per_worker=1,
            memory_limit="1 GB",
            dashboard_address="127.0.0.1:0",
        ) as cluster,
        Client(cluster) as client,
    ):
        yield client


def test_reductions_transforms_writes_regions_and_appends(cluster, path, tmp_path):
    x, target = from_b2nd(path), tmp_path / "out.b2nd"
    np.testing.assert_allclose(
        (x * 2 + 1).mean(axis=(0, 1)).compute(), (VALUES * 2 + 1).mean((0, 1)), rtol=1e-4
    )
    np.testing.assert_array_equal(x.max(axis=2).compute(), VALUES.max(axis=2))
    want = VALUES * 2
    to_b2nd(x * 2, target)
    to_b2nd(x[:25] + 1, target, mode="r+", region=slice(31, 56))
    want[31:56] = VALUES[:25] + 1
    to_b2nd(x[:37], target, mode="a", append_axis=0)
    want = np.concatenate([want, VALUES[:37]])
    to_b2nd(from_b2nd(target)[::-1], target, mode="w")
    np.testing.assert_array_equal(blosc2.open(str(target))[...], want[::-1])
    assert verify(target).ok
    assert list(tmp_path.iterdir()) == [target]


def _count_opens():
    opened, before = [], cache._open

    def counted(location, parsed):
        opened.append(location.label)
        return before(location, parsed)

    cache._open = counted
    cache.b2nd_dask_tests_opened = opened


def _opened():
    return cache.b2nd_dask_tests_opened


def test_a_process_reads_header_and_index_once(cluster, path, tmp_path):
    # that no process has opened yet
    path = shutil.copy(path, tmp_path / "new.b2nd")
    cluster.run(_count_opens)
    x = from_b2nd(path)
    for _ in range(3):
        assert np.isfinite((x + 1).sum(axis=0).compute()).all()
    np.testing.assert_array_equal(from_b2nd(path, chunks=(7, 90, 8))[::5].compute(), VALUES[::5])
    opened = cluster.run(_opened).values()
    assert {str(path)} == {label for labels in opened for label in labels}
    assert max(map(len, opened)) == 1


def _on_disk(dask_worker):
    return len(dask_worker.data.disk)


@pytest.mark.slow
def test_spilled_blocks_come_back_as_they_were(cluster, path, tmp_path):
    fast = blosc2.CParams(codec=blosc2.Codec.LZ4, clevel=1)
    big = np.random.default_rng(2).normal(size=(8, 512, 1024))
    # large enough for memory from the pool
    large = np.random.default_rng(3).normal(size=(1, 2100, 2100))
    full = np.full((4, 512, 1024), 3.0)
    for name, values in (("big", big), ("large", large), ("full", full)):
        chunks = (1, 300, 1024)
        urlpath = str(tmp_path / f"{name}.b2nd")
        blosc2.asarray(values, urlpath=urlpath, chunks=chunks, cparams=fast)
    blocks = {"chunks": (1, -1, -1)}
    arrays = [from_b2nd(tmp_path / f"{name}.b2nd", **blocks) for name in ("big", "large", "full")]
    arrays += [from_b2nd(path)]
    held = dask.persist(*arrays, *(array[:, 3:].T for array in arrays))
    compressed = persist_compressed(arrays[0])
    want = [big, large, full, VALUES]
    want += [values[:, 3:].T for values in want]
    for array, values in zip(held, want, strict=True):
        # summed where the blocks are, each from its own disk
        assert array.sum().compute() == pytest.approx(values.sum(), rel=1e-6)
    np.testing.assert_array_equal(held[1].compute(), large)
    np.testing.assert_array_equal(held[4][:, ::7].compute(), want[4][:, ::7])
    np.testing.assert_array_equal(compressed[:, 5].compute(), big[:, 5])
    assert sum(cluster.run(_on_disk).values()) > 0


def test_auto_blocks_fit_the_workers(cluster, tmp_path):
    path = tmp_path / "x.b2nd"
    blosc2.zeros((16000, 40000), dtype="f8", chunks=(500, 500), urlpath=str(path))
    threads = sum(cluster.nthreads().values())
    with dask.config.set({"array.chunk-size": "1 GiB"}):
        x = from_b2nd(path, chunks="auto")
        assert auto_limit(x.nbytes) <= 10**9 / 12
        # blocks of several frames are not larger
        for chunks in ("auto", (500, "auto")):
            several = from_b2nd([path, path], chunks=chunks)
            assert np.prod(several.chunksize) * 8 <= 10**9 / 12 * 1.3
    assert x.npartitions >= 4 * threads
    assert np.prod(x.chunksize) * 8 <= 10**9 / 12 * 1.3
    # bytes that a user gives take precedence
    assert np.prod(from_b2nd(path, chunks="20 MB").chunksize) * 8 <= 20e6
    with dask.config.set({"scheduler": "threads", "array.chunk-size": "1 GiB"}):
        assert from_b2nd(path, chunks="auto").npartitions < x.npartitions


def test_the_graph_of_a_million_chunks_is_small(cluster, tmp_path):
    path = tmp_path / "x.b2nd"
    blosc2.zeros((64000, 64000), dtype="u1", chunks=(64, 64), blocks=(64, 64), urlpath=str(path))
    blosc2.open(str(path), mode="a")[640:704, :300] = 1
    x = from_b2nd(path, chunks="auto")
    assert 1 < x.npartitions < 1000
    total = (x.astype("u4") * 2).sum()
    with pytest.warns(UserWarning, match="1000000 blocks"):
        one_by_one = from_b2nd(path)
    written = to_b2nd(x + 1, tmp_path / "y.b2nd", compute=False)
    for graph in (total.dask, one_by_one.dask, written.dask):
        assert len(pickle.dumps(graph)) < 1e6
    assert total.compute() == 2 * 64 * 300


@pytest.mark.slow
def test_a_worker_that_dies_while_others_reduce(path, tmp_path, cluster):
    if cluster.cluster.workers.keys() > {0, 1}:
        pytest.skip("with two workers it is the same")
    gate = tmp_path / "gate"

    def work(block):
        pass_gate(gate, 2, of=os.getpid())
        return block * 2

    x = from_b2nd(path).map_blocks(work, dtype="f4").sum(axis=0)
    future = cluster.compute(x)
    eventually(lambda: len(list(tmp_path.glob("gate.*"))) >= 3)
    victim, other = (worker.pid for worker in cluster.cluster.workers.values())
    os.kill(victim, signal.SIGKILL)
    gate.touch()
    np.testing.assert_allclose(future.result(timeout=600), (VALUES * 2).sum(axis=0), rtol=1e-4)
    assert other in set(cluster.run(os.getpid).values())
