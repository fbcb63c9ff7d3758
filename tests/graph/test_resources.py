"""Tasks are sized for the threads and the memory that will compute them."""

import threading
from concurrent.futures import ThreadPoolExecutor

import blosc2
import dask
import dask.array as da
import numpy as np
import pytest
from distributed import Client, LocalCluster

from b2nd_dask import open_b2nd
from b2nd_dask.frame.read import region
from b2nd_dask.graph.resources import Resources, available


def test_the_workers_of_a_cluster_count(tmp_path):
    with (
        LocalCluster(
            n_workers=2,
            threads_per_worker=3,
            memory_limit="300 MB",
            dashboard_address="127.0.0.1:0",
        ) as cluster,
        Client(cluster) as client,
    ):
        want = Resources(threads=6, memory=600_000_000)
        assert client.run_on_scheduler(available) == want
        assert available() == want
        with dask.config.set(scheduler="threads", num_workers=5):
            assert available().threads == 5
        # a process that has a client, but not the scheduler
        assert set(client.run(_seen_by_a_client, cluster.scheduler_address).values()) == {want}


def _seen_by_a_client(address):
    with Client(address):
        return available()


def test_the_users_number_of_threads_counts():
    with dask.config.set(num_workers=5, scheduler="threads"):
        assert available().threads == 5
        assert available().memory > 0


@pytest.mark.parametrize("scheduler", ["threads", "processes"])
def test_tasks_of_dask_decode_in_their_own_thread(tmp_path, monkeypatch, scheduler):
    array = np.random.default_rng(0).normal(size=(1000, 1000))
    blosc2.asarray(array, urlpath=str(tmp_path / "x.b2nd"), chunks=(100, 100), blocks=(100, 100))
    pools = []

    class Pool(ThreadPoolExecutor):
        def __init__(self, *args, **kwargs):
            pools.append(threading.current_thread())
            super().__init__(*args, **kwargs)

    monkeypatch.setattr(region, "ThreadPoolExecutor", Pool)
    monkeypatch.setattr(region, "usable_cores", lambda: 2)
    frame = open_b2nd(tmp_path / "x.b2nd")
    np.testing.assert_array_equal(frame[...], array)
    assert pools == [threading.main_thread()]
    x = da.from_array(frame, chunks=(500, 500))
    np.testing.assert_array_equal(x.compute(scheduler=scheduler), array)
    assert x.map_blocks(_threads_of_a_read, dtype=int).compute(scheduler=scheduler).max() == 1


def _threads_of_a_read(block):
    return np.full_like(block, region.own_threads(), dtype=int)
