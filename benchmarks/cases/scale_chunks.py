"""`scale_chunks`: time against the number of chunks, almost all of them special."""

from __future__ import annotations

from typing import Any

from benchmarks import grids, peers
from benchmarks.model import Case, Contender, Scenario

COUNTS = (10**2, 10**3, 10**4, 10**5, 10**6)
NDENSE = 10
#: Beyond these a run would take minutes.
MOST_FOR_PYTHON_BLOSC2 = 10**5
MOST_FOR_A_TASK_EACH = 10**4


def scenarios(quick: bool) -> list[Scenario]:
    return [_scenario(count) for count in (COUNTS[:2] if quick else COUNTS)]


CASE = Case("scale_chunks", "sum against the number of chunks", scenarios, axis="chunks")


def _scenario(count: int) -> Scenario:
    array = grids.special(count, NDENSE)
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
    contenders = [peers.b2nd_dask(_dask_sum, chunks="auto")]
    if count <= MOST_FOR_PYTHON_BLOSC2:
        contenders.append(peers.python_blosc2(lambda array: float(array.sum())))
    if count <= MOST_FOR_A_TASK_EACH:
        contenders += [
            peers.b2nd_dask(_dask_sum),
            peers.dask_from_array(_dask_sum),
            peers.dask_from_zarr(_dask_sum),
        ]
    return tuple(contenders)


def _dask_sum(array: Any) -> float:
    return float(array.sum().compute())
