"""A cluster as users start it, whose scheduler sees no files and whose workers come and go."""

import os
import signal
import sys
import time

import blosc2
import dask
import numpy as np
import pytest

from b2nd_dask import (
    VersionMismatchError,
    __version__,
    from_b2nd,
    persist_compressed,
    to_b2nd,
    verify,
)
from b2nd_dask.graph import resources
from tests.graph.commands import NOT_MOUNTED, commands
from tests.graph.gate import eventually

VALUES = np.random.default_rng(4).normal(size=(240, 90))


def pids(client):
    """Process id of each worker, by the worker's name."""
    # of workers that run: the scheduler still lists a killed one for a moment
    named = client.run(lambda dask_worker: (dask_worker.name, os.getpid()), on_error="ignore")
    running = {address: found for address, found in named.items() if found}
    return dict(running.values())


@pytest.mark.slow
def test_workers_that_go_come_and_differ(tmp_path, monkeypatch):
    here, hidden = tmp_path / "frames", tmp_path / "hidden"
    for folder in (here, hidden):
        folder.mkdir()
        blosc2.asarray(VALUES, urlpath=str(folder / "x.b2nd"), chunks=(10, 30), blocks=(5, 30))
    with commands(tmp_path / "cluster") as running:
        running.start_scheduler(NOT_MOUNTED.format(folder=str(here)))
        running.start_worker("plain", "--no-nanny", "--nthreads", "1")
        preload = NOT_MOUNTED.format(folder=str(hidden))
        running.start_worker("watched", "--nthreads", "1", preload=preload)
        with running.client() as client:
            client.wait_for_workers(2, timeout=120)
            x = from_b2nd(here / "x.b2nd")
            check_results(x, here)
            check_worker_without_the_folder(client, hidden)
            check_other_version(client, x)
            check_killed_restarted_and_added(client, running, x, here)
            monkeypatch.setattr(resources, "ANSWER_SECONDS", 0.5)
            running.send("scheduler", signal.SIGSTOP)
            try:
                # no connection times out before the test does
                with dask.config.set({"distributed.comm.timeouts.connect": "1h"}):
                    assert resources.available().threads > 0
            finally:
                running.send("scheduler", signal.SIGCONT)
            assert resources.available().threads > 0


def check_results(x, folder):
    target = folder / "out.b2nd"
    np.testing.assert_allclose((x * 2 + 1).sum(axis=0).compute(), (VALUES * 2 + 1).sum(axis=0))
    to_b2nd(x * 2, target)
    to_b2nd(x[:25], target, mode="r+", region=slice(31, 56))
    to_b2nd(x[:37], target, mode="a", append_axis=0)
    want = np.concatenate([VALUES * 2, VALUES[:37]])
    want[31:56] = VALUES[:25]
    np.testing.assert_array_equal(blosc2.open(str(target))[...], want)
    assert verify(target).ok
    assert {path.name for path in folder.iterdir()} == {"x.b2nd", "out.b2nd"}


def check_worker_without_the_folder(client, hidden):
    there, host = pids(client)["watched"], os.uname().nodename
    x = from_b2nd(hidden / "x.b2nd")
    problem = client.compute(x.sum(), workers=["watched"]).exception(timeout=600)
    assert isinstance(problem, FileNotFoundError)
    assert f"seen from host {host}, process {there}: " in str(problem)
    assert str(hidden / "x.b2nd") in str(problem)
    assert client.compute(x.max(), workers=["plain"]).result(timeout=600) == VALUES.max()


def check_other_version(client, x):
    def pretend(version):
        sys.modules["b2nd_dask._version"].__version__ = version

    (address,) = (
        address
        for address, name in client.run(lambda dask_worker: dask_worker.name).items()
        if name == "watched"
    )
    client.run(pretend, "99.1", workers=[address])
    problem = client.compute((x + 2).sum(), workers=["watched"]).exception(timeout=600)
    assert isinstance(problem, VersionMismatchError), repr(problem)
    assert "99.1" in str(problem)
    client.run(pretend, __version__, workers=[address])


def check_killed_restarted_and_added(client, running, x, folder):
    """During a write one of two workers restarts, the other one stops, and a third one starts."""
    gate, target = folder.parent / "gate", folder / "killed.b2nd"
    kept = persist_compressed(x + 5)

    def work(block):
        # workers cannot import modules of the tests
        passed = sum(path.name.startswith(f"{os.getpid()}.") for path in folder.parent.iterdir())
        (folder.parent / f"{os.getpid()}.{passed}").touch()
        while passed >= 2 and not gate.exists():
            time.sleep(0.02)
        return block + 1

    y = x.map_blocks(work, dtype="f8")
    future = client.compute(to_b2nd(y, target, chunks=(10, 30), compute=False))
    (area,) = eventually(lambda: list(folder.glob(".*.staging")))
    eventually(lambda: len(list(area.glob("*.part"))) == 2)
    before = pids(client)
    # its nanny restarts it
    os.kill(before["watched"], signal.SIGKILL)
    running.start_worker("added", "--no-nanny", "--nthreads", "1")
    eventually(lambda: pids(client).get("watched", before["watched"]) != before["watched"])
    eventually(lambda: pids(client).keys() == {"plain", "watched", "added"})
    os.kill(before["plain"], signal.SIGKILL)
    gate.touch()
    assert future.result(timeout=600) == str(target)
    np.testing.assert_array_equal(blosc2.open(str(target))[...], VALUES + 1)
    assert not list(folder.glob(".*.staging"))
    # results of the lost workers are computed again
    np.testing.assert_array_equal(kept.compute(), VALUES + 5)
    eventually(lambda: pids(client).keys() == {"watched", "added"})
