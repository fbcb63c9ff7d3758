"""`scale_threads`: time against the number of threads."""

from __future__ import annotations

from benchmarks import dense, machine, peers, peers_tensorstore
from benchmarks.compression import ZSTD
from benchmarks.model import Case, Scenario
from benchmarks.work import dask_sum


def scenarios(quick: bool) -> list[Scenario]:
    return [_scenario(threads, dense.nchunks(quick)) for threads in _counts(machine.usable_cores())]


CASE = Case("scale_threads", "sum against the number of threads", scenarios, axis="threads")


def _counts(cores: int) -> list[int]:
    """Powers of two up to the cores, and twice as many as there are."""
    counts = {2**power for power in range(cores.bit_length())}
    return sorted({*(one for one in counts if one <= cores), cores, 2 * cores})


def _scenario(threads: int, nchunks: int) -> Scenario:
    array = dense.array(ZSTD, nchunks)
    return Scenario(
        name=str(threads),
        title=f"{dense.title(ZSTD, nchunks)}; the sum with {threads} threads",
        datasets=(array.b2nd, array.zarr),
        contenders=(
            peers.b2nd_dask(dask_sum, chunks="auto"),
            peers.b2nd_dask(dask_sum),
            peers.python_blosc2(lambda opened: float(opened.sum())),
            peers.dask_from_zarr(dask_sum),
            peers_tensorstore.dask_from_tensorstore(dask_sum),
            peers.raw_limit_of_sum(),
        ),
        targets=(),
        rtol=1e-12,
        point=threads,
        threads=threads,
    )
