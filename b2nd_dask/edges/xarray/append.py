"""Changes of existing datasets: variables, appends along a dim, and regions by names of dims.

Each frame changes all or nothing. An append is committed by the new length in `dataset.json`, which
is replaced last. Until then readers ignore the new elements, and the next append overwrites them.
Changes take turns by a lock on the directory.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import dask.array as da
import numpy as np
import xarray as xr

from b2nd_dask.edges.datasets.places import Folder, manifest_of
from b2nd_dask.edges.datasets.staged import NEW_MANIFEST, changing, check_layout, frames_of
from b2nd_dask.edges.datasets.tree import Member, Tree, updated_manifest
from b2nd_dask.edges.xarray.encoding import (
    check_append,
    check_dims,
    check_encoding,
    member_like,
    packing_of,
    require_dims,
    tree_of,
)
from b2nd_dask.format.manifest import COORD, MANIFEST, Manifest
from b2nd_dask.format.statistics import supports_statistics
from b2nd_dask.frame.access import open_b2nd
from b2nd_dask.graph.write.to_b2nd import Write, to_b2nd, write_together
from b2nd_dask.storage import Location, about
from b2nd_dask.system import sync, write_file

#: Most labels that an error lists.
_LISTED = 5


def append_dataset(ds: xr.Dataset, path: Path, dim: str, options: Mapping[str, Any]) -> None:
    """Append along a dim of a dataset in a directory; `options` as for `to_b2nd`."""
    encoding = options.get("encoding") or {}
    with locked(path) as (present, manifest):
        names = growing(ds, present, dim)
        # the same call for another part may omit variables that do not grow
        check_encoding(present, encoding)
        check_dims(present.dims, options)
        start, count = present.sizes[dim], ds.sizes[dim]
        writes: list[Write] = []
        for name in names:
            old = present.variables[name]
            member = member_like(name, ds.variables[name], old)
            target, axis = str(old.encoding["source"]), old.dims.index(dim)
            how = {**options, "append_axis": axis}
            check_append(open_b2nd(target), str(name), member, encoding.get(name, {}), how)
            # on the disk before the manifest, whatever fsync= is: a shorter frame does not open
            writes.append(_placed(member.array, target, axis, start))
        write_together(writes)
        _commit(path, manifest, Tree(path.name), {dim: start + count})


def _placed(array: da.Array, target: str, axis: int, start: int) -> Write:
    """The write of an array behind the committed elements of a frame."""
    shape, end = open_b2nd(target).shape, start + array.shape[axis]
    if shape == (*array.shape[:axis], start, *array.shape[axis + 1 :]):
        return array, target, {"mode": "r+", "append_axis": axis}
    # after an interrupted append the frame is longer than committed, along any dim
    if end > shape[axis]:
        more = da.zeros((*shape[:axis], end - shape[axis], *shape[axis + 1 :]), dtype=array.dtype)
        # written at once: of two concurrent changes of a frame one would raise StaleFrameError
        to_b2nd(more, target, mode="r+", append_axis=axis)
    region = [slice(start, end) if at == axis else slice(n) for at, n in enumerate(array.shape)]
    return array, target, {"mode": "r+", "region": tuple(region)}


def region_writes(ds: xr.Dataset, present: xr.Dataset, region: Any) -> list[Write]:
    """The writes of data variables, packed like the existing ones, into a region.

    Raises ValueError if the region does not exist, a variable has none of its dims, or coordinates
    differ.
    """
    slices = _slices_of(region, ds, present)
    part = present.isel(slices)
    for dim, size in ds.sizes.items():
        if part.sizes.get(dim, size) != size:
            raise ValueError(
                f"region={region!r}: the length of {dim!r} is {size}, but that of the region "
                f"{part.sizes[dim]}"
            )
    if unknown := [name for name in ds.variables if name not in present.variables]:
        raise ValueError(f"the target has no variable {unknown[0]!r}")
    _require_equal(ds.coords, ds, part, "at that region")
    writes: list[Write] = []
    for name, variable in ds.data_vars.variables.items():
        if not set(variable.dims) & set(slices):
            raise ValueError(
                f"{name!r} has none of the dims of the region; omit it by .drop_vars({name!r})"
            )
        old = present.variables[name]
        place = tuple(slices.get(dim, slice(0, n)) for dim, n in variable.sizes.items())
        options = {"mode": "r+", "region": place}
        writes.append((member_like(name, variable, old).array, old.encoding["source"], options))
    return writes


def write_variables(ds: xr.Dataset, path: Path, options: Mapping[str, Any]) -> None:
    """Add variables to a dataset in a directory, and replace those of the same names.

    A replaced variable keeps its packing and storage options; `options` are for new ones, as for
    `to_b2nd`. Raises ValueError if dims or their lengths differ from the existing ones, names
    conflict, or an existing variable has an encoding.
    """
    with locked(path) as (present, manifest):
        _require_sizes(ds, present)
        for name, variable in ds.variables.items():
            require_dims(name, variable, present.variables.get(name, variable))
        encoding = dict(options.get("encoding") or {})
        for name in encoding.keys() & present.variables.keys():
            raise ValueError(
                f"encoding={{{name!r}: ...}}: the variable exists, and its packing and storage "
                "options stay; omit its encoding"
            )
        both = ds.coords.keys() & present.coords.keys()
        same = [n for n in both if ds.variables[n].identical(present.variables[n])]  # type: ignore[no-untyped-call]
        ds = ds.drop_vars(same)
        check_dims(ds.dims, options)
        replaced = {str(n): present.variables[n] for n in ds.variables if n in present.variables}
        encoding |= {name: packing_of(old) for name, old in replaced.items()}
        tree = tree_of(ds, path.name, encoding, options)
        for name, old in replaced.items():
            tree.members[name] = _stored_as(old, tree.members[name])
        others = [name for name in manifest.names if name not in tree.members]
        taken = dict.fromkeys([*others, *manifest.groups], Tree(path.name))
        check_layout(Tree(path.name, members=tree.members, groups=taken))
        write_together(frames_of(tree, path, mode="w", fsync=options.get("fsync", True)))
        _commit(path, manifest, tree)


def _require_sizes(ds: xr.Dataset, present: xr.Dataset, but: Hashable = None) -> None:
    """Raise ValueError if a dim has another length than the existing one, but for one dim."""
    for dim, size in ds.sizes.items():
        if dim != but and present.sizes.get(dim, size) != size:
            advice = "append_dim= makes it longer" if but is None else f"only {but!r} grows"
            raise ValueError(
                f"Unable to update size for existing dimension {dim!r} (given {size}, existing "
                f"{present.sizes[dim]}): {advice}"
            )


def _stored_as(present: xr.Variable, member: Member) -> Member:
    """The array of a variable, to be stored like the existing frame, under the same name."""
    path = Path(present.encoding["source"])
    frame = open_b2nd(path)
    storage: dict[str, Any] = {"cparams": frame.cparams}
    if "max_mem" in member.storage:
        storage["max_mem"] = member.storage["max_mem"]
    if "chunks" in present.encoding:
        storage |= {"chunks": frame.chunks, "blocks": frame.blocks}
    if frame.stats is not None and supports_statistics(member.array.dtype):
        storage["stats"] = True
    # not by `present.coords`: attributes `coordinates` of other variables may name a data variable
    return replace(member, is_coord=path.name.startswith(COORD), storage=storage)


@contextmanager
def locked(path: Path) -> Iterator[tuple[xr.Dataset, Manifest]]:
    """Open a dataset, and its manifest, to change it; other processes cannot change it meanwhile.

    Raises FileNotFoundError if it does not exist, ValueError if it cannot be changed in place,
    BlockingIOError if another process changes it.
    """
    if not path.exists():
        raise FileNotFoundError(f"{path}: the dataset does not exist")
    if not (path / MANIFEST).is_file():
        what = "write a .b2z again as a whole" if path.is_file() else f"it has no {MANIFEST}"
        raise ValueError(f"{path}: only a directory with a dataset can be changed; {what}")
    with changing(path):
        manifest = manifest_of(Folder(Location(str(path))))
        if not manifest.commits:
            raise ValueError(
                f"{path}: another program wrote this dataset or appended to it, and has its own "
                "rules for what counts as written; append by that program, or write the dataset "
                "again by xr.open_dataset(..., chunks={}).b2nd.to_b2nd(...)"
            )
        yield xr.open_dataset(path, engine="b2nd"), manifest


def _commit(
    path: Path, manifest: Manifest, tree: Tree, sizes: Mapping[str, int] | None = None
) -> None:
    """Replace the manifest, which commits new variables or an append."""
    new = path / NEW_MANIFEST
    raw = updated_manifest(manifest, tree, sizes)
    with about(str(path / MANIFEST)):
        # left by a killed change, or a link: its target must not be written
        new.unlink(missing_ok=True)
        write_file(new, raw)
        new.replace(path / MANIFEST)
        sync(path)


def growing(ds: xr.Dataset, present: xr.Dataset, dim: Hashable) -> list[Hashable]:
    """Names of the variables that grow along a dim; checks that all others are equal.

    Raises ValueError also if variables are missing or new, or another dim has another length.
    """
    if dim not in present.dims:
        raise ValueError(f"append_dim={dim!r}: the existing dims are {list(present.dims)}")
    found = [name for name in present.variables if dim in present.variables[name].dims]
    wrong = [f"{name!r} is missing" for name in found if name not in ds.variables]
    wrong += [f"the target has no variable {n!r}" for n in ds.variables if n not in present]
    if wrong:
        raise ValueError(f"{wrong[0]}; append all variables with the dim {dim!r}: {found}")
    _require_sizes(ds, present, but=dim)
    others = [name for name in ds.variables if name not in found]
    _require_equal(others, ds, present, f"it does not have the dim {dim!r}, so it does not grow")
    return found


def _require_equal(names: Iterable[Hashable], given: Any, present: Any, why: str) -> None:
    """Raise ValueError, with remedies, if a variable differs from the existing one."""
    for name in names:
        new, old = given.variables[name], present.variables[name]
        if not new.equals(old):
            raise ValueError(
                f"{name!r} differs from the existing one ({_difference(new, old)}): {why}; omit "
                f"it by .drop_vars({name!r}), or select what is the same"
            )


def _difference(new: xr.Variable, old: xr.Variable) -> str:
    if new.dims != old.dims or new.shape != old.shape:
        return f"{dict(new.sizes)}, existing {dict(old.sizes)}"
    first, second = np.ravel(new.values), np.ravel(old.values)
    at = int(np.argmin((first == second) | ((first != first) & (second != second))))
    return f"element {at} is {first[at]!r}, existing {second[at]!r}"


def _slices_of(region: Any, given: xr.Dataset, present: xr.Dataset) -> dict[Hashable, slice]:
    """The region of a dataset in the existing one, as slices.

    A region has for each dim a slice of step 1, or ``"auto"``: the positions of the labels.
    """
    if region == "auto":
        region = {dim: "auto" for dim in given.dims if dim in given.indexes}
    if not isinstance(region, Mapping):
        raise TypeError(
            f"region={region!r}: name dims, as in region={{'time': slice(0, 10)}}, or \"auto\""
        )
    if unknown := [dim for dim in region if dim not in present.sizes]:
        raise ValueError(
            f"region={region!r}: no dim {unknown[0]!r}; the dims are {list(present.sizes)}"
        )
    return {dim: _slice(dim, where, given, present) for dim, where in region.items()}


def _slice(dim: Hashable, where: Any, given: xr.Dataset, present: xr.Dataset) -> slice:
    if where == "auto":
        return _found(dim, given, present)
    if not isinstance(where, slice) or where.step not in (None, 1):
        raise ValueError(f'region={{{dim!r}: {where!r}}}: give a slice of step 1, or "auto"')
    if any(not isinstance(end, int | np.integer | None) for end in (where.start, where.stop)):
        raise TypeError(
            f"region={{{dim!r}: {where!r}}}: give a slice of positions, not of labels; "
            '"auto" finds the labels'
        )
    start, stop, _ = where.indices(present.sizes[dim])
    if (where.stop or 0) > present.sizes[dim]:
        raise ValueError(
            f"region={{{dim!r}: {where!r}}}: {dim!r} has the length {present.sizes[dim]}; "
            "append_dim= adds to it"
        )
    return slice(start, max(start, stop))


def _found(dim: Hashable, given: xr.Dataset, present: xr.Dataset) -> slice:
    """The slice of existing labels that equal the given ones."""
    if dim not in given.indexes or dim not in present.indexes:
        raise ValueError(
            f'region={{{dim!r}: "auto"}}: {dim!r} lacks given or existing labels; give a slice'
        )
    if not present.indexes[dim].is_unique:
        raise ValueError(
            f'region={{{dim!r}: "auto"}}: existing labels of {dim!r} repeat; give a slice of '
            "positions"
        )
    at = present.indexes[dim].get_indexer(given.indexes[dim])
    if (at < 0).any():
        missing = given.indexes[dim][at < 0][:_LISTED].tolist()
        raise ValueError(f"labels of {dim!r} do not exist yet: {missing}; append_dim= adds them")
    if (np.diff(at) != 1).any():
        raise ValueError(f"labels of {dim!r} are not consecutive in the target; write in parts")
    return slice(int(at[0]), int(at[-1]) + 1) if len(at) else slice(0, 0)
