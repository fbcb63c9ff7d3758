"""The cluster or the process that computes a graph: threads, memory, progress.

dask does not pass the scheduler to the optimizer. Unless the user's settings name a local
scheduler, a client computes on its cluster. A process with a scheduler but without a client
optimizes for that scheduler. Otherwise threads of this process compute.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import dask
import numpy as np
from dask.callbacks import Callback

from b2nd_dask.graph import _dask_compat
from b2nd_dask.system import memory_limit

logger = logging.getLogger("b2nd_dask")

#: Takes the number of finished steps and the number of all steps.
Progress = Callable[[int, int], None]

#: Maximum wait for a scheduler's list of workers; then tasks are sized for this process.
ANSWER_SECONDS = 10
#: Number of blocks from `chunks="auto"` that fit into the memory of a cluster's thread: transforms
#: need copies, results wait for other results, and workers spill from 60 % of their memory on.
BLOCKS_OF_A_THREAD = 12
#: Fewer blocks per thread would leave threads idle at the end ...
TASKS_OF_A_THREAD = 4
#: ... but a task on a cluster costs about as much as a read of so many bytes.
SMALLEST_BLOCK_NBYTES = 16 << 20
#: Maximum bytes of blocks that a task reduces, like dask's `array.chunk-size`: more hardly makes it
#: cheaper. They are reduced in parts and are never in memory as a whole.
MERGED_NBYTES = 1 << 27


@dataclass(frozen=True)
class Resources:
    """Threads and memory of all computing processes together."""

    threads: int
    memory: int
    """Bytes of memory."""


def available() -> Resources:
    """Threads and memory of the cluster that this process computes on, or of this process."""
    threads, memory = _cluster()
    # the number of threads of dask's local schedulers
    threads = threads or dask.config.get("num_workers", None) or _dask_compat.optional("CPU_COUNT")
    # limits of the machine, and of its container and `ulimit`
    machine = _dask_compat.optional("MEMORY_LIMIT") or sys.maxsize
    memory = memory or min(machine, memory_limit())
    return Resources(threads or os.cpu_count() or 1, memory)


def merge_limit(nbytes: int, most: int = MERGED_NBYTES) -> int:
    """Maximum bytes of elements of blocks that share a task, for `nbytes` in all tasks."""
    return min(most, nbytes // (TASKS_OF_A_THREAD * available().threads))


def on_cluster() -> bool:
    """Whether a cluster computes, not threads or processes of this machine."""
    return _client_and_scheduler() != (None, None)


def array_chunk_nbytes(text: str | None = None) -> int:
    """Bytes of a block from a text such as ``"64MB"``, by default dask's ``array.chunk-size``."""
    parse_bytes = _dask_compat.optional("parse_bytes")
    text = text or dask.config.get("array.chunk-size")
    return int(parse_bytes(text)) if parse_bytes else 1 << 27


def nbytes_of(max_mem: Any) -> int:
    """Convert a number of bytes, or a text such as ``"512MB"``, to an integer.

    Raises ValueError for another text or a number below 1, TypeError for any other type.
    """
    if isinstance(max_mem, np.integer | np.floating):
        max_mem = max_mem.item()
    if isinstance(max_mem, bool) or not isinstance(max_mem, int | float | str):
        raise TypeError(
            f'max_mem={max_mem!r}: give a number of bytes or a text such as "512MB", '
            f"not {type(max_mem).__name__}"
        )
    try:
        nbytes = int(_dask_compat.parse_bytes(max_mem))
    except (ValueError, OverflowError):
        nbytes = 0
    if nbytes < 1:
        raise ValueError(
            f"max_mem={max_mem!r} is not a positive number of bytes; give one, or a text such as "
            '"512MB"'
        )
    return nbytes


def auto_limit(nbytes: int, chunks: Any = "auto") -> int | None:
    """Bytes of an automatic block of an array of `nbytes`: dask's, on a cluster perhaps fewer.

    None if `chunks` are not automatic.
    """
    texts = {part for part in np.ravel(np.array(chunks, object)) if isinstance(part, str)}
    if texts != {"auto"}:
        return None
    threads, memory = _cluster()
    limit = array_chunk_nbytes()
    if not threads:
        return limit
    if memory:
        limit = min(limit, memory // (threads * BLOCKS_OF_A_THREAD))
    return min(limit, max(SMALLEST_BLOCK_NBYTES, nbytes // (threads * TASKS_OF_A_THREAD)))


def _client_and_scheduler() -> tuple[Any, Any]:
    """The client of the cluster that computes, and its scheduler if this process runs it."""
    chosen = dask.config.get("scheduler", None)
    if "distributed" not in sys.modules or chosen not in (None, "dask.distributed", "distributed"):
        return None, None
    from distributed import default_client

    running = {s.address: s for s in _dask_compat.schedulers() if s.total_nthreads}
    try:
        client = default_client()  # type: ignore[no-untyped-call]
    except ValueError:
        client = None
    address = None if client is None or client.scheduler is None else client.scheduler.address
    return client, running.get(str(address)) or (
        next(iter(running.values()), None) if not client else None
    )


def _cluster() -> tuple[int, int]:
    """Threads and memory of a cluster's workers; 0 without a cluster."""
    client, scheduler = _client_and_scheduler()
    if scheduler is not None:
        # totals of the scheduler, since workers may come and go in another thread
        return scheduler.total_nthreads, scheduler.total_memory
    if client is None or client.asynchronous:
        return 0, 0  # only a coroutine can call an asynchronous client
    try:
        # not `scheduler_info`, whose wait is as long as the connection timeout
        identity = client.scheduler.identity
        found = client.sync(identity, n_workers=-1, callback_timeout=ANSWER_SECONDS)
    except OSError as error:
        logger.debug("the workers of %s are unknown", client, exc_info=error)
        return 0, 0
    workers = found["workers"].values()
    return sum(w["nthreads"] for w in workers), sum(w["memory_limit"] or 0 for w in workers)


@contextmanager
def tasks_shown(show: Progress) -> Iterator[None]:
    """Report the finished tasks of dask's local schedulers while the block runs."""

    def after_task(_key: Any, _result: Any, _graph: Any, state: Any, _worker: Any) -> None:
        done = len(state["finished"])
        open_ = sum(len(state[name]) for name in ("ready", "waiting", "running"))
        show(done, done + open_)

    with Callback(posttask=after_task):
        yield
