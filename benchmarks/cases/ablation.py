"""`ablation`: what each rewrite rule of our optimizer pays, by leaving it out."""

from __future__ import annotations

import itertools
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any
from unittest import mock

import numpy as np

from benchmarks import climate, dense, grids, peers, peers_dask_array
from benchmarks.arrays import B2ND, ArrayData
from benchmarks.cases.statistics import with_statistics
from benchmarks.compression import ZSTD
from benchmarks.model import Case, Contender, Counted, Dataset, Paths, Run, Scenario
from benchmarks.observing import graph_digest

#: `RULE_NAMES` of the optimizer, which is not imported here; a test compares them.
RULES = (
    "read_at_once",
    "slices",
    "new_blocks",
    "elementwise",
    "reductions",
    "merge_blocks",
    "positions",
    "late_reads",
    "views",
    "statistics",
    "masks",
)
#: Values of `b2nd_dask.optimize`.
VARIANTS: dict[str, bool | Sequence[str]] = {
    "all rules": True,
    "no rules": False,
    **{f"without {rule}": [one for one in RULES if one != rule] for rule in RULES},
}
SPECIAL_GRID = SMALL_GRID = (30, 30)
QUICK_GRID = (10, 10)
DENSE_CHUNKS = 32
#: With less memory a block that waits for a mean is read again.
LITTLE_MEMORY = 1 << 31
POINTS = 1000
#: A count by which graphs of the same tasks are known.
GRAPH = "graph"
#: To import these takes longer than most of the works.
PRELOAD = (
    "b2nd_dask.graph.optimize.rewrite",
    "benchmarks.harness",
    "distributed",
    "rich.console",
    "xarray",
)
#: Elements of `dense` that are greater lie in few of its chunks.
MUCH = 900.0

Work = Callable[[Any], Any]
#: Each makes an array of the library of its argument.
_DENSE: Mapping[str, Work] = {
    "x.sum()": lambda x: x.sum(),
    "x.std()": lambda x: x.std(),
    "x.argmax()": lambda x: x.argmax(),
}
_DENSE_STATISTICS: Mapping[str, Work] = {
    "x.max()": lambda x: x.max(),
    f"np.where(x > {MUCH:g}, x, 0).sum()": lambda x: np.where(x > MUCH, x, 0).sum(),
    f"x[x > {MUCH:g}].sum()": lambda x: x[x > MUCH].sum(),
}
_SMALL: Mapping[str, Work] = {
    "x.sum()": lambda x: x.sum(),
    "(x * 2 + 1).std()": lambda x: (x * 2 + 1).std(),
}
_SPECIAL: Mapping[str, Work] = {
    "x.sum()": lambda x: x.sum(),
    "x.mean(axis=0)": lambda x: x.mean(axis=0),
    "(x * 2 + 1).sum()": lambda x: (x * 2 + 1).sum(),
    "x.T + x": lambda x: x.T + x,
    "(x * x.T).sum()": lambda x: (x * x.T).sum(),
    "(x * 2 + 1)[5:].max(axis=1)": lambda x: (x * 2 + 1)[5:].max(axis=1),
}
_SPECIAL_STATISTICS: Mapping[str, Work] = {
    "x[x > 0.9].sum()": lambda x: x[x > 0.9].sum(),
    "np.where(x > 0.9, x, 0).sum()": lambda x: np.where(x > 0.9, x, 0).sum(),
}
_VOLUME: Mapping[str, Work] = {
    "x[201]": lambda x: x[201],
    "x[::9, ::9, ::9] * 2": lambda x: x[::9, ::9, ::9] * 2,
    "((x - 1) * 2)[201]": lambda x: ((x - 1) * 2)[201],
    "(x - x.mean()).std()": lambda x: (x - x.mean()).std(),
    "(x[1:] - x[:-1]).max()": lambda x: (x[1:] - x[:-1]).max(),
    "np.nanargmin(x, axis=0)": lambda x: np.nanargmin(x, axis=0),
}
#: More than half of its chunks have no greater element.
_VOLUME_STATISTICS: Mapping[str, Work] = {
    "x[x > 280]": lambda x: x[x > 280],
    "x[x > 280].sum()": lambda x: x[x > 280].sum(),
}
_IMAGE: Mapping[str, Work] = {
    "x.rechunk(rows).std(axis=1)": lambda x: x.rechunk((x.chunks[0][0], -1)).std(axis=1),
    "x[::100, ::100]": lambda x: x[::100, ::100],
    "x.vindex[points]": lambda x: x.vindex[_points(x.shape)],
    "x[:, list]": lambda x: x[:, list(range(0, x.shape[1], 97))],
}
_DAYS: Mapping[str, Work] = {
    "means of months": climate.monthly_means,
    "anomalies": climate.anomaly_spread,
}
THROUGH_DASK_ARRAY = "dask_array: "


@dataclass(frozen=True)
class _Data:
    kind: str
    title: str
    frame: Dataset
    works: Mapping[str, Work]
    also: Sequence[str] = ()
    """Works that are done through `dask_array`, too."""
    memory_limit: int | None = LITTLE_MEMORY


def scenarios(quick: bool) -> list[Scenario]:
    return [
        _scenario(data, text, array_type)
        for array_type in ("dask", "dask-array")
        for data in _all_data(quick)
        for text in (data.works if array_type == "dask" else data.also)
    ]


CASE = Case("ablation", "rewrite rules, each left out", scenarios, by_default=False)


def _all_data(quick: bool) -> tuple[_Data, ...]:
    grid = QUICK_GRID if quick else SPECIAL_GRID
    special = grids.special(grid, max(1, grid[0] * grid[1] // grids.DENSE_EVERY))
    small_grid = QUICK_GRID if quick else SMALL_GRID
    small = grids.special(small_grid, small_grid[0] * small_grid[1])
    walk = dense.array(ZSTD, dense.QUICK_NCHUNKS if quick else DENSE_CHUNKS)
    volume, image, days = grids.volume(ZSTD, quick), grids.image(quick), grids.days(quick)
    return (
        _data("dense", walk, _DENSE, "x.sum()", "x.argmax()"),
        _with_statistics("dense", walk, _DENSE_STATISTICS),
        _data("small chunks", small, _SMALL, "(x * 2 + 1).std()"),
        _data("special", special, _SPECIAL, "x.mean(axis=0)"),
        _with_statistics("special", special, _SPECIAL_STATISTICS),
        _data("volume", volume, _VOLUME, "((x - 1) * 2)[201]"),
        _with_statistics("volume", volume, _VOLUME_STATISTICS),
        _data("image", image, _IMAGE, "x.rechunk(rows).std(axis=1)"),
        # whose groups are not read again
        replace(_data("days", days, _DAYS, "anomalies"), memory_limit=None),
    )


def _data(kind: str, array: ArrayData, works: Mapping[str, Work], *also: str) -> _Data:
    return _Data(kind, array.title(), array.b2nd, works, also)


def _with_statistics(kind: str, array: ArrayData, works: Mapping[str, Work]) -> _Data:
    title = f"{array.title()}, written with `stats=True`"
    return _Data(f"{kind} with statistics", title, with_statistics(array), works)


def _scenario(data: _Data, text: str, array_type: str) -> Scenario:
    through = THROUGH_DASK_ARRAY if array_type == "dask-array" else ""
    work = data.works[text]
    return Scenario(
        name=f"{through}{data.kind} {text}",
        title=f"{data.title}; `{text}`",
        datasets=(data.frame,),
        contenders=[
            _contender(name, setting, work, array_type, data.memory_limit)
            for name, setting in VARIANTS.items()
        ],
        targets=(),
        observe=lambda result: np.asarray(result, np.float64).sum(),
        rtol=1e-5,
        preload=PRELOAD,
    )


def _contender(
    name: str, setting: bool | Sequence[str], work: Work, array_type: str, memory_limit: int | None
) -> Contender:
    def prepare(paths: Paths, threads: int) -> Run:
        import dask
        from dask.callbacks import Callback

        from b2nd_dask import from_b2nd

        peers.use_dask_threads(threads)
        dask.config.set({"b2nd_dask.optimize": setting})
        if array_type == "dask-array":
            peers_dask_array.use_dask_array()

        def run() -> Counted:
            graphs: list[Mapping[Any, Any]] = []
            # dask names the task of a result at random
            numbers = itertools.count()
            named = mock.Mock(side_effect=lambda: uuid.UUID(int=next(numbers)))
            with mock.patch("uuid.uuid4", named), Callback(start=graphs.append):
                result = work(from_b2nd(paths[B2ND], array_type=array_type)).compute()
            (graph,) = graphs
            return Counted(result, lambda: {"tasks": len(graph), GRAPH: graph_digest(graph)})

        return run

    return Contender(name, prepare, is_ours=setting is True, memory_limit=memory_limit)


def _points(shape: tuple[int, ...]) -> tuple[Any, ...]:
    rng = np.random.default_rng(7)
    return tuple(rng.integers(0, n, POINTS) for n in shape)
