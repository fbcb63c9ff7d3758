"""`beyond_memory`: reductions of an array that is four times as big as the memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from benchmarks import grids, peers
from benchmarks.model import Case, Scenario
from benchmarks.targets import completes, times_as_long_as

#: Bytes of private memory; see `benchmarks.memory.limit`.
LIMIT = 512 * 2**20
NCHUNKS = 4 * LIMIT // (8 * 10**6)
QUICK_NCHUNKS = 32

WORKS: dict[str, tuple[str, Callable[[Any], Any]]] = {
    "sum": ("x.sum()", lambda x: x.sum()),
    "mean of columns": ("x.mean(axis=0)", lambda x: x.mean(axis=0)),
}


def scenarios(quick: bool) -> list[Scenario]:
    return [_scenario(name, text, work, quick) for name, (text, work) in WORKS.items()]


CASE = Case("beyond_memory", "reductions of four times the memory", scenarios)


def _scenario(name: str, text: str, work: Callable[[Any], Any], quick: bool) -> Scenario:
    array = grids.rows(QUICK_NCHUNKS if quick else NCHUNKS)

    def computed(opened: Any) -> Any:
        return np.asarray(work(opened).compute())

    ours = (peers.b2nd_dask(computed, chunks="auto"), peers.b2nd_dask(computed))
    others = (
        peers.python_blosc2(lambda opened: np.asarray(work(opened))),
        peers.dask_from_array(computed),
        peers.dask_from_zarr(computed),
    )
    in_bounds = tuple(peers.bounded(one, LIMIT) for one in (*ours, *others))
    return Scenario(
        name=name,
        title=f"{array.title()}; `{text}` with {LIMIT >> 20} MiB of private memory (RLIMIT_DATA; "
        "the page cache does not count) and, ours alone, without a bound",
        datasets=(array.b2nd, array.zarr),
        contenders=(*ours, *in_bounds),
        targets=(
            completes(*(peers.bounded_name(one.name, LIMIT) for one in ours)),
            *(times_as_long_as(one.name, 1.3, peers.bounded_name(one.name, LIMIT)) for one in ours),
        ),
        rtol=1e-11,
    )
