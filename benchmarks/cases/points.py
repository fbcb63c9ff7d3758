"""`points`: elements of an image at random places."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks import grids, observing, peers, peers_tensorstore
from benchmarks.model import Case, Scenario
from benchmarks.targets import times_as_long_as

NPOINTS = 1000
SEED = 7


def scenarios(quick: bool) -> list[Scenario]:
    array = grids.image(quick)
    points = _points(array.shape)

    def vindex(opened: Any) -> Any:
        return opened.vindex[points]

    def computed(opened: Any) -> Any:
        return opened.vindex[points].compute()

    return [
        Scenario(
            name="random",
            title=f"{array.title()}; {NPOINTS:,} random points. HDF5 has no such selection",
            datasets=(array.b2nd, array.zarr),
            contenders=(
                peers.b2nd_dask(computed),
                peers.b2nd_dask(computed, chunks="auto"),
                peers.python_blosc2(lambda opened: opened[points]),
                peers.zarr_alone(vindex),
                peers_tensorstore.tensorstore_alone(
                    lambda store: store.vindex[points].read().result()
                ),
                peers.dask_from_array(computed),
                peers.dask_from_zarr(computed),
                peers_tensorstore.dask_from_tensorstore(computed),
            ),
            targets=(times_as_long_as(peers.PYTHON_BLOSC2, 1.5),),
            observe=observing.digest,
        )
    ]


CASE = Case("points", "1,000 random elements of a 2-D float32 array", scenarios)


def _points(shape: tuple[int, ...]) -> tuple[NDArray[np.int64], ...]:
    rng = np.random.default_rng(SEED)
    return tuple(rng.integers(0, n, NPOINTS) for n in shape)
