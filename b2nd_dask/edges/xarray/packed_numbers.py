"""Numbers packed into integers by ``scale_factor`` and the like, and unpacked again at once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import dask.array as da
import numpy as np
import xarray as xr
from numpy.typing import NDArray

from b2nd_dask.format.labels.labels import MISSING, SCALING

#: Values that are scaled come back rounded to multiples of `scale_factor`; with a little for that
#: rounding itself.
_ROUNDED = 0.5 + 1e-3
#: Elements that are packed at once: some arrays of so many fit into a cache of a core.
_PIECE = 1 << 16


def pack_numbers(
    given: NDArray[Any], dtype: np.dtype[Any], attrs: Mapping[str, Any], where: str
) -> NDArray[Any]:
    """Pack a block as xarray packs arrays of NumPy, and compare it with what will be read.

    Parameters
    ----------
    dtype : dtype
        Of what is stored.
    attrs : mapping
        What readers unpack it by.
    where : str
        What it is called in messages.

    Raises
    ------
    ValueError
        An element would be read as something else.
    """
    stored = np.empty(given.shape, dtype)
    numbers = _Numbers.of(given.dtype, dtype, attrs)
    if numbers.fill is not None and numbers.unpacked.kind in "iu":
        raise ValueError(
            f"{where} cannot be written as {dtype} with {dict(attrs)}, which could not be read "
            "again: another dtype or _FillValue in encoding= of a new file can hold it"
        )
    flat, integers = given.reshape(-1), stored.reshape(-1).view(numbers.integers)
    # that casts and quotients are out of range shows in what comes back
    with np.errstate(all="ignore"):
        for start in range(0, flat.size, _PIECE):
            piece = slice(start, start + _PIECE)
            numbers.pack(flat[piece], integers[piece])
            numbers.require_same(integers[piece], flat[piece], dtype, where)
    return stored


@dataclass(frozen=True)
class _Numbers:
    """How numbers of a dtype become integers, and what these are read as."""

    attrs: Mapping[str, Any]
    integers: np.dtype[Any]
    """What is stored, with or without a sign as `_Unsigned` has it."""
    quotients: np.dtype[Any]
    """In which offset and factor are removed."""
    unpacked: np.dtype[Any]
    """Of what is read."""
    fill: Any
    """Among the integers; None where none may be missing."""

    @classmethod
    def of(cls, given: np.dtype[Any], dtype: np.dtype[Any], attrs: Mapping[str, Any]) -> _Numbers:
        """Choose dtypes as xarray does."""
        if given.kind in "iu":
            # integers that are missing are given as what marks them
            attrs = {key: value for key, value in attrs.items() if key not in MISSING}
        kind = {"true": "u", "false": "i"}.get(attrs.get("_Unsigned", ""), dtype.kind)
        integers = np.dtype(f"{kind}{dtype.itemsize}").newbyteorder(dtype.byteorder)
        marks = [mark for key in MISSING for mark in np.ravel(attrs.get(key, ())) if mark == mark]
        fill = np.asarray(marks[0]).astype(dtype).view(integers) if marks else None
        quotients = given
        if fill is None:
            scaling = {key: attrs[key] for key in SCALING if key in attrs}
            # lazily: of NumPy's arrays xarray refuses integers that are divided by one
            elements = xr.Variable("x", da.zeros(0, dtype=given), {}, scaling)
            quotients = xr.conventions.encode_cf_variable(elements).dtype
        read = xr.Variable("x", np.zeros(0, dtype), attrs)
        unpacked = xr.conventions.decode_cf_variable("x", read, decode_times=False).dtype
        return cls(attrs, integers, quotients, unpacked, fill)

    def pack(self, given: NDArray[Any], out: NDArray[Any]) -> None:
        """Scale and round elements."""
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
        """Unpack elements again, and compare them."""
        unpacked = packed.astype(self.unpacked)
        if "scale_factor" in self.attrs:
            unpacked *= self.attrs["scale_factor"]
        if "add_offset" in self.attrs:
            unpacked += self.attrs["add_offset"]
        if self.fill is not None:
            np.copyto(unpacked, np.nan, where=packed == self.fill)
        # differences of whole numbers would wrap around; that of infinity is NaN, and never less
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
            raise ValueError(
                f"{where}: {given[first]} cannot be written as {dtype} with {dict(self.attrs)}: it "
                f"would be read as {unpacked[first]}; {remedy} in encoding= of a new file can hold "
                "it"
            )

    def _allowed(self, given: NDArray[Any]) -> NDArray[Any]:
        """How far elements may lie from what comes back."""
        step = abs(float(self.attrs.get("scale_factor", 1)))
        offset = abs(float(self.attrs.get("add_offset", 0)))
        floats = given.dtype if given.dtype.kind == "f" else np.dtype("f8")
        # xarray subtracts the offset in the dtype of floats that are given
        wide = np.result_type(floats, "f4")
        eps = float(np.finfo(floats).eps)
        allowed: NDArray[Any] = abs(given.astype(wide))
        allowed *= eps
        allowed += _ROUNDED * step + min(offset * eps, step / 2)
        return allowed
