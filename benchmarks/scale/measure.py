"""Measure what single steps cost on this machine."""

from __future__ import annotations

import gc
import os
import pickle
import time
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import blosc2
import dask
import numpy as np
import psutil
from dask.callbacks import Callback
from distributed import Client
from distributed.deploy.subprocess import SubprocessCluster
from distributed.protocol.pickle import dumps

from b2nd_dask import from_b2nd, open_b2nd, to_b2nd
from b2nd_dask.format.index import special_code
from b2nd_dask.frame.open.cache import FrameCache
from b2nd_dask.frame.write.records import ChunkRecords, merge_records, row_dtype
from b2nd_dask.storage import Location
from benchmarks import dense, memory
from benchmarks.compression import ZSTD
from benchmarks.scale.costs import Costs
from benchmarks.scale.model import FAN_IN

#: Chunks of dense data for throughputs, and of tiny ones for what each chunk costs.
DENSE = 16
TINY = 20_000
TINY_ELEMENTS = 256
#: Tasks of two runs whose difference is what tasks cost, and elements of the block of each: of as
#: many bytes as the optimizer does not merge with others.
FEW, MANY = 300, 2400
ELEMENTS = 1 << 23
#: Records of one table that is merged.
ROWS = 10_000


def measure(say: Callable[[str], None] = print) -> Costs:
    """Takes about a minute."""
    with TemporaryDirectory() as folder:
        say("throughput")
        decode, encode = _throughput(Path(folder))
        say("chunks")
        tiny = _tiny_chunks(Path(folder), decode, encode)
        say("tasks")
        few, many = _runs_of_tasks(Path(folder))
        seconds, nbytes = _write_graphs(Path(folder))
    tasks = many.tasks - few.tasks
    graph = (many.graph - few.graph) / tasks
    return Costs(
        graph_task=graph,
        write_graph_task=seconds,
        write_graph_nbytes=nbytes,
        client_task=(many.client - few.client) / tasks,
        scheduler_task=(many.scheduler - few.scheduler) / tasks - graph,
        worker_task=(many.worker - few.worker) / tasks,
        client_task_nbytes=max(0, many.client_nbytes - few.client_nbytes) / tasks,
        scheduler_task_nbytes=max(0, many.scheduler_nbytes - few.scheduler_nbytes) / tasks,
        process_nbytes=few.worker_nbytes,
        decode=decode,
        encode=encode,
        record_nbytes=float(_table(1).rows.itemsize),
        merge_chunk=_merging(),
        **tiny,
    )


def _throughput(folder: Path) -> tuple[float, float]:
    """Seconds of one core for each byte decoded and added up; and for each byte written."""
    path = folder / "dense.b2nd"
    array = dense.array(ZSTD, DENSE)
    array.b2nd.build(path)
    decode = _cpu_of(lambda: from_b2nd(path, chunks="auto").sum()) / array.nbytes
    both = _cpu_of(lambda: _written(path, folder / "to.b2nd", array.chunks)) / array.nbytes
    return decode, both - decode


def _tiny_chunks(folder: Path, decode: float, encode: float) -> dict[str, float]:
    """What each chunk costs, however small it is."""
    path, target = folder / "tiny.b2nd", folder / "tiny-to.b2nd"
    elements = np.random.default_rng(0).integers(1, 256, TINY * TINY_ELEMENTS).astype(np.float32)
    params = {"chunks": (TINY_ELEMENTS,), "blocks": (TINY_ELEMENTS,)}
    blosc2.asarray(elements, urlpath=str(path), cparams=ZSTD.blosc2_params(), **params)
    read = _cpu_of(lambda: from_b2nd(path, chunks="auto").sum())
    with _Commits() as commits:
        both = _cpu_of(lambda: _written(path, target, (TINY_ELEMENTS,)))
    with _Commits(traced=True) as traced, dask.config.set(scheduler="synchronous"):
        _written(path, target, (TINY_ELEMENTS,)).compute()
    write = both - read - commits.seconds
    nbytes = elements.nbytes
    opening, held = _opening(target)
    frame_nbytes = target.stat().st_size - _data_nbytes(target)
    return {
        "read_chunk": max(0.0, read - nbytes * decode) / TINY,
        "write_chunk": max(0.0, write - nbytes * encode) / TINY,
        "commit_chunk": commits.seconds / TINY,
        "commit_nbytes": traced.nbytes / TINY,
        "open_chunk": opening / TINY,
        "index_nbytes": held / TINY,
        "index_file_nbytes": frame_nbytes / TINY,
    }


def _written(source: Path, target: Path, chunks: tuple[int, ...]) -> Any:
    array = from_b2nd(source, chunks="auto") * 2 + 1
    params = ZSTD.blosc2_params()
    return to_b2nd(array, target, mode="w", chunks=chunks, cparams=params, compute=False)


def _cpu_of(make: Callable[[], Any]) -> float:
    """Seconds of CPU, the second time."""
    with dask.config.set(scheduler="synchronous"):
        make().compute()
        before = time.process_time()
        make().compute()
        return time.process_time() - before


def _opening(path: Path) -> tuple[float, float]:
    """Seconds to open a frame, and bytes that are held of it once it has been read."""
    before = time.process_time()
    opened = FrameCache().open(Location.of(path))
    seconds = time.process_time() - before
    del opened
    tracemalloc.start()
    try:
        gc.collect()
        start, _ = tracemalloc.get_traced_memory()
        frame = open_b2nd(path)
        frame[:1]
        gc.collect()
        return seconds, tracemalloc.get_traced_memory()[0] - start
    finally:
        tracemalloc.stop()


def _data_nbytes(path: Path) -> int:
    opened = FrameCache().open(Location.of(path)).parsed
    return opened.header.header_len + opened.header.cbytes


class _Commits(Callback):
    """Seconds of the last commit, or its memory, which takes time to trace."""

    seconds = 0.0
    nbytes = 0

    def __init__(self, *, traced: bool = False) -> None:
        super().__init__(pretask=self._before, posttask=self._after)
        self._traced = traced

    def _before(self, key: Any, *_: Any) -> None:
        if "commit" in str(key):
            if self._traced:
                tracemalloc.start()
            self._start = time.process_time()

    def _after(self, key: Any, *_: Any) -> None:
        if "commit" in str(key):
            self.seconds = time.process_time() - self._start
            if self._traced:
                self.nbytes = tracemalloc.get_traced_memory()[1]
                tracemalloc.stop()


def _table(rows: int) -> ChunkRecords:
    return ChunkRecords.of_special(row_dtype(), np.arange(rows), special_code(1))


def _merging() -> float:
    """Seconds for each row: merged, packed and unpacked."""
    tables = [_table(ROWS) for _ in range(FAN_IN)]
    before = time.process_time()
    merged = merge_records([pickle.loads(pickle.dumps(one, 5)) for one in tables])
    return (time.process_time() - before) / len(merged.rows)


class TasksRun(NamedTuple):
    """CPU seconds and the highest memory of each process while it ran."""

    tasks: int
    graph: float
    """Of the optimization alone, which the scheduler does."""
    client: float
    scheduler: float
    worker: float
    client_nbytes: int
    scheduler_nbytes: int
    worker_nbytes: int


def _runs_of_tasks(folder: Path) -> tuple[TasksRun, TasksRun]:
    paths = [folder / f"{count}.b2nd" for count in (FEW, MANY)]
    for count, path in zip((FEW, MANY), paths, strict=True):
        shape, chunks = (count * ELEMENTS,), (ELEMENTS,)
        # one value: next to nothing to decode
        blosc2.full(shape, 1.5, dtype=np.float64, chunks=chunks, urlpath=str(path))
    with _one_worker() as (client, scheduler, worker):
        _run_tasks(client, scheduler, worker, paths[0], FEW)
        runs = [
            _run_tasks(client, scheduler, worker, path, count)
            for path, count in zip(paths, (FEW, MANY), strict=True)
        ]
    return runs[0], runs[1]


def _write_graphs(folder: Path) -> tuple[float, float]:
    """Seconds and bytes of a write's graph for each task, made by the client."""
    found = []
    for count in (FEW, MANY):
        array = from_b2nd(folder / f"{count}.b2nd") * 2 + 1
        before = time.process_time()
        graph = to_b2nd(array, folder / "never.b2nd", compute=False).__dask_graph__()
        nbytes = len(dumps(graph))
        found.append((time.process_time() - before, nbytes))
    (seconds, nbytes), (more_seconds, more_nbytes) = found
    return (more_seconds - seconds) / (MANY - FEW), (more_nbytes - nbytes) / (MANY - FEW)


@contextmanager
def _one_worker() -> Iterator[tuple[Client, psutil.Process, psutil.Process]]:
    with (
        SubprocessCluster(
            n_workers=1, threads_per_worker=1, dashboard_address="127.0.0.1:0"
        ) as cluster,
        Client(cluster) as client,
    ):
        client.wait_for_workers(1)
        scheduler = client.run_on_scheduler(os.getpid)
        (worker,) = client.run(os.getpid).values()
        yield client, psutil.Process(scheduler), psutil.Process(worker)


def _run_tasks(
    client: Client, scheduler: psutil.Process, worker: psutil.Process, path: Path, count: int
) -> TasksRun:
    processes = (psutil.Process(), scheduler, worker)
    for one in processes:
        memory.forget_peak(one.pid)
    graph = time.process_time()
    dask.optimize(from_b2nd(path).sum())
    graph = time.process_time() - graph
    before = [sum(one.cpu_times()[:2]) for one in processes]
    total = client.compute(from_b2nd(path).sum()).result()
    assert total == 1.5 * count * ELEMENTS
    seconds = [sum(one.cpu_times()[:2]) for one in processes]
    spent = [after - start for after, start in zip(seconds, before, strict=True)]
    # the tree of sums has a third as many
    return TasksRun(
        count + count // 3, graph, *spent, *(memory.peak_resident(one.pid) for one in processes)
    )
