"""What is there already, where something is added to it: packing, places by names, checks."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
from typing import Any

import numpy as np
import xarray as xr

from b2nd_dask.edges.datasets.tree import Member
from b2nd_dask.edges.xarray.encoding import member_of
from b2nd_dask.format.labels.labels import PACKING
from b2nd_dask.frame.write.casts import fits

_LISTED = 5


def member_like(name: Hashable, variable: xr.Variable, present: xr.Variable) -> Member:
    """Make an array of a variable as one that is there is packed.

    Raises
    ------
    ValueError
        Its dims are others.
    TypeError
        Its elements do not fit the dtype.
    """
    if variable.dims != present.dims:
        raise ValueError(
            f"{name!r} has the dims {variable.dims}, and the one that is there {present.dims}"
        )
    packed_by = (*PACKING, "units", "calendar")
    packing = {key: present.encoding[key] for key in packed_by if key in present.encoding}
    if packing:
        packing["dtype"] = present.encoding["dtype"]
    variable = variable.copy(deep=False)
    variable.encoding = {
        key: value for key, value in variable.encoding.items() if key == "preferred_chunks"
    }
    member = member_of(name, variable, packing, is_coord=False)
    stored = np.dtype(present.encoding.get("dtype", present.dtype))
    if not fits(member.array.dtype, stored):
        raise TypeError(
            f"{name!r} has elements of {member.array.dtype}, which the ones that are there, of "
            f"{stored}, cannot hold: write the dataset anew with a wider dtype, or convert by "
            ".astype what loses nothing by it"
        )
    return member


def growing(ds: xr.Dataset, present: xr.Dataset, dim: Hashable) -> list[Hashable]:
    """Names of variables that are appended to along a dim, after all the others were compared.

    Raises
    ------
    ValueError
        No such dim, variables that are missing or new, or others that differ.
    """
    if dim not in ds.dims or dim not in present.dims:
        raise ValueError(
            f"append_dim={dim!r}: the dims are {list(ds.sizes)}, and there {list(present.sizes)}"
        )
    found = [name for name in present.variables if dim in present.variables[name].dims]
    missing = [name for name in found if name not in ds.variables]
    unknown = [name for name in ds.variables if name not in present.variables]
    if missing or unknown:
        what = (
            f"{missing[0]!r} is missing in what is appended"
            if missing
            else f"{unknown[0]!r} is not in what is there"
        )
        raise ValueError(f"{what}: an append has the variables that have the dim {dim!r}: {found}")
    others = [name for name in ds.variables if name not in found]
    require_equal(others, ds, present, f"it does not have the dim {dim!r}, so it does not grow")
    return found


def require_equal(names: Iterable[Hashable], given: Any, present: Any, why: str) -> None:
    """Check that variables have the elements that are there.

    Raises
    ------
    ValueError
        One differs; the message names it and what to do.
    """
    for name in names:
        new, old = given.variables[name], present.variables[name]
        if not new.equals(old):
            raise ValueError(
                f"{name!r} is not what is there ({_difference(new, old)}): {why}; leave it out by "
                f".drop_vars({name!r}), or select what is the same"
            )


def _difference(new: xr.Variable, old: xr.Variable) -> str:
    if new.dims != old.dims or new.shape != old.shape:
        return f"{dict(new.sizes)}, there {dict(old.sizes)}"
    first, second = np.ravel(new.values), np.ravel(old.values)
    at = int(np.argmin((first == second) | ((first != first) & (second != second))))
    return f"element {at} is {first[at]!r}, there {second[at]!r}"


def slices_of(region: Any, given: xr.Dataset, present: xr.Dataset) -> dict[Hashable, slice]:
    """Find the place of a dataset in one that is there.

    Parameters
    ----------
    region : mapping or "auto"
        For each dim a slice of step 1, or ``"auto"``: where the labels of `given` are.

    Raises
    ------
    ValueError
        A dim that there is not, labels that are not there or not in a row, or other lengths.
    """
    if region == "auto":
        region = {dim: "auto" for dim in given.dims if dim in given.indexes}
    if not isinstance(region, Mapping):
        raise TypeError(
            f"region={region!r}: name dims, as in region={{'time': slice(0, 10)}}, or \"auto\""
        )
    unknown = [dim for dim in region if dim not in present.sizes]
    if unknown:
        raise ValueError(
            f"region={region!r}: there is no dim {unknown[0]!r}, but {list(present.sizes)}"
        )
    found = {dim: _slice(dim, where, given, present) for dim, where in region.items()}
    for dim, size in given.sizes.items():
        wanted = found.get(dim, slice(0, present.sizes.get(dim, size)))
        if wanted.stop - wanted.start != size:
            raise ValueError(
                f"region={region!r}: the length of {dim!r} is {size}, and its place has "
                f"{wanted.stop - wanted.start}"
            )
    return found


def _slice(dim: Hashable, where: Any, given: xr.Dataset, present: xr.Dataset) -> slice:
    if where == "auto":
        return _found(dim, given, present)
    if not isinstance(where, slice) or where.step not in (None, 1):
        raise ValueError(f'region={{{dim!r}: {where!r}}}: give a slice of step 1, or "auto"')
    if any(not isinstance(end, int | np.integer | None) for end in (where.start, where.stop)):
        raise TypeError(
            f'region={{{dim!r}: {where!r}}}: a slice of positions, not of labels; "auto" finds '
            "the labels"
        )
    start, stop, _ = where.indices(present.sizes[dim])
    if (where.stop or 0) > present.sizes[dim]:
        raise ValueError(
            f"region={{{dim!r}: {where!r}}}: {dim!r} has the length {present.sizes[dim]}; "
            "append_dim= adds to it"
        )
    return slice(start, max(start, stop))


def _found(dim: Hashable, given: xr.Dataset, present: xr.Dataset) -> slice:
    """The place of labels."""
    if dim not in given.indexes or dim not in present.indexes:
        raise ValueError(
            f'region={{{dim!r}: "auto"}}: {dim!r} has no labels here and there: give a slice'
        )
    if not present.indexes[dim].is_unique:
        raise ValueError(
            f'region={{{dim!r}: "auto"}}: labels of {dim!r} repeat there: give a slice of positions'
        )
    at = present.indexes[dim].get_indexer(given.indexes[dim])
    if (at < 0).any():
        missing = given.indexes[dim][at < 0][:_LISTED].tolist()
        raise ValueError(f"labels of {dim!r} that are not there: {missing}; append_dim= adds them")
    if len(at) and not np.array_equal(at, np.arange(at[0], at[0] + len(at))):
        raise ValueError(f"the labels of {dim!r} are not in a row there: write them in parts")
    return slice(int(at[0]), int(at[0]) + len(at)) if len(at) else slice(0, 0)
