"""`scale_size`: time against the size of the array, from far below the memory to far beyond it."""

from __future__ import annotations

from benchmarks import grids, peers
from benchmarks.cases.beyond_memory import LIMIT
from benchmarks.model import Case, Scenario
from benchmarks.work import dask_sum

#: Chunks of 8 MB: from an eighth of the memory to eight times as much.
COUNTS = (8, 32, 67, 134, 268, 536)
QUICK_COUNTS = (4, 32)


def scenarios(quick: bool) -> list[Scenario]:
    return [_scenario(count) for count in (QUICK_COUNTS if quick else COUNTS)]


CASE = Case("scale_size", "sum against the size, in bounded memory", scenarios, axis="bytes")


def _scenario(count: int) -> Scenario:
    array = grids.rows(count)
    contenders = (
        peers.b2nd_dask(dask_sum, chunks="auto"),
        peers.b2nd_dask(dask_sum),
        peers.python_blosc2(lambda opened: float(opened.sum())),
        peers.dask_from_array(dask_sum),
        peers.dask_from_zarr(dask_sum),
    )
    return Scenario(
        name=f"{array.nbytes / LIMIT:.2g} x memory",
        title=f"{array.title()}; the sum with {LIMIT >> 20} MiB of private memory (RLIMIT_DATA)",
        datasets=(array.b2nd, array.zarr),
        contenders=tuple(peers.bounded(one, LIMIT) for one in contenders),
        targets=(),
        rtol=1e-11,
        point=array.nbytes,
    )
