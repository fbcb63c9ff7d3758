"""`write_constant`: a huge array of zeros to a file."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import peers
from benchmarks.model import TARGET, Case, Contender, Paths, Run, Scenario
from benchmarks.targets import kilobytes_written_below

SIDE = 10**6
QUICK_SIDE = 10**5


def scenarios(quick: bool) -> list[Scenario]:
    side = QUICK_SIDE if quick else SIDE

    def prepare_ours(paths: Paths, threads: int) -> Run:
        return _prepare_ours(side, paths, threads)

    def prepare_dask(paths: Paths, threads: int) -> Run:
        return _prepare_dask(side, threads)

    return [
        Scenario(
            name="zeros",
            title=f"`da.zeros(({side}, {side})).to_b2nd(p)`, and the same tasks doing nothing",
            datasets=(),
            contenders=(
                Contender(peers.OURS, prepare_ours, is_ours=True),
                Contender("dask alone", prepare_dask),
            ),
            targets=(kilobytes_written_below(1000),),
            observe=lambda corners: corners(),
            writes=True,
        )
    ]


CASE = Case("write_constant", "write a huge array of zeros", scenarios)


def _prepare_ours(side: int, paths: Paths, threads: int) -> Run:
    import dask.array as da

    from b2nd_dask import to_b2nd

    peers.use_dask_threads(threads)
    path = paths[TARGET] / "zeros.b2nd"

    def run() -> Callable[[], Any]:
        to_b2nd(da.zeros((side, side)), path)
        return lambda: _corners(side, path)

    return run


def _prepare_dask(side: int, threads: int) -> Run:
    import dask.array as da

    peers.use_dask_threads(threads)

    def run() -> Callable[[], Any]:
        # not computed: dask would put the pieces together
        da.zeros((side, side)).map_blocks(_nothing, chunks=(1, 1), dtype=np.int8).persist()
        return lambda: np.zeros((4, 2))

    return run


def _nothing(block: Any) -> Any:
    return np.zeros((1, 1), np.int8)


def _corners(side: int, path: Path) -> Any:
    import blosc2

    array = blosc2.open(str(path), mode="r")
    ends = (slice(0, 1), slice(side - 1, side))
    items = [array[rows, columns].ravel() for rows in ends for columns in ends]
    return np.concatenate([items, [[n - side] for n in array.shape for _ in range(2)]], axis=1)
