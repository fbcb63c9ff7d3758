"""The model of large clusters: counts are those of real graphs and requests, sums add up."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("psutil", reason="the benchmarks need the extra 'bench'")

import blosc2
import dask
import numpy as np
from click.testing import CliRunner

from b2nd_dask import from_b2nd, to_b2nd
from benchmarks.scale.__main__ import main
from benchmarks.scale.costs import Cluster, Costs, Store, Workload
from benchmarks.scale.model import predict

COSTS = Costs.load()
#: Elements of a chunk that the optimizer does not merge with others.
ELEMENTS = 1 << 24
SUM = Workload(1000, 4e6, 4.0, 10)
WRITE = replace(SUM, writes=True)
HUGE = Workload(10**8, 2**20, 4.0, 128)


@pytest.mark.parametrize("count", [1, 4, 33, 150])
def test_tasks_are_those_of_a_real_graph(count: int, tmp_path: Path) -> None:
    frame = blosc2.full((count * ELEMENTS,), 1.5, dtype=np.float64, chunks=(ELEMENTS,))
    work = Workload(count, 8.0 * ELEMENTS, 1.0, 1)
    array = from_b2nd(frame)
    (total,) = dask.optimize(array.sum())
    cluster = Cluster(2)
    tasks = len(dict(total.__dask_graph__()))
    # a group of one needs no task
    assert tasks == pytest.approx(predict(work, cluster, COSTS, None).tasks, rel=0.05, abs=1)
    written = to_b2nd(array * 2 + 1, tmp_path / "never.b2nd", compute=False)
    tasks = len(dict(written.__dask_graph__()))
    assert abs(tasks - predict(replace(work, writes=True), cluster, COSTS, None).tasks) <= 1


def test_seconds_of_a_run_that_is_easily_computed() -> None:
    free = Costs(**dict.fromkeys(vars(COSTS), 0.0))
    costs = replace(free, decode=1e-6, worker_task=1.0)
    # 100 tasks of 40 MB on 8 threads: 13 rounds of 41 s
    assert predict(SUM, Cluster(4, threads=2), costs, None).seconds == pytest.approx(13 * 41)
    # twice as many threads as cores
    assert predict(SUM, Cluster(8, cores=4), costs, None).seconds == pytest.approx(13 * 82)
    # 134 tasks, of which the scheduler handles one at a time
    slow = replace(free, scheduler_task=2.0)
    assert predict(SUM, Cluster(1000), slow, None).seconds == pytest.approx(134 * 2 + 2)
    # header and index before, by the client and by the workers; then five requests for each task,
    # of at most 2 MiB
    store = Store(latency=3.0, connection=1e12, process=1e12, requests=1e12)
    waiting = predict(SUM, Cluster(50), free, store)
    assert waiting.seconds == pytest.approx(2 * 2 * 3 + 2 * 3, rel=1e-3)
    assert waiting.requests == 51 * 2 + 100 * 5


def test_more_workers_take_no_longer_and_large_indexes_take_memory() -> None:
    for work in (HUGE, replace(HUGE, writes=True)):
        seconds = [predict(work, Cluster(n), COSTS, Store()).seconds for n in (1, 10, 100)]
        assert seconds == sorted(seconds, reverse=True)
    more = replace(HUGE, chunks=2 * HUGE.chunks)
    grown = predict(more, Cluster(10), COSTS, Store()).tasks_nbytes
    grown -= predict(HUGE, Cluster(10), COSTS, Store()).tasks_nbytes
    assert grown == pytest.approx(HUGE.chunks * COSTS.index_nbytes)


def test_limits_are_named() -> None:
    def limits(work: Workload, **options: int) -> str:
        return "; ".join(predict(work, Cluster(10, **options), COSTS, Store()).limits)

    assert limits(SUM) == limits(WRITE) == ""
    assert "index holds 268,435,455 chunks" in limits(replace(HUGE, chunks=2**28))
    assert "5 TiB" in limits(replace(HUGE, writes=True))
    assert "commit needs more memory" in limits(replace(HUGE, writes=True))
    assert "opened frame and a task need more" in limits(HUGE, memory=1 << 30)
    assert "too small to be joined" in limits(replace(WRITE, chunks_of_task=1))
    many = Workload(10**6, 6 << 20, 1.0, 1, writes=True)
    assert "more parts" not in limits(many)


def test_the_tables_come_out() -> None:
    done = CliRunner().invoke(main, ["predict"])
    assert done.exit_code == 0, done.output
    assert done.output.count("\n| 100,000,000 |") == 4


@pytest.mark.slow
def test_the_requests_of_real_runs_are_those_predicted() -> None:
    from benchmarks.scale.check import check

    rows = check(COSTS, workers=(1,), count=27)
    assert [one.name for one in rows] == ["sum, file", "x * 2 + 1, file", "sum, server"]
    assert all(one.measured > 0 for one in rows)
    assert rows[-1].measured_requests == rows[-1].predicted_requests
