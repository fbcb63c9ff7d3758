"""The accessor ``.b2nd`` of DataArrays and Datasets."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import xarray as xr

from b2nd_dask.lazy import lazy

if TYPE_CHECKING:
    from b2nd_dask.graph.plan.plan import Plan

_plan = lazy("b2nd_dask.graph.plan.plan", "plan")
_to_b2nd = lazy("b2nd_dask.graph.write.to_b2nd", "to_b2nd")


class B2ndAccessor:
    """Frames of an object of xarray: write to them, list them, plan reads, as ``ds.b2nd``.

    Examples
    --------
    >>> import tempfile, numpy as np, b2nd_dask
    >>> path = tempfile.mkdtemp() + "/field.b2d"
    >>> ds = xr.Dataset({"t": (("time", "x"), np.ones((4, 3)))}, attrs={"title": "ones"})
    >>> float(ds.b2nd.to_b2nd(path).t.sum())
    12.0
    >>> ds.b2nd.to_b2nd(path, mode="a", append_dim="time").sizes["time"]
    8
    """

    def __init__(self, labelled: Any) -> None:
        self._labelled = labelled

    def to_b2nd(self, urlpath: Any, **options: Any) -> Any:
        """Write to a frame (DataArray), or to a directory or archive of frames.

        Parameters
        ----------
        urlpath : str or os.PathLike
            ``NAME.b2nd`` for a DataArray, ``NAME.b2d`` or ``NAME.b2z`` for a Dataset or DataTree.
        **options
            As for `b2nd_dask.to_b2nd`.

        Returns
        -------
        DataArray, Dataset, DataTree or Delayed
            The written data, opened with dask arrays.
        """
        return _to_b2nd(self._labelled, urlpath, **options)

    @property
    def paths(self) -> dict[str, str]:
        """Paths or URLs of the frames of variables, by the names of the variables."""
        labelled, is_array = self._labelled, isinstance(self._labelled, xr.DataArray)
        variables = {labelled.name: labelled.variable} if is_array else labelled.variables
        found = {str(name): each.encoding.get("source") for name, each in variables.items()}
        return {name: path for name, path in found.items() if path is not None}

    def plan(self) -> Plan | dict[str, Plan]:
        """Plan the reads of a computation, for each dask array: see `b2nd_dask.plan`."""
        if isinstance(self._labelled, xr.DataArray):
            found: Plan = _plan(self._labelled.data)
            return found
        return {
            str(name): _plan(each.data)
            for name, each in self._labelled.variables.items()
            if each.chunks is not None
        }


def register() -> None:
    """Register the accessor with xarray."""
    makers: dict[type, Any] = {
        xr.DataArray: xr.register_dataarray_accessor,
        xr.Dataset: xr.register_dataset_accessor,
        xr.DataTree: xr.register_datatree_accessor,
    }
    for kind, maker in makers.items():
        # xarray warns if the name is taken, even when a package is imported again
        if not hasattr(kind, "b2nd"):
            maker("b2nd")(B2ndAccessor)
