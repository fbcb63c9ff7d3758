"""Packing of values by CF, with a check that unpacking returns the original values."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import dask.array as da
import numpy as np
import xarray as xr
from numpy.typing import NDArray

from b2nd_dask.format.labels import MISSING, SCALING

#: Greatest error of scaled values, in units of `scale_factor`: half a step, and a little for
#: rounding errors.
_ROUNDED = 0.5 + 1e-3
#: Elements to pack at once: several arrays of this size fit into a core's cache.
_PIECE = 1 << 16
_UNREADABLE = ", which could not be read again:"
_REMEDY = "finer units, a wider dtype or a _FillValue"


def pack(variable: xr.Variable, name: str, encoding: Mapping[str, Any], where: str) -> xr.Variable:
    """Encode the elements of a variable, which messages call `where`.

    Raises TypeError, ValueError or OverflowError if a value cannot be encoded, or would be read as
    another value: a time between whole units, a number out of the range of integers, a missing one
    without ``_FillValue``. For dask arrays some of these errors come at the computation.
    """
    given = variable.data
    is_scaled = any(key in encoding for key in SCALING)
    # scaled numbers are stored as floats by default
    stored = np.dtype(encoding.get("dtype", "f8" if is_scaled else given.dtype))
    are_packed = given.dtype.kind in "iuf" and stored.kind in "iu"
    if are_packed:
        # an empty array gives the attributes; a lazy one, since xarray rejects some integers
        none = da.zeros((0,) * given.ndim, dtype=given.dtype)
        variable = xr.Variable(variable.dims, none, variable.attrs)
        if "_Unsigned" in encoding and not stored.isnative:
            raise ValueError(
                f"{where} cannot be encoded with {dict(encoding)}: xarray would read _FillValue in "
                "the byte order of the machine"
            )
    variable.encoding = dict(encoding)
    if "dtype" in encoding:
        # dask's names of arrays depend on how a dtype is given; a repeated append finds them equal
        variable.encoding["dtype"] = stored
    try:
        with warnings.catch_warnings(), np.errstate(invalid="ignore"):
            # errors below find what is not kept, as these warnings say
            warnings.simplefilter("ignore", UserWarning)
            warnings.filterwarnings("error", ".* Serializing .*with units", UserWarning)
            warnings.filterwarnings("ignore", "saving variable", xr.SerializationWarning)
            encoded = xr.conventions.encode_cf_variable(variable, name=name)
    except UserWarning as error:
        # xarray would choose finer units
        problem, _, _ = str(error).partition(". ")
        raise ValueError(f"{where}: {problem}; finer units can hold them in a new file") from error
    except (ValueError, TypeError, OverflowError) as error:
        raise type(error)(f"{where} cannot be encoded with {dict(encoding)}: {error}") from error
    encoded.encoding = {}
    if "units" in encoding and "units" in encoded.attrs:
        # xarray may have spelled the same units differently
        encoded.attrs["units"] = encoding["units"]
    dtype, attrs = encoded.dtype, dict(encoded.attrs)
    if are_packed:
        made = partial(pack_numbers, dtype=dtype, attrs=attrs, where=where)
        return xr.Variable(encoded.dims, _of_blocks(made, dtype, given), attrs)
    if dtype.kind in "iuSU" and given.dtype.kind not in "iu":
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
    """Decode a block and compare it with the original elements; return the encoded block."""
    # for dask arrays xarray's integers may have another size than their declared dtype
    encoded = encoded.astype(dtype)
    dims = tuple(f"dim_{axis}" for axis in range(encoded.ndim))
    times = xr.coders.CFDatetimeCoder(use_cftime=True if given.dtype.kind == "O" else None)
    try:
        decoded = xr.conventions.decode_cf_variable(
            name,
            xr.Variable(dims, encoded, attrs),
            # as the engine opens it: single characters stay an array
            concat_characters=dtype != "S1",
            decode_times=times,
            decode_timedelta=True,
        ).values
    except (ValueError, TypeError, OverflowError) as error:
        raise _not_held(where, encoded.dtype, attrs, _UNREADABLE, _REMEDY) from error
    same = (decoded == given) | ((given != given) & (decoded != decoded))
    if not np.all(same):
        at = tuple(index[0] for index in np.nonzero(~np.atleast_1d(same)))
        what, becomes = f"{where}: {np.atleast_1d(given)[at]}", np.atleast_1d(decoded)[at]
        problem = f": it would be read as {becomes};"
        raise _not_held(what, encoded.dtype, attrs, problem, _REMEDY)
    return encoded


def _not_held(
    what: str, dtype: np.dtype[Any], attrs: Mapping[str, Any], problem: str, remedy: str
) -> ValueError:
    options = f" with {dict(attrs)}" if attrs else ""
    return ValueError(
        f"{what} cannot be written as {dtype}{options}{problem} {remedy} in encoding= of a new "
        "file can hold it"
    )


def pack_numbers(
    given: NDArray[Any], dtype: np.dtype[Any], attrs: Mapping[str, Any], where: str
) -> NDArray[Any]:
    """Pack a block like xarray packs NumPy arrays; check that unpacking returns its elements.

    `dtype` is that of the stored elements; readers unpack them by `attrs`. Raises ValueError if an
    element would be read as another value.
    """
    stored = np.empty(given.shape, dtype)
    numbers = _Numbers.of(given.dtype, dtype, attrs)
    if numbers.fill is not None and numbers.unpacked.kind in "iu":
        raise _not_held(where, dtype, attrs, _UNREADABLE, "a scale_factor of type float")
    flat, integers = given.reshape(-1), stored.reshape(-1).view(numbers.integers)
    # the comparison finds casts and quotients out of range
    with np.errstate(all="ignore"):
        for start in range(0, flat.size, _PIECE):
            piece = slice(start, start + _PIECE)
            numbers.pack(flat[piece], integers[piece])
            numbers.require_same(integers[piece], flat[piece], dtype, where)
    return stored


@dataclass(frozen=True)
class _Numbers:
    """Dtypes and attributes to pack numbers as integers and to unpack them."""

    attrs: Mapping[str, Any]
    integers: np.dtype[Any]
    """Dtype of the stored integers, signed or unsigned by `_Unsigned`."""
    quotients: np.dtype[Any]
    """Dtype in which offset and factor are removed."""
    unpacked: np.dtype[Any]
    """Dtype of the elements as read."""
    fill: Any
    """The integer for missing elements; None if none may be missing."""

    @classmethod
    def of(cls, given: np.dtype[Any], dtype: np.dtype[Any], attrs: Mapping[str, Any]) -> _Numbers:
        """Choose dtypes like xarray."""
        if given.kind in "iu":
            # given integers already have the fill value for missing elements
            attrs = {key: value for key, value in attrs.items() if key not in MISSING}
        kind = {"true": "u", "false": "i"}.get(attrs.get("_Unsigned", ""), dtype.kind)
        integers = np.dtype(f"{kind}{dtype.itemsize}").newbyteorder(dtype.byteorder)
        marks = [mark for key in MISSING for mark in np.ravel(attrs.get(key, ())) if mark == mark]
        fill = np.asarray(marks[0]).astype(dtype).view(integers) if marks else None
        quotients = given
        if fill is None:
            scaling = {key: attrs[key] for key in SCALING if key in attrs}
            # a lazy array, since xarray rejects NumPy integers that are divided by one
            elements = xr.Variable("x", da.zeros(0, dtype=given), {}, scaling)
            quotients = xr.conventions.encode_cf_variable(elements).dtype
        read = xr.Variable("x", np.zeros(0, dtype), attrs)
        unpacked = xr.conventions.decode_cf_variable("x", read, decode_times=False).dtype
        return cls(attrs, integers, quotients, unpacked, fill)

    def pack(self, given: NDArray[Any], out: NDArray[Any]) -> None:
        """Scale and round elements; write them to `out`."""
        quotients = given.astype(self.quotients)
        if "add_offset" in self.attrs:
            quotients -= self.attrs["add_offset"]
        if "scale_factor" in self.attrs:
            quotients /= self.attrs["scale_factor"]
        if quotients.dtype.kind == "f":
            np.rint(quotients, out=quotients)
        np.copyto(out, quotients, casting="unsafe")
        if self.fill is not None:
            np.copyto(out, self.fill, where=given != given)

    def require_same(
        self, packed: NDArray[Any], given: NDArray[Any], dtype: np.dtype[Any], where: str
    ) -> None:
        """Unpack elements and compare them with the original ones."""
        unpacked = packed.astype(self.unpacked)
        if self.fill is not None:
            # like xarray after the cast, which rounds large integers
            np.copyto(unpacked, np.nan, where=unpacked == self.fill)
        if "scale_factor" in self.attrs:
            unpacked *= self.attrs["scale_factor"]
        if "add_offset" in self.attrs:
            unpacked += self.attrs["add_offset"]
        # as floats: integers would wrap around; a difference of infinities is NaN, never less
        wide = np.result_type(unpacked, given, "f4")
        same = abs(np.subtract(unpacked, given, dtype=wide)) < self._allowed(given)
        if self.fill is not None:
            same |= (given != given) & (unpacked != unpacked)
        if not same.all():
            first = np.argmin(same)
            if given[first] != given[first]:
                remedy = "a _FillValue"
            elif self.fill is not None and packed[first] == self.fill:
                remedy = "another _FillValue"
            elif not np.isfinite(given[first]):
                remedy = "a dtype of floats"
            else:
                remedy = "a wider dtype, a larger scale_factor or another add_offset"
            problem = f": it would be read as {unpacked[first]};"
            raise _not_held(f"{where}: {given[first]}", dtype, self.attrs, problem, remedy)

    def _allowed(self, given: NDArray[Any]) -> NDArray[Any]:
        """Greatest allowed differences between original and unpacked elements."""
        step = abs(float(self.attrs.get("scale_factor", 1)))
        offset = abs(float(self.attrs.get("add_offset", 0)))
        floats = given.dtype if given.dtype.kind == "f" else np.dtype("f8")
        # xarray subtracts the offset in the dtype of given floats
        wide = np.result_type(floats, "f4")
        eps = float(np.finfo(floats).eps)
        allowed: NDArray[Any] = abs(given.astype(wide))
        allowed *= eps
        allowed += _ROUNDED * step + min(offset * eps, step / 2)
        return allowed
