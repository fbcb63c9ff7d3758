"""Attributes of other formats as plain Python and NumPy values; what cannot be kept is named."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from b2nd_dask.format.labels.pack import NotKeptError


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
