"""New frames of DataArrays, Datasets and DataTrees: what comes back is what was given."""

import threading

import blosc2
import dask
import dask.array as da
import numpy as np
import pytest
import xarray as xr
import xarray.testing.strategies as xrst
from hypothesis import given
from hypothesis import strategies as st

import b2nd_dask
from b2nd_dask import open_b2nd, to_b2nd, verify
from tests.edges.xarray.labelled import weather
from tests.strategies import examples

ATTRS = {
    "text": "é",
    "none": None,
    "flag": True,
    "n": 3,
    "list": [1, "a", [2.5]],
    "map": {"a": {"b": 1}},
    "f4": np.float32(0.1),
    "i2": np.array([1, 2], "i2"),
    "bytes": b"\x00\xff",
    "complex": 1 + 2j,
}


def identical(written, ds):
    """Compare, and compare dtypes, which xarray does not."""
    xr.testing.assert_identical(written.compute(), ds.compute())
    for name, variable in ds.variables.items():
        assert written.variables[name].dtype == variable.dtype, name
        for key, value in variable.attrs.items():
            assert type(written.variables[name].attrs[key]) is type(value), key


def exact(days):
    """The dataset of `weather` with packed numbers as they are after one round of packing."""
    ds = weather(days)
    encoding = ds.rain.encoding
    ds["rain"] = np.round((ds.rain - 100.0) / 0.01) * 0.01 + 100.0
    ds.rain.attrs, ds.rain.encoding = {"units": "mm"}, encoding
    return ds


def everything():
    ds = exact(12)
    ds["t"].attrs |= ATTRS
    ds.attrs |= ATTRS
    return ds.assign(
        flags=("lat", np.array([True, False] * 3)),
        wait=("lat", np.arange(6).astype("m8[s]")),
        when=("time", ds.time.values + np.timedelta64(1, "h")),
        word=("lat", np.array([b"a", b"bc"] * 3)),
        none=(("nothing", "lat"), np.zeros((0, 6))),
        single=((), np.float32(2)),
    ).assign_coords(run=7, cell=(("lat", "lon"), np.arange(48.0).reshape(6, 8)))


@pytest.mark.parametrize("name", ["x.b2d", "folder", "x.b2z"])
@pytest.mark.parametrize("lazy", [False, True])
def test_a_dataset(tmp_path, name, lazy):
    ds = everything()
    given = ds.chunk(time=5, lat=4) if lazy else ds
    written = given.b2nd.to_b2nd(tmp_path / name)
    identical(written, ds)
    assert set(written.coords) == set(ds.coords)
    assert list(written.data_vars) == list(ds.data_vars)
    # nothing is left beside it
    assert [path.name for path in tmp_path.iterdir()] == [name]
    rain = written.rain.encoding
    assert (rain["scale_factor"], rain["dtype"]) == (0.01, np.dtype("i2"))
    with pytest.raises(FileExistsError, match='mode="w" replaces it'):
        given.b2nd.to_b2nd(tmp_path / name)
    if name != "x.b2z":
        assert open_b2nd(tmp_path / name / "rain.b2nd").dtype == np.int16
        assert verify(tmp_path / name / "t.b2nd").ok


@pytest.mark.parametrize("lazy", [False, True])
def test_an_array(tmp_path, lazy):
    ds = everything()
    for name in (*ds.data_vars, "cell", "run", "time"):
        array = ds[name]
        given = array.chunk() if lazy and array.dtype.kind not in "US" else array
        written = to_b2nd(given, tmp_path / f"{name}.b2nd")
        xr.testing.assert_identical(written.compute(), array)
        assert written.dtype == array.dtype
    again = xr.open_dataarray(tmp_path / "t.b2nd", engine="b2nd")
    xr.testing.assert_identical(again, ds.t)
    frame = blosc2.open(str(tmp_path / "t.b2nd"))
    assert frame.vlmeta["dims"] == ["time", "lat", "lon"]


@pytest.mark.parametrize(
    "array",
    [
        xr.DataArray(np.arange(3), dims="x", name="x"),
        xr.DataArray(np.arange(3), dims="x"),
        xr.DataArray(np.arange(3), dims="x", coords={"x": [1, 2, 3]}, name="y"),
        xr.DataArray(1.5, coords={"c": 2}),
        xr.DataArray(np.arange(3)),
    ],
    ids=["called as its dim", "no name", "index", "scalar", "plain"],
)
def test_names(tmp_path, array):
    written = to_b2nd(array, tmp_path / "a.b2nd")
    xr.testing.assert_identical(written.compute(), array)
    assert written.encoding["source"] == str(tmp_path / "a.b2nd")


def test_text_of_any_length_in_memory(tmp_path):
    text = np.array(["a", "", "longer"], object)
    ds = xr.Dataset(
        {"s": ("x", text)}, {"x": text, "v": ("x", text.astype(np.dtypes.StringDType()))}
    )
    written = ds.b2nd.to_b2nd(tmp_path / "s.b2d").compute()
    assert written.s.dtype.kind == written.v.dtype.kind == "U"
    np.testing.assert_array_equal(written.s, text.astype(str))
    np.testing.assert_array_equal(written.v, text.astype(str))
    assert written.indexes["x"].tolist() == text.tolist()


@pytest.mark.parametrize("kind", [object, np.dtypes.StringDType()])
@pytest.mark.parametrize("encoding", [{}, {"_FillValue": "-"}])
def test_the_length_of_objects_is_that_of_encoding(tmp_path, kind, encoding):
    """An append may then be longer."""
    ds = xr.Dataset({"s": ("x", np.array(["a", "bc"], kind))})
    path, how = tmp_path / "s.b2d", {"s": {"dtype": "U8", **encoding}}
    assert ds.b2nd.to_b2nd(path, encoding=how).compute().s.values.tolist() == ["a", "bc"]
    assert open_b2nd(path / "s.b2nd").dtype == "<U8"
    longer = xr.Dataset({"s": ("x", np.array(["longer"], object))})
    written = longer.b2nd.to_b2nd(path, mode="a", append_dim="x").compute()
    assert written.s.values.tolist() == ["a", "bc", "longer"]
    replaced = xr.Dataset({"s": ("x", np.array(["a", "bc", "longer" * 2], object))})
    xr.testing.assert_equal(replaced.b2nd.to_b2nd(path, mode="a").load(), replaced)


def test_a_tree(tmp_path):
    tree = xr.DataTree.from_dict(
        {"/": xr.Dataset({"a": ("x", [1, 2])}), "/g": exact(3), "/g/h": xr.Dataset(attrs={"k": 1})}
    )
    for name in ("tree.b2d", "tree.b2z"):
        written = to_b2nd(tree, tmp_path / name)
        xr.testing.assert_identical(written.compute(), tree)
        store = blosc2.open(str(tmp_path / name))
        np.testing.assert_array_equal(store["/g/t"][:], tree["g/t"])


@pytest.mark.parametrize("name", ["x.b2d", "x.b2z"])
def test_other_programs_open_it(tmp_path, name):
    ds = weather(5).drop_vars("rain")
    ds.t.attrs["scale"] = np.float32(0.5)
    ds.b2nd.to_b2nd(tmp_path / name)
    store = blosc2.open(str(tmp_path / name))
    assert {"/t", "/area", "/_coord_time"} <= set(store.keys())
    np.testing.assert_array_equal(store["/t"][:], ds.t)
    pytest.importorskip("xarray_blosc2", reason="of the extra test")
    other = xr.open_dataset(tmp_path / name, engine="blosc2").load()
    xr.testing.assert_equal(other, ds)
    assert other.t.attrs == {**ds.t.attrs, "scale": 0.5}
    assert other.attrs == ds.attrs
    ds.t.b2nd.to_b2nd(tmp_path / "t.b2nd")
    one = xr.open_dataset(tmp_path / "t.b2nd", engine="blosc2")
    assert one.t.dims == ds.t.dims


@pytest.mark.parametrize("dtype", ["f4", "f8"])
def test_packing_rounds_to_half_a_step_in_the_precision_of_what_is_given(tmp_path, dtype):
    # between two steps: in float32 some seem to lie more than half a step away
    values = ((np.arange(-20_000, 20_000) + 0.5) * 0.002 + 273.15).astype(dtype)
    values[::97] = np.nan
    packing = {"dtype": "i2", "scale_factor": 0.002, "add_offset": 273.15, "_FillValue": -32768}
    ds = xr.Dataset({"t": ("x", values)})
    written = ds.b2nd.to_b2nd(tmp_path / "x.b2d", encoding={"t": packing})
    np.testing.assert_allclose(written.t, values, atol=0.00102)
    assert open_b2nd(tmp_path / "x.b2d" / "t.b2nd").dtype == np.int16


def test_how_frames_are_stored(tmp_path):
    ds = weather(20).chunk(time=7)
    written = ds.b2nd.to_b2nd(
        tmp_path / "x.b2d",
        chunks={"time": 5, "lat": 3},
        cparams={"codec": "lz4"},
        encoding={
            "area": {"chunks": (2,)},
            "rain": {"cparams": {"codec": "zlib"}, "dtype": "i4", "scale_factor": 0.5},
            "time": {"units": "hours since 2001-01-01", "dtype": "i8"},
        },
    )
    frames = {n: open_b2nd(p) for n, p in written.b2nd.paths.items()}
    assert frames["t"].chunks == (5, 3, 8)
    assert frames["area"].chunks == (2,)
    codecs = {name: frames[name].cparams.codec.name for name in ("t", "rain")}
    assert codecs == {"t": "LZ4", "rain": "ZLIB"}
    assert frames["rain"].dtype == np.int32
    assert frames["time"].dtype == np.int64
    xr.testing.assert_allclose(written.compute(), ds.compute(), atol=0.26)
    one = ds.t.b2nd.to_b2nd(tmp_path / "t.b2nd", encoding={"chunks": {"time": 4}})
    assert open_b2nd(tmp_path / "t.b2nd").chunks == (4, 6, 8)
    xr.testing.assert_equal(one.compute(), ds.t.compute())


def test_blocks_without_chunks(tmp_path):
    """Along the other dims a block is as long as a chunk; a coordinate of one dim has its own."""
    values = np.arange(60.0).reshape(6, 10)
    ds = xr.Dataset({"t": (("y", "x"), values), "n": ("x", values[0])}, {"y": np.arange(6)})
    encoding = {"y": {"blocks": {"y": 3}}, "n": {"blocks": 5}}
    written = ds.chunk(x=8).b2nd.to_b2nd(tmp_path / "d.b2d", blocks={"y": 2}, encoding=encoding)
    found = {name: open_b2nd(path) for name, path in written.b2nd.paths.items()}
    assert {name: (each.chunks, each.blocks) for name, each in found.items()} == {
        "t": ((6, 8), (2, 8)),
        "n": ((8,), (5,)),
        "y": ((6,), (3,)),
    }
    whole = ds.b2nd.to_b2nd(tmp_path / "whole.b2d", chunks={"x": 4}, blocks={"y": 3, "x": 2})
    assert [open_b2nd(whole.b2nd.paths[name]).blocks for name in "tn"] == [(3, 2), (2,)]
    one = ds.t.b2nd.to_b2nd(tmp_path / "t.b2nd", blocks={"x": 5})
    assert open_b2nd(one.encoding["source"]).blocks == (6, 5)


def test_chunks_by_dims_are_those_of_coordinates_of_several_dims(tmp_path):
    values = np.arange(60.0).reshape(6, 10)
    ds = xr.Dataset({"t": (("y", "x"), values)}, {"lat": (("y", "x"), -values), "y": np.arange(6)})
    written = ds.b2nd.to_b2nd(tmp_path / "x.b2d", chunks={"y": 4, "x": 3})
    assert dict(written.chunks) == {"y": (4, 2), "x": (3, 3, 3, 1)}
    assert open_b2nd(written.b2nd.paths["y"]).chunks == (6,)
    xr.testing.assert_equal(written.compute(), ds)


@pytest.mark.parametrize("engine", ["h5netcdf", "zarr"])
def test_files_that_are_not_loaded(tmp_path, engine):
    pytest.importorskip("h5netcdf", reason="of the extra convert")
    ds = weather(6)
    if engine == "zarr":
        ds.to_zarr(tmp_path / "x", zarr_format=2, consolidated=False)
        options = {"engine": "zarr", "consolidated": False}
    else:
        ds.to_netcdf(tmp_path / "x", engine="h5netcdf")
        options = {"engine": "h5netcdf"}
    with xr.open_dataset(tmp_path / "x", **options) as source:
        expected = source.load().copy()
    with xr.open_dataset(tmp_path / "x", **options) as source:
        written = source.b2nd.to_b2nd(tmp_path / "x.b2d")
        xr.testing.assert_identical(written.compute(), expected)
    assert open_b2nd(tmp_path / "x.b2d" / "rain.b2nd").dtype == np.int16


def test_empty_variables_that_are_not_loaded(tmp_path):
    pytest.importorskip("scipy")
    ds = xr.Dataset({"a": (("x", "y"), np.zeros((0, 100_000)))})
    # NetCDF-3, which has no chunks
    ds.to_netcdf(tmp_path / "a.nc", engine="scipy")
    with xr.open_dataset(tmp_path / "a.nc", engine="scipy") as source:
        written = to_b2nd(source, tmp_path / "a.b2d")
    xr.testing.assert_identical(written.load(), ds)


def test_times_of_other_calendars(tmp_path):
    pytest.importorskip("cftime", reason="of the extra interop")
    times = xr.date_range("2001-02-25", periods=6, calendar="noleap", use_cftime=True)
    ds = xr.Dataset({"t": ("time", np.arange(6.0))}, {"time": times})
    xr.testing.assert_identical(ds.b2nd.to_b2nd(tmp_path / "x.b2d").compute(), ds)


def test_a_dataset_over_the_one_that_is_read(tmp_path):
    path = tmp_path / "x.b2d"
    ds = exact(4)
    ds.b2nd.to_b2nd(path)
    for _ in range(2):
        source = xr.open_dataset(path, engine="b2nd", chunks={})
        ds = ds.assign(t=ds.t + 1)
        written = source.assign(t=source.t + 1).b2nd.to_b2nd(path, mode="w")
        xr.testing.assert_equal(written.compute(), ds)
    assert [each.name for each in tmp_path.iterdir()] == ["x.b2d"]


def test_what_variables_share_is_computed_once(tmp_path):
    calls, lock = [], threading.Lock()

    def slow(block):
        with lock:
            calls.append(1)
        return block + 1

    x = da.zeros((8, 4), chunks=(4, 4)).map_blocks(slow, dtype=float, meta=np.empty((0, 0)))
    ds = xr.Dataset({"a": (("x", "y"), x * 2), "b": (("x", "y"), x * 3)})
    ds.b2nd.to_b2nd(tmp_path / "x.b2d")
    assert len(calls) == 2


def test_a_write_that_fails_leaves_nothing(tmp_path):
    def fail(block):
        raise ZeroDivisionError

    bad = da.zeros((8, 4), chunks=(4, 4)).map_blocks(fail, dtype=float, meta=np.empty((0, 0)))
    ds = exact(4)
    ds.b2nd.to_b2nd(tmp_path / "x.b2d")
    for name in ("x.b2d", "new.b2d", "new.b2z"):
        with pytest.raises(ZeroDivisionError):
            xr.Dataset({"a": (("x", "y"), bad)}).b2nd.to_b2nd(tmp_path / name, mode="w")
    assert [path.name for path in tmp_path.iterdir()] == ["x.b2d"]
    identical(xr.open_dataset(tmp_path / "x.b2d", engine="b2nd"), ds)


def test_a_write_that_is_computed_later(tmp_path):
    array = weather(4).t.chunk(time=2)
    later = array.b2nd.to_b2nd(tmp_path / "t.b2nd", compute=False)
    assert not (tmp_path / "t.b2nd").exists()
    dask.compute(later)
    xr.testing.assert_identical(
        xr.open_dataarray(tmp_path / "t.b2nd", engine="b2nd").load(), array.compute()
    )


@examples(25)
@given(
    variable=xrst.variables(
        dims=xrst.dimension_names(min_dims=0, max_dims=3, name_strategy=st.sampled_from("abcdef")),
        attrs=xrst.simple_attrs,
    )
)
def test_any_variable(tmp_path_factory, variable):
    path = tmp_path_factory.mktemp("any") / "x.b2nd"
    if variable.dtype.kind in "mM" and np.datetime_data(variable.dtype)[0] == "generic":
        return
    if "dtype" in variable.attrs:
        # xarray itself takes it for how booleans are packed
        return
    array = xr.DataArray(variable, name="v")
    xr.testing.assert_identical(b2nd_dask.to_b2nd(array, path).compute(), array)


@pytest.mark.parametrize("chunks", [(7, 2, 8), {"time": 7, "lat": 2}, 3])
def test_chunks_of_one_array(tmp_path, chunks):
    found = weather().t.b2nd.to_b2nd(tmp_path / "t.b2nd", chunks=chunks)
    assert found.encoding["chunks"] == ((3, 3, 3) if chunks == 3 else (7, 2, 8))
    with pytest.raises(ValueError, match="no dim 'tiem'"):
        weather().t.b2nd.to_b2nd(tmp_path / "u.b2nd", chunks={"tiem": 3})
