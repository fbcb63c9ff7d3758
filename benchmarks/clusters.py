"""Clusters of dask on this machine, one thread in each worker process."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from multiprocessing.util import Finalize
from typing import Any

from benchmarks import memory
from benchmarks.model import Contender, Counted, Paths, Run

THROUGH_CLIENT_AND_SCHEDULER = "MB through client and scheduler"
THROUGH_CLIENT = "MB through the client"
SCHEDULER_MEMORY = "MB of the scheduler"


class Traffic:
    """Counts the bytes that pass the sockets of this process, in both directions."""

    def __init__(self) -> None:
        from tornado.iostream import IOStream

        self.nbytes = 0
        IOStream.read_from_fd = self._counted(IOStream.read_from_fd)
        IOStream.write_to_fd = self._counted(IOStream.write_to_fd)

    def _counted(self, method: Callable[..., int | None]) -> Callable[..., int | None]:
        def counted(stream: Any, data: Any) -> int | None:
            nbytes = method(stream, data)
            self.nbytes += nbytes or 0
            return nbytes

        return counted


def name_on_cluster(name: str) -> str:
    return f"{name}, LocalCluster"


def on_cluster(contender: Contender) -> Contender:
    """The same work on as many worker processes as it has threads.

    Scheduler and client share a process, so bytes between them count twice.
    """

    def prepare(paths: Paths, threads: int) -> Run:
        from distributed import LocalCluster

        run = contender.prepare(paths, threads)
        traffic, client = _start(LocalCluster, threads)
        client.run(_use_one_thread)

        def counted() -> Counted:
            before = traffic.nbytes
            result = run()
            counts = {THROUGH_CLIENT_AND_SCHEDULER: (traffic.nbytes - before) / 1e6}
            if isinstance(result, Counted):
                counts |= result.counts()
                result = result.result
            return Counted(result, lambda: counts)

        return counted

    return replace(contender, name=name_on_cluster(contender.name), prepare=prepare)


def on_processes(contender: Contender) -> Contender:
    """The same with the scheduler in its own process; counts the resources of that process."""

    def prepare(paths: Paths, threads: int) -> Run:
        from distributed.deploy.subprocess import SubprocessCluster

        run = contender.prepare(paths, threads)
        traffic, client = _start(SubprocessCluster, threads)
        client.wait_for_workers(threads)
        scheduler = client.run_on_scheduler(os.getpid)

        def counted() -> Counted:
            memory.forget_peak(scheduler)
            before = traffic.nbytes
            result = run()
            counts = {
                THROUGH_CLIENT: (traffic.nbytes - before) / 1e6,
                SCHEDULER_MEMORY: memory.peak_resident(scheduler) / 1e6,
            }
            return Counted(result, lambda: counts)

        return counted

    return replace(contender, name=name_on_cluster(contender.name), prepare=prepare)


def _start(kind: Any, workers: int) -> tuple[Traffic, Any]:
    """Start a cluster; its client computes, since it is the last one to set dask's scheduler."""
    from distributed import Client

    traffic = Traffic()
    cluster = kind(n_workers=workers, threads_per_worker=1, dashboard_address="127.0.0.1:0")
    client = Client(cluster)
    for one in (cluster, client):
        # before multiprocessing ends the processes, which a nanny would restart; of those
        # registered, the last runs first
        Finalize(None, one.close, exitpriority=1)
    return traffic, client


def _use_one_thread() -> None:
    """Limit zarr's threads in a worker process, where they would be a second set."""
    from benchmarks.peers import use_zarr_threads

    use_zarr_threads(1)
