"""What the computation of a graph may use: the threads and the memory of what will run it.

dask does not say which scheduler a graph is optimized for. With distributed, graphs are optimized
in the process of the scheduler; where a client is there, it computes on its cluster; else threads
of this process do.
"""

from __future__ import annotations

import resource
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

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
    workers = _workers()
    threads = sum(nthreads for nthreads, _ in workers)
    memory = sum(limit for _, limit in workers)
    own = dask.config.get("num_workers", None) or CPU_COUNT
    return Resources(threads or own, memory or _own_memory())


def _workers() -> list[tuple[int, int]]:
    """Threads and memory limit of each worker; none where there is no cluster."""
    if "distributed" not in sys.modules:
        return []
    from distributed import Scheduler

    for scheduler in Scheduler._instances:
        if found := [(w.nthreads, w.memory_limit or 0) for w in scheduler.workers.values()]:
            return found
    return _workers_of_client()


def _workers_of_client() -> list[tuple[int, int]]:
    from distributed import default_client

    try:
        client = default_client()  # type: ignore[no-untyped-call]
    except ValueError:
        return []
    if client.asynchronous:
        return []  # only a coroutine may ask it
    info: Mapping[str, Any] = client.scheduler_info(n_workers=-1)["workers"]
    return [(w["nthreads"], w["memory_limit"] or 0) for w in info.values()]


def _own_memory() -> int:
    """Bytes that this process may use: what the machine, its container and `ulimit` leave it."""
    from distributed.system import MEMORY_LIMIT

    limits = (resource.getrlimit(kind)[0] for kind in (resource.RLIMIT_AS, resource.RLIMIT_DATA))
    return min([MEMORY_LIMIT, *(limit for limit in limits if limit != resource.RLIM_INFINITY)])
