"""`special`: reductions of an array that is zeros in almost all its chunks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from benchmarks import grids, peers, peers_hdf5, peers_tensorstore
from benchmarks.model import Case, Contender, Scenario
from benchmarks.targets import speedup_over

Work = Callable[[Any], Any]

#: The same expression for dask arrays and for `blosc2.NDArray`.
WORKS: dict[str, tuple[str, Work]] = {
    "sum": ("x.sum()", lambda x: x.sum()),
    "mean": ("x.mean()", lambda x: x.mean()),
    "max": ("x.max()", lambda x: x.max()),
    "affine sum": ("(x * 2 + 1).sum()", lambda x: (x * 2 + 1).sum()),
    "mean of columns": ("x.mean(axis=0)", lambda x: x.mean(axis=0)),
}


def scenarios(quick: bool) -> list[Scenario]:
    return [_scenario(name, text, work, quick) for name, (text, work) in WORKS.items()]


CASE = Case("special", "reductions where 98 % of 10,000 chunks are special", scenarios)


def _scenario(name: str, text: str, work: Work, quick: bool) -> Scenario:
    array = grids.mostly_special(quick)

    def computed(opened: Any) -> Any:
        return np.asarray(work(opened).compute())

    def alone(opened: Any) -> Any:
        return np.asarray(work(opened))

    return Scenario(
        name=name,
        title=f"{array.title()}, 98 % of the chunks special (zarr and HDF5 store none of them); "
        f"`{text}`",
        datasets=array.datasets,
        contenders=(
            peers.b2nd_dask(computed, chunks="auto"),
            peers.b2nd_dask(computed),
            peers.python_blosc2(alone),
            peers.dask_from_array(computed, chunks="auto"),
            peers.dask_from_zarr(computed),
            peers.dask_from_zarr(computed, chunks="auto"),
            *(_slow(computed) if name == "sum" else ()),
        ),
        targets=(
            speedup_over(peers.FROM_ZARR, 50, peers.OURS_AUTO),
            speedup_over(peers.PYTHON_BLOSC2, 5, peers.OURS_AUTO),
        ),
        rtol=1e-12,
    )


def _slow(computed: Work) -> tuple[Contender, ...]:
    """Peers that take many seconds, whichever the reduction."""
    return (
        peers.dask_from_array(computed),
        peers_tensorstore.dask_from_tensorstore(computed),
        peers_hdf5.dask_from_h5py(computed, chunks="auto"),
    )
