"""`ablation`: what each rewrite rule of our optimizer pays, by leaving it out."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from benchmarks import dense, grids, peers
from benchmarks.arrays import B2ND, ArrayData
from benchmarks.compression import ZSTD
from benchmarks.model import Case, Contender, Counted, Paths, Run, Scenario

#: As `b2nd_dask.optimize` names them.
RULES = (
    "read_at_once",
    "aliases",
    "inline_reads",
    "reduction_pushdown",
    "index_pushdown",
    "merge_blocks",
    "constant_views",
)
#: Values of `b2nd_dask.optimize`.
VARIANTS: dict[str, bool | Sequence[str]] = {
    "all rules": True,
    "no rules": False,
    **{f"without {rule}": [one for one in RULES if one != rule] for rule in RULES},
}
SPECIAL_GRID = (60, 60)
QUICK_SPECIAL_GRID = (10, 10)
DENSE_CHUNKS = 32
#: With less memory a block that waits for a mean is read again.
LITTLE_MEMORY = 1 << 31
POINTS = 1000

Work = Callable[[Any], Any]
#: Each gives a dask array.
_SPECIAL: Mapping[str, Work] = {
    "x.sum()": lambda x: x.sum(),
    "x.mean()": lambda x: x.mean(),
    "x.mean(axis=0)": lambda x: x.mean(axis=0),
    "(x * 2 + 1).sum()": lambda x: (x * 2 + 1).sum(),
    "(x * x.T).sum()": lambda x: (x * x.T).sum(),
}
_VOLUME: Mapping[str, Work] = {
    "x[201]": lambda x: x[201],
    "x[:, :, 201]": lambda x: x[:, :, 201],
    "x[::9, ::9, ::9] * 2": lambda x: x[::9, ::9, ::9] * 2,
    "((x - 1) * 2)[201]": lambda x: ((x - 1) * 2)[201],
    "(x - x.mean()).std()": lambda x: (x - x.mean()).std(),
}
_IMAGE: Mapping[str, Work] = {
    "x[::100, ::100]": lambda x: x[::100, ::100],
    "x.vindex[points]": lambda x: x.vindex[_points(x.shape)],
    "x[:, list]": lambda x: x[:, list(range(0, x.shape[1], 97))],
}


def scenarios(quick: bool) -> list[Scenario]:
    grid = QUICK_SPECIAL_GRID if quick else SPECIAL_GRID
    special = grids.special(grid, max(1, grid[0] * grid[1] // 50))
    walk = dense.array(ZSTD, dense.QUICK_NCHUNKS if quick else DENSE_CHUNKS)
    return [
        _scenario("dense", walk, "x.sum()", lambda x: x.sum()),
        *(_scenario("special", special, text, work) for text, work in _SPECIAL.items()),
        *(_scenario("volume", grids.volume(ZSTD, quick), *one) for one in _VOLUME.items()),
        *(_scenario("image", grids.image(quick), *one) for one in _IMAGE.items()),
    ]


CASE = Case("ablation", "rewrite rules, each left out", scenarios, by_default=False)


def _scenario(kind: str, array: ArrayData, text: str, work: Work) -> Scenario:
    return Scenario(
        name=f"{kind} {text}",
        title=f"{array.title()}; `{text}`",
        datasets=(array.b2nd,),
        contenders=[_contender(name, setting, work) for name, setting in VARIANTS.items()],
        targets=(),
        observe=lambda result: np.asarray(result, np.float64).sum(),
        rtol=1e-5,
    )


def _contender(name: str, setting: bool | Sequence[str], work: Work) -> Contender:
    def prepare(paths: Paths, threads: int) -> Run:
        import dask

        from b2nd_dask import from_b2nd

        peers.use_dask_threads(threads)
        dask.config.set({"b2nd_dask.optimize": setting})

        def run() -> Counted:
            array = work(from_b2nd(paths[B2ND]))
            return Counted(array.compute(), lambda: {"tasks": _tasks(array)})

        return run

    return Contender(name, prepare, is_ours=setting is True, memory_limit=LITTLE_MEMORY)


def _tasks(array: Any) -> int:
    return len(array.__dask_optimize__(array.dask, array.__dask_keys__()))


def _points(shape: tuple[int, ...]) -> tuple[Any, ...]:
    rng = np.random.default_rng(7)
    return tuple(rng.integers(0, n, POINTS) for n in shape)
