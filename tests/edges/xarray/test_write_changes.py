"""Appends and regions by names."""

from pathlib import Path

import dask.array as da
import numpy as np
import pytest
import xarray as xr

import b2nd_dask
from b2nd_dask.edges.xarray import append
from b2nd_dask.storage.write import local_update
from tests.edges.xarray.labelled import weather

W = weather().drop_encoding()


@pytest.mark.parametrize("chunks", [None, {"time": 7}])
def test_append_and_region(tmp_path, chunks):
    ds, path = (W if chunks is None else W.chunk(chunks)), tmp_path / "w.b2d"
    ds.isel(time=slice(0, 25)).b2nd.to_b2nd(path, mode="a", append_dim="time")
    found = ds.isel(time=slice(25, 60)).b2nd.to_b2nd(path, mode="a", append_dim="time")
    xr.testing.assert_identical(found.compute(), W)
    part = (ds[["t"]] * 0 + 5).isel(time=slice(10, 20), lat=slice(1, 3))
    found = part.b2nd.to_b2nd(path, mode="r+", region="auto")
    expected = W.t.values.copy()
    expected[10:20, 1:3] = 5
    np.testing.assert_array_equal(found.t.values, expected)


@pytest.mark.parametrize("lats", [3, 7])
def test_an_append_with_other_lengths_of_other_dims_is_refused(tmp_path, lats):
    """Without a coordinate nothing else says that the dims differ."""
    path = tmp_path / "w.b2d"
    first = xr.Dataset({"t": (("time", "lat"), np.ones((4, 6)))})
    first.b2nd.to_b2nd(path)
    more = xr.Dataset({"t": (("time", "lat"), np.ones((2, lats)))})
    with pytest.raises(ValueError, match=rf"dimension 'lat' \(given {lats}, existing 6\)"):
        more.b2nd.to_b2nd(path, mode="a", append_dim="time")
    xr.testing.assert_identical(xr.open_dataset(path, engine="b2nd").load(), first)


def test_array(tmp_path):
    path = tmp_path / "t.b2nd"
    W.t[:25].b2nd.to_b2nd(path)
    found = W.t[25:].b2nd.to_b2nd(path, mode="a", append_dim="time")
    xr.testing.assert_identical(found.compute(), W.t)


NEW = {
    "chunks": {"time": 10},
    "blocks": {"time": 5, "lat": 2},
    "cparams": {"codec": "lz4"},
    "encoding": {"t": {"cparams": {"codec": "lz4"}}},
    "stats": True,
    "max_mem": "10MB",
}


#: Text has no statistics, and other dims than `t`.
TEXT_TOO = W[["t"]].assign(text=("time", np.array(["a", "b", "c"] * 20)))


def changed(given, path, **options):
    """Write a part of `TEXT_TOO`; for the path of one frame only its variable `t`."""
    part = TEXT_TOO.isel(time=given)
    return (part.t if path.suffix == ".b2nd" else part).b2nd.to_b2nd(path, **options)


@pytest.mark.parametrize("name", ["w.b2d", "t.b2nd"])
@pytest.mark.parametrize("option", NEW)
def test_options_of_a_new_frame_match_the_one_that_grows(tmp_path, name, option):
    """The same call makes the frame and appends; other options than its own are refused."""
    path = tmp_path / name
    for given in (slice(0, 25), slice(25, 28), slice(28, 60)):
        how = {option: NEW[option], "mode": "a", "append_dim": "time", "fsync": False}
        written = changed(given, path, **how)
    xr.testing.assert_equal(written.load(), W.t if name == "t.b2nd" else TEXT_TOO)
    other = tmp_path / f"other{name}"
    changed(slice(0, 25), other)
    if option == "max_mem":
        # it is for new frames
        changed(slice(25, 60), other, mode="a", append_dim="time", max_mem=1)
        return
    with pytest.raises(ValueError, match=r"'t': .*the existing frame has other values"):
        changed(slice(25, 60), other, mode="a", append_dim="time", **{option: NEW[option]})
    assert xr.open_dataset(other, engine="b2nd").sizes["time"] == 25


@pytest.mark.parametrize("name", ["w.b2d", "t.b2nd"])
@pytest.mark.parametrize("chunks", [{"lat": 2}, {"time": -1, "lat": 2}, {"time": "auto"}, "auto"])
def test_sizes_that_depend_on_the_array_are_those_of_the_frame_that_grows(tmp_path, name, chunks):
    path, blocks = tmp_path / name, {"time": 20, "lat": 1}
    for given in (slice(0, 25), slice(25, 28), slice(28, 60)):
        how = {"mode": "a", "append_dim": "time", "chunks": chunks, "blocks": blocks}
        written = changed(given, path, **how)
    xr.testing.assert_equal(written.load(), W.t if name == "t.b2nd" else TEXT_TOO)


def test_an_empty_encoding_is_none(tmp_path):
    path = tmp_path / "t.b2nd"
    (W.t * 0).b2nd.to_b2nd(path)
    for place in ({"region": "auto"}, {"append_dim": "time"}):
        xr.DataArray(W.t).b2nd.to_b2nd(path, mode="r+", encoding={}, **place)
    assert xr.open_dataarray(path, engine="b2nd").sizes["time"] == 120


def test_sizes_by_dim_are_not_cut(tmp_path):
    with pytest.raises(ValueError, match=r"24\.7"):
        TEXT_TOO.b2nd.to_b2nd(tmp_path / "w.b2d", chunks={"time": 24.7})


def test_options_of_an_append_may_name_what_does_not_grow(tmp_path):
    path = tmp_path / "w.b2d"
    ds = W[["t"]].assign(mask=("lat", W.lat.data > 0))
    how = {"encoding": {"mask": {"chunks": 2}}, "chunks": {"time": 10, "lat": 2}, "mode": "a"}
    ds.isel(time=slice(25)).b2nd.to_b2nd(path, append_dim="time", **how)
    rest = ds.isel(time=slice(25, None))[["t"]]
    written = rest.b2nd.to_b2nd(path, append_dim="time", **how)
    xr.testing.assert_equal(written.load(), ds)
    with pytest.raises(KeyError, match="nobody"):
        rest.b2nd.to_b2nd(path, append_dim="time", mode="a", encoding={"nobody": {}})


@pytest.mark.parametrize("option", NEW)
@pytest.mark.parametrize("place", [{"append_dim": "time"}, {"region": "auto"}])
def test_a_change_of_an_array_takes_no_options_of_a_new_frame(tmp_path, option, place):
    path = tmp_path / "t.b2nd"
    W.t.b2nd.to_b2nd(path)
    with pytest.raises(ValueError, match=rf"{option}.*omit|omit {option}"):
        W.t.b2nd.to_b2nd(path, mode="r+", **place, **{option: NEW[option]})


@pytest.mark.parametrize("name", ["w.b2d", "t.b2nd"])
def test_an_append_waits_for_the_disk_unless_it_need_not(tmp_path, monkeypatch, name):
    """A dataset whose manifest reaches the disk before its frames would not open."""
    path, waits = tmp_path / name, []
    changed(slice(0, 25), path)
    monkeypatch.setattr(local_update, "flush", lambda *_: waits.append(1))
    changed(slice(25, 40), path, mode="a", append_dim="time")
    both = len(waits)
    changed(slice(40, 60), path, mode="a", append_dim="time", fsync=False)
    assert len(waits) - both == (both if name == "w.b2d" else 1)
    assert both > 1


def test_elements_alone_are_not_appended_to_an_array_with_coordinates(tmp_path):
    path = tmp_path / "t.b2nd"
    W.t[:25].b2nd.to_b2nd(path)
    with pytest.raises(ValueError, match=r"coordinate 'time' .*append_dim="):
        b2nd_dask.to_b2nd(W.t[25:].values, path, mode="r+", append_axis=0)
    xr.testing.assert_identical(xr.open_dataarray(path, engine="b2nd").load(), W.t[:25])


@pytest.mark.parametrize("coords", [[1, 2], 5, {"x": "/dev/null"}])
def test_entries_of_users_that_are_called_coords_are_no_coordinates(tmp_path, coords):
    path = tmp_path / "t.b2nd"
    b2nd_dask.to_b2nd(np.arange(4), path, vlmeta={"dims": ["x"], "coords": coords})
    assert b2nd_dask.to_b2nd(np.arange(4), path, mode="r+", append_axis=0).shape == (8,)


def fail(*_):
    raise OSError("power")


def test_an_append_that_does_not_commit_is_repaired(tmp_path, monkeypatch):
    path = tmp_path / "w.b2d"
    first, rest = W.isel(time=slice(0, 25)), W.isel(time=slice(25, 60))
    first.b2nd.to_b2nd(path)
    with monkeypatch.context() as patch:
        patch.setattr(append, "_commit", fail)
        with pytest.raises(OSError, match="power"):
            rest.assign(t=rest.t * 3).b2nd.to_b2nd(path, mode="a", append_dim="time")
    xr.testing.assert_identical(xr.open_dataset(path, engine="b2nd").compute(), first)
    found = rest.b2nd.to_b2nd(path, mode="a", append_dim="time")
    xr.testing.assert_identical(found.compute(), W)


def test_what_an_append_left_is_listed_and_removed_with_the_dataset(tmp_path):
    path = tmp_path / "w.b2d"
    xr.DataTree.from_dict({"/": W, "/g": W}).b2nd.to_b2nd(path)
    frames = [path / "t.b2nd", path / "g/t.b2nd"]
    for frame in frames:
        more = da.ones((7, *W.t.shape[1:])).map_blocks(fail, dtype="f8")
        with pytest.raises(OSError, match="power"):
            b2nd_dask.to_b2nd(more, frame, mode="r+", append_axis=0, resume=True)
    left = b2nd_dask.list_staging(path)
    assert {Path(info.path).parent for info in left} == {path, path / "g"}
    assert b2nd_dask.remove_staging(path) == left
    assert not b2nd_dask.list_staging(path)
    assert not b2nd_dask.list_staging(frames[1])


def test_a_link_in_a_dataset_is_not_followed(tmp_path):
    path, other = tmp_path / "weather", tmp_path / "mine"
    W.b2nd.to_b2nd(path)
    other.write_text("precious")
    (path / ".dataset.json.new").symlink_to(other)
    found = W[["t"]].b2nd.to_b2nd(path, mode="a")
    xr.testing.assert_identical(found.compute(), W)
    assert other.read_text() == "precious"
    (path / "t.b2nd").rename(tmp_path / "t.b2nd")
    (path / "t.b2nd").symlink_to(tmp_path / "t.b2nd")
    for change in (
        lambda: W[["t"]].b2nd.to_b2nd(path, mode="a"),
        lambda: xr.open_dataset(path, engine="b2nd"),
    ):
        with pytest.raises(b2nd_dask.B2ndError, match=r"t\.b2nd is a link to a file outside"):
            change()


@pytest.mark.parametrize("days", [4, 35])
def test_after_an_append_that_does_not_commit_another_dim_grows(tmp_path, monkeypatch, days):
    path = tmp_path / "w.b2d"
    first, rest = W.isel(time=slice(0, 25)), W.isel(time=slice(25, 25 + days))
    first.isel(lat=slice(0, 4)).b2nd.to_b2nd(path)
    with monkeypatch.context() as patch:
        patch.setattr(append, "_commit", fail)
        with pytest.raises(OSError, match="power"):
            rest.isel(lat=slice(0, 4)).b2nd.to_b2nd(path, mode="a", append_dim="time")
        with pytest.raises(OSError, match="power"):
            (first.isel(lat=slice(4, 5)) * 2).b2nd.to_b2nd(path, mode="a", append_dim="lat")
    found = first.isel(lat=slice(4, 6)).b2nd.to_b2nd(path, mode="a", append_dim="lat")
    xr.testing.assert_identical(found.compute(), first)
    found = rest.b2nd.to_b2nd(path, mode="a", append_dim="time")
    xr.testing.assert_identical(found.compute(), W.isel(time=slice(0, 25 + days)))


@pytest.mark.parametrize("lazy", [False, True])
@pytest.mark.parametrize("dtype", ["i2", "i8", "f8"])
def test_numbers_of_days_grow(tmp_path, lazy, dtype):
    path = tmp_path / "w.b2d"
    elapsed = W.time - W.time[0]
    ds = W.assign(elapsed=("time", elapsed.data)).rename(time="day").reset_index("day")
    packing = {"day": {"units": "days since 2001-01-01", "dtype": dtype}}
    packing["elapsed"] = {"units": "days", "dtype": dtype}
    ds.isel(day=slice(0, 25)).b2nd.to_b2nd(path, encoding=packing)
    rest = ds.isel(day=slice(25, 60))
    found = (rest.chunk() if lazy else rest).b2nd.to_b2nd(path, mode="a", append_dim="day")
    assert xr.open_dataset(path, engine="b2nd", decode_times=False).day.dtype == dtype
    np.testing.assert_array_equal(found.day, ds.day)
    np.testing.assert_array_equal(found.elapsed, ds.elapsed)


def test_variables_are_added_and_replaced(tmp_path):
    path, ds = tmp_path / "w.b2d", weather(20)
    ds.b2nd.to_b2nd(path, chunks={"time": 7, "lat": 9}, cparams={"codec": "lz4"}, stats=True)
    more = ds[["rain"]].assign(new=("lat", np.arange(6.0), {"units": "m"}), attrs=ds.t * 0)
    more["rain"] = (more.rain.fillna(0) + 1).assign_attrs(units="cm")
    more.attrs["more"] = 1
    found = more.b2nd.to_b2nd(path, mode="a").compute()
    xr.testing.assert_allclose(found, ds.assign(more).assign_attrs(more.attrs))
    assert found.attrs == {**ds.attrs, "more": 1}
    assert found.rain.attrs == {"units": "cm"}
    # stored as it was
    frame = b2nd_dask.open_b2nd(path / "rain.b2nd")
    assert (frame.dtype, frame.chunks, frame.cparams.codec.name) == (np.int16, (7, 9, 8), "LZ4")
    assert frame.stats is not None
    assert b2nd_dask.verify(path / "rain.b2nd").ok
    again = found.isel(time=slice(0, 5)).b2nd.to_b2nd(path, mode="a", append_dim="time")
    assert again.sizes["time"] == 25


@pytest.mark.parametrize("as_coord", [False, True])
def test_a_coordinate_by_the_attributes_of_another_variable_is_replaced(tmp_path, as_coord):
    """Its own frame says that it is data: there must not be a second frame, of a coordinate."""
    path = tmp_path / "w.b2d"
    ds = xr.Dataset({"t": ("x", [1.0, 2.0]), "lat": ("x", [3.0, 4.0])})
    ds.t.encoding["coordinates"] = "lat"
    expected = ds.set_coords("lat")
    xr.testing.assert_identical(ds.b2nd.to_b2nd(path).load(), expected)
    new = (expected if as_coord else ds)[["lat"]] + 1
    new = new.assign_coords(lat=expected.lat + 1) if as_coord else new
    found = new.b2nd.to_b2nd(path, mode="a")
    xr.testing.assert_identical(found.load(), expected.assign_coords(lat=expected.lat + 1))
    assert sorted(each.name for each in path.glob("*.b2nd")) == ["lat.b2nd", "t.b2nd"]


def test_a_replacement_keeps_to_max_mem(tmp_path):
    path, ds = tmp_path / "w.b2d", W[["t"]].chunk(time=20)
    ds.b2nd.to_b2nd(path)
    for name in ("new", "t"):
        with pytest.raises(ValueError, match=r"max_mem=.*too little"):
            ds.rename(t=name).b2nd.to_b2nd(path, mode="a", max_mem=1)


REFUSED = {
    "longer": (W, {}, "Unable to update size for existing dimension 'time'"),
    "other dims": (W[["t"]].transpose("lat", ...).isel(time=slice(5)), {}, "'t' has the dims"),
    "encoding": (W[["area"]], {"encoding": {"area": {"dtype": "f4"}}}, "storage options stay"),
    "case": (xr.Dataset({"T": 1}), {}, "differ only in case"),
    "region": (W[["area"]], {"region": "auto"}, 'region= goes with "r\\+"'),
}


@pytest.mark.parametrize(("ds", "options", "match"), REFUSED.values(), ids=REFUSED)
def test_variables_that_do_not_fit(tmp_path, ds, options, match):
    path = tmp_path / "w.b2d"
    first = W.isel(time=slice(5))
    first.b2nd.to_b2nd(path)
    with pytest.raises(ValueError, match=match):
        ds.b2nd.to_b2nd(path, mode="a", **options)
    xr.testing.assert_identical(xr.open_dataset(path, engine="b2nd").load(), first)


def test_a_replacement_that_does_not_commit_is_made_again(tmp_path, monkeypatch):
    path = tmp_path / "w.b2d"
    W.b2nd.to_b2nd(path)
    new = W[["t"]].assign(more=W.t + 1) * 2
    new.t.attrs = {"units": "degF"}
    with monkeypatch.context() as patch:
        patch.setattr(append, "_commit", fail)
        with pytest.raises(OSError, match="power"):
            new.b2nd.to_b2nd(path, mode="a")
    # frames are whole, and each is one that was written, with its attributes
    xr.testing.assert_identical(xr.open_dataset(path, engine="b2nd").load(), W.assign(new))
    found = new.b2nd.to_b2nd(path, mode="a")
    xr.testing.assert_identical(found.compute(), W.assign(new))
