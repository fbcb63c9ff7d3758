"""Threads and memory of the cluster or the process that will compute a graph.

dask does not say which scheduler a graph is optimized for. Where the user's settings name no local
one, a client computes on its cluster. A process that has a scheduler, and no client, optimizes for
that one. Else threads of this process compute.
"""

from __future__ import annotations

import os
import resource
import sys
from dataclasses import dataclass

import dask

from b2nd_dask.graph import _dask_compat


@dataclass(frozen=True)
class Resources:
    """Threads and memory of all processes together that compute."""

    threads: int
    memory: int
    """Bytes."""


def available() -> Resources:
    """Threads and memory of the cluster that this process computes on, or else of this process."""
    threads, memory = _cluster() or (0, 0)
    own = dask.config.get("num_workers", None) or _own_threads()
    return Resources(threads or own, memory or _own_memory())


def _cluster() -> tuple[int, int] | None:
    """Threads and memory of the workers of a cluster, where there is one."""
    chosen = dask.config.get("scheduler", None)
    if "distributed" not in sys.modules or chosen not in (None, "dask.distributed", "distributed"):
        return None
    from distributed import default_client

    running = {s.address: s for s in _dask_compat.schedulers() if s.total_nthreads}
    try:
        client = default_client()  # type: ignore[no-untyped-call]
    except ValueError:
        client = None
    address = None if client is None or client.scheduler is None else client.scheduler.address
    scheduler = running.get(str(address)) or (
        next(iter(running.values()), None) if not client else None
    )
    if scheduler is not None:
        # totals, since workers may come and go in another thread meanwhile
        return scheduler.total_nthreads, scheduler.total_memory
    if client is None or client.asynchronous:
        return None  # only a coroutine may ask an asynchronous one
    workers = client.scheduler_info(n_workers=-1)["workers"].values()
    return sum(w["nthreads"] for w in workers), sum(w["memory_limit"] or 0 for w in workers)


def _own_threads() -> int:
    """Threads that dask's schedulers of this process start."""
    return _dask_compat.optional("CPU_COUNT") or os.cpu_count() or 1


def _own_memory() -> int:
    """Bytes that this process may use: what the machine, its container and `ulimit` leave it."""
    machine = _dask_compat.optional("MEMORY_LIMIT") or sys.maxsize
    limits = (resource.getrlimit(kind)[0] for kind in (resource.RLIMIT_AS, resource.RLIMIT_DATA))
    return min([machine, *(limit for limit in limits if limit != resource.RLIM_INFINITY)])
