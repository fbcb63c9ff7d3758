"""Climatologies by xarray, of arrays whose first axis is days since a first of January.

xarray groups without flox, which does not support `dask_array`.
"""

from __future__ import annotations

from typing import Any


def monthly_means(days: Any) -> Any:
    """The mean of each month of the year, as an array of the same library."""
    return _by_month(days, lambda groups: groups.mean())


def anomaly_spread(days: Any) -> Any:
    """The standard deviation of the differences to the means of the months."""
    return _by_month(days, lambda groups: (groups - groups.mean()).std())


def _by_month(days: Any, work: Any) -> Any:
    import pandas as pd
    import xarray as xr

    times = pd.date_range("2001-01-01", periods=days.shape[0])
    labelled = xr.DataArray(days, {"time": times}, ("time", "latitude", "longitude"))
    with xr.set_options(use_flox=False):
        return work(labelled.groupby("time.month")).data
