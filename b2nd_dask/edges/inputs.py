"""Objects of xarray, zarr and h5py as input of `to_b2nd`, without importing these packages.

The accessor ``.b2nd`` of xarray's objects is registered here, too.
"""

from __future__ import annotations

import sys
from typing import Any

from b2nd_dask.graph.write.to_b2nd import Writer
from b2nd_dask.graph.write.to_b2nd import register as register_input

_KINDS = ("DataArray", "Dataset", "DataTree")


def install() -> None:
    """Let `to_b2nd` take objects of other libraries, and give those of xarray ``.b2nd``."""
    register_input("xarray", _of_xarray)
    register_input("zarr", _of_zarr)
    register_input("h5py", _of_h5py)
    # dask.array, without which nothing here works, has imported xarray where it is installed
    if sys.modules.get("xarray") is not None:
        from b2nd_dask.edges.xarray.accessor import register

        register()


def _of_xarray(given: Any) -> Writer | None:
    if type(given).__name__ not in _KINDS:
        return None

    def write(urlpath: Any, **options: Any) -> Any:
        from b2nd_dask.edges.xarray.adapter import write_labelled

        return write_labelled(given, urlpath, options)

    return write


def _of_zarr(given: Any) -> Writer | None:
    from b2nd_dask.edges.convert.inputs import of_zarr

    return of_zarr(given)


def _of_h5py(given: Any) -> Writer | None:
    from b2nd_dask.edges.convert.inputs import of_h5py

    return of_h5py(given)
