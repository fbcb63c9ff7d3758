"""What xarray computes of frames is what it computes of zarr."""

import cftime
import numpy as np
import pytest
import xarray as xr

from tests.edges.xarray.labelled import write_frame


def opened(pair, chunks):
    """The dataset of frames, and that of zarr in memory."""
    frames, zarr = pair
    ours = xr.open_dataset(frames, engine="b2nd", chunks=chunks)
    with xr.open_dataset(zarr, engine="zarr", consolidated=False) as theirs:
        return ours, theirs.load()


POINTS = {
    "lat": xr.DataArray([-70.0, 10.0, 33.0], dims="p"),
    "lon": xr.DataArray([5.0, 100.0, 300.0], dims="p"),
}
OPERATIONS = {
    "itself": lambda ds: ds,
    "groupby": lambda ds: ds.groupby("time.month").mean(),
    "anomaly": lambda ds: ds.t.groupby("time.dayofyear") - ds.t.groupby("time.dayofyear").mean(),
    "groupby text": lambda ds: ds.t.groupby(ds.zone.compute()).max(),
    "resample": lambda ds: ds.resample(time="7D").sum(),
    "rolling": lambda ds: ds.t.rolling(time=5, center=True).mean(),
    "interp": lambda ds: ds.interp(lat=[-20.0, 3.0], lon=[10.0, 200.0]),
    "interp at points": lambda ds: ds.t.interp(POINTS),
    "weighted": lambda ds: ds.t.weighted(ds.area).mean(("lat", "lon")),
    "coarsen": lambda ds: ds.drop_vars("zone").coarsen(time=4, lat=2, boundary="trim").max(),
    "sel": lambda ds: ds.sel(time=slice("2001-01-20", "2001-02-02")).sel(lat=20, method="nearest"),
    "sel points": lambda ds: ds.sel(POINTS, method="nearest"),
    "isel": lambda ds: ds.isel(time=[5, 3, -1, 3], lon=slice(None, None, -2)),
    "where": lambda ds: ds.where(ds.t > 285),
    "where dropped": lambda ds: ds.where(ds.lat > 0, drop=True),
    "reduced": lambda ds: ds.std(),
    "counts": lambda ds: ds.rain.count("time"),
    "stacked": lambda ds: ds.t.stack(cell=("lat", "lon")).isel(cell=[3, 17]).reset_index("cell"),
    "cumulated": lambda ds: ds.rain.fillna(0).cumsum("time"),
}


@pytest.mark.parametrize("chunks", [None, {}], ids=["lazy", "dask"])
@pytest.mark.parametrize("name", OPERATIONS)
def test_operations(pair, name, chunks):
    # these compile for seconds
    with xr.set_options(use_numbagg=False, use_flox=False):
        ours, theirs = (OPERATIONS[name](ds).compute() for ds in opened(pair, chunks))
    # blocks are added in another order
    xr.testing.assert_allclose(ours, theirs, rtol=1e-5)


@pytest.mark.parametrize("chunks", [None, {}, {"time": 20}, "auto", -1], ids=str)
def test_identical_with_attributes_and_coordinates(pair, chunks):
    ours, theirs = opened(pair, chunks)
    xr.testing.assert_identical(ours.compute(), theirs)
    assert ours.rain.encoding["_FillValue"] == -32768
    assert ours.rain.encoding["scale_factor"] == 0.01
    assert ours.time.encoding["units"] == theirs.time.encoding["units"]
    assert set(ours.coords) == {"time", "lat", "lon", "zone", "height"}


DECODERS = [
    {},
    {"decode_cf": False},
    {"mask_and_scale": False},
    {"decode_times": False},
    {"mask_and_scale": {"rain": False}},
    {"drop_variables": ["t", "zone"]},
    {"decode_times": xr.coders.CFDatetimeCoder(use_cftime=True)},
    {"decode_times": xr.coders.CFDatetimeCoder(time_unit="s")},
]


@pytest.mark.parametrize("chunks", [None, {}])
@pytest.mark.parametrize("decoders", DECODERS, ids=range(len(DECODERS)))
def test_decoders(pair, decoders, chunks):
    frames, zarr = pair
    ours = xr.open_dataset(frames, engine="b2nd", chunks=chunks, **decoders)
    theirs = xr.open_dataset(zarr, engine="zarr", consolidated=False, **decoders)
    for variable in theirs.variables.values():
        # frames say themselves that they are coordinates
        variable.attrs.pop("coordinates", None)
    theirs.attrs.pop("coordinates", None)
    theirs = theirs.set_coords(set(ours.coords) & set(theirs.variables))
    xr.testing.assert_identical(ours.compute(), theirs.compute())


PACKINGS = {
    "i2 and f4": ("i2", {"scale_factor": np.float32(0.5), "add_offset": np.float32(3)}),
    "i4": ("i4", {"scale_factor": 0.25}),
    "big-endian": (">i2", {"scale_factor": 0.1, "_FillValue": -1}),
    "unsigned": ("i1", {"_Unsigned": "true", "_FillValue": -1}),
    "missing value": ("i2", {"missing_value": -9}),
    "float with fill": ("f4", {"_FillValue": np.float32(-999)}),
    "u1 offset": ("u1", {"add_offset": 100.0, "_FillValue": 255}),
    "NaN": ("f8", {"_FillValue": np.nan}),
    "bool": ("i1", {"dtype": "bool"}),
    "durations": ("i8", {"units": "days", "dtype": "timedelta64[ns]"}),
    "2-d times": ("i4", {"units": "days since 2000-01-01", "_FillValue": -1}),
    "cftime": ("f8", {"units": "days since 2000-01-01", "calendar": "360_day"}),
}


@pytest.mark.parametrize("chunks", [None, {}])
@pytest.mark.parametrize("packing", PACKINGS)
def test_packed_values(tmp_path, packing, chunks):
    dtype, attrs = PACKINGS[packing]
    raw = np.arange(-2, 10).reshape(3, 4).astype(dtype)
    raw[raw == 9] = -9 if np.dtype(dtype).kind == "i" else 9
    ds = xr.Dataset({"x": (("a", "b"), raw, attrs)})
    ds.x.encoding = {}
    path = write_frame(tmp_path / "x.b2nd", raw, ("a", "b"), "x", attrs=attrs, chunks=(2, 3))
    ours = xr.open_dataset(path, engine="b2nd", chunks=chunks)
    theirs = xr.decode_cf(ds)
    xr.testing.assert_identical(ours.compute(), theirs.compute())
    if packing == "cftime":
        assert isinstance(ours.x.values[0, 0], cftime.datetime)
    # a part, and what is reduced
    xr.testing.assert_identical(ours.isel(a=1).compute(), theirs.isel(a=1).compute())
    if theirs.x.dtype.kind in "iuf":
        xr.testing.assert_allclose(ours.max().compute(), theirs.max())
