"""New datasets and arrays come back as they were."""

import blosc2
import numpy as np
import pytest
import xarray as xr

from tests.edges.xarray.labelled import weather

W = weather().drop_encoding()
TREE = xr.DataTree.from_dict(
    {
        "/": xr.Dataset({"a": ("x", np.arange(3))}, {"x": [1, 2, 3]}),
        "/g/h": xr.Dataset({"c": ("y", np.arange(2))}, attrs={"q": 1}),
    }
)
ATTRS = {
    "i": 1,
    "f": np.float32(1.5),
    "l": [1, "a"],
    "b": b"x",
    "t": (1, 2),
    "n": np.arange(3),
    "inner": [np.int16(1), 2, {"q": np.float32(2)}],
    "g": np.longdouble(1) / 3,
}
ARRAYS = {
    "values": W.t,
    "nameless": W.t.rename(None),
    "dim": W.lat,
    "scalar coordinate": W.height,
    "text": W.zone,
    "called as a dim": xr.DataArray(np.arange(3.0), dims="x", name="x"),
    "scalar": xr.DataArray(3.5, name="q", attrs=ATTRS),
}


@pytest.mark.parametrize("suffix", ["", ".b2d", ".b2z"])
def test_dataset(tmp_path, suffix):
    found = W.b2nd.to_b2nd(tmp_path / f"w{suffix}").compute()
    xr.testing.assert_identical(found, W)
    assert {n: v.dtype for n, v in found.variables.items()} == {
        n: v.dtype for n, v in W.variables.items()
    }


@pytest.mark.parametrize("suffix", [".b2d", ".b2z"])
def test_a_dataset_of_nothing(tmp_path, suffix):
    found = xr.Dataset().b2nd.to_b2nd(tmp_path / f"e{suffix}")
    xr.testing.assert_identical(found, xr.Dataset())


@pytest.mark.parametrize("array", ARRAYS.values(), ids=ARRAYS)
def test_array(tmp_path, array):
    found = array.b2nd.to_b2nd(tmp_path / "a.b2nd").compute()
    xr.testing.assert_identical(found, array)
    assert {k: type(v) for k, v in found.attrs.items()} == {
        k: type(v) for k, v in array.attrs.items()
    }
    if "inner" in found.attrs:
        assert [type(each) for each in found.inner] == [np.int16, int, dict]
        assert type(found.inner[2]["q"]) is np.float32


@pytest.mark.parametrize("suffix", [".b2d", ".b2z"])
def test_tree_is_a_store_of_blosc2(tmp_path, suffix):
    path = tmp_path / f"tree{suffix}"
    xr.testing.assert_identical(TREE.b2nd.to_b2nd(path).load(), TREE)
    store = blosc2.open(str(path), mode="r")
    assert set(store.keys()) == {"/a", "/_coord_x", "/g", "/g/h", "/g/h/c"}
    np.testing.assert_array_equal(store["/g/h/c"][:], [0, 1])


def test_packed_as_zarr(tmp_path, pair):
    found = weather().b2nd.to_b2nd(tmp_path / "w.b2d")
    expected = xr.open_zarr(pair[1], consolidated=False)
    xr.testing.assert_identical(found.compute(), expected.compute())
    assert found.rain.encoding["dtype"] == np.dtype("i2")


@pytest.mark.parametrize("suffix", ["", ".b2d", ".b2z"])
def test_the_order_of_coordinates_is_kept(tmp_path, suffix):
    coords = {"z": 5, "y": [1, 2], "b": ("x", [1, 2, 3]), "x": [7, 8, 9], "a": ("y", [1, 2])}
    ds = xr.Dataset({"t": (("y", "x"), np.zeros((2, 3)))}, coords)
    found = ds.b2nd.to_b2nd(tmp_path / f"w{suffix}")
    ds.to_netcdf(tmp_path / "w.nc")
    with xr.open_dataset(tmp_path / "w.nc") as same:
        assert list(found.variables) == list(same.variables) == list(ds.variables)
    assert list(found.coords) == list(ds.coords)
