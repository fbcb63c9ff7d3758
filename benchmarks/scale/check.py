"""Hold the model against runs on worker processes of this machine."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import dask.array as da
from distributed import Client, LocalCluster

from b2nd_dask import from_b2nd, open_b2nd, to_b2nd
from benchmarks import dense, machine
from benchmarks.compression import ZSTD
from benchmarks.scale.costs import Cluster, Costs, Store, Workload
from benchmarks.scale.model import predict
from benchmarks.servers import Server

WORKERS = (1, 2, 4, 8)
#: Chunks of dense data, and those of one task: more bytes than the optimizer would merge.
NCHUNKS = 192
CHUNKS_OF_TASK = 9
#: Seconds that a server waits before each answer: workers wait most of the time, so that more of
#: them than cores show how the work spreads.
LATENCY = 0.5
REPEAT = 3
#: A local server has no bandwidth to speak of, and no limit of requests.
SERVER = Store(LATENCY, connection=1e9, process=1e9, requests=1e9)


class Check(NamedTuple):
    name: str
    workers: int
    predicted: float
    measured: float
    """Seconds."""
    predicted_requests: float = 0
    measured_requests: float = 0


def check(costs: Costs, workers: tuple[int, ...] = WORKERS, count: int = NCHUNKS) -> list[Check]:
    """Two minutes, most of them for starting processes."""
    with TemporaryDirectory() as name:
        folder = Path(name)
        array = dense.array(ZSTD, count)
        array.b2nd.build(folder / "dense.b2nd")
        with ExitStack() as stack:
            server = Server.start("http", folder, LATENCY)
            stack.enter_context(server.process)
            stack.callback(server.process.kill)
            return [
                row
                for number in workers
                for row in _on_workers(number, folder, server, costs, array.nbytes)
            ]


def _on_workers(
    number: int, folder: Path, server: Server, costs: Costs, nbytes: int
) -> Iterator[Check]:
    cluster = Cluster(number, cores=machine.usable_cores())
    path = folder / "dense.b2nd"
    ratio = nbytes / path.stat().st_size
    count = nbytes // (dense.CHUNK * dense.ITEM)
    work = Workload(count, dense.CHUNK * dense.ITEM, ratio, CHUNKS_OF_TASK)
    writing = Workload(*list(vars(work).values())[:-1], writes=True)
    with _started(number):
        seconds = _timed(lambda: _opened(path).sum().compute())
        yield Check("sum, file", number, predict(work, cluster, costs, None).seconds, seconds)
        seconds = _timed(lambda: _write(path, folder / "to.b2nd"))
        expected = predict(writing, cluster, costs, None).seconds
        yield Check("x * 2 + 1, file", number, expected, seconds)
        url = f"{server.endpoint}/{path.name}"
        server.requests()
        # once, since processes keep the opened frame
        start = time.perf_counter()
        _opened(url).sum().compute()
        seconds = time.perf_counter() - start
        predicted = predict(work, cluster, costs, SERVER)
        yield Check(
            "sum, server", number, predicted.seconds, seconds, predicted.requests,
            server.requests()["requests"],
        )  # fmt: skip


def _opened(url: Any) -> da.Array:
    return from_b2nd(url, chunks=(CHUNKS_OF_TASK * dense.CHUNK,))


def _write(path: Path, target: Path) -> None:
    params = ZSTD.blosc2_params()
    to_b2nd(_opened(path) * 2 + 1, target, mode="w", chunks=dense.CHUNK, cparams=params)


@contextmanager
def _started(number: int) -> Iterator[None]:
    """A cluster whose processes have imported what they need."""
    with (
        LocalCluster(
            n_workers=number, threads_per_worker=1, dashboard_address="127.0.0.1:0"
        ) as cluster,
        Client(cluster) as client,
    ):
        client.run(_import)
        yield


def _import() -> str:
    return open_b2nd.__name__


def _timed(run: Callable[[], Any]) -> float:
    """Of the fastest run: what else the machine does is not in the model."""
    seconds = []
    for _ in range(REPEAT):
        start = time.perf_counter()
        run()
        seconds.append(time.perf_counter() - start)
    return min(seconds)
