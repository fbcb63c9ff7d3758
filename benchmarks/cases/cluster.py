"""`cluster`: the same work on worker processes and on threads."""

from __future__ import annotations

from functools import partial

from benchmarks import dense, peers, writers
from benchmarks.cases.transform import expected, of_b2nd, of_zarr
from benchmarks.clusters import THROUGH_CLIENT_AND_SCHEDULER, name_on_cluster, on_cluster
from benchmarks.compression import ZSTD
from benchmarks.model import Case, Scenario
from benchmarks.targets import counted_at_most, speedup_over, times_as_long_as
from benchmarks.work import dask_sum

NCHUNKS = 250
#: Of the array, that may pass client and scheduler: graphs, records of chunks, heartbeats.
SHARE = 0.01


def scenarios(quick: bool) -> list[Scenario]:
    count = dense.QUICK_NCHUNKS if quick else NCHUNKS
    return [_sum(count), _transform(count)]


CASE = Case("cluster", "a process for each core against threads", scenarios)


def _sum(count: int) -> Scenario:
    ours = (peers.b2nd_dask(dask_sum), peers.b2nd_dask(dask_sum, chunks="auto"))
    both = (*ours, peers.dask_from_zarr(dask_sum))
    array = dense.array(ZSTD, count)
    return Scenario(
        name="sum",
        title=f"{dense.title(ZSTD, count)}; `x.sum()`, with a worker process of one thread for "
        "each thread of the others; memory and CPU of all processes together",
        datasets=(array.b2nd, array.zarr),
        contenders=(*both, *map(on_cluster, both)),
        targets=(
            *(times_as_long_as(one.name, 1.3, name_on_cluster(one.name)) for one in ours),
            speedup_over(name_on_cluster(peers.FROM_ZARR), 1.5, name_on_cluster(peers.OURS)),
        ),
        rtol=1e-12,
        all_processes=True,
    )


def _transform(count: int) -> Scenario:
    array = dense.array(ZSTD, count)
    ours = writers.b2nd_dask(of_b2nd, array, synced=True)
    both = (ours, writers.dask_to_zarr(of_zarr, array, synced=True))
    megabytes = array.nbytes * SHARE / 1e6
    return Scenario(
        name="transform",
        title=f"{dense.title(ZSTD, count)}; x*2+1 to a new file, {writers.how_synced(True)}; "
        "workers as above",
        datasets=(array.b2nd, array.zarr),
        contenders=(*both, *map(on_cluster, both)),
        targets=(
            times_as_long_as(ours.name, 1.3, name_on_cluster(ours.name)),
            counted_at_most(THROUGH_CLIENT_AND_SCHEDULER, megabytes, name_on_cluster(ours.name)),
        ),
        observe=partial(writers.require_equal, partial(expected, array)),
        writes=True,
        all_processes=True,
    )
