"""`planes`: one plane of a volume, across each axis."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from benchmarks import grids, observing, peers, peers_hdf5, peers_tensorstore
from benchmarks.compression import ZSTD
from benchmarks.model import Case, Scenario
from benchmarks.targets import milliseconds_more_than, speedup_over

#: Inside a block and a chunk, at the border of neither.
PLACE = 201


def scenarios(quick: bool) -> list[Scenario]:
    return [_scenario(axis, quick) for axis in range(3)]


CASE = Case("planes", "one plane of a 3-D float32 array", scenarios)


def _scenario(axis: int, quick: bool) -> Scenario:
    array = grids.volume(ZSTD, quick)
    index = tuple(PLACE if one == axis else slice(None) for one in range(3))
    text = ", ".join(str(PLACE) if one == axis else ":" for one in range(3))
    direct, through_dask = _reads(index)
    return Scenario(
        name=f"axis {axis}",
        title=f"{array.title()}; `x[{text}]`",
        datasets=array.datasets,
        contenders=(
            peers.open_b2nd(direct),
            peers.b2nd_dask(through_dask),
            peers.b2nd_dask(through_dask, chunks="auto"),
            peers.python_blosc2(direct),
            peers.zarr_alone(direct),
            peers_tensorstore.tensorstore_alone(lambda store: store[index].read().result()),
            peers_hdf5.h5py_alone(direct),
            peers.dask_from_array(through_dask),
            peers.dask_from_zarr(through_dask),
            peers_tensorstore.dask_from_tensorstore(through_dask),
        ),
        targets=(
            milliseconds_more_than(peers.PYTHON_BLOSC2, 5),
            speedup_over(peers.ZARR_ALONE, 5, peers.OPEN_B2ND),
            speedup_over(peers.FROM_ZARR, 5, peers.OURS, peers.OURS_AUTO),
        ),
        observe=observing.digest,
    )


def _reads(index: tuple[Any, ...]) -> tuple[Callable[[Any], Any], Callable[[Any], Any]]:
    return lambda array: array[index], lambda array: array[index].compute()
