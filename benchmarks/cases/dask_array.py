"""`dask_array`: the library of that name over frames and over zarr, beside `dask.array`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from benchmarks import climate, dense, grids, peers, writers
from benchmarks import peers_dask_array as expressions
from benchmarks.arrays import ArrayData
from benchmarks.cases import transform
from benchmarks.compression import ZSTD
from benchmarks.model import Case, Paths, Scenario, Target
from benchmarks.targets import speedup_over, times_as_long_as

Work = Callable[[Any], Any]

SPECIAL_GRID, QUICK_SPECIAL_GRID = (30, 30), (10, 10)
#: Each makes an array of the library of its argument.
_IMAGE: Mapping[str, Work] = {
    "x[1201]": lambda x: x[1201],
    "x[:, 1201]": lambda x: x[:, 1201],
    "x[850:1150, 1850:2150]": lambda x: x[850:1150, 1850:2150],
    "x[::100, ::100]": lambda x: x[::100, ::100],
    "((x - 1) * 2)[850:1150, 1850:2150]": lambda x: ((x - 1) * 2)[850:1150, 1850:2150],
}
_VOLUME: Mapping[str, Work] = {
    "x.std()": lambda x: x.std(),
    "(x - x.mean()).std()": lambda x: (x - x.mean()).std(),
}
_DAYS: Mapping[str, Work] = {
    "means of months": climate.monthly_means,
    "anomalies": climate.anomaly_spread,
}
WRITTEN = "x * 2 + 1, written"


def scenarios(quick: bool) -> list[Scenario]:
    grid = QUICK_SPECIAL_GRID if quick else SPECIAL_GRID
    special = grids.special(grid, grid[0] * grid[1] // grids.DENSE_EVERY)
    walk, matrix = dense.array(ZSTD, dense.nchunks(quick)), grids.matrix(ZSTD, quick)
    volume, image, days = grids.volume(ZSTD, quick), grids.image(quick), grids.days(quick)
    return [
        _scenario("dense", walk, "x.sum()", lambda x: x.sum()),
        _scenario("special", special, "x.sum()", lambda x: x.sum()),
        *(_scenario("image", image, *one) for one in _IMAGE.items()),
        *(_scenario("volume", volume, *one) for one in _VOLUME.items()),
        _scenario("matrix", matrix, "(x * 2 + 1).sum()", lambda x: (x * 2 + 1).sum()),
        _written(matrix),
        *(_scenario("days", days, *one) for one in _DAYS.items()),
    ]


CASE = Case("dask_array", "the library dask_array over frames and zarr", scenarios)


def _scenario(kind: str, array: ArrayData, text: str, work: Work) -> Scenario:
    def computed(opened: Any) -> Any:
        return np.asarray(work(opened).compute())

    return Scenario(
        name=f"{kind} {text}",
        title=f"{array.title()}; `{text}`",
        datasets=(array.b2nd, array.zarr),
        contenders=(
            expressions.b2nd_dask(computed),
            peers.b2nd_dask(computed),
            expressions.from_frame(computed),
            expressions.from_zarr(computed),
            peers.dask_from_zarr(computed),
        ),
        targets=_targets(expressions.FROM_FRAME, expressions.FROM_ZARR),
        # float32 in another order
        rtol=1e-4,
    )


def _written(array: ArrayData) -> Scenario:
    to_b2nd = partial(writers.b2nd_dask, array=array, synced=False)
    to_zarr = partial(writers.dask_to_zarr, array=array, synced=False)
    return Scenario(
        name=f"matrix {WRITTEN}",
        title=f"{array.title()}; `{WRITTEN}`, {writers.how_synced(False)}",
        datasets=(array.b2nd, array.zarr),
        contenders=(
            to_b2nd(_transformed(expressions.of_b2nd), name=expressions.OURS),
            to_b2nd(transform.of_b2nd),
            replace(
                to_b2nd(_transformed(expressions.of_frame), name=expressions.FROM_FRAME),
                is_ours=False,
            ),
            to_zarr(_transformed(expressions.of_zarr), library="dask_array"),
            to_zarr(transform.of_zarr),
        ),
        targets=_targets(expressions.FROM_FRAME, writers.EXPRESSION_TO_ZARR),
        observe=partial(writers.require_equal, partial(transform.expected, array)),
        writes=True,
    )


def _transformed(source: writers.Source) -> writers.Source:
    def prepared(paths: Paths, threads: int) -> Callable[[], Any]:
        made = source(paths, threads)
        return lambda: transform.transformed(made())

    return prepared


def _targets(*others: str) -> tuple[Target, ...]:
    """Ours through `dask_array` is as fast as each of the others."""
    return (
        times_as_long_as(peers.OURS, 1.0, expressions.OURS),
        *(speedup_over(name, 1.0, expressions.OURS) for name in others),
    )
