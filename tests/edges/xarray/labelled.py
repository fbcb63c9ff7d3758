"""Labelled frames as other programs write them: by python-blosc2, with the entries of vlmeta."""

import json

import blosc2
import msgpack
import numpy as np
import xarray as xr


def write_frame(path, array, dims=None, name=None, *, attrs=None, coord=False, **kwargs):
    """Write a frame; `kwargs` are for `blosc2.asarray`, `vlmeta` among them for other entries."""
    entries = kwargs.pop("vlmeta", {})
    array = np.asarray(array)
    if array.ndim:
        kwargs.setdefault("chunks", tuple(max(1, n) for n in array.shape))
    frame = blosc2.asarray(array, urlpath=str(path), mode="w", **kwargs)
    for entry, value in labels(dims, name, attrs=attrs, coord=coord).items():
        frame.vlmeta[entry] = value
    for entry, value in entries.items():
        frame.vlmeta[entry] = value
    return path


def labels(dims=None, name=None, *, attrs=None, coord=False):
    """Entries of vlmeta."""
    entries = {}
    if dims is not None:
        entries["dims"] = list(dims)
    if name is not None and not coord:
        entries["var"] = name
    if coord:
        entries |= {"is_coord": True, "coord_name": name}
    if attrs:
        entries["attrs"] = json.dumps(attrs, default=_plain)
        typed = {k: packed(v) for k, v in attrs.items() if isinstance(v, np.generic | np.ndarray)}
        if typed:
            entries["b2nd.attrs"] = typed
    return entries


def packed(value):
    """An array as python-blosc2 packs it since version 4.14."""
    array = np.asarray(value)
    fields = {"dtype": {"str": array.dtype.str}, "shape": array.shape, "data": array.tobytes()}
    return msgpack.ExtType(46, msgpack.packb(fields))


def _plain(value):
    return value.tolist()


def write_dataset(ds, folder, chunks=None, **kwargs):
    """Write a dataset, CF-encoded as xarray does it, and `dataset.json`."""
    folder.mkdir(parents=True)
    chunks = chunks or {}
    variables, attrs = xr.conventions.cf_encoder(dict(ds.variables), dict(ds.attrs))
    variable_attrs = {}
    for name, variable in variables.items():
        coord = name in ds.coords
        prefix = "_coord_" if coord else ""
        own = {key: value for key, value in variable.attrs.items() if key != "coordinates"}
        shape = tuple(min(chunks.get(d, n), n) or 1 for d, n in variable.sizes.items())
        write_frame(
            folder / f"{prefix}{name}.b2nd",
            np.asarray(variable.values),
            variable.dims,
            name,
            attrs=own,
            coord=coord,
            **({"chunks": shape} if shape else {}),
            **kwargs,
        )
        variable_attrs[name] = json.loads(json.dumps(own, default=_plain))
    manifest = {
        "data_vars": list(ds.data_vars),
        "coords": list(ds.coords),
        "dims": {str(dim): n for dim, n in ds.sizes.items()},
        "attrs": {key: value for key, value in attrs.items() if key != "coordinates"},
        "variable_attrs": variable_attrs,
    }
    (folder / "dataset.json").write_text(json.dumps(manifest))
    return folder


def weather(days=60):
    """A small dataset of what datasets have: times, text, packed numbers, missing values."""
    rng = np.random.default_rng(3)
    lat, lon = np.linspace(-75, 75, 6), np.arange(0, 360, 45.0)
    t = 280 + 10 * rng.standard_normal((days, 6, 8)).astype("f4")
    rain = np.round(np.abs(rng.standard_normal((days, 6, 8))), 2)
    rain[rng.random(rain.shape) < 0.2] = np.nan
    ds = xr.Dataset(
        {
            "t": (("time", "lat", "lon"), t, {"units": "K", "long_name": "temperature"}),
            "rain": (("time", "lat", "lon"), rain, {"units": "mm"}),
            "area": ("lat", np.cos(np.deg2rad(lat)), {}),
        },
        {
            "time": np.arange(days).astype("m8[D]") + np.datetime64("2001-01-01", "ns"),
            "lat": ("lat", lat, {"units": "degrees_north"}),
            "lon": lon,
            "zone": ("lat", ["south"] * 3 + ["north"] * 3),
            "height": 2.0,
        },
        {"title": "weather", "Conventions": "CF-1.8"},
    )
    ds.rain.encoding = {
        "dtype": "i2",
        "scale_factor": 0.01,
        "add_offset": 100.0,
        "_FillValue": np.int16(-32768),
    }
    return ds
