"""`dense_sum`: add up all items of an array that has no constant chunks."""

from __future__ import annotations

from typing import Any

from benchmarks import dense, peers
from benchmarks.model import Case, Scenario
from benchmarks.targets import speedup_over, times_as_long_as


def scenarios(quick: bool) -> list[Scenario]:
    return [_scenario(how, dense.nchunks(quick)) for how in dense.COMPRESSIONS]


CASE = Case("dense_sum", "sum of a dense float64 array", scenarios)


def _scenario(how: dense.Compression, nchunks: int) -> Scenario:
    return Scenario(
        name=how.name,
        title=dense.title(how, nchunks),
        datasets=dense.datasets(how, nchunks),
        contenders=(
            peers.b2nd_dask(_dask_sum),
            peers.b2nd_dask(_dask_sum, chunks="auto"),
            peers.python_blosc2(lambda array: array.sum()),
            peers.dask_from_array(_dask_sum),
            peers.dask_from_zarr(_dask_sum),
            peers.raw_limit_of_sum(),
        ),
        targets=(
            speedup_over(peers.PYTHON_BLOSC2, 1.0),
            speedup_over(peers.PYTHON_BLOSC2, 1.3),
            speedup_over(peers.FROM_ZARR, 2.0),
            speedup_over(peers.FROM_ZARR, 2.5),
            times_as_long_as(peers.RAW_LIMIT, 1.2),
        ),
        rtol=1e-12,
    )


def _dask_sum(array: Any) -> float:
    return float(array.sum().compute())
