"""Datasets whose arrays are those of `dask_array`, once its manager is registered in xarray."""

import importlib

import numpy as np
import pandas as pd
import pytest
import xarray as xr
from xarray.namedarray.parallelcompat import list_chunkmanagers

from b2nd_dask import open_b2nd, persist_compressed, plan, to_b2nd
from tests.graph.expressions import kinds, library
from tests.test_docs import run

REDUCED = ["PartialReduce", "ReducedExpr"]
PROGRAMS = {
    "decoded": (lambda x: x, ["FrameExpr"]),
    "selected": (lambda x: x.sel(time="2000-01-05", lat=slice(10, 40)), ["FrameExpr"]),
    "transposed": (lambda x: x.T[::2], ["FrameExpr"]),
    "mean": (lambda x: x.mean(), REDUCED),
    "count": (lambda x: x.count("time"), REDUCED),
    "masked": (lambda x: x.where(x > 0.5).sum("time"), REDUCED),
    "deviation": (lambda x: x.isel(time=slice(None, None, 2)).std("lat"), ["Elemwise", *REDUCED]),
    "search": (lambda x: x.argmax("lat"), ["PartialReduce", "ArgChunk"]),
    "anomaly": (lambda x: x - x.mean("time"), ["Elemwise"]),
    "groups": (lambda x: x.groupby("time.month").mean(), ["Stack"]),
    "windows": (lambda x: x.rolling(time=3).mean(), ["FusedBlockwise"]),
}


@pytest.fixture
def registered():
    """Register the manager of `dask_array`, for one test."""
    library()
    managers = list_chunkmanagers()
    before = managers["dask"]
    importlib.import_module("dask_array.xarray").register()
    with xr.set_options(use_flox=False):
        yield
    managers["dask"] = before


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    rng = np.random.default_rng(1)
    days = pd.date_range("2000", periods=36)
    ds = xr.Dataset(
        {
            "t2m": (("time", "lat"), rng.random((36, 90)), {"units": "K"}),
            "wet": (("time",), np.arange(36) % 2 == 0),
        },
        {"time": days, "lat": np.arange(90.0)},
    )
    ds["t2m"][3:5, :40] = np.nan
    ds.t2m.encoding.update(dtype="i2", scale_factor=0.001, add_offset=0.1, _FillValue=-32768)
    path = tmp_path_factory.mktemp("dataset") / "weather.b2d"
    to_b2nd(ds, path, encoding={"t2m": {"chunks": (12, 30)}, "wet": {"chunks": (12,)}})
    return path


def opened(path):
    return xr.open_dataset(path, engine="b2nd", chunks={})


# xarray silences it, which holds in one thread at a time
@pytest.mark.filterwarnings("ignore:All-NaN:RuntimeWarning")
@pytest.mark.parametrize("name", PROGRAMS)
def test_programs(registered, path, name):
    program, wanted = PROGRAMS[name]
    x = opened(path).t2m
    assert isinstance(x.data, library().Array)
    found = program(x)
    assert kinds(found.data)[: len(wanted)] == wanted
    xr.testing.assert_allclose(found.compute(), program(x.compute()))


def test_datasets(registered, path):
    ds = opened(path)
    loaded = xr.open_dataset(path, engine="b2nd").load()
    xr.testing.assert_identical(ds.compute(), loaded)
    xr.testing.assert_allclose(ds.persist().mean().compute(), loaded.mean())
    assert ds.wet.sum().compute() == 18
    assert plan(ds.t2m[:12].mean("time")).chunks == 3


def test_other_chunks(registered, path):
    ds = xr.open_dataset(path, engine="b2nd", chunks={"time": 24})
    assert ds.t2m.chunks == ((24, 12), (30, 30, 30))
    assert kinds(ds.t2m.data) == ["FrameExpr"]
    assert xr.open_dataset(path, engine="b2nd", chunks="auto").t2m.data.numblocks == (1, 1)


def test_writes(registered, path, tmp_path):
    ds = opened(path)
    changed = ds.assign(twice=ds.t2m * 2)
    written = to_b2nd(changed, tmp_path / "changed.b2d")
    assert isinstance(written.twice.data, library().Array)
    xr.testing.assert_allclose(written.compute(), changed.compute())
    one = to_b2nd(ds.t2m[:10], tmp_path / "one.b2nd")
    xr.testing.assert_allclose(one.compute(), ds.t2m[:10].compute())
    more = to_b2nd(ds.t2m[10:12], tmp_path / "one.b2nd", mode="a", append_dim="time")
    xr.testing.assert_allclose(more.compute(), ds.t2m[:12].compute())
    kept = persist_compressed(ds.t2m)
    assert isinstance(kept.data, library().Array)
    xr.testing.assert_identical(kept.compute(), ds.t2m.compute())


def test_packs_block_by_block(registered, path, tmp_path):
    ds = opened(path).chunk(time=6)[["t2m"]]
    target = tmp_path / "packed.b2d"
    to_b2nd(ds, target)
    assert open_b2nd(target / "t2m.b2nd").dtype == "i2"
    assert open_b2nd(target / "t2m.b2nd").chunks == (6, 30)
    xr.testing.assert_identical(opened(target).compute(), ds.compute())


def test_the_page(registered, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names = run("docs/xarray.md", "dask_array")
    assert isinstance(names["spread"].data, library().Array)


def test_without_it_arrays_are_those_of_dask(path):
    library()
    assert type(opened(path).t2m.data).__module__.startswith("dask.array")
