"""Trees of xarray's datasets and arrays, and writes of new datasets."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import xarray as xr

from b2nd_dask.edges.datasets.frames import check_layout, write_dataset
from b2nd_dask.edges.datasets.staged import local_target, staged
from b2nd_dask.edges.datasets.tree import Member, Tree, keep_attrs, some_notes
from b2nd_dask.edges.xarray.encoding import STORAGE, check_encoding, member_of
from b2nd_dask.format.statistics import supports_statistics
from b2nd_dask.graph.write.to_b2nd import write_together

Encoding = Mapping[Hashable, Mapping[str, Any]]
#: Options of `to_b2nd` for new datasets.
NEW_OPTIONS = ("chunks", "blocks", "cparams", "max_mem", "fsync", "stats")
RENAME = "change it by .rename"


def tree_of(ds: xr.Dataset, label: str, encoding: Encoding, options: Mapping[str, Any]) -> Tree:
    """Describe the arrays of a dataset as a tree, with all checks that are possible before a write.

    `options` are those in `NEW_OPTIONS`, for all variables. Raises TypeError if a frame cannot hold
    the elements, a name or an attribute, KeyError or ValueError if the encoding has an unknown
    variable, option or dim.
    """
    check_encoding(ds, encoding)
    check_dims(ds.dims, *encoding.values())
    tree = Tree(label, attrs=dict(ds.attrs))
    for name in [*ds.data_vars, *ds.coords]:
        given = encoding.get(name, {})
        member = member_of(name, ds.variables[name], given, is_coord=name in ds.coords)
        storage = _storage(str(name), member, given, options)
        tree.members[str(name)] = replace(member, storage=storage)
    keep_attrs(tree)
    if tree.lost:
        raise TypeError(
            f"not stored: {some_notes(tree.lost)}. Attributes are text, numbers, bytes, NumPy "
            "arrays, and lists and maps of these: convert or remove them"
        )
    return tree


def write_new(
    source: xr.Dataset | xr.DataTree, path: Path, options: Mapping[str, Any], *, overwrite: bool
) -> None:
    """Write a directory (``.b2d``) or an archive (``.b2z``) of frames, all or nothing.

    `options` are those in `NEW_OPTIONS`, and ``encoding``.
    """
    encoding = options.get("encoding") or {}
    if isinstance(source, xr.DataTree):
        known = {*source.groups, *(name for group in source.subtree for name in group.variables)}
        if unknown := sorted(map(repr, encoding.keys() - known)):
            raise ValueError(f"unexpected encoding groups or variables: {', '.join(unknown)}")
        check_dims({dim for group in source.subtree for dim in group.dims}, options)
        tree = _tree_of_groups(source, path.name, options, inherit=True)
    else:
        check_dims(source.dims, options)
        tree = tree_of(source, path.name, encoding, options)
    check_layout(tree, RENAME)
    fsync = options.get("fsync", True)
    with staged(path, replace=overwrite, advice='mode="w"', fsync=fsync) as ready:
        write_dataset(tree, ready, write_together, packed=path.suffix == ".b2z")


def check_dims(known: Iterable[Hashable], *options: Mapping[str, Any]) -> None:
    """Check that the dims in `chunks` and `blocks` exist.

    Raises ValueError if a dim does not exist.
    """
    for how in options:
        for key in ("chunks", "blocks"):
            asked = how.get(key)
            unknown = set(asked).difference(known) if isinstance(asked, Mapping) else set()
            if unknown:
                raise ValueError(
                    f"{key}={asked!r}: there is no dim {min(unknown, key=str)!r}; the dims are "
                    f"{sorted(map(str, known))}"
                )


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


def _storage(
    name: str, member: Member, own: Mapping[str, Any], options: Mapping[str, Any]
) -> dict[str, Any]:
    """Storage options of a variable: from `encoding=`, or else those of all variables."""
    found = {key: own.get(key, options.get(key)) for key in (*STORAGE, "max_mem")}
    dims = member.dims or ()
    for key in ("chunks", "blocks"):
        found[key] = _sizes(found[key], dims, member.array.shape, given=key in own)
    if found["chunks"] is None:
        found["blocks"] = found["blocks"] if "blocks" in own else None
    if member.is_coordinate(name) and "chunks" not in own:
        # default chunks: coordinates are read whole
        found |= {"chunks": None, "blocks": None, "max_mem": None}
    if options.get("stats") and supports_statistics(member.array.dtype):
        # text, for example, has no statistics
        found["stats"] = True
    return {key: value for key, value in found.items() if value is not None}


def _sizes(
    asked: Any, dims: tuple[str, ...], shape: tuple[int, ...], *, given: bool
) -> tuple[int, ...] | int | None:
    """Lengths of chunks along each axis, also from a mapping by dims."""
    if not isinstance(asked, Mapping):
        if isinstance(asked, tuple | list) and not given:
            raise ValueError(
                f"chunks={asked!r}: the variables of a dataset differ in their dims; name the "
                "dims, as in chunks={'time': 24, 'lat': 100}"
            )
        return asked  # type: ignore[no-any-return]
    if not set(asked) & set(dims):
        return None
    return tuple(int(asked.get(dim, max(n, 1))) for dim, n in zip(dims, shape, strict=True))


def local_path(urlpath: Any) -> Path:
    """Local path of a dataset.

    Raises ValueError if the path is a URL, or names a single frame.
    """
    path = local_target(urlpath)
    if path.suffix in (".b2nd", ".b2e"):
        raise ValueError(
            f"{urlpath}: a {path.suffix} file is one array; write a dataset to a directory "
            f"({path.with_suffix('.b2d').name}) or one file ({path.with_suffix('.b2z').name}), or "
            "one of its arrays by ds['NAME'].b2nd.to_b2nd"
        )
    return path
