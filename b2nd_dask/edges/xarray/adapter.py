"""What `to_b2nd` does with objects of xarray."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import xarray as xr

from b2nd_dask.edges.xarray.append import append_dataset, write_region, write_variables
from b2nd_dask.edges.xarray.arrays import (
    append_array,
    opened_array,
    write_new_array,
    write_region_of_array,
)
from b2nd_dask.edges.xarray.write import NEW_OPTIONS, local_path, write_new
from b2nd_dask.frame.access import open_b2nd
from b2nd_dask.graph.write.to_b2nd import Writer, write_array

_MODES = ("w-", "w", "a", "r+")


def of_xarray(given: Any) -> Writer | None:
    """A DataArray, Dataset or DataTree; None for another object of the package."""
    is_labelled = isinstance(given, xr.DataArray | xr.Dataset | xr.DataTree)
    return partial(_write_labelled, given) if is_labelled else None


def _write_labelled(given: Any, urlpath: Any, **options: Any) -> Any:
    """Write it by the options of `to_b2nd`; returns what was written, opened, or a Delayed."""
    if isinstance(given, xr.DataArray):
        return _write_array(given, urlpath, options)
    path = local_path(urlpath)
    mode, append_dim, region = _place(given, options)
    if mode in ("w-", "w"):
        write_new(given, path, options, overwrite=mode == "w")
    elif region is not None:
        write_region(given, path, region)
    elif mode == "a" and not path.exists():
        write_new(given, path, options, overwrite=False)
    elif append_dim is None:
        write_variables(given, path, options)
    else:
        append_dataset(given, path, append_dim)
    if isinstance(given, xr.DataTree):
        return xr.open_datatree(path, engine="b2nd", chunks={})
    return xr.open_dataset(path, engine="b2nd", chunks={})


def _place(given: Any, options: Mapping[str, Any]) -> tuple[str, Any, Any]:
    """Mode, dim and region, which do not contradict each other."""
    mode = options.get("mode", "w-")
    append_dim, region = options.get("append_dim"), options.get("region")
    kind = type(given).__name__
    allowed = (*NEW_OPTIONS, "encoding") if mode in ("w-", "w", "a") else ()
    unknown = [name for name in options if name not in (*allowed, "mode", "append_dim", "region")]
    if mode not in _MODES:
        raise ValueError(f"mode={mode!r}: a {kind} has {', '.join(map(repr, _MODES))}")
    if unknown:
        names = ", ".join(f"{name}=" for name in unknown)
        raise ValueError(
            f"{names}: not for a {kind}, which is written at once, with mode={mode!r}; its arrays "
            f"take it one by one, as .b2nd.to_b2nd of each"
        )
    if isinstance(given, xr.DataTree) and mode not in ("w-", "w"):
        raise ValueError("a DataTree is written anew; change its groups one by one")
    if mode in ("w-", "w") and (append_dim is not None or region is not None):
        raise ValueError(
            f'mode={mode!r} makes a new dataset; append_dim= goes with mode="a", region= with "r+"'
        )
    if mode == "a" and region is not None:
        raise ValueError('mode="a" adds variables or appends; region= goes with "r+"')
    if mode == "r+" and (append_dim is None) == (region is None):
        raise ValueError('mode="r+" changes a dataset: say where, by region= or append_dim=')
    return mode, append_dim, region


def _write_array(given: xr.DataArray, urlpath: Any, options: dict[str, Any]) -> Any:
    """Write one array with its labels in the frame."""
    if str(urlpath).endswith((".b2d", ".b2z")):
        raise ValueError(
            f"{urlpath}: that is the name of a dataset, and this is one array: write it to a "
            "NAME.b2nd, or as a dataset, by .to_dataset(name=...)"
        )
    dim, region, mode = options.get("append_dim"), options.get("region"), options.get("mode")
    axis = options.get("append_axis")
    storage = options.get("storage_options")
    if dim is None and axis is not None:
        dim = given.dims[axis]
    by_name = region == "auto" or isinstance(region, Mapping)
    if mode == "r+" and by_name:
        written = write_region_of_array(given, urlpath, region, options)
    elif region is not None:
        # a place by numbers: the elements alone
        written = write_array(given, urlpath, **options)
    elif dim is not None and (mode == "r+" or (mode == "a" and _exists(urlpath, storage))):
        written = append_array(given, urlpath, dim, options)
    else:
        if dim is not None and mode != "a":
            raise ValueError('append_dim= goes with mode="a" or "r+"')
        new = {key: value for key, value in options.items() if not key.startswith("append_")}
        written = write_new_array(given, urlpath, new | ({"mode": "w-"} if mode == "a" else {}))
    if not options.get("compute", True) or mode == "stage":
        return written
    return opened_array(urlpath, given, storage)


def _exists(urlpath: Any, storage_options: Any) -> bool:
    try:
        open_b2nd(urlpath, storage_options=storage_options)
    except FileNotFoundError:
        return False
    return True
