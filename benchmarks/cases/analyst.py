"""`analyst`: what a climate analysis asks of xarray, over our datasets and those of its peers."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np

from benchmarks import analyst
from benchmarks.analyst import B2ND, FORMATS, NETCDF, ZARR, Format, Work
from benchmarks.model import TARGET, Case, Contender, Paths, Scenario
from benchmarks.targets import speedup_over

PRELOADED = ("xarray", "pandas", "dask.array")
#: How many times as long zarr takes at least, as it is by default.
GOAL = 2.0


def _region(ds: Any) -> Any:
    part = ds.t2m.sel(latitude=slice(60, 30), longitude=slice(0, 60))
    return part.weighted(np.cos(np.deg2rad(part.latitude))).mean(("latitude", "longitude"))


def _without_season(group: Any) -> Any:
    return group - group.mean("time")


def _eof(ds: Any) -> Any:
    """The strength of the first patterns, of every eighth point."""
    coarse = ds.z500.isel(latitude=slice(None, None, 8), longitude=slice(None, None, 8))
    points = (coarse - coarse.mean("time")).data.reshape((coarse.sizes["time"], -1))
    return np.linalg.eigvalsh((points.T @ points).compute())[-5:]


def _regridded(ds: Any) -> Any:
    """Means of boxes of 5 by 5 degrees, as a product with weights."""
    rows, columns = ds.sizes["latitude"] // 5, ds.sizes["longitude"] // 5
    inner = ds.z500.isel(latitude=slice(0, rows * 5))
    by_row = np.repeat(np.eye(rows, dtype="f4"), 5, axis=1) / 5
    by_column = np.repeat(np.eye(columns, dtype="f4"), 5, axis=1) / 5
    return (inner.data @ by_column.T).swapaxes(1, 2) @ by_row.T


def _correlation(ds: Any) -> Any:
    import xarray as xr

    return xr.corr(ds.t2m, ds.z500, "time")


JOBS: Mapping[str, tuple[float, Work]] = {
    't2m.mean("time")': (GOAL, lambda ds: ds.t2m.mean("time")),
    "t2m.std()": (GOAL, lambda ds: ds.t2m.std()),
    "monthly climatology of t2m": (GOAL, lambda ds: ds.t2m.groupby("time.month").mean()),
    "monthly climatology of z500": (GOAL, lambda ds: ds.z500.groupby("time.month").mean()),
    "monthly sums of pr": (GOAL, lambda ds: ds.pr.resample(time="MS").sum()),
    '(t2m - t2m.mean("time")).max()': (GOAL, lambda ds: (ds.t2m - ds.t2m.mean("time")).max()),
    "weighted mean of a region": (GOAL, _region),
    "(t2m > 300).sum()": (GOAL, lambda ds: (ds.t2m > 300).sum()),
    "a point's series": (GOAL, lambda ds: ds.t2m.isel(latitude=30, longitude=20)),
    "load t2m": (1.5, lambda ds: ds.t2m),
    "load z500": (GOAL, lambda ds: ds.z500),
    "rolling sum of 7 days, max": (1.2, lambda ds: ds.pr.rolling(time=7).sum().max("time")),
    "quantile": (
        1.2,
        lambda ds: ds.z500.chunk(time=-1, latitude=20).quantile([0.1, 0.9], "time"),
    ),
    "correlation of t2m and z500": (1.5, _correlation),
    "day-of-year climatology": (1.5, lambda ds: ds.z500.groupby("time.dayofyear").mean()),
    "anomalies by groupby-map": (
        1.2,
        lambda ds: ds.z500.groupby("time.month").map(_without_season).std(),
    ),
    "interpolation to half degrees": (
        1.2,
        lambda ds: ds.z500.isel(time=slice(0, 61)).interp(
            latitude=np.arange(60, 30, -0.5), longitude=np.arange(0, 60, 0.5)
        ),
    ),
    "regridding by weights": (1.2, _regridded),
    "first patterns (EOF)": (1.2, _eof),
}


def _rewritten(ds: Any) -> Any:
    return ds


def _anomalies(ds: Any) -> Any:
    made = ds[["t2m"]].groupby("time.month") - ds[["t2m"]].groupby("time.month").mean()
    # zarr takes no chunks of several lengths
    return made.drop_vars("month").chunk(time=analyst.TIME_CHUNK)


#: Reads that xarray gives to flox where it is installed: measured with and without it.
GROUPED = (
    "monthly climatology of t2m",
    "monthly climatology of z500",
    "monthly sums of pr",
    "day-of-year climatology",
)
WRITES: Mapping[str, Work] = {"rewrite the dataset": _rewritten, "anomalies to disk": _anomalies}


def scenarios(quick: bool) -> list[Scenario]:
    data = tuple(analyst.stored(form, quick) for form in FORMATS)
    return [
        *(_read(name, goal, _readers(work), data) for name, (goal, work) in JOBS.items()),
        *(
            _read(f"{name}, by flox", JOBS[name][0], _readers_by_flox(JOBS[name][1]), data)
            for name in GROUPED
        ),
        *(_written(name, work, data) for name, work in WRITES.items()),
    ]


CASE = Case("analyst", "jobs of a climate analysis by xarray", scenarios)


def _readers(work: Work) -> tuple[Contender, ...]:
    return (
        *(analyst.reader(form, work) for form in FORMATS),
        analyst.expression_reader(work),
    )


def _readers_by_flox(work: Work) -> tuple[Contender, ...]:
    """Without `dask_array`, which flox does not know."""
    return tuple(analyst.reader(form, work, use_flox=True) for form in FORMATS)


def _read(name: str, goal: float, contenders: tuple[Contender, ...], data: Any) -> Scenario:
    return Scenario(
        name=name,
        title=f"days of t2m, z500 and pr: {name}",
        datasets=data,
        contenders=contenders,
        targets=(speedup_over(ZARR, goal),),
        # sums in another order
        rtol=1e-3,
        preload=PRELOADED,
    )


def _written(name: str, work: Work, data: Any) -> Scenario:
    return Scenario(
        name=name,
        title=f"days of t2m, z500 and pr: {name}, with each library's defaults",
        datasets=data,
        contenders=tuple(_writer(form, work) for form in FORMATS if form.name != NETCDF),
        targets=(speedup_over(ZARR, 1.2),),
        observe=_means,
        rtol=1e-3,
        writes=True,
        preload=PRELOADED,
    )


def _writer(form: Format, work: Work) -> Contender:
    read = analyst.reader(form, work)

    def prepare(paths: Paths, threads: int) -> Callable[[], Any]:
        read.prepare(paths, threads)
        # no two runs write to the same path
        targets = (paths[TARGET] / f"{number}-{form.filename}" for number in itertools.count())

        def run() -> Any:
            target = next(targets)
            form.save(work(form.open(paths[form.name])), target)
            return partial(form.open, target)

        return run

    return Contender(form.name, prepare, is_ours=form.name == B2ND, needs=read.needs)


def _means(opened: Callable[[], Any]) -> list[float]:
    """What was written, in a few numbers."""
    ds = opened().compute()
    return [
        float(found) for name in sorted(ds.data_vars) for found in (ds[name].mean(), ds[name].std())
    ]
