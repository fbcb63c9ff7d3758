"""Attributes of other formats as plain Python and NumPy values; what cannot be kept is named."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np


class NotKeptError(Exception):
    """A value that the target has no form for."""


def normal(value: Any) -> Any:
    """Make a plain value of an attribute as h5py and zarr give it.

    Raises
    ------
    NotKeptError
        A reference, an empty value, Python objects.

    Examples
    --------
    >>> normal(np.bytes_(b"mm")), normal(np.array(["a", "b"], object))
    ('mm', ['a', 'b'])
    """
    if isinstance(value, bytes):
        try:
            return bytes(value).decode()
        except UnicodeDecodeError:
            return bytes(value)
    if isinstance(value, np.ndarray):
        if value.dtype.kind == "O" and all(isinstance(each, str | bytes) for each in value.flat):
            return [normal(each) for each in value.tolist()]
        if value.dtype.kind == "S":
            return [normal(each) for each in value.tolist()] if value.ndim == 1 else value
        if value.dtype.kind in "OV":
            raise NotKeptError(f"an array of {value.dtype}")
        return value
    if isinstance(value, np.str_):
        return str(value)
    if isinstance(value, str | int | float | complex | np.generic | None):
        if isinstance(value, np.void):
            raise NotKeptError(f"a value of {value.dtype}")
        return value
    if isinstance(value, list | tuple):
        return [normal(each) for each in value]
    if isinstance(value, Mapping):
        return {str(key): normal(each) for key, each in value.items()}
    raise NotKeptError(f"a value of type {type(value).__name__}")


def kept(attrs: Mapping[str, Any], label: str, lost: list[str]) -> dict[str, Any]:
    """The attributes that can be kept; the others are added to a list."""
    found = {}
    for name, value in attrs.items():
        try:
            found[name] = normal(value)
        except NotKeptError as reason:
            lost.append(f"attribute {name!r} of {label} ({reason})")
    return found


def as_json(value: Any) -> Any:
    """The same as JSON can hold it: numbers without their dtype, arrays as lists.

    Raises
    ------
    NotKeptError
        Bytes, complex numbers, times.

    Examples
    --------
    >>> as_json({"scale": np.float32(0.5), "range": np.array([0, 3], "i2")})
    {'scale': 0.5, 'range': [0, 3]}
    """
    if isinstance(value, np.ndarray | np.generic):
        if value.dtype.kind not in "biufU":
            raise NotKeptError(f"a value of {value.dtype}")
        return value.tolist()
    if isinstance(value, list | tuple):
        return [as_json(each) for each in value]
    if isinstance(value, Mapping):
        return {str(key): as_json(each) for key, each in value.items()}
    if value is None or isinstance(value, str | bool | int | float):
        return value
    raise NotKeptError(f"a value of type {type(value).__name__}")


def loses_type(value: Any) -> bool:
    """Whether JSON loses more than the order of keys: dtypes of NumPy, bytes, complex numbers."""
    if isinstance(value, list):
        return any(map(loses_type, value))
    if isinstance(value, dict):
        return any(map(loses_type, value.values()))
    return not (value is None or isinstance(value, str | bool | int | float)) or isinstance(
        value, np.generic
    )
