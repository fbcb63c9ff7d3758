"""`array3d_read`: all of an array of three axes, as a NumPy array and through dask."""

from __future__ import annotations

from typing import Any

from benchmarks import grids, observing, peers, peers_hdf5, peers_tensorstore
from benchmarks.compression import COMPRESSIONS, Compression
from benchmarks.model import Case, Scenario
from benchmarks.targets import speedup_over
from benchmarks.work import dask_sum


def scenarios(quick: bool) -> list[Scenario]:
    return [make(how, quick) for how in COMPRESSIONS for make in (_whole, _sum)]


CASE = Case("array3d_read", "read all of a 3-D float32 array, and add it up", scenarios)

THROUGH_DASK = (peers.OURS, peers.OURS_AUTO)


def _whole(how: Compression, quick: bool) -> Scenario:
    array = grids.volume(how, quick)
    return Scenario(
        name=f"{how.name} whole",
        title=f"{array.title()}; into one NumPy array, without dask and with it",
        datasets=array.datasets,
        contenders=(
            peers.open_b2nd(_everything),
            peers.b2nd_dask(_computed),
            peers.b2nd_dask(_computed, chunks="auto"),
            peers.python_blosc2(_everything),
            peers.zarr_alone(_everything),
            peers_tensorstore.tensorstore_alone(lambda store: store.read().result()),
            peers_hdf5.h5py_alone(_everything),
            peers.dask_from_array(_computed),
            peers.dask_from_zarr(_computed),
            peers_tensorstore.dask_from_tensorstore(_computed),
            peers_hdf5.dask_from_h5py(_computed),
        ),
        targets=(
            speedup_over(peers.PYTHON_BLOSC2, 1.5, peers.OPEN_B2ND),
            speedup_over(peers.ZARR_ALONE, 3, peers.OPEN_B2ND),
            speedup_over(peers.FROM_ZARR, 2.5, peers.OPEN_B2ND),
            speedup_over(peers.FROM_ZARR, 2, *THROUGH_DASK),
        ),
        observe=observing.digest,
    )


def _sum(how: Compression, quick: bool) -> Scenario:
    array = grids.volume(how, quick)
    return Scenario(
        name=f"{how.name} sum",
        title=f"{array.title()}; the sum",
        datasets=array.datasets,
        contenders=(
            peers.b2nd_dask(dask_sum),
            peers.b2nd_dask(dask_sum, chunks="auto"),
            peers.python_blosc2(lambda opened: opened.sum()),
            peers.dask_from_array(dask_sum),
            peers.dask_from_zarr(dask_sum),
            peers_tensorstore.dask_from_tensorstore(dask_sum),
            peers_hdf5.dask_from_h5py(dask_sum),
        ),
        targets=(
            speedup_over(peers.PYTHON_BLOSC2, 1.2, *THROUGH_DASK),
            speedup_over(peers.FROM_ZARR, 2.5, *THROUGH_DASK),
        ),
        # sums of float32 in another order
        rtol=1e-4,
    )


def _everything(array: Any) -> Any:
    return array[...]


def _computed(array: Any) -> Any:
    return array.compute()
