"""`cluster_million`: what a cluster adds to a frame of a million chunks, read in large blocks."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from benchmarks import peers
from benchmarks.cases import open_million
from benchmarks.clusters import SCHEDULER_MEMORY, THROUGH_CLIENT, name_on_cluster, on_processes
from benchmarks.compression import ZSTD
from benchmarks.model import Case, Dataset, Scenario
from benchmarks.targets import (
    counted_at_most,
    milliseconds_more_than,
    resident_below,
    seconds_below,
)
from benchmarks.work import dask_sum

NCHUNKS = 10**6
QUICK_NCHUNKS = 10**4
#: Elements of four bytes.
CHUNK = 256
SEED = 20261122
#: Chunks that are written at once.
BATCH = 1000
#: What a cluster may add to the time, in seconds.
OVERHEAD = 20
CLIENT_MB, SCHEDULER_MB, GRAPH_MB = 500, 1000, 10


def scenarios(quick: bool) -> list[Scenario]:
    side = open_million.QUICK_SIDE if quick else open_million.SIDE
    ndense = open_million.NDENSE
    return [
        _scenario(
            "special",
            f"{side**2:,} chunks of {open_million.CHUNK} x {open_million.CHUNK} float64, all "
            f"zeros but {ndense}",
            open_million.dataset(side, ndense),
        ),
        _stored(QUICK_NCHUNKS if quick else NCHUNKS),
    ]


CASE = Case("cluster_million", "a frame of a million chunks on a cluster", scenarios, False)


def _stored(count: int) -> Scenario:
    recipe = {
        "data": "uniform random numbers of 8 bits",
        "seed": SEED,
        "nchunks": count,
        "chunk": CHUNK,
        "codec": ZSTD.codec,
        "clevel": ZSTD.clevel,
    }
    return _scenario(
        "stored",
        f"{count:,} chunks of {CHUNK} float32, none special",
        Dataset("b2nd", "stored.b2nd", recipe, partial(_write, count)),
    )


def _scenario(name: str, text: str, dataset: Dataset) -> Scenario:
    ours = peers.b2nd_dask(dask_sum, chunks="auto")
    on_cluster = name_on_cluster(ours.name)
    return Scenario(
        name=name,
        title=f"{text}; open and `x.sum()` on threads and on a cluster, of which the scheduler and "
        "each worker have a process of their own; memory is the client's",
        datasets=(dataset,),
        contenders=(on_processes(ours), ours),
        targets=(
            seconds_below(OVERHEAD, on_cluster),
            milliseconds_more_than(ours.name, OVERHEAD * 1e3, on_cluster),
            resident_below(CLIENT_MB),
            counted_at_most(SCHEDULER_MEMORY, SCHEDULER_MB, on_cluster),
            counted_at_most(THROUGH_CLIENT, GRAPH_MB, on_cluster),
        ),
        rtol=1e-9,
    )


def _write(count: int, path: Path) -> None:
    import dask.array as da

    from b2nd_dask import to_b2nd

    # python-blosc2 moves its whole index for each chunk that it appends: hours for a million
    sizes = ((BATCH * CHUNK,) * (count // BATCH),)
    values = da.map_blocks(_values, chunks=sizes, dtype=np.float32)
    to_b2nd(values, path, chunks=(CHUNK,), blocks=(CHUNK,), cparams=ZSTD.blosc2_params())


def _values(block_id: tuple[int, ...] = ()) -> NDArray[np.float32]:
    rng = np.random.default_rng((SEED, *block_id))
    return rng.integers(1, 256, BATCH * CHUNK).astype(np.float32)
