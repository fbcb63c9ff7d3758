"""Labels as entries of a frame's vlmeta and as a manifest: what `labels` and `manifest` read."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping, Sequence
from typing import Any

import blosc2
import numpy as np

from b2nd_dask.format.labels.labels import (
    ATTRS,
    COORD_NAME,
    COORDS,
    DIMS,
    IS_COORD,
    NAME,
    OWN_ATTRS,
    TYPED_ATTRS,
    Labels,
)
from b2nd_dask.format.labels.manifest import VERSION
from b2nd_dask.format.values import pack_value

#: Of a list of members that has none.
_EMBED_CHUNK_NBYTES = 1 << 16


class NotKeptError(Exception):
    """A value of an attribute for which there is no form."""


def pack_labels(labels: Labels) -> dict[str, Any]:
    """Make entries of vlmeta, as Python values.

    Examples
    --------
    >>> pack_labels(Labels(("x",), "t", attrs={"units": "K", "n": 1}))
    {'dims': ['x'], 'var': 't', 'units': 'K', 'attrs': '{"n": 1}'}
    """
    entries: dict[str, Any] = {DIMS: list(labels.dims)}
    if labels.is_coord:
        entries |= {IS_COORD: True, COORD_NAME: labels.name}
    else:
        entries[NAME] = labels.name
    attrs = dict(labels.attrs)
    entries |= {own: attrs.pop(own) for own in OWN_ATTRS if type(attrs.get(own)) is str}
    plain, typed = split_attrs(attrs)
    if plain:
        entries[ATTRS] = json.dumps(plain)
    if typed:
        entries[TYPED_ATTRS] = typed
    if labels.coords:
        entries[COORDS] = dict(labels.coords)
    return entries


def build_manifest(
    variables: Mapping[str, Labels],
    sizes: Mapping[str, int],
    attrs: Mapping[str, Any],
    groups: Sequence[str] = (),
) -> bytes:
    """Make the bytes of `dataset.json`.

    Parameters
    ----------
    variables : mapping
        Labels of each variable by its name.
    sizes : mapping
        Length of each dim: where frames are longer, what lies behind is not committed.
    attrs : mapping
        Of the dataset.
    groups : sequence of str
        Datasets inside of this one, which may have no variable that would show them.
    """
    plain, typed = split_attrs(attrs)
    own: dict[str, Any] = {"version": VERSION}
    if typed:
        own["attrs"] = base64.b64encode(pack_value(typed)).decode()
    if groups:
        own["groups"] = list(groups)
    stored = {
        "data_vars": [name for name, labels in variables.items() if not labels.is_coord],
        "coords": [name for name, labels in variables.items() if labels.is_coord],
        "dims": {dim: int(size) for dim, size in sizes.items()},
        "attrs": plain,
        "variable_attrs": {
            name: split_attrs(labels.attrs)[0] for name, labels in variables.items() if labels.attrs
        },
        "b2nd": own,
    }
    return json.dumps(stored, indent=1).encode()


def build_embed() -> bytes:
    """Make the file `embed.b2e` of a store of frames in files; python-blosc2 opens none without."""
    # with this metalayer, which its `TreeStore` writes, it looks for members beside the file
    marked = blosc2.SChunk(chunksize=_EMBED_CHUNK_NBYTES, meta={"b2tree": {"version": 1}})
    return bytes(marked.to_cframe())


def storable(name: Any, value: Any) -> Any:
    """Check that an attribute can be kept, and return its value.

    Raises
    ------
    NotKeptError
        It cannot.

    Examples
    --------
    >>> storable("range", [1, 2.5, "m"])
    [1, 2.5, 'm']
    """
    if not isinstance(name, str):
        raise NotKeptError("its name is no text")
    try:
        if _loses_type(value):
            pack_value(_as_arrays(value))
        else:
            json.dumps(as_json(value)).encode()
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise NotKeptError(str(error) or type(error).__name__) from error
    return value


def split_attrs(attrs: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Split attributes: as JSON has them, and those of which that loses the type."""
    plain, typed = {}, {}
    for name, value in attrs.items():
        if _loses_type(value):
            typed[name] = _as_arrays(value)
        try:
            plain[name] = as_json(value)
        except NotKeptError:
            continue
    return plain, typed


def as_json(value: Any) -> Any:
    """Make of a value what JSON can hold: numbers without their dtype, arrays as lists.

    Raises
    ------
    NotKeptError
        Bytes, complex numbers, times, other objects.

    Examples
    --------
    >>> as_json({"scale": np.float32(0.5), "range": np.array([0, 3], "i2")})
    {'scale': 0.5, 'range': [0, 3]}
    """
    if isinstance(value, np.ndarray | np.generic):
        # Python has no number of more bytes than a double
        if value.dtype.kind not in "biufU" or value.dtype.char == "g":
            raise NotKeptError(f"a value of {value.dtype}")
        return value.tolist()
    if isinstance(value, list | tuple):
        return [as_json(each) for each in value]
    if isinstance(value, Mapping):
        if not all(isinstance(key, str) for key in value):
            raise NotKeptError("a map whose keys are no text")
        return {key: as_json(each) for key, each in value.items()}
    if value is None or isinstance(value, str | bool | int | float):
        return value
    raise NotKeptError(f"a value of type {type(value).__name__}")


def _loses_type(value: Any) -> bool:
    """Whether JSON loses a dtype of NumPy, a tuple, bytes, or has no form of a value at all."""
    if type(value) is list:
        return any(map(_loses_type, value))
    if type(value) is dict:
        return any(map(_loses_type, value.values()))
    return not (value is None or type(value) in (str, bool, int, float))


def _as_arrays(value: Any) -> Any:
    """Make arrays without axes of NumPy's numbers: msgpack keeps no dtype of a number."""
    if isinstance(value, np.str_):
        return str(value)
    if isinstance(value, np.generic):
        return np.asarray(value)
    if isinstance(value, list | tuple):
        return type(value)(_as_arrays(each) for each in value)
    if isinstance(value, Mapping):
        return {key: _as_arrays(each) for key, each in value.items()}
    return value
