"""Writes of xarray objects by `to_b2nd`."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import xarray as xr

from b2nd_dask.edges.datasets.places import DEEPEST
from b2nd_dask.edges.datasets.staged import check_layout, local_target, staged, write_dataset
from b2nd_dask.edges.datasets.tree import Member, Tree, embedded, entries_of
from b2nd_dask.edges.xarray.append import (
    append_dataset,
    growing,
    locked,
    region_writes,
    write_variables,
)
from b2nd_dask.edges.xarray.encoding import (
    STORAGE,
    check_append,
    check_dims,
    check_encoding,
    member_like,
    tree_of,
)
from b2nd_dask.edges.xarray.variables import NAMELESS
from b2nd_dask.errors import StaleFrameError
from b2nd_dask.format.labels import COORDS
from b2nd_dask.frame.access import open_b2nd
from b2nd_dask.frame.reference import FrameReference
from b2nd_dask.graph.write.to_b2nd import Writer, write_array, write_together
from b2nd_dask.storage import Location

#: Options of new datasets.
_NEW_OPTIONS = ("chunks", "blocks", "cparams", "max_mem", "fsync", "stats")
_MODES = ("w-", "w", "a", "r+")


def of_xarray(given: Any) -> Writer | None:
    """The writer of a DataArray, Dataset or DataTree; None for other objects of xarray."""
    is_labelled = isinstance(given, xr.DataArray | xr.Dataset | xr.DataTree)
    return partial(_write_labelled, given) if is_labelled else None


def _write_labelled(given: Any, urlpath: Any, **options: Any) -> Any:
    """Write with the options of `to_b2nd`; return the written data, opened, or a Delayed."""
    if isinstance(given, xr.DataArray):
        return _write_array(given, urlpath, options)
    path = _local_path(urlpath)
    mode, append_dim, region = _place(given, options)
    if mode in ("w-", "w") or (mode == "a" and not path.exists()):
        _write_new(given, path, options, overwrite=mode == "w")
    elif region is not None:
        with locked(path) as (present, _):
            write_together(region_writes(given, present, region))
    elif append_dim is None:
        write_variables(given, path, options)
    else:
        append_dataset(given, path, append_dim, options)
    opened = xr.open_datatree if isinstance(given, xr.DataTree) else xr.open_dataset
    return opened(path, engine="b2nd", chunks={})


def _local_path(urlpath: Any) -> Path:
    """Local path of a dataset; raise ValueError for a URL or the name of a single frame."""
    path = local_target(urlpath)
    if path.suffix in (".b2nd", ".b2e"):
        raise ValueError(
            f"{urlpath}: a {path.suffix} file is one array; write a dataset to a directory "
            f"({path.with_suffix('.b2d').name}) or one file ({path.with_suffix('.b2z').name}), or "
            "one of its arrays by ds['NAME'].b2nd.to_b2nd"
        )
    return path


def _write_new(
    source: xr.Dataset | xr.DataTree, path: Path, options: Mapping[str, Any], *, overwrite: bool
) -> None:
    """Write a directory (``.b2d``) or an archive (``.b2z``) of frames, all or nothing.

    `options` are those in `_NEW_OPTIONS`, and ``encoding``.
    """
    encoding = options.get("encoding") or {}
    if isinstance(source, xr.DataTree):
        known = {*source.groups, *(name for group in source.subtree for name in group.variables)}
        if unknown := sorted(map(repr, encoding.keys() - known)):
            raise ValueError(f"unexpected encoding groups or variables: {', '.join(unknown)}")
        if source.depth - source.level > DEEPEST:
            raise ValueError(
                f"{path}: groups are nested in more than {DEEPEST} others, which could not be "
                "opened again as a tree; write the inner ones to a target of their own"
            )
        check_dims({dim for group in source.subtree for dim in group.dims}, options)
        tree = _tree_of_groups(source, path.name, options, inherit=True)
    else:
        check_dims(source.dims, options)
        tree = tree_of(source, path.name, encoding, options)
    check_layout(tree)
    fsync = options.get("fsync", True)
    with staged(path, replace=overwrite, advice='mode="w"', fsync=fsync) as ready:
        write_dataset(tree, ready, write_together, packed=path.suffix == ".b2z")


def _tree_of_groups(
    source: xr.DataTree, label: str, options: Mapping[str, Any], *, inherit: bool
) -> Tree:
    """Describe a group and its subgroups; with `inherit` also its inherited coordinates."""
    ds, encoding = source.to_dataset(inherit=inherit), options.get("encoding") or {}
    named = {name: how for name, how in encoding.items() if name in ds.variables}
    tree = tree_of(ds, label, named | dict(encoding.get(source.path, {})), options)
    for name, child in source.children.items():
        tree.groups[name] = _tree_of_groups(child, f"{label}/{name}", options, inherit=False)
    return tree


def _place(given: Any, options: Mapping[str, Any]) -> tuple[str, Any, Any]:
    """Mode, append dim and region, checked for conflicts."""
    mode = options.get("mode", "w-")
    append_dim, region = options.get("append_dim"), options.get("region")
    kind = type(given).__name__
    allowed = (*_NEW_OPTIONS, "encoding") if mode in ("w-", "w", "a") else ()
    unknown = [name for name in options if name not in (*allowed, "mode", "append_dim", "region")]
    if mode not in _MODES:
        raise ValueError(f"mode={mode!r}: a {kind} takes {', '.join(map(repr, _MODES))}")
    if unknown:
        names = ", ".join(f"{name}=" for name in unknown)
        raise ValueError(
            f"{names}: not for a {kind} with mode={mode!r}, which is written at once; use "
            ".b2nd.to_b2nd of each of its arrays"
        )
    if isinstance(given, xr.DataTree) and mode not in ("w-", "w"):
        raise ValueError("a DataTree can only be written as a whole; change its groups one by one")
    if (region is not None and mode != "r+") or (append_dim is not None and mode in ("w-", "w")):
        raise ValueError(
            f'mode={mode!r}: append_dim= goes with mode="a" or "r+", region= goes with "r+"'
        )
    if append_dim is not None and append_dim not in given.dims:
        raise ValueError(f"append_dim={append_dim!r}: the given dims are {list(given.dims)}")
    if mode == "r+" and (append_dim is None) == (region is None):
        raise ValueError('mode="r+" changes a dataset: say where, by region= or append_dim=')
    return mode, append_dim, region


def _write_array(given: xr.DataArray, urlpath: Any, options: dict[str, Any]) -> Any:
    """Write one array with its labels to a frame."""
    _check_array(urlpath, options)
    dim, region, mode = options.get("append_dim"), options.get("region"), options.get("mode", "w-")
    axis, storage = options.get("append_axis"), options.get("storage_options")
    if axis is not None and axis in range(-given.ndim, given.ndim):
        dim, axis = given.dims[axis], None
    by_name = region == "auto" or isinstance(region, Mapping)
    if axis is not None or (region is not None and not (by_name and mode == "r+")):
        # a region of positions: only the elements are written; or an axis that does not exist
        written = write_array(given, urlpath, **options)
    elif dim is not None and mode not in ("a", "r+"):
        raise ValueError('append_dim= goes with mode="a" or "r+"')
    elif region is not None or (dim is not None and (mode == "r+" or _exists(urlpath, storage))):
        written = _update_array(given, urlpath, dim, region, options)
    else:
        new = {key: value for key, value in options.items() if not key.startswith("append_")}
        if dim is not None:
            # if this call is killed after it published, the next one finds it finished
            new["append_axis"] = given.get_axis_num(dim)
        elif mode == "a":
            new["mode"] = "w-"
        try:
            written = _write_new_array(given, urlpath, new)
        except (FileExistsError, ValueError) as error:
            if dim is None or not _exists(urlpath, storage):
                raise
            # not the advice to pass mode="w", nor the options that differ from that frame
            label = Location.of(urlpath).label
            problem = "another process made this frame meanwhile; try again, to append to it"
            raise StaleFrameError(problem, path=label) from error
    if not options.get("compute", True) or mode == "stage":
        return written
    return _opened_array(urlpath, given, storage)


def _check_array(urlpath: Any, options: Mapping[str, Any]) -> None:
    """Raise ValueError for the path of a dataset, or options that exclude each other."""
    if str(urlpath).endswith((".b2d", ".b2z")):
        raise ValueError(
            f"{Location.of(urlpath).label}: this is the name of a dataset, but one array is given; "
            "write it to a NAME.b2nd, or as a dataset by .to_dataset(name=...)"
        )
    if sum(options.get(name) is not None for name in ("region", "append_dim", "append_axis")) > 1:
        raise ValueError("give one of region=, append_dim= and append_axis=")
    if options.get("mode") == "r+" and options.get("encoding"):
        raise ValueError('encoding= is for new frames: omit it with mode="r+"')


def _exists(urlpath: Any, storage_options: Any) -> bool:
    try:
        open_b2nd(urlpath, storage_options=storage_options)
    except FileNotFoundError:
        return False
    return True


def _write_new_array(given: xr.DataArray, urlpath: Any, options: Mapping[str, Any]) -> Any:
    """Write a new frame of an array with its labels."""
    ds = _dataset(given)
    (name,) = ds.data_vars
    encoding = _by_names(given, ds, options)
    options = {key: each for key, each in options.items() if key not in ("encoding", *STORAGE)}
    tree = tree_of(ds, f"the array {given.name!r}", encoding, options)
    member = tree.members.pop(str(name))
    options |= member.storage
    if options.get("vlmeta") is None:
        own_name = None if given.name is None else str(given.name)
        # an array that is its own coordinate is written as a coordinate
        own = replace(member, is_coord=given.name in given.coords)
        coords = embedded(tree.members, tree.label)
        options["vlmeta"] = entries_of(own, own_name, coords=coords)
        options.setdefault("meta", {})
    return write_array(member.array, urlpath, **options)


def _by_names(given: xr.DataArray, ds: xr.Dataset, options: Mapping[str, Any]) -> dict[Any, Any]:
    """`encoding=` by the names in a dataset of the array, with the array's storage options."""
    encoding, (name,) = dict(options.get("encoding") or {}), ds.data_vars
    if encoding and given.name not in encoding and not set(encoding) & set(ds.variables):
        # encoding of the single array, given without its name
        encoding = {name: encoding}
    storage = {key: options[key] for key in STORAGE if key in options}
    return {**encoding, name: storage | dict(encoding.get(name, {}))}


def _dataset(given: xr.DataArray) -> xr.Dataset:
    """An array and its coordinates as a dataset."""
    name = given.name
    if name in given.coords:
        if not given.variable.identical(given.coords[name].variable):  # type: ignore[no-untyped-call]
            raise ValueError(
                f"the array and one of its coordinates are both called {name!r}: "
                ".rename(NAME) gives the array another name"
            )
        # the array is its own coordinate
        given = given.drop_vars([name])
    # a variable with the name of a dim would be a coordinate
    return given.to_dataset(name=NAMELESS if name is None or name in given.dims else name)


def _update_array(
    given: xr.DataArray, urlpath: Any, dim: Hashable, region: Any, options: Mapping[str, Any]
) -> Any:
    """Write into the array in a frame: in a region given by names of dims, or append to it."""
    ds, present, name = _both(given, urlpath, options.get("storage_options"))
    if region is not None:
        ds = ds.drop_vars([coord for coord in ds.coords if coord not in present.coords])
        ((array, _, place),) = region_writes(ds, present, region)
        rest = {key: value for key, value in options.items() if key != "encoding"}
        return write_array(array, urlpath, **{**rest, **place})
    growing(ds, present, dim)
    member = member_like(name, ds.variables[name], present.variables[name])
    encoding, axis = _by_names(given, ds, options), given.dims.index(dim)
    check_encoding(ds, encoding)
    existing = open_b2nd(urlpath, storage_options=options.get("storage_options"))
    how = {**options, "append_axis": axis}
    check_append(existing, str(name), member, encoding[name], how)
    of_update = ("compute", "resume", "storage_options", "fsync")
    rest = {key: options[key] for key in of_update if key in options}

    def entries(frame: FrameReference) -> dict[str, Any]:
        """The grown coordinates, for the same commit."""
        if frame.shape != present[name].shape:
            raise StaleFrameError(
                "another process appended to this array meanwhile; try again",
                path=Location.of(urlpath).label,
            )
        coords = {str(each): _grown(each, ds, present, dim) for each in present.coords}
        return {COORDS: embedded(coords, f"the array {name!r}")} if coords else {}

    return write_array(member.array, urlpath, mode="r+", append_axis=axis, entries=entries, **rest)


def _grown(coord: Hashable, ds: xr.Dataset, present: xr.Dataset, dim: Hashable) -> Member:
    """A coordinate with the appended elements."""
    both = old = present.variables[coord].to_base_variable()
    if dim in old.dims:
        new = ds.variables[coord].to_base_variable()
        both = xr.Variable.concat([old, new], dim)  # type: ignore[no-untyped-call]
    member = member_like(coord, both, old)
    return Member(member.array, member.dims, {**old.attrs, **member.attrs}, is_coord=True)


def _both(
    given: xr.DataArray, urlpath: Any, storage_options: Any
) -> tuple[xr.Dataset, xr.Dataset, Hashable]:
    """The given and the existing array as datasets, with the existing name for both."""
    ds = _dataset(given)
    present = xr.open_dataset(urlpath, engine="b2nd", storage_options=storage_options)
    if len(present.data_vars) != 1:
        raise ValueError(
            f"{Location.of(urlpath).label}: the existing array has the name of one of its dims, "
            f"{list(present.coords)}; change it by append_axis= or region= of its .data, or write "
            "it again"
        )
    (ours,), (theirs,) = ds.data_vars, present.data_vars
    if given.name is not None and theirs not in (NAMELESS, given.name):
        raise ValueError(f"the array is called {given.name!r}, but the existing array {theirs!r}")
    return ds.rename({ours: theirs}) if ours != theirs else ds, present, theirs


def _opened_array(urlpath: Any, given: xr.DataArray, storage_options: Any) -> xr.DataArray:
    """Open the written array."""
    ds = xr.open_dataset(urlpath, engine="b2nd", chunks={}, storage_options=storage_options)
    name = next(iter(ds.data_vars), given.name)
    if name in ds.data_vars or name in given.coords:
        return ds[name].rename(given.name)
    # it has the name of one of its dims: xarray opens it as a coordinate
    return ds.drop_indexes(name, errors="ignore")[name].drop_vars([name])
