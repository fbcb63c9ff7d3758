"""Datasets as sources of conversions, and what xarray reads of the results."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

xr = pytest.importorskip("xarray", reason="of the extra convert")

RNG = np.random.default_rng(5)


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def dataset() -> Any:
    coords = {
        "time": pd.date_range("2020-02-27", periods=6, freq="7h"),
        "lat": ("lat", [-10.0, 0.5, 45.0], {"units": "degrees_north"}),
    }
    rain = RNG.random((6, 3)).astype("f4").round(1)
    rain[2, 1] = np.nan
    ds = xr.Dataset(
        {
            "rain": (("time", "lat"), rain, {"units": "mm", "levels": [1, 2, 3]}),
            "count": ("time", np.arange(6, dtype="i2"), {"valid_max": np.int16(7)}),
            "nodim": ((), 3.5),
        },
        coords=coords,
        attrs={"title": "naïve", "version": 3},
    )
    ds["rain"].encoding = {"scale_factor": 0.1, "dtype": "i2", "_FillValue": -9}
    return ds


def write_as(kind: str, ds: Any) -> str:
    if kind == "zarr2":
        ds.to_zarr("src.zarr", zarr_format=2, consolidated=False)
        return "src.zarr"
    if kind == "zarr3":
        ds.to_zarr("src.zarr", zarr_format=3, consolidated=False)
        return "src.zarr"
    ds.to_netcdf("src.nc", engine=kind)
    return "src.nc"


def opened(path: str) -> Any:
    engine = {"nc": "netcdf4", "rr": "zarr"}.get(path[-2:], "b2nd")
    if path.endswith(".zarr"):
        return xr.open_zarr(path, consolidated=False).load()
    return xr.open_dataset(path, engine=engine).load()
