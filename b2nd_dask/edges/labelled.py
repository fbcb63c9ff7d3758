"""xarray's objects as input of `to_b2nd`, and the accessor ``.b2nd``, without importing xarray."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

from b2nd_dask.graph.write.foreign import OwnWriter
from b2nd_dask.graph.write.foreign import register as register_input

_KINDS = ("DataArray", "Dataset", "DataTree")


def install() -> None:
    """Let `to_b2nd` take objects of xarray, and give them the accessor ``.b2nd``."""
    register_input("xarray", _of_xarray)
    # dask.array, without which nothing here works, has imported xarray where it is installed
    if sys.modules.get("xarray") is not None:
        from b2nd_dask.edges.xarray.accessor import register

        register()


def _of_xarray(given: Any) -> OwnWriter | None:
    if type(given).__name__ not in _KINDS:
        return None

    def write(urlpath: Any, options: Mapping[str, Any]) -> Any:
        from b2nd_dask.edges.xarray.adapter import write_labelled

        return write_labelled(given, urlpath, options)

    return OwnWriter(write)
