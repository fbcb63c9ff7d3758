"""Directories with the parts of one dataset, as xarray-blosc2 writes them."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import xarray as xr

from b2nd_dask.edges.datasets.places import Folder, Place, manifest_of, place_of
from b2nd_dask.storage import Location, printable

#: The options of xarray-blosc2; explicit, since xarray will change its defaults.
_HOW: dict[str, Any] = {
    "combine_attrs": "drop_conflicts",
    "data_vars": "all",
    "coords": "different",
    "compat": "no_conflicts",
    "join": "outer",
}


#: Most cells of the dims that attributes become, for each dataset: all but one are missing.
_MOST_CELLS = 100


def parts_of(place: Place) -> list[Place]:
    """The directories, or archives of one file, in a directory that has no frames itself."""
    if not isinstance(place, Folder) or place.arrays():
        return []
    groups: list[Place] = [place.inside(name) for name in place.groups()]
    if groups or place.location.is_url:
        return groups
    archives = sorted(Path(place.location.url).glob("*.b2z"))
    found = (place_of(Location.of(path)) for path in archives)
    return [each for each in found if each is not None]


def combined(
    place: Place, parts: Sequence[Place], open_one: Callable[[Place], xr.Dataset]
) -> xr.Dataset:
    """Open the parts of a place and combine them by their coordinates.

    The attributes in ``group_by`` of the parent's manifest become dims; without ``group_by``, the
    attributes that differ between the parts.
    """
    attrs = [dict(manifest_of(part).attrs) for part in parts]
    keys = set(manifest_of(place).group_by) or _differing(attrs)
    cells = math.prod(len({str(own.get(key)) for own in attrs}) for key in keys)
    if cells > _MOST_CELLS * len(parts):
        raise ValueError(
            f"{place.label}: its {len(parts)} datasets differ in {len(keys)} attributes, which "
            f"would become dims with {cells} cells; group= opens one, xarray.open_datatree all"
        )
    datasets = []
    for part, own in zip(parts, attrs, strict=True):
        ds = _chunked(open_one(part))
        expand = {key: [own[key]] for key in sorted(keys) if key in own and key not in ds.dims}
        for key in expand:
            ds.attrs.pop(key, None)
        datasets.append(ds.expand_dims(expand) if expand else ds)
    if len(datasets) == 1:
        return datasets[0]
    try:
        return xr.combine_by_coords(datasets, **_HOW)  # type: ignore[return-value]
    except ValueError as error:
        some = ", ".join(printable(part.label) for part in parts[:3])
        raise ValueError(
            f"{place.label}: its {len(parts)} datasets ({some}, ...) cannot be combined into one: "
            f"{error}; group= opens one of them, xarray.open_datatree all"
        ) from error


def _chunked(ds: xr.Dataset) -> xr.Dataset:
    """The dataset with dask arrays: xarray concatenates only these lazily."""
    arrays = {
        name: array.chunk(array.encoding.get("preferred_chunks", {}))
        for name, array in ds.data_vars.items()
    }
    # default indexes, as xarray makes them for an engine's dataset
    indexed = {name: array.variable for name, array in ds.coords.items() if array.dims == (name,)}
    return ds.assign(arrays).assign_coords(xr.Coordinates(indexed))


def _differing(attrs: list[dict[str, Any]]) -> set[str]:
    """Attributes of the first dataset that have other values in other datasets."""
    texts = {key: {str(own[key]) for own in attrs if key in own} for key in attrs[0]}
    return {key for key, values in texts.items() if len(values) > 1}
