"""Values as CF packs them, checked: what comes back is what was given."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from functools import partial
from typing import Any

import dask.array as da
import numpy as np
import xarray as xr
from numpy.typing import NDArray

#: Values that are scaled come back rounded to multiples of `scale_factor`; with a little for that
#: rounding itself.
_ROUNDED = 0.5 + 1e-3
_REMEDY = "another dtype, finer units or a _FillValue in encoding= of a new file can hold it"
_MISSING = ("_FillValue", "missing_value")


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
    if encoded.dtype.kind not in "iu":
        return encoded
    same = partial(
        _require_same, dtype=encoded.dtype, attrs=dict(encoded.attrs), name=name, where=where
    )
    if isinstance(given, da.Array):
        encoded.data = da.map_blocks(same, encoded.data, given, dtype=encoded.dtype)
    else:
        same(np.asarray(encoded.data), np.asarray(given))
    return encoded


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
    if given.dtype.kind in "iu":
        # integers that are missing are given as what marks them
        attrs = {key: value for key, value in attrs.items() if key not in _MISSING}
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
    if given.dtype.kind in "iuf":
        step = abs(float(attrs.get("scale_factor", 1)))
        floats = given.dtype if given.dtype.kind == "f" else np.dtype("f8")
        # xarray subtracts the offset in the dtype of floats that are given
        largest = np.maximum(abs(given), abs(float(attrs.get("add_offset", 0))))
        near = abs(decoded - given) <= _ROUNDED * step + np.spacing(largest.astype(floats))
        same = near | ((given != given) & (decoded != decoded))
    else:
        same = (decoded == given) | ((given != given) & (decoded != decoded))
    if not np.all(same):
        at = tuple(index[0] for index in np.nonzero(~np.atleast_1d(same)))
        was, becomes = np.atleast_1d(given)[at], np.atleast_1d(decoded)[at]
        raise ValueError(
            f"{where}: {was} cannot be written as {encoded.dtype} with {dict(attrs)}: it would be "
            f"read as {becomes}; {_REMEDY}"
        )
    return encoded
