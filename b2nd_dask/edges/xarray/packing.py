"""Values as CF packs them, checked: what comes back is what was given."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import dask.array as da
import numpy as np
import xarray as xr
from numpy.typing import NDArray

from b2nd_dask.edges.xarray.packed_numbers import pack_numbers
from b2nd_dask.format.labels.labels import SCALING

_REMEDY = "finer units, a wider dtype or a _FillValue in encoding= of a new file can hold it"


def pack(variable: xr.Variable, name: str, encoding: Mapping[str, Any], where: str) -> xr.Variable:
    """Encode the elements of a variable.

    Parameters
    ----------
    where : str
        What it is called in messages.

    Raises
    ------
    TypeError, ValueError, OverflowError
        What cannot be encoded so, or would come back as something else: times between whole units,
        values out of the range of integers, missing ones without ``_FillValue``. Of dask arrays
        some of it shows when they are computed.
    """
    given = variable.data
    is_scaled = any(key in encoding for key in SCALING)
    # scaled numbers are floats, unless something else is asked for
    stored = np.dtype(encoding.get("dtype", "f8" if is_scaled else given.dtype))
    are_packed = given.dtype.kind in "iuf" and stored.kind in "iu"
    if are_packed:
        # attributes follow from no elements; lazily, since xarray refuses some integers else
        none = da.zeros((0,) * given.ndim, dtype=given.dtype)
        variable = xr.Variable(variable.dims, none, variable.attrs)
        if "_Unsigned" in encoding and not stored.isnative:
            raise ValueError(
                f"{where} cannot be encoded with {dict(encoding)}: xarray would read _FillValue in "
                "the byte order of the machine"
            )
    variable.encoding = dict(encoding)
    try:
        with warnings.catch_warnings(), np.errstate(invalid="ignore"):
            # that it takes other units, and that NaN has no form: errors below
            warnings.simplefilter("ignore", UserWarning)
            warnings.simplefilter("ignore", xr.SerializationWarning)
            encoded = xr.conventions.encode_cf_variable(variable, name=name)
    except (ValueError, TypeError, OverflowError) as error:
        raise type(error)(f"{where} cannot be encoded with {dict(encoding)}: {error}") from error
    encoded.encoding = {}
    if "units" in encoding and "units" in encoded.attrs:
        # xarray may have written the same in another way
        encoded.attrs["units"] = encoding["units"]
    dtype, attrs = encoded.dtype, dict(encoded.attrs)
    if are_packed:
        made = partial(pack_numbers, dtype=dtype, attrs=attrs, where=where)
        return xr.Variable(encoded.dims, _of_blocks(made, dtype, given), attrs)
    if dtype.kind in "iu" and given.dtype.kind not in "iu":
        same = partial(_require_same, dtype=dtype, attrs=attrs, name=name, where=where)
        encoded.data = _of_blocks(same, dtype, encoded.data, given)
    return encoded


def _of_blocks(function: Callable[..., NDArray[Any]], dtype: np.dtype[Any], *arrays: Any) -> Any:
    if isinstance(arrays[-1], da.Array):
        return da.map_blocks(function, *arrays, dtype=dtype)
    return function(*map(np.asarray, arrays))


def _require_same(
    encoded: NDArray[Any],
    given: NDArray[Any],
    dtype: np.dtype[Any],
    attrs: Mapping[str, Any],
    name: str,
    where: str,
) -> NDArray[Any]:
    """Decode a block again, and compare it."""
    # lazily xarray gives integers of other lengths than it says
    encoded = encoded.astype(dtype)
    dims = tuple(f"dim_{axis}" for axis in range(encoded.ndim))
    times = xr.coders.CFDatetimeCoder(use_cftime=True if given.dtype.kind == "O" else None)
    try:
        decoded = xr.conventions.decode_cf_variable(
            name, xr.Variable(dims, encoded, attrs), decode_times=times, decode_timedelta=True
        ).values
    except (ValueError, OverflowError) as error:
        raise ValueError(
            f"{where} cannot be written as {encoded.dtype} with {dict(attrs)}, which could not be "
            f"read again: {_REMEDY}"
        ) from error
    same = (decoded == given) | ((given != given) & (decoded != decoded))
    if not np.all(same):
        at = tuple(index[0] for index in np.nonzero(~np.atleast_1d(same)))
        was, becomes = np.atleast_1d(given)[at], np.atleast_1d(decoded)[at]
        raise ValueError(
            f"{where}: {was} cannot be written as {encoded.dtype} with {dict(attrs)}: it would be "
            f"read as {becomes}; {_REMEDY}"
        )
    return encoded
