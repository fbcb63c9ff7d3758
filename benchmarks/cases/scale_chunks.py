"""`scale_chunks`: time against the number of chunks, almost all of them special."""

from __future__ import annotations

import math

from benchmarks import grids, peers
from benchmarks.model import Case, Contender, Scenario
from benchmarks.work import dask_sum

#: Chunks along each axis.
GRIDS = ((10, 10), (10, 100), (100, 100), (100, 1000), (1000, 1000))
NDENSE = 10
#: Beyond these a run would take minutes.
MOST_FOR_PYTHON_BLOSC2 = 10**5
MOST_FOR_A_TASK_EACH = 10**4


def scenarios(quick: bool) -> list[Scenario]:
    return [_scenario(grid) for grid in (GRIDS[:2] if quick else GRIDS)]


CASE = Case("scale_chunks", "sum against the number of chunks", scenarios, axis="chunks")


def _scenario(grid: tuple[int, int]) -> Scenario:
    array = grids.special(grid, NDENSE)
    count = math.prod(grid)
    return Scenario(
        name=f"{count:,}",
        title=f"{array.title()}, all special but {NDENSE}; open and `x.sum()`. Left out where a "
        f"run takes minutes: python-blosc2 above {MOST_FOR_PYTHON_BLOSC2:,} chunks, dask with a "
        f"task for each chunk above {MOST_FOR_A_TASK_EACH:,}",
        datasets=(array.b2nd, array.zarr) if count <= MOST_FOR_A_TASK_EACH else (array.b2nd,),
        contenders=_contenders(count),
        targets=(),
        rtol=1e-12,
        point=count,
    )


def _contenders(count: int) -> tuple[Contender, ...]:
    contenders = [peers.b2nd_dask(dask_sum, chunks="auto")]
    if count <= MOST_FOR_PYTHON_BLOSC2:
        contenders.append(peers.python_blosc2(lambda array: float(array.sum())))
    if count <= MOST_FOR_A_TASK_EACH:
        contenders += [
            peers.b2nd_dask(dask_sum),
            peers.dask_from_array(dask_sum),
            peers.dask_from_zarr(dask_sum),
        ]
    return tuple(contenders)
