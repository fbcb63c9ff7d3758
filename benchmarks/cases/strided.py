"""`strided`: every hundredth row and column of an image."""

from __future__ import annotations

from typing import Any

from benchmarks import grids, observing, peers, peers_hdf5, peers_tensorstore
from benchmarks.model import Case, Scenario
from benchmarks.targets import speedup_over, times_as_long_as

INDEX = (slice(None, None, 100), slice(None, None, 100))


def scenarios(quick: bool) -> list[Scenario]:
    array = grids.image(quick)
    return [
        Scenario(
            name="every 100th",
            title=f"{array.title()}; `x[::100, ::100]`",
            datasets=array.datasets,
            contenders=(
                peers.open_b2nd(_direct),
                peers.b2nd_dask(_through_dask),
                peers.b2nd_dask(_through_dask, chunks="auto"),
                peers.python_blosc2(_direct),
                peers.zarr_alone(_direct),
                peers_tensorstore.tensorstore_alone(lambda store: store[INDEX].read().result()),
                peers_hdf5.h5py_alone(_direct),
                peers.dask_from_array(_through_dask),
                peers.dask_from_zarr(_through_dask),
                peers_tensorstore.dask_from_tensorstore(_through_dask),
            ),
            targets=(
                times_as_long_as(peers.PYTHON_BLOSC2, 1.0),
                speedup_over(peers.ZARR_ALONE, 3, peers.OPEN_B2ND),
                speedup_over(peers.FROM_ZARR, 3, peers.OURS, peers.OURS_AUTO),
            ),
            observe=observing.digest,
        )
    ]


CASE = Case("strided", "a thin sample of a 2-D float32 array", scenarios)


def _direct(array: Any) -> Any:
    return array[INDEX]


def _through_dask(array: Any) -> Any:
    return array[INDEX].compute()
