"""Conversions of labelled datasets and groups, by what other software reads of them."""

from __future__ import annotations

import itertools

import blosc2
import numpy as np
import pytest

from b2nd_dask import convert, to_b2nd
from tests.edges.convert.samples import RNG, dataset, opened, write_as

zarr = pytest.importorskip("zarr", reason="of the extra convert")
h5py = pytest.importorskip("h5py", reason="of the extra convert")
xr = pytest.importorskip("xarray", reason="of the extra convert")


@pytest.mark.parametrize("kind", ["zarr2", "zarr3", "netcdf4", "h5netcdf"])
def test_a_dataset_is_the_same_in_all_formats(kind: str) -> None:
    source = write_as(kind, dataset())
    want = opened(source)
    for number, suffix in enumerate(["b2d", "b2z", "zarr", "nc"]):
        target = f"new{number}.{suffix}"
        assert convert(source, target, check=True) == target
        xr.testing.assert_identical(opened(target), want)
    # and back
    for frames in ("new0.b2d", "new1.b2z"):
        for suffix in ("zarr", "nc"):
            back = f"{frames[:4]}-back.{suffix}"
            convert(frames, back)
            xr.testing.assert_identical(opened(back), want)


def test_packed_values_stay_packed() -> None:
    source = write_as("netcdf4", dataset())
    convert(source, "new.b2d")
    with h5py.File(source) as file:
        stored = file["rain"][:]
    frame = blosc2.open("new.b2d/rain.b2nd")
    assert frame.dtype == stored.dtype == np.int16
    np.testing.assert_array_equal(frame[:], stored)
    assert stored[2, 1] == -9


def test_groups_stay_groups() -> None:
    with h5py.File("src.h5", "w") as file:
        file["a"] = np.arange(5)
        file.create_dataset("run/b", data=np.arange(6.0).reshape(2, 3))
        file["run/deep/c"] = np.arange(3, dtype="u1")
        file["run"].attrs["who"] = "me"
    with pytest.warns(UserWarning, match="attributes of src.h5/run: who"):
        convert("src.h5", "new.npz")
    convert("src.h5", "new.b2d")
    convert("new.b2d", "back.zarr")
    convert("src.h5", "new.b2z")
    convert("new.b2z", "back.h5")
    group = zarr.open("back.zarr")
    with h5py.File("back.h5") as back, h5py.File("src.h5") as file:
        for name in ("a", "run/b", "run/deep/c"):
            for got in (back[name], group[name]):
                assert got.dtype == file[name].dtype
                np.testing.assert_array_equal(got[:], file[name][:])
        assert back["run"].attrs["who"] == group["run"].attrs["who"] == "me"


def test_dims_that_no_scale_of_hdf5_can_be_named_after() -> None:
    dims = ("g", "m/s", ".")
    root = xr.Dataset({"a": (dims, np.ones((2, 3, 4)))})
    tree = xr.DataTree.from_dict({"/": root, "/g": xr.Dataset({"b": ("t", np.arange(2.0))})})
    to_b2nd(tree, "src.b2d")
    convert("src.b2d", "new.h5", check=True)
    with h5py.File("new.h5") as file:
        assert set(file) == {"a", "g"}
        assert tuple(dim.label for dim in file["a"].dims) == dims
    convert("new.h5", "back.b2d")
    xr.testing.assert_identical(xr.open_datatree("back.b2d", engine="b2nd").load(), tree)


@pytest.mark.parametrize("kind", ["h5", "zarr"])
def test_arrays_without_names_of_dims_need_not_share_lengths(kind: str) -> None:
    arrays = {"image": np.ones((4, 5)), "dark": np.arange(3.0), "bare": np.arange(2)}
    labels = {"image": {"units": "counts"}, "dark": {"dims": "none", "gain": np.float32(2)}}
    with h5py.File("src.h5", "w") as file:
        for name, values in arrays.items():
            file[name] = values
            file[name].attrs.update(labels.get(name, {}))
    if kind == "zarr":
        convert("src.h5", "src.zarr")
    convert(f"src.{kind}", "new.b2d", check=True)
    with xr.open_dataset("new.b2d", engine="b2nd") as found:
        assert dict(found.sizes) == {
            "image_dim_0": 4,
            "image_dim_1": 5,
            "dark_dim_0": 3,
            "bare_dim_0": 2,
        }
        assert {name: each.attrs for name, each in found.items() if each.attrs} == labels
    convert("new.b2d", "back.h5", check=True)
    with h5py.File("back.h5") as back:
        assert set(back) == set(arrays)
        for name, values in arrays.items():
            np.testing.assert_array_equal(back[name], values)
            assert dict(back[name].attrs) == labels.get(name, {})


def test_groups_whose_arrays_have_the_same_name_and_no_dims() -> None:
    with h5py.File("src.h5", "w") as file:
        for number, name in enumerate(("x", "g/x", "g/h/x")):
            file[name] = np.arange(3.0 + number)
    convert("src.h5", "new.b2d", check=True)
    found = xr.open_datatree("new.b2d", engine="b2nd")
    assert [dict(level.dataset.sizes) for level in found.subtree] == [
        {"x_dim_0": 3},
        {"g.x_dim_0": 4},
        {"g.h.x_dim_0": 5},
    ]


def test_a_file_with_the_mark_of_members_in_its_name() -> None:
    to_b2nd(np.arange(5), "./2026::a.b2nd")
    convert("2026::a.b2nd", "new.npy", check=True)
    np.testing.assert_array_equal(np.load("new.npy"), np.arange(5))


@pytest.mark.parametrize("name", ["a#b", "a;b", "a\nb", "a?b", "a b", "%41"])
def test_any_name_of_a_file(name: str) -> None:
    values = np.arange(5)
    to_b2nd(values, f"{name}.b2nd")
    steps = [f"{name}.{suffix}" for suffix in ("b2nd", "zarr", "h5", "npy", "b2d", "zarr.zip")]
    for source, target in itertools.pairwise(steps):
        assert convert(source, target, check=True) == target
    with zarr.storage.ZipStore(steps[-1], mode="r") as store:
        np.testing.assert_array_equal(zarr.open(store, mode="r")["values"], values)


def test_a_variable_that_is_called_as_a_dim_of_others() -> None:
    ds = xr.Dataset({"a": (("x", "y"), RNG.random((2, 3))), "x": (("z", "y"), np.ones((4, 3)))})
    ds.to_netcdf("src.nc", engine="netcdf4")
    convert("src.nc", "new.b2d")
    xr.testing.assert_identical(opened("new.b2d"), ds)


@pytest.mark.parametrize("engine", ["h5netcdf", "netcdf4"])
@pytest.mark.parametrize("name", ["time", "x"])
def test_a_coordinate_of_several_axes_with_the_name_of_one(engine: str, name: str) -> None:
    dims = ("time", "x")
    with pytest.importorskip("netCDF4").Dataset("src.nc", "w") as file:
        for dim, length in zip(dims, (3, 4), strict=True):
            file.createDimension(dim, length)
        for number, (own, its_dims) in enumerate({"a": dims, "b": dims[::-1], name: dims}.items()):
            file.createVariable(own, "f8", its_dims)[:] = number
    convert("src.nc", "new.b2d", check=True)
    convert("new.b2d", "new.nc", check=True)
    convert("new.nc", "back.b2d", check=True)
    with xr.open_dataset("src.nc", engine=engine) as want:
        for path, its_engine in (("new.b2d", "b2nd"), ("new.nc", engine), ("back.b2d", "b2nd")):
            with xr.open_dataset(path, engine=its_engine) as found:
                xr.testing.assert_identical(found.load(), want)


def test_dims_of_a_coordinate_of_several_axes_in_old_netcdf() -> None:
    with pytest.importorskip("netCDF4").Dataset("src.nc", "w") as file:
        for dim, length in (("time", 3), ("x", 4)):
            file.createDimension(dim, length)
        for name in ("a", "time"):
            file.createVariable(name, "f8", ("time", "x"))[:] = 1
    with h5py.File("src.nc", "a") as file:
        # which old versions of the NetCDF library do not write
        del file.attrs["_NCProperties"]
    convert("src.nc", "new.b2d", check=True)
    assert opened("new.b2d").time.dims == ("time", "x")


@pytest.mark.parametrize("kind", ["netcdf4", "h5netcdf", "zarr2"])
@pytest.mark.parametrize("texts", [["a", "naïve", ""], ["", ""], ["long" * 99]])
def test_texts_of_any_length_are_as_long_as_the_longest(kind: str, texts: list[str]) -> None:
    names = np.array(texts, object)
    ds = xr.Dataset({"name": ("x", names), "one": "Bergen"})
    convert(write_as(kind, ds), "new.b2d", check=True)
    found = opened("new.b2d")
    assert found["name"].values.tolist() == texts
    assert found["name"].dtype == f"U{max(map(len, texts)) or 1}"
    assert found["one"].item() == "Bergen"
    convert("new.b2d", "back.nc")
    assert opened("back.nc")["name"].values.tolist() == texts


@pytest.mark.parametrize("engine", ["h5netcdf", "netcdf4"])
def test_booleans_in_netcdf(engine: str) -> None:
    pytest.importorskip("netCDF4" if engine == "netcdf4" else engine)
    ds = xr.Dataset({"is_land": ("x", np.array([True, False, True]))})
    to_b2nd(ds, "src.b2d")
    convert("src.b2d", "new.nc", check=True)
    convert("new.nc", "back.b2d", check=True)
    for path, its_engine in (("new.nc", engine), ("back.b2d", "b2nd")):
        with xr.open_dataset(path, engine=its_engine) as found:
            assert found.is_land.dtype == bool
            xr.testing.assert_identical(found.load(), ds)


@pytest.mark.filterwarnings("ignore:.*unlimited axes:UserWarning")
def test_arrays_of_netcdf_that_end_before_their_unlimited_dim() -> None:
    with pytest.importorskip("netCDF4").Dataset("src.nc", "w") as file:
        file.createDimension("time", None)
        file.createDimension("x", 2)
        for group in (file, file.createGroup("inner")):
            for name, dtype, count in (("a", "f4", 5), ("b", "i2", 3), ("time", "f8", 4)):
                array = group.createVariable(name, dtype, ("time", "x")[: 1 + (name == "a")])
                array[:count] = 1
            group.createVariable("name", str, ("time",))[0] = "Bergen"
            for name, dtype in (("never", "f4"), ("unnamed", str)):
                group.createVariable(name, dtype, ("time", "x"))
        file["b"].missing_value = np.int16(7)
    with xr.open_datatree("src.nc", engine="netcdf4") as source:
        convert("src.nc", "new.b2d", check=True)
        xr.testing.assert_identical(xr.open_datatree("new.b2d", engine="b2nd"), source)
    convert("src.nc", "new.h5", check=True)
    with h5py.File("new.h5") as found:
        assert found["inner/a"].shape == (5, 2)
    # arrays of HDF5 alone, without dims, keep their lengths
    with h5py.File("src.nc", "a") as file:
        for n in (3, 4):
            file.create_dataset(f"plain{n}", data=np.zeros(n), maxshape=(None,))
    convert("src.nc", "all.h5", check=True)
    with h5py.File("all.h5") as found:
        assert [found[f"plain{n}"].shape for n in (3, 4)] == [(3,), (4,)]


@pytest.mark.filterwarnings("ignore:.*unlimited axes:UserWarning")
@pytest.mark.timeout(60)
def test_one_element_of_a_long_unlimited_dim() -> None:
    netcdf = pytest.importorskip("netCDF4")
    with netcdf.Dataset("src.nc", "w") as file:
        file.createDimension("time", None)
        for name, count in (("short", 1), ("long", 4_000_000)):
            file.createVariable(name, "u1", ("time",), fill_value=7)[:count] = 1
    convert("src.nc", "new.npz")
    with np.load("new.npz") as found:
        assert found["short"].sum() == 1 + 7 * (4_000_000 - 1)
        assert found["long"].sum() == 4_000_000


def test_an_array_has_its_own_name_or_that_of_its_file() -> None:
    with h5py.File("src.h5", "w") as file:
        file["v"] = np.arange(3.0)
    axes = {"dimension_names": ("y", "x")}
    zarr.create_array("src.zarr", shape=(2, 3), dtype="f4", **axes)[:] = 1
    for source, name in (("src.h5", "v"), ("src.h5::v", "v"), ("src.zarr", "new")):
        convert(source, "new.b2nd", overwrite=True)
        with xr.open_dataarray("new.b2nd", engine="b2nd") as found:
            assert found.name == name
    convert("src.h5", "new.b2nd", overwrite=True)
    convert("new.b2nd", "back.h5")
    with h5py.File("back.h5") as file:
        assert list(file) == ["v"]


@pytest.mark.filterwarnings("error")
def test_unlimited_dims_stay_so_in_netcdf() -> None:
    netcdf = pytest.importorskip("netCDF4")
    with netcdf.Dataset("src.nc", "w") as file:
        for dim, size in (("time", None), ("run", None), ("none", None), ("x", 2)):
            file.createDimension(dim, size)
        # a dim with a coordinate, one without, and one of length 0
        for name, dims in (("time", "time"), ("t", ("time", "x")), ("n", "run"), ("e", "none")):
            array = file.createVariable(name, "f8", dims)
            array[: 0 if name == "e" else 3] = 1
    convert("src.nc", "new.nc", check=True)
    with netcdf.Dataset("new.nc", "a") as file:
        unlimited = {name: dim.isunlimited() for name, dim in file.dimensions.items()}
        assert unlimited == {"time": True, "run": True, "none": True, "x": False}
        file["t"][3] = 2
        assert file.dimensions["time"].size == 4


@pytest.mark.parametrize("engine", ["netcdf4", "h5netcdf"])
def test_coordinates_of_text_select_in_netcdf(engine: str) -> None:
    ds = xr.Dataset({"x": ("station", [1.0, 2.0])}, {"station": ["Bergen", "Tromsø"]})
    ds.b2nd.to_b2nd("src.b2d")
    convert("src.b2d", "new.nc")
    with xr.open_dataset("new.nc", engine=engine) as found:
        xr.testing.assert_identical(found.load(), ds)
        assert found["x"].sel(station="Tromsø") == 2.0


@pytest.mark.parametrize("target", ["new.zarr", "new.nc"])
@pytest.mark.parametrize("unit", ["s", "ms", "us", "ns"])
def test_times_and_durations_stay_so(target: str, unit: str) -> None:
    steps = np.array([3, 0, "NaT"], f"m8[{unit}]")
    ds = xr.Dataset({"wait": ("x", steps), "when": ("x", np.datetime64("2000-01-01") + steps)})
    ds.b2nd.to_b2nd("src.b2d")
    convert("src.b2d", target, check=True)
    xr.testing.assert_identical(opened(target), ds)


@pytest.mark.parametrize("target", ["new.zarr", "new.nc"])
def test_coordinates_that_are_no_dims_stay_coordinates(target: str) -> None:
    coords = {
        "lat": (("y", "x"), np.ones((2, 3))),
        "run": 7,
        "day": ("t", [1, 2]),
        "height": ("x", [5.0, 6.0, 7.0]),
    }
    ds = xr.Dataset({"rain": (("y", "x"), RNG.random((2, 3))), "n": 3}, coords)
    ds.b2nd.to_b2nd("src.b2d")
    convert("src.b2d", target, check=True)
    xr.testing.assert_identical(opened(target), ds)
    convert(target, "back.b2d")
    xr.testing.assert_identical(opened("back.b2d"), ds)


@pytest.mark.parametrize("target", ["new.zarr", "new.nc"])
def test_a_coordinate_with_a_space_is_a_named_loss(target: str) -> None:
    """Lists of coordinates in attributes are separated by spaces."""
    ds = xr.Dataset({"a": ("x", [1, 2])}, {"b c": ("x", [3, 4]), "x": [5, 6]})
    to_b2nd(ds, "src.b2d")
    with pytest.warns(UserWarning, match=r"cannot hold: src\.b2d/b c as a coordinate"):
        convert("src.b2d", target, check=True)
    xr.testing.assert_identical(opened(target), ds.reset_coords("b c"))


@pytest.mark.parametrize("kind", ["zarr3", "netcdf4"])
@pytest.mark.parametrize("member", [None, "rain"])
def test_one_array_keeps_coordinates_that_are_no_dims(kind: str, member: str | None) -> None:
    coords = {"lat": (("y", "x"), RNG.random((2, 3))), "height": 2.0, "x": [5, 6, 7]}
    array = xr.DataArray(RNG.random((2, 3)), coords, ("y", "x"), "rain")
    convert(write_as(kind, array.to_dataset()), "new.b2nd", member=member, check=True)
    xr.testing.assert_identical(xr.open_dataarray("new.b2nd", engine="b2nd"), array)


def test_an_array_and_a_group_of_one_name() -> None:
    """A store has both; the name alone is that of the array."""
    with blosc2.DictStore("s.b2z", mode="w") as store:
        store["/a"], store["/a/b"] = np.arange(2), np.arange(3)
    convert("s.b2z", "array.npy", member="a")
    convert("s.b2z::/a", "same.npy")
    convert("s.b2z", "group.npz", member="a/")
    convert("s.b2z", "inner.npy", member="/a/b")
    assert [len(np.load(f"{name}.npy")) for name in ("array", "same", "inner")] == [2, 2, 3]
    with np.load("group.npz") as group:
        assert set(group) == {"b"}


def test_names_with_the_prefix_of_netcdf() -> None:
    """Both `x` and its namesake are data, and so is what only calls itself a bare dim."""
    with h5py.File("src.h5", "w") as file:
        file["_nc4_non_coord_x"], file["x"] = np.arange(4.0), np.arange(4.0) + 100
        file["_nc4_non_coord_y"] = np.arange(3.0)
        file["z"] = np.arange(2.0)
        file["z"].attrs["NAME"] = np.bytes_(b"This is a netCDF dimension but not a netCDF variable")
    convert("src.h5", "new.npz", check=True)
    with np.load("new.npz") as found:
        lengths = {name: each.size for name, each in found.items()}
        assert lengths == {"_nc4_non_coord_x": 4, "x": 4, "y": 3, "z": 2}
        np.testing.assert_array_equal(found["x"], np.arange(4.0) + 100)


def test_what_is_not_committed_is_not_converted() -> None:
    rain = xr.DataArray(np.arange(12.0).reshape(4, 3), dims=("time", "lat"), name="rain")
    rain.to_dataset().b2nd.to_b2nd("src.b2d")
    # an append that ended before `dataset.json` was replaced
    to_b2nd(np.ones((2, 3)), "src.b2d/rain.b2nd", mode="r+", append_axis=0)
    convert("src.b2d", "out.zarr")
    assert (zarr.open("out.zarr/rain")[:] == rain.values).all()


def test_text_and_numbers_of_xarray_blosc2() -> None:
    xarray_blosc2 = pytest.importorskip("xarray_blosc2", reason="of the extra test")
    coords = {"station": ["Aa", "Bergen"], "height": 2.0}
    ds = xr.Dataset({"rain": ("station", [1.0, 2.0])}, coords=coords)
    xarray_blosc2.save_dataset(ds, "src")
    convert("src", "out.nc", source_format="b2d")
    with xr.open_dataset("out.nc") as found:
        assert found.station.values.tolist() == ["Aa", "Bergen"]
        assert found.rain.values.tolist() == [1.0, 2.0]
        assert found.height.values == 2.0


def test_our_datasets_open_elsewhere() -> None:
    other = pytest.importorskip("xarray_blosc2", reason="of the extra test")
    source = write_as("zarr3", dataset()[["count"]])
    convert(source, "new.b2d")
    np.testing.assert_array_equal(other.open("new.b2d")["count"], np.arange(6))


def test_a_coordinate_of_another_length_is_a_named_loss() -> None:
    with h5py.File("src.h5", "w") as file:
        file["y"], file["near"], file["far"] = np.arange(3.0), np.arange(3), np.arange(2)
        file["y"].attrs["coordinates"] = "near far"
    with pytest.warns(UserWarning, match=r"y\.b2nd cannot hold: the coordinates far$"):
        convert("src.h5", "y.b2nd", check=True)
    # two lengths of dim_0 would not open
    found = opened("y.b2nd")
    assert (set(found.coords), found["y"].dims) == ({"near"}, ("dim_0",))
