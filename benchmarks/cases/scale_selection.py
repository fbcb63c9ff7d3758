"""`scale_selection`: time against the number of elements that are read of a volume."""

from __future__ import annotations

from typing import Any

from benchmarks import grids, observing, peers, peers_hdf5, peers_tensorstore
from benchmarks.compression import ZSTD
from benchmarks.model import Case, Scenario

SIDES = (1, 8, 32, 64, 128, 256, 512)
QUICK_SIDES = (1, 64)


def scenarios(quick: bool) -> list[Scenario]:
    return [_scenario(side, quick) for side in (QUICK_SIDES if quick else SIDES)]


CASE = Case("scale_selection", "a cube out of a volume, from one element to all", scenarios,
            axis="items read")  # fmt: skip


def _scenario(side: int, quick: bool) -> Scenario:
    array = grids.volume(ZSTD, quick)
    # in the middle, so that small cubes lie across chunks as most selections do
    start = (array.shape[0] - side) // 2
    index = (slice(start, start + side),) * 3

    def direct(opened: Any) -> Any:
        return opened[index]

    def computed(opened: Any) -> Any:
        return opened[index].compute()

    return Scenario(
        name=f"{side} x {side} x {side}",
        title=f"{array.title()}; {side} x {side} x {side} elements from its middle",
        datasets=array.datasets,
        contenders=(
            peers.open_b2nd(direct),
            peers.b2nd_dask(computed),
            peers.python_blosc2(direct),
            peers.zarr_alone(direct),
            peers_tensorstore.tensorstore_alone(lambda store: store[index].read().result()),
            peers_hdf5.h5py_alone(direct),
            peers.dask_from_zarr(computed),
        ),
        targets=(),
        observe=observing.digest,
        point=side**3,
    )
