"""Variables of xarray as arrays that frames hold: times and text as they are, packing by CF."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Any

import dask.array as da
import numpy as np
import xarray as xr

from b2nd_dask.edges.datasets.tree import Member
from b2nd_dask.edges.xarray.packing import pack
from b2nd_dask.format.labels.labels import MAX_NAME_LENGTH, PACKING

#: How xarray packs values, where `.encoding` or `encoding=` says it.
_PACKING = (*PACKING, "dtype")
#: How it makes numbers of times; those are stored as they are unless `encoding=` says so.
_TIMES = ("units", "calendar", "dtype", "_FillValue")
#: How a frame is stored.
STORAGE = ("chunks", "blocks", "cparams")
#: Attributes that xarray moves to `.encoding` where it has decoded them.
_NAMES_OF_VARIABLES = (
    "grid_mapping",
    "bounds",
    "cell_measures",
    "formula_terms",
    "ancillary_variables",
    "climatology",
)


def check_encoding(ds: xr.Dataset, encoding: Mapping[Hashable, Mapping[str, Any]]) -> None:
    """Check the argument `encoding=`.

    Raises
    ------
    ValueError
        A variable or an option that there is not.
    """
    known = {*_PACKING, *_TIMES, *STORAGE}
    for name, options in encoding.items():
        if name not in ds.variables:
            raise ValueError(f"encoding={{{name!r}: ...}}: there is no such variable")
        unknown = sorted(set(options) - known)
        if unknown:
            raise ValueError(
                f"encoding={{{name!r}: ...}}: unknown are {', '.join(unknown)}; known are "
                f"{', '.join(sorted(known))}"
            )


def member_of(
    name: Hashable, variable: xr.Variable, given: Mapping[str, Any], *, is_coord: bool
) -> Member:
    """Make the array and labels of a variable.

    Parameters
    ----------
    given : mapping
        What `encoding=` says of it.

    Raises
    ------
    TypeError
        Names that are no text, Python objects, text of any length that is not in memory.
    ValueError
        A dim twice, an attribute that packing needs.
    """
    where = f"the variable {name!r}"
    _check_names(name, variable, where)
    if not isinstance(variable.dtype, np.dtype):
        raise TypeError(
            f"{where}: elements of {variable.dtype}, a dtype of pandas, are not stored: convert "
            "them, as by .astype(float), .astype(str) or, of times with a zone, "
            ".dt.tz_convert(None)"
        )
    variable = _lazy(variable.to_base_variable())
    variable = _encoded(variable, str(name), given, where)
    array = variable.data
    _check_decodes(variable, str(name), where)
    attrs: dict[str, Any] = dict(variable.attrs)
    return Member(array, tuple(map(str, variable.dims)), attrs, str(name), is_coord)


def _check_names(name: Hashable, variable: xr.Variable, where: str) -> None:
    for each in (name, *variable.dims):
        if each == "" or (isinstance(each, str) and len(each) > MAX_NAME_LENGTH):
            raise ValueError(
                f"{where}: names have 1 to {MAX_NAME_LENGTH} characters, and one has {len(each)}; "
                "change it by .rename"
            )
        if not isinstance(each, str):
            raise TypeError(
                f"{where}: names are text in a frame, and {each!r} is of type "
                f"{type(each).__name__}; .rename({{{each!r}: {str(each)!r}}}) changes it"
            )
    if len(set(variable.dims)) < len(variable.dims):
        raise ValueError(
            f"{where}: two axes have one name, {variable.dims}; give them names of their own, as "
            "by xr.Variable(dims, values)"
        )


def _check_decodes(variable: xr.Variable, name: str, where: str) -> None:
    """Check that attributes by which elements are unpacked are what xarray takes for it."""
    none = np.zeros((0,) * variable.ndim, variable.dtype)
    try:
        empty = xr.Variable(variable.dims, none, variable.attrs)
        decoded = xr.conventions.decode_cf_variable(
            name, empty, decode_times=False, decode_timedelta=False
        )
        decoded.load()
    except Exception as error:
        raise ValueError(
            f"{where}: its attributes say how it is packed, and xarray would not open it with "
            f"them ({error}): correct or rename them"
        ) from error


def _lazy(variable: xr.Variable) -> xr.Variable:
    """Make a dask array of what is not loaded from its file yet."""
    if variable.chunks is not None or variable._in_memory or variable.dtype.kind == "O":
        return variable
    chunks = variable.encoding.get("preferred_chunks")
    return variable.chunk("auto" if chunks is None else chunks)


def _encoded(variable: xr.Variable, name: str, given: Mapping[str, Any], where: str) -> xr.Variable:
    """Encode the elements as CF has it, where something asks for it."""
    variable = variable.copy(deep=False)
    kept, variable.encoding = dict(variable.encoding), {}
    for key in _NAMES_OF_VARIABLES:
        if key in kept and key not in variable.attrs:
            variable.attrs[key] = kept[key]
    asked = {key: value for key, value in given.items() if key not in STORAGE}
    kind = variable.dtype.kind
    if kind in "mM" or _holds_cftime(variable):
        if kind in "mM" and not asked:
            return variable
        units = {key: kept[key] for key in _TIMES if key in kept and kind == "O"}
        return pack(variable, name, units | asked, where)
    if kind in "OT":
        return _text(variable, where)
    packing = {key: kept[key] for key in _PACKING if key in kept} | asked
    if packing.keys() == {"dtype"} and np.dtype(packing["dtype"]) == variable.dtype:
        return variable
    if not packing or (kind in "bSUV" and not asked):
        return variable
    return pack(variable, name, packing, where)


def _holds_cftime(variable: xr.Variable) -> bool:
    if variable.dtype.kind != "O" or not variable.size:
        return False
    first = np.asarray(variable[(0,) * variable.ndim].values).item()
    return type(first).__module__.partition(".")[0] == "cftime"


def _text(variable: xr.Variable, where: str) -> xr.Variable:
    """Make text of one length of Python objects that are text."""
    if isinstance(variable.data, da.Array):
        raise TypeError(
            f"{where}: elements of {variable.dtype} have no length; give them one, as by "
            '.astype("U20")'
        )
    elements = np.asarray(variable.values, object)
    odd = next((each for each in elements.flat if not isinstance(each, str)), None)
    if odd is not None or any(each is None for each in elements.flat):
        how = {bytes: '.astype("S20")', type(None): '.fillna("")'}.get(type(odd), ".astype(float)")
        raise TypeError(
            f"{where}: Python objects, one of them of type {type(odd).__name__}, are not stored; "
            f"convert them, as by {how}, or leave the variable out by .drop_vars"
        )
    if any(each.endswith("\0") for each in elements.flat):
        raise ValueError(f"{where}: text that ends in NUL would lose it: strip it before")
    text = elements.astype(str) if elements.size else np.zeros(elements.shape, "U1")
    if not text.dtype.itemsize:
        text = text.astype("U1")
    return xr.Variable(variable.dims, text, variable.attrs)
