"""The same results on every scheduler; frames shared by processes, forks and threads."""

import multiprocessing
import os
import signal
import threading
import time
from pathlib import Path

import blosc2
import dask.array as da
import numpy as np
import pytest
from distributed import Client, LocalCluster

from b2nd_dask import StaleFrameError, from_b2nd, open_b2nd, verify
from tests.graph.gate import eventually, pass_gate


@pytest.fixture(scope="module")
def field(tmp_path_factory):
    path = str(tmp_path_factory.mktemp("schedulers") / "field.b2nd")
    values = np.random.default_rng(1).normal(size=(120, 90, 8)).astype("f4")
    values[60:] = 0
    blosc2.asarray(values, urlpath=path, chunks=(20, 30, 8), blocks=(10, 10, 4))
    return path, values


@pytest.fixture(scope="module")
def cluster():
    with (
        LocalCluster(
            n_workers=2, threads_per_worker=2, processes=True, dashboard_address="127.0.0.1:0"
        ) as cluster,
        Client(cluster) as client,
    ):
        yield client


def check(path, values, **where):
    x = from_b2nd(path)
    np.testing.assert_array_equal(x.compute(**where), values)
    np.testing.assert_allclose(
        (x * 2 + 1)[3:77, ::5].sum(axis=0).compute(**where),
        (values * 2 + 1)[3:77, ::5].sum(axis=0),
        rtol=1e-5,
    )
    assert x[119, 89, 7].compute(**where) == 0


@pytest.mark.parametrize("scheduler", ["sync", "threads", "processes"])
def test_local_schedulers(field, scheduler):
    check(*field, scheduler=scheduler)


def test_distributed_processes(field, cluster):
    check(*field)


def test_distributed_reads_bytes_and_notices_changes(field, cluster, tmp_path):
    path, values = field
    x = from_b2nd(Path(path).read_bytes())
    np.testing.assert_array_equal(x.compute(), values)
    own = str(tmp_path / "own.b2nd")
    blosc2.asarray(values, urlpath=own, chunks=(20, 30, 8), blocks=(10, 10, 4))
    y = from_b2nd(own)
    blosc2.asarray(values * 2, urlpath=own, chunks=(20, 30, 8), blocks=(10, 10, 4), mode="w")
    with pytest.raises(StaleFrameError, match=r"own\.b2nd"):
        y.compute()


def _sum_into(queue, frame):
    queue.put((os.getpid(), float(frame[...].sum())))


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_fork_after_use_does_not_hang(field):
    path, values = field
    frame = open_b2nd(path)
    from_b2nd(path).sum().compute(scheduler="threads")
    context = multiprocessing.get_context("fork")
    queue = context.Queue()
    children = [context.Process(target=_sum_into, args=(queue, frame)) for _ in range(3)]
    for child in children:
        child.start()
    results = [queue.get(timeout=600) for _ in children]
    for child in children:
        child.join(timeout=600)
    assert len({pid for pid, _ in results} | {os.getpid()}) == 4
    assert [total for _, total in results] == pytest.approx([float(values.sum())] * 3, rel=1e-5)


def test_decoding_lets_other_threads_run(tmp_path):
    """While one long chunk is decoded, a Python thread goes on: the GIL is free."""
    values = np.random.default_rng(0).integers(0, 50, 1 << 25).astype("i4")
    path = str(tmp_path / "one.b2nd")
    cparams = {"codec": blosc2.Codec.ZLIB, "clevel": 1}
    blosc2.asarray(values, urlpath=path, chunks=values.shape, cparams=cparams)
    # if the GIL is held throughout, one gap is nearly all of the time in each run; else only if
    # the machine is busy
    assert any(_longest_gap_during(open_b2nd(path)) < 1 / 2 for _ in range(20))


def _longest_gap_during(frame):
    """The longest time in which another thread could not run, relative to the time of a read."""
    gaps, running, done = [], threading.Event(), threading.Event()

    def tick():
        last = time.perf_counter()
        while not done.is_set():
            now = time.perf_counter()
            gaps.append(now - last)
            last = now
            running.set()

    ticker = threading.Thread(target=tick)
    ticker.start()
    running.wait()
    start = time.perf_counter()
    frame[...]
    elapsed = time.perf_counter() - start
    done.set()
    ticker.join()
    return max(gaps) / elapsed


def test_threads_share_a_frame(field):
    path, values = field
    x = da.from_array(open_b2nd(path), chunks=(7, 30, 8))
    np.testing.assert_array_equal(x.compute(scheduler="threads", num_workers=8), values)


def test_distributed_processes_write_one_frame(field, cluster, tmp_path):
    path, values = field
    target = tmp_path / "written.b2nd"
    back = (from_b2nd(path) + 1).to_b2nd(target, chunks=(10, 30, 8))
    np.testing.assert_array_equal(blosc2.open(str(target))[...], values + 1)
    np.testing.assert_array_equal(back[::7].compute(), (values + 1)[::7])
    assert verify(target).ok
    back = (from_b2nd(target) * 2).to_b2nd(target, mode="w", contiguous=False)
    np.testing.assert_array_equal(back.compute(), (values + 1) * 2)
    assert list(tmp_path.iterdir()) == [target]
    assert verify(target).ok
    checked = from_b2nd(target, verify=True)
    np.testing.assert_array_equal(checked.compute(), (values + 1) * 2)


def test_a_worker_that_dies_leaves_one_good_frame(field, tmp_path):
    """Its tasks are repeated elsewhere, in addition to the chunks that it staged."""
    path, values = field
    target, gate = tmp_path / "folder" / "written.b2nd", tmp_path / "gate"
    target.parent.mkdir()

    def work(block):
        # both workers have staged some chunks, neither all
        pass_gate(gate, 2, of=os.getpid())
        return block + 1

    with (
        LocalCluster(
            n_workers=2, threads_per_worker=1, processes=True, dashboard_address="127.0.0.1:0"
        ) as cluster,
        Client(cluster) as client,
    ):
        x = from_b2nd(path).map_blocks(work, dtype="f4")
        future = client.compute(x.to_b2nd(target, chunks=(10, 30, 8), compute=False))
        (area,) = eventually(lambda: list(target.parent.glob(".*.staging")))
        eventually(lambda: len(list(area.glob("*.part"))) == 2)
        victim = next(iter(cluster.workers.values())).pid
        os.kill(victim, signal.SIGKILL)
        gate.touch()
        assert future.result(timeout=600) == str(target)
    np.testing.assert_array_equal(blosc2.open(str(target))[...], values + 1)
    assert list(target.parent.iterdir()) == [target]
