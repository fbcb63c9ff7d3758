"""Changes of a dataset that is there: appends along a dim, and regions, by names.

Each frame changes all or nothing. What is appended counts when `dataset.json`, which is replaced
last, says that its dim is longer: until then readers leave it out, and the next append writes over
it. Changes take turns by a lock on the directory.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import dask.array as da
import xarray as xr

from b2nd_dask.edges.datasets.staged import changing
from b2nd_dask.edges.xarray.existing import growing, member_like, require_equal, slices_of
from b2nd_dask.edges.xarray.places import Folder, manifest_of
from b2nd_dask.format.labels.manifest import MANIFEST
from b2nd_dask.format.labels.pack import with_sizes
from b2nd_dask.frame.access import open_b2nd
from b2nd_dask.graph.write.to_b2nd import to_b2nd
from b2nd_dask.graph.write.write_array import Write, write_together
from b2nd_dask.storage import Location, sync, write_file


def append_dataset(ds: xr.Dataset, path: Path, dim: str) -> None:
    """Append along a dim of a dataset in a directory.

    Raises
    ------
    ValueError
        Variables that are missing or new, dims and coordinates that differ.
    StaleFrameError
        Another process changes the dataset.
    """
    _require_folder(path)
    with changing(path):
        present = xr.open_dataset(path, engine="b2nd")
        names = growing(ds, present, dim)
        start, count = present.sizes[dim], ds.sizes[dim]
        writes: list[Write] = []
        for name in names:
            old = present.variables[name]
            member = member_like(name, ds.variables[name], old)
            target = str(old.encoding["source"])
            writes += _placed(member.array, target, old.dims.index(dim), start)
        write_together(writes)
        _commit_size(path, dim, start + count)


def _placed(array: da.Array, target: str, axis: int, start: int) -> list[Write]:
    """Writes of elements behind what is committed: over what is there, and behind the end."""
    count = array.shape[axis]
    # longer than what is committed, along any dim, where an append was interrupted
    shape = open_b2nd(target).shape
    there = min(shape[axis] - start, count)
    if there:
        head = array[_along(axis, array.shape, slice(0, there))]
        region = _along(axis, array.shape, slice(start, start + there))
        # by itself: of two changes of a frame at a time one would find it changed
        to_b2nd(head, target, mode="r+", region=region)
    if there == count:
        return []
    tail = array[_along(axis, array.shape, slice(there, None))]
    wanted = (tail.shape[axis] if at == axis else n for at, n in enumerate(shape))
    return [(_widened(tail, wanted), target, {"mode": "r+", "append_axis": axis})]


def _along(axis: int, shape: tuple[int, ...], part: slice) -> tuple[slice, ...]:
    return tuple(part if at == axis else slice(0, n) for at, n in enumerate(shape))


def _widened(array: da.Array, shape: Iterable[int]) -> da.Array:
    """Add zeros behind the ends of dims: elements that are not committed."""
    for axis, n in enumerate(shape):
        missing = n - array.shape[axis]
        if missing:
            rest = (missing if at == axis else m for at, m in enumerate(array.shape))
            array = da.concatenate([array, da.zeros(tuple(rest), array.dtype)], axis)
    return array


def write_region(ds: xr.Dataset, path: Path, region: Any) -> None:
    """Write into a region of a dataset in a directory.

    Raises
    ------
    ValueError
        A region that is not there, variables without its dims, coordinates that differ.
    StaleFrameError
        Another process changes the dataset.
    """
    _require_folder(path)
    with changing(path):
        present = xr.open_dataset(path, engine="b2nd")
        slices = slices_of(region, ds, present)
        unknown = [name for name in ds.variables if name not in present.variables]
        if unknown:
            raise ValueError(f"{unknown[0]!r} is not in the dataset that is there")
        at = present.isel(slices)
        require_equal(ds.coords, ds, at, "at that region")
        writes: list[Write] = []
        for name, variable in ds.data_vars.variables.items():
            if not set(variable.dims) & set(slices):
                raise ValueError(
                    f"{name!r} has none of the dims of the region: leave it out by "
                    f".drop_vars({name!r})"
                )
            old = present.variables[name]
            member = member_like(name, variable, old)
            place = tuple(slices.get(d, slice(0, n)) for d, n in variable.sizes.items())
            target = str(old.encoding["source"])
            writes.append((member.array, target, {"mode": "r+", "region": place}))
        write_together(writes)


def _require_folder(path: Path) -> None:
    if not path.exists():
        raise FileNotFoundError(f"{path}: there is no dataset to change")
    if not (path / MANIFEST).is_file():
        what = "a .b2z is read only: write it anew" if path.is_file() else f"it has no {MANIFEST}"
        raise ValueError(f"{path}: only a directory that holds a dataset is changed; {what}")
    if not manifest_of(Folder(Location(str(path)))).commits:
        raise ValueError(
            f"{path}: another program wrote this dataset or appended to it, and has rules of its "
            "own for what counts as written: append by that program, or write the dataset anew, "
            "as by xr.open_dataset(..., chunks={}).b2nd.to_b2nd(...)"
        )


def _commit_size(path: Path, dim: str, size: int) -> None:
    """Replace the manifest: from now on what was appended counts."""
    manifest = path / MANIFEST
    new = manifest.with_name(f".{MANIFEST}.new")
    write_file(new, with_sizes(manifest.read_bytes(), {dim: size}))
    new.replace(manifest)
    sync(path)
