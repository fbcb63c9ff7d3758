"""Datasets of xarray as trees of arrays for frames: times and text unchanged, packing by CF."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import xarray as xr
from xarray.backends.common import ensure_dtype_not_object
from xarray.coding.strings import EncodedStringCoder
from xarray.conventions import CF_RELATED_DATA, ensure_not_multiindex
from xarray.core.common import contains_cftime_datetimes

from b2nd_dask.edges.datasets.tree import Member, Tree, keep_attrs, some_notes
from b2nd_dask.edges.xarray.backend_array import presented
from b2nd_dask.edges.xarray.packing import pack
from b2nd_dask.format.labels import MAX_NAME_LENGTH, PACKING
from b2nd_dask.format.statistics import supports_statistics
from b2nd_dask.frame.array import Frame, reference_of
from b2nd_dask.frame.write.writer import fits
from b2nd_dask.graph.read.from_b2nd import expressions, is_expression
from b2nd_dask.graph.write.input_arrays import as_dask
from b2nd_dask.graph.write.options import WriteOptions, check_existing

#: Options of xarray's packing, from `.encoding` or `encoding=`.
_PACKING = (*PACKING, "dtype", "_Encoding")
#: Options to store times as numbers; without them in `encoding=` times are stored as times.
_TIMES = ("units", "calendar", "dtype", "_FillValue")
_CF = (*_PACKING, "units", "calendar")
#: Storage options of a frame.
STORAGE = ("chunks", "blocks", "cparams")


def tree_of(
    ds: xr.Dataset,
    label: str,
    encoding: Mapping[Hashable, Mapping[str, Any]],
    options: Mapping[str, Any],
) -> Tree:
    """Describe the arrays of a dataset as a tree, with all checks that are possible before a write.

    `options` are those of `to_b2nd` for all variables. Raises TypeError if a frame cannot hold
    the elements, a name or an attribute; ValueError or KeyError as `check_encoding` does.
    """
    check_encoding(ds, encoding)
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


def check_dims(known: Iterable[Hashable], *options: Mapping[str, Any]) -> None:
    """Raise ValueError if `chunks` or `blocks` name a dim that does not exist."""
    for how in options:
        for key in ("chunks", "blocks"):
            asked = how.get(key)
            if isinstance(asked, Mapping) and (unknown := asked.keys() - set(known)):
                raise ValueError(
                    f"{key}={asked!r}: there is no dim {min(unknown, key=str)!r}; the dims are "
                    f"{sorted(map(str, known))}"
                )


def _storage(
    name: str, member: Member, own: Mapping[str, Any], options: Mapping[str, Any]
) -> dict[str, Any]:
    """Storage options of a variable: from `encoding=`, or else those of all variables."""
    dims = member.dims or ()
    if member.is_coordinate(name) and len(dims) < 2 and "chunks" not in own:
        # default chunks: such coordinates are read whole
        options = {key: options[key] for key in ("cparams", "stats") if key in options}
    found = {key: own.get(key, options.get(key)) for key in (*STORAGE, "max_mem")}
    for key in ("chunks", "blocks"):
        asked = found[key]
        if isinstance(asked, Mapping):
            along = {axis: asked[dim] for axis, dim in enumerate(dims) if dim in asked}
            found[key] = along or None
        elif isinstance(asked, tuple | list) and key not in own:
            raise ValueError(
                f"{key}={asked!r}: the variables of a dataset differ in their dims; name the dims, "
                f"as in {key}={{'time': 24, 'lat': 100}}"
            )
    if options.get("stats") and supports_statistics(member.array.dtype):
        # text, for example, has no statistics
        found["stats"] = True
    return {key: value for key, value in found.items() if value is not None}


def check_append(
    frame: Frame, name: str, member: Member, own: Mapping[str, Any], options: Mapping[str, Any]
) -> None:
    """Raise ValueError if options of an append, as for `to_b2nd`, do not match the frame."""
    by_variable = (*STORAGE, "max_mem", "stats", "append_dim", "encoding")
    asked = {key: value for key, value in options.items() if key not in by_variable}
    asked |= _storage(name, member, own, options)
    try:
        check_existing(reference_of(frame), as_dask(member.array), WriteOptions(**asked))
    except ValueError as error:
        raise ValueError(f"the variable {name!r}: {error}") from error


def check_encoding(ds: xr.Dataset, encoding: Mapping[Hashable, Mapping[str, Any]]) -> None:
    """Raise KeyError or ValueError if `encoding=` names an unknown variable, option or dim."""
    known = {*_CF, *STORAGE}
    for name, options in encoding.items():
        if name not in ds.variables:
            raise KeyError(f"encoding={{{name!r}: ...}}: this variable does not exist")
        try:
            unknown = sorted(dict(options).keys() - known)
        except ValueError as error:
            problem = "must be castable to a dictionary"
            raise ValueError(f"encoding={{{name!r}: {options!r}}}: {problem}") from error
        if unknown:
            raise ValueError(
                f"unexpected encoding={{{name!r}: ...}}: unknown: {', '.join(unknown)}; known: "
                f"{', '.join(sorted(known))}"
            )
    check_dims(ds.dims, *encoding.values())


def member_of(
    name: Hashable, variable: xr.Variable, given: Mapping[str, Any], *, is_coord: bool
) -> Member:
    """Make the array and labels of a variable, with its options in `encoding=`.

    Raises TypeError if names are not text, or elements are Python objects, ValueError if a dim
    occurs twice, or xarray cannot unpack by the attributes, NotImplementedError if the variable is
    an index of several levels.
    """
    where = f"the variable {name!r}"
    ensure_not_multiindex(variable, name)
    _check_names(name, variable, where)
    if not isinstance(variable.dtype, np.dtype):
        raise TypeError(
            f"{where}: elements of {variable.dtype}, a dtype of pandas, cannot be stored; convert "
            "them by .astype(float), .astype(str) or, for times with a zone, "
            ".dt.tz_convert(None)"
        )
    variable = _encoded(_lazy(variable.to_base_variable()), str(name), given, where)
    _check_decodes(variable, str(name), where)
    dims = tuple(map(str, variable.dims))
    return Member(variable.data, dims, dict(variable.attrs), is_coord)


def member_like(name: Hashable, variable: xr.Variable, present: xr.Variable) -> Member:
    """Make the array of a variable, packed like the existing variable.

    Raises ValueError if the dims differ, TypeError if the elements do not fit the existing dtype.
    """
    require_dims(name, variable, present)
    # the chunks of a variable that is not loaded are in its encoding
    variable = _lazy(variable).drop_encoding()
    member = member_of(name, variable, packing_of(present), is_coord=False)
    stored = np.dtype(present.encoding.get("dtype", present.dtype))
    if not fits(member.array.dtype, stored):
        raise TypeError(
            f"{name!r} has elements of {member.array.dtype}, which the existing dtype {stored} "
            "cannot hold; write the dataset again with a wider dtype, or convert the new elements "
            "by .astype if they lose nothing"
        )
    return member


def require_dims(name: Hashable, variable: xr.Variable, present: xr.Variable) -> None:
    """Check that a variable has the dims of the existing one."""
    if variable.dims != present.dims:
        raise ValueError(
            f"{name!r} has the dims {variable.dims}, but the existing one {present.dims}"
        )


def packing_of(present: xr.Variable) -> dict[str, Any]:
    """The packing of a frame's elements, as an encoding."""
    packing = {key: present.encoding[key] for key in _CF if key in present.encoding}
    if np.dtype(packing.get("dtype")).kind in "US":
        # new text may be longer
        del packing["dtype"]
    return packing if packing.keys() - {"dtype"} else {}


def _check_names(name: Hashable, variable: xr.Variable, where: str) -> None:
    for each in (name, *variable.dims):
        if each == "" or (isinstance(each, str) and len(each) > MAX_NAME_LENGTH):
            raise ValueError(
                f"{where}: names have 1 to {MAX_NAME_LENGTH} characters, and one has {len(each)}; "
                "change it by .rename"
            )
        if not isinstance(each, str):
            raise TypeError(
                f"{where}: names in a frame are text, but {each!r} is of type "
                f"{type(each).__name__}; change it by .rename({{{each!r}: {str(each)!r}}})"
            )
    if len(set(variable.dims)) < len(variable.dims):
        raise ValueError(
            f"{where}: two axes have the same name, {variable.dims}; give them different names, "
            "for example by xr.Variable(dims, values)"
        )


def _check_decodes(variable: xr.Variable, name: str, where: str) -> None:
    """Check that xarray can decode the variable with its attributes."""
    none = np.zeros((0,) * variable.ndim, presented(variable.dtype))
    try:
        empty = xr.Variable(variable.dims, none, variable.attrs)
        xr.conventions.decode_cf_variable(
            name, empty, decode_times=False, decode_timedelta=False
        ).load()
    except Exception as error:
        raise ValueError(
            f"{where}: xarray cannot unpack it by its attributes ({error}); correct or rename "
            "the attributes"
        ) from error


def _lazy(variable: xr.Variable) -> xr.Variable:
    """Make a variable with an array of `dask.array` if its elements are not loaded yet."""
    if variable.chunks is None and not variable._in_memory and variable.dtype.kind != "O":
        # dask divides by the size of an empty array
        default = "auto" if variable.size else {}
        variable = variable.chunk(variable.encoding.get("preferred_chunks", default))
    if is_expression(variable._data):
        variable = variable.copy(data=expressions().classic_array(variable._data))
    return variable


def _encoded(variable: xr.Variable, name: str, given: Mapping[str, Any], where: str) -> xr.Variable:
    """Encode the elements by CF if the variable or the user has options for it."""
    variable = variable.copy(deep=False)
    kept, variable.encoding = dict(variable.encoding), {}
    # xarray's decoding moved these attributes to the encoding
    for key in ("coordinates", *CF_RELATED_DATA):
        if kept.get(key) is not None and key not in variable.attrs:
            variable.attrs[key] = kept[key]
    asked = {key: value for key, value in given.items() if key not in STORAGE}
    if contains_cftime_datetimes(variable):
        units = {key: kept[key] for key in _TIMES if key in kept}
        return pack(variable, name, units | asked, where)
    packing = {key: kept[key] for key in _PACKING if key in kept} | asked
    was_object = variable.dtype.kind in "OT"
    if was_object:
        # "S1" is for any length, like variable-length text
        dtype = None if asked.get("dtype") == "S1" or "_Encoding" in asked else asked.get("dtype")
        variable = _inferred(variable, name, packing.get("_FillValue"), dtype, where)
    kind = variable.dtype.kind
    if kind in "mM":
        return pack(variable, name, asked, where) if asked else variable
    # encoding text loads it: dask arrays of text stay text unless `encoding=` has options
    encoded = packing if variable.chunks is None else asked
    if kind == "U" and (encoded.get("dtype") == "S1" or "_Encoding" in encoded):
        return _as_bytes(variable, name, encoded)
    if packing.keys() == {"dtype"} and np.dtype(packing["dtype"]) == variable.dtype:
        return variable
    if not packing or (kind in "SU" and was_object) or (kind in "bSUV" and not asked):
        return variable
    return pack(variable, name, packing, where)


def _inferred(variable: xr.Variable, name: str, fill: Any, dtype: Any, where: str) -> xr.Variable:
    """Convert Python objects to the dtype that xarray infers, text and bytes also to `dtype`."""
    if variable.dtype.kind == "T":
        variable = variable.astype(object)
    try:
        if isinstance(fill, str | bytes):
            variable.encoding = {"_FillValue": fill}
            variable = xr.conventions.encode_cf_variable(variable, name=name)
        inferred = ensure_dtype_not_object(variable, name)
    except ValueError as error:
        raise TypeError(
            f"{where}: Python objects of these types cannot be stored: {error}; convert them "
            "by .astype(float) or .astype(str), or omit the variable by .drop_vars"
        ) from error
    if inferred.dtype.kind != "O":
        return inferred
    objects = inferred.values
    kind = "U" if all(isinstance(each, str) for each in objects.flat) else "S"
    asked = np.dtype(object if dtype is None else dtype)
    if asked.kind not in f"{kind}O" and asked.itemsize:
        what = "text" if kind == "U" else "bytes"
        raise ValueError(
            f"{where}: its elements are {what}, not {asked}; omit encoding= or convert them"
        )
    fixed = objects.astype(asked if asked.kind == kind and asked.itemsize else kind)
    if not fixed.dtype.itemsize:
        fixed = fixed.astype(f"{fixed.dtype.kind}1")
    changed = fixed != objects
    if np.any(changed):
        odd, becomes = objects[changed].item(0), fixed[changed].item(0)
        raise ValueError(
            f"{where}: {odd!r} would come back as {becomes!r}: strip or convert it, or give "
            "another dtype in encoding="
        )
    return xr.Variable(variable.dims, fixed, inferred.attrs)


def _as_bytes(variable: xr.Variable, name: str, packing: Mapping[str, Any]) -> xr.Variable:
    """Encode text as UTF-8 or by `_Encoding`."""
    named = {key: value for key, value in packing.items() if key == "_Encoding"}
    variable.encoding = {"dtype": "S1", **named}
    encoded = EncodedStringCoder().encode(variable, name)  # type: ignore[no-untyped-call]
    # at least two bytes: xarray takes single bytes for characters
    wide = np.result_type(encoded.dtype, "S2")
    return xr.Variable(encoded.dims, encoded.data.astype(wide), encoded.attrs)
