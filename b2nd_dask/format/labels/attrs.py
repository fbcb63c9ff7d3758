"""Values of attributes: stored as JSON, and also as msgpack where JSON loses their type."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from b2nd_dask.format.values import pack_value


def storable(name: Any, value: Any) -> Any:
    """Return the value of an attribute; TypeError if it cannot be stored.

    Examples
    --------
    >>> storable("range", [1, 2.5, "m"])
    [1, 2.5, 'm']
    """
    if not isinstance(name, str):
        raise TypeError("its name is not text")
    try:
        if _loses_type(value):
            pack_value(_with_arrays(value))
        else:
            json.dumps(as_json(value)).encode()
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise TypeError(str(error) or type(error).__name__) from error
    return value


def split_attrs(attrs: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Split attributes into those that JSON stores and those whose type it loses."""
    plain, typed = {}, {}
    for name, value in attrs.items():
        if _loses_type(value):
            typed[name] = _with_arrays(value)
        try:
            plain[name] = as_json(value)
        except TypeError:
            continue
    return plain, typed


def as_json(value: Any) -> Any:
    """Convert a value to JSON's types: numbers without their dtype, arrays as lists.

    Raises TypeError for bytes, complex numbers, times, other objects.
    """
    if isinstance(value, np.ndarray | np.generic):
        # Python has no number that is wider than a double
        if value.dtype.kind not in "biufU" or value.dtype.char == "g":
            raise TypeError(f"a value of {value.dtype}")
        return value.tolist()
    if isinstance(value, list | tuple):
        return [as_json(each) for each in value]
    if isinstance(value, Mapping):
        if not all(isinstance(key, str) for key in value):
            raise TypeError("a map whose keys are not text")
        return {key: as_json(each) for key, each in value.items()}
    if value is None or isinstance(value, str | bool | int | float):
        return value
    raise TypeError(f"a value of type {type(value).__name__}")


def _loses_type(value: Any) -> bool:
    """Whether JSON loses a NumPy dtype, a tuple or bytes, or cannot hold the value at all."""
    if type(value) is list:
        return any(map(_loses_type, value))
    if type(value) is dict:
        return any(map(_loses_type, value.values()))
    return not (value is None or type(value) in (str, bool, int, float))


def _with_arrays(value: Any) -> Any:
    """Convert NumPy scalars to 0-d arrays, since msgpack drops the dtype of a number."""

    def array_of(leaf: Any) -> Any:
        if isinstance(leaf, np.str_):
            return str(leaf)
        return np.asarray(leaf) if isinstance(leaf, np.generic) else leaf

    return _converted(value, array_of)


def unpacked(value: Any) -> Any:
    """Convert an unpacked msgpack value: 0-d arrays to scalars, others to arrays of their own."""

    def own(leaf: Any) -> Any:
        # unpacked arrays are read-only views of the stored bytes
        return leaf.copy()[()] if isinstance(leaf, np.ndarray) else leaf

    return _converted(value, own)


def _converted(value: Any, convert: Callable[[Any], Any]) -> Any:
    """Convert all values inside lists, tuples and maps."""
    if isinstance(value, list | tuple):
        return type(value)(_converted(each, convert) for each in value)
    if isinstance(value, Mapping):
        return {key: _converted(each, convert) for key, each in value.items()}
    return convert(value)
