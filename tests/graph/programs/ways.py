"""How the outputs of programs come to be computed."""

from __future__ import annotations

import contextlib
import functools
import logging
import pickle
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import cloudpickle
import dask
from distributed import Client, LocalCluster

from tests.graph.programs.front_ends import FrontEnd, front_end

if TYPE_CHECKING:
    from random import Random

    from tests.graph.programs.program import Program

#: Schedulers, and how often each is drawn. "distributed" is slow, and only used on request.
WAYS = {
    "as it is": 8,
    "optimized": 3,
    "optimized twice": 3,
    "persisted": 3,
    "pickled": 2,
    "optimized, pickled": 2,
    "unoptimized": 1,
    "unfused": 1,
    "distributed": 0,
}
#: With a cluster: as often as all others together.
WAYS_WITH_CLUSTER = WAYS | {"distributed": sum(WAYS.values())}


def draw_way(rng: Random, *, distributed: bool, pickled: bool) -> str:
    """Draw one of them, of those that are possible."""
    ways = WAYS_WITH_CLUSTER if distributed else WAYS
    way = rng.choices(list(ways), list(ways.values()))[0]
    return way if pickled or "pickled" not in way else "as it is"


def way_in_memory(way: str) -> str:
    """How arrays in memory are computed beside: not pickled, which changes their byte order."""
    if way == "optimized, pickled":
        return "optimized"
    return "as it is" if way in ("pickled", "distributed") else way


def compute(program: Program, arrays: list[Any]) -> Any:
    """Compute arrays together, with the scheduler of a program."""
    workers = {"num_workers": 2} if program.scheduler == "threads" else {}
    with dask.config.set({"scheduler": program.scheduler, **workers}):
        if program.way == "unoptimized":
            return dask.compute(*arrays, optimize_graph=False)
        if program.way == "unfused":
            with dask.config.set({"optimization.fuse.active": False}):
                return dask.compute(*arrays)
        if program.way == "distributed":
            with client().as_current():
                return dask.compute(*arrays, scheduler=client())
        return dask.compute(*_prepared(program.way, arrays, front_end(program.front_end)))


def _prepared(way: str, arrays: Any, front: FrontEnd) -> Any:
    if way == "pickled":
        return cloudpickle.loads(cloudpickle.dumps(arrays))
    if way == "persisted":
        return dask.persist(*arrays)
    if way.startswith("optimized"):
        arrays = front.optimize(*arrays)
    if way == "optimized twice":
        arrays = front.optimize(*arrays)
    if way == "optimized, pickled":
        return pickle.loads(_pickled(arrays))
    return arrays


def _pickled(arrays: Any) -> bytes:
    """As a cluster does: functions that have no name of their own are pickled by cloudpickle."""
    try:
        return pickle.dumps(arrays)
    except (pickle.PicklingError, AttributeError, TypeError):
        return cloudpickle.dumps(arrays)


@functools.cache
def client() -> Client:
    """Two workers in this process, which talk as those of other processes do."""
    cluster = LocalCluster(
        n_workers=2,
        threads_per_worker=1,
        processes=False,
        protocol="tcp://",
        dashboard_address="127.0.0.1:0",
        silence_logs=logging.CRITICAL,
    )
    return Client(cluster, set_as_default=False)


@contextlib.contextmanager
def closing_client() -> Iterator[None]:
    """Stop the workers at the end, if any."""
    try:
        yield
    finally:
        if client.cache_info().currsize:
            cluster = client().cluster
            client().close()
            cluster.close()
            client.cache_clear()
