"""What the computation of a graph may use: the threads and the memory of what will run it.

dask does not say which scheduler a graph is optimized for. With distributed, graphs are optimized
in the process of the scheduler; where a client is there, it computes on its cluster; else threads
of this process do.
"""

from __future__ import annotations

import resource
import sys
from dataclasses import dataclass

import dask
from dask.system import CPU_COUNT


@dataclass(frozen=True)
class Resources:
    """Of all processes together that compute."""

    threads: int
    memory: int
    """Bytes."""


def available() -> Resources:
    """Threads and memory of the cluster that this process knows, or else of this process."""
    # who has not imported distributed has no cluster
    cluster = (_scheduler() or _cluster_of_client()) if "distributed" in sys.modules else None
    threads, memory = cluster or (0, 0)
    own = dask.config.get("num_workers", None) or CPU_COUNT
    return Resources(threads or own, memory or _own_memory())


def _scheduler() -> tuple[int, int] | None:
    """Threads and memory of the workers of a scheduler in this process."""
    from distributed import Scheduler

    for scheduler in list(Scheduler._instances):
        # totals, since workers may come and go in another thread meanwhile
        if scheduler.total_nthreads:
            return scheduler.total_nthreads, scheduler.total_memory
    return None


def _cluster_of_client() -> tuple[int, int] | None:
    """Threads and memory of the cluster on which this process computes."""
    from distributed import default_client

    try:
        client = default_client()  # type: ignore[no-untyped-call]
    except ValueError:
        return None
    if client.asynchronous:
        return None  # only a coroutine may ask it
    workers = client.scheduler_info(n_workers=-1)["workers"].values()
    return sum(w["nthreads"] for w in workers), sum(w["memory_limit"] or 0 for w in workers)


def _own_memory() -> int:
    """Bytes that this process may use: what the machine, its container and `ulimit` leave it."""
    from distributed.system import MEMORY_LIMIT

    limits = (resource.getrlimit(kind)[0] for kind in (resource.RLIMIT_AS, resource.RLIMIT_DATA))
    return min([MEMORY_LIMIT, *(limit for limit in limits if limit != resource.RLIM_INFINITY)])
