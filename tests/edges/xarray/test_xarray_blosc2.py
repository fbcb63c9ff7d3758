"""Datasets that the PyPI package xarray-blosc2 writes are opened as it opens them."""

import json
import os

import blosc2
import numpy as np
import pytest
import xarray as xr

from b2nd_dask import B2ndError

xarray_blosc2 = pytest.importorskip("xarray_blosc2", reason="needs the extra interop")


def dataset(days=30):
    rng = np.random.default_rng(2)
    return xr.Dataset(
        {
            "t": (("time", "lat", "lon"), 270 + 30 * rng.random((days, 5, 6)), {"units": "K"}),
            "n": (("time",), np.arange(days), {"flag": 3, "comment": "ä"}),
        },
        {
            "time": np.datetime64("2024-01-01", "ns") + np.arange(days) * np.timedelta64(1, "D"),
            "lat": ("lat", np.linspace(40, 60, 5), {"units": "degrees_north"}),
            "lon": np.arange(6.0),
            "zone": ("lat", list("abcde")),
            "run": 3.5,
            "base": np.datetime64("2000-01-01", "ns"),
        },
        {"title": "made by xarray-blosc2", "number": 4},
    )


def both(path, **kwargs):
    ours = xr.open_dataset(path, engine="b2nd", **kwargs).compute()
    theirs = xr.open_dataset(path, engine="blosc2").compute()
    return ours, theirs


@pytest.fixture
def saved(tmp_path):
    return xarray_blosc2.save_dataset(dataset(), tmp_path / "a.b2", source_files=["x.nc"])


@pytest.mark.parametrize("chunks", [None, {}])
def test_a_directory(saved, chunks):
    ours, theirs = both(saved, chunks=chunks)
    xr.testing.assert_identical(ours, theirs)
    assert {"zone", "run", "base", "spatial_ref"} < set(ours.coords)
    assert list(ours.zone.values) == list("abcde")
    # a directory needs no engine=: its name and its manifest tell
    assert xr.open_dataset(saved).t.encoding["source"] == str(saved / "t.b2nd")


def test_what_is_not_ours_is_not_appended_to(saved):
    found = xr.open_dataset(saved, engine="b2nd").load()
    with pytest.raises(ValueError, match="another program wrote this dataset"):
        found.b2nd.to_b2nd(saved, mode="a", append_dim="time")
    with pytest.raises(ValueError, match="another program wrote this dataset"):
        found[["n"]].b2nd.to_b2nd(saved, mode="r+", region="auto")
    xr.testing.assert_identical(xr.open_dataset(saved, engine="b2nd").load(), found)


@pytest.mark.parametrize("chunks", [None, {}])
def test_frozen(tmp_path, chunks):
    path = xarray_blosc2.save_dataset(dataset(), tmp_path / "a.b2", freeze=True)
    assert path.suffix == ".b2z"
    xr.testing.assert_identical(*both(path, chunks=chunks))


def test_one_frame(saved):
    ours, theirs = both(saved / "t.b2nd")
    np.testing.assert_array_equal(ours.t, theirs.t)
    assert ours.t.dims == theirs.t.dims
    assert ours.t.attrs == {"units": "K"}


def test_lossy_packing(tmp_path):
    path = xarray_blosc2.save_dataset(
        dataset(), tmp_path / "a.b2", lossy={"t": {"max_error": 0.01, "target_dtype": np.int16}}
    )
    ours, theirs = both(path, mask_and_scale=False)
    xr.testing.assert_identical(ours, theirs)
    # its engine leaves unpacking to the user
    xr.testing.assert_identical(both(path)[0], xr.decode_cf(theirs))


@pytest.mark.parametrize("chunks", [None, {}, {"lon": 2}])
@pytest.mark.filterwarnings("ignore:The specified chunks separate:UserWarning")
def test_geogrid(tmp_path, chunks):
    ds = dataset()
    # smooth along each row, as what the preset is for: then differences are stored
    ds["t"] = ds.t * 0 + ds.lon * 3.3 + ds.lat
    path = xarray_blosc2.save_dataset(ds, tmp_path / "a.b2", preset="geogrid")
    assert '"row_diff": true' in (path / "dataset.json").read_text()
    ours, theirs = both(path, chunks=chunks)
    xr.testing.assert_identical(ours, theirs)
    lazy = xr.open_dataset(path, engine="b2nd", chunks=chunks)
    again = xr.open_dataset(path, engine="b2nd", chunks=chunks)
    assert chunks is None or lazy.t.data.name == again.t.data.name
    for key in ({"lon": [4, 1]}, {"lon": -2, "time": 3}, {"lon": slice(4, None, -2)}, {"lon": []}):
        xr.testing.assert_identical(lazy.isel(key).compute(), theirs.isel(key))


def test_names_of_unpacked_arrays_follow_from_the_frame(tmp_path):
    names = set()
    path = tmp_path / "a.b2"
    for days in (10, 20):
        ds = dataset(20).isel(time=slice(days - 10, days))
        xarray_blosc2.save_dataset(ds, path, preset="geogrid")
        os.utime(path, (1, 1))  # as where a file is changed, not the directory
        names.add(xr.open_dataset(path, engine="b2nd", chunks={}).t.data.name)
    assert len(names) == 2


def test_appended(tmp_path):
    ds = dataset(40).drop_vars(["zone", "base"])
    for part in (slice(0, 20), slice(20, 30), slice(30, 40)):
        xarray_blosc2.append_dataset(ds.isel(time=part), tmp_path / "a.b2")
    ours, theirs = both(tmp_path / "a.b2")
    xr.testing.assert_identical(ours, theirs)
    assert ours.sizes["time"] == 40


def test_appended_without_the_coordinate(tmp_path):
    # then the manifest keeps the length of the first part
    ds = dataset(20).drop_vars(["zone", "base", "time"])
    for _ in range(2):
        xarray_blosc2.append_dataset(ds, tmp_path / "a.b2")
    ours, theirs = both(tmp_path / "a.b2")
    xr.testing.assert_identical(ours, theirs)
    assert ours.sizes["time"] == 40


def test_committed_extent(saved):
    blosc2.asarray(np.array(12), urlpath=str(saved / "_commit.b2nd"))
    ours, theirs = both(saved)
    xr.testing.assert_identical(ours, theirs)
    assert ours.sizes["time"] == 12
    assert ours.attrs["committed_extent"] == 12


def test_nested_directories(tmp_path):
    for run in ("r1", "r2"):
        ds = dataset(10).assign_attrs(run_name=run).drop_vars("run")
        xarray_blosc2.save_dataset(ds, tmp_path / "all" / run, inject_lineage=False)
        path = tmp_path / "all" / run / "dataset.json"
        manifest = json.loads(path.read_text())
        path.write_text(json.dumps({**manifest, "lineage": {}}))
    theirs = xr.open_dataset(tmp_path / "all", engine="blosc2").compute()
    lazy = xr.open_dataset(tmp_path / "all", engine="b2nd")
    ours = xr.open_dataset(tmp_path / "all", engine="b2nd", chunks={})
    assert any(name.startswith("read") for name in ours.t.data.dask.layers)
    for ds in (lazy, ours):
        xr.testing.assert_identical(ds.compute(), theirs)
        assert ds.sizes["run_name"] == 2


@pytest.mark.parametrize("freeze", [False, True], ids=["directories", "archives"])
@pytest.mark.filterwarnings("ignore:In a future version of xarray:FutureWarning")
def test_shards_of_weeks(tmp_path, freeze):
    ds = dataset(20)
    path = xarray_blosc2.save_dataset(ds, tmp_path / "w", shard_by="isoweek", freeze=freeze)
    ours, theirs = both(path)
    xr.testing.assert_identical(ours, theirs)
    assert ours.sizes["time"] == 20


def test_what_is_not_read(tmp_path):
    sealed = tmp_path / "x.b2enc"
    sealed.write_bytes(b"B2ENCBLB\x02" + b"0" * 100)
    with pytest.raises(B2ndError, match=r"x\.b2enc is encrypted by xarray-blosc2"):
        xr.open_dataset(sealed, engine="b2nd")
    folder = tmp_path / "z"
    folder.mkdir()
    (folder / "dataset.json").write_text(json.dumps({"zstd_dict": {"variables": ["t"]}}))
    with pytest.raises(B2ndError, match=r"dataset\.json.*zstd dictionary"):
        xr.open_dataset(folder, engine="b2nd")
