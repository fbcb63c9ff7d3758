"""`Labels`: name, dims, attributes and coordinates of an array, stored in vlmeta.

Attributes are stored as JSON. Those whose type JSON loses are also stored as msgpack. Readers check
types, lengths and sizes (docs/format.md, Labels).
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from b2nd_dask.errors import B2ndError, FrameFormatError, level_of_caller
from b2nd_dask.format.values import pack_value

#: Most bytes of all coordinates in the frame of one array.
MAX_COORDS_NBYTES = 16 << 20
#: Most coordinates in such a frame: xarray's time for indexes grows with their number squared.
MAX_COORDS = 1000
#: Most characters of the name of a dim, a variable or an attribute.
MAX_NAME_LENGTH = 4096

#: Names of entries of vlmeta.
DIMS, NAME, ATTRS, COORDS = "dims", "var", "attrs", "coords"
IS_COORD, COORD_NAME, TYPED_ATTRS = "is_coord", "coord_name", "b2nd.attrs"
#: Text attributes that have their own entries.
OWN_ATTRS = ("units", "long_name")

#: CF attributes for packed elements.
SCALING = ("scale_factor", "add_offset")
MISSING = ("_FillValue", "missing_value")
PACKING = (*SCALING, *MISSING, "_Unsigned")

#: The only dim of a scalar, which xarray-blosc2 stores as an array of one element.
SCALAR_DIM = "_scalar"
#: Internal entries of xarray-blosc2, which do not describe the array.
_BOOKKEEPING = frozenset(
    {"nbytes", "cbytes", "cratio", "lineage", "dtype", "labels"}
    | {"change_time", "knowledge_time", "valid_time"}
)
_OWN = frozenset({DIMS, NAME, IS_COORD, COORD_NAME, ATTRS, TYPED_ATTRS, COORDS, *OWN_ATTRS})
#: Prefix of the entries of this package.
_PREFIX = "b2nd."
_TRUE = ("1", "true", "True")


@dataclass(frozen=True, slots=True)
class Labels:
    """Labels of one array: a dim for each axis, attributes, and the name of the variable, if any.

    `coords` are the coordinates inside the frame: each is a contiguous frame with its own labels. A
    scalar without dims may be stored as an array of one element.
    """

    dims: tuple[str, ...]
    name: str | None = None
    is_coord: bool = False
    attrs: Mapping[str, Any] = field(default_factory=dict)
    coords: Mapping[str, bytes] = field(default_factory=dict)
    has_dims: bool = True
    """Whether the frame states its dims."""
    is_named: bool = True
    """Whether the frame states the name (perhaps None); otherwise the file name is the name."""
    strings: tuple[str, ...] | None = None
    """Elements of a text coordinate, if vlmeta has them instead of the array."""
    typed: frozenset[str] = frozenset()
    """Names of the attributes that are stored as msgpack, since JSON loses their type."""


def too_many_coords(nbytes: Mapping[str, int]) -> str | None:
    """Explain why a frame cannot hold coordinates of these sizes; None if it can."""
    if len(nbytes) > MAX_COORDS:
        return f"{len(nbytes)} coordinates; the maximum is {MAX_COORDS} in a frame"
    total = sum(nbytes.values())
    if total > MAX_COORDS_NBYTES:
        largest = max(nbytes, key=lambda name: nbytes[name])
        return (
            f"{total} bytes of coordinates, of which {largest!r} has {nbytes[largest]}; "
            f"the maximum is {MAX_COORDS_NBYTES} in a frame"
        )
    return None


def unpack_labels(entries: Mapping[str, Any], shape: Sequence[int]) -> Labels:
    """Build labels from vlmeta, for an array of this shape.

    Raises `FrameFormatError` for an entry that is not a label, or that contradicts the array or
    another entry; `B2ndError` if an entry cannot be decoded. Omits an attribute that cannot be
    decoded, with a warning.

    Examples
    --------
    >>> found = unpack_labels({"dims": ["x"], "var": "t", "units": "K", "attrs": '{"n": 1}'}, [3])
    >>> found.dims, found.name, dict(found.attrs)
    (('x',), 't', {'units': 'K', 'n': 1})
    >>> unpack_labels({"made by": "me"}, [3, 4]).dims
    ('dim_0', 'dim_1')
    """
    has_dims = DIMS in entries
    dims = _dims(entries[DIMS], shape) if has_dims else default_dims(len(shape))
    if not has_dims and TYPED_ATTRS not in entries:
        attrs = _other_attrs(entries, ())
        return Labels(dims, attrs=attrs, has_dims=False, is_named=False)
    is_coord = IS_COORD in entries and str(entries[IS_COORD]) in _TRUE
    strings = _strings(entries, shape) if is_coord else None
    name, is_named = _name(entries, is_coord=is_coord)
    typed = typed_attrs(entries[TYPED_ATTRS]) if TYPED_ATTRS in entries else {}
    attrs, coords = _attrs(entries) | typed, _coords(entries)
    return Labels(
        dims, name, is_coord, attrs, coords, has_dims, is_named, strings, frozenset(typed)
    )


def default_dims(ndim: int) -> tuple[str, ...]:
    """Names of unnamed dims, as in xarray."""
    return tuple(f"dim_{axis}" for axis in range(ndim))


def _dims(stored: Any, shape: Sequence[int]) -> tuple[str, ...]:
    """Determine the dims of the array; none for a scalar stored as an array of one element."""
    if not isinstance(stored, list | tuple):
        raise _invalid(DIMS, f"names of dims must be a list of text, not {_type_text(stored)}")
    dims = tuple(_require_name(DIMS, each) for each in stored)
    if tuple(shape) in ((), (1,)) and dims in ((SCALAR_DIM,), ()):
        return ()
    if len(dims) != len(shape):
        raise _invalid(DIMS, f"it names {len(dims)} dims, and the array has {len(shape)} axes")
    if len(set(dims)) < len(dims):
        raise _invalid(DIMS, f"two axes have the same name: {', '.join(map(repr, dims))}")
    return dims


def _name(entries: Mapping[str, Any], *, is_coord: bool) -> tuple[str | None, bool]:
    """Determine the name of the variable; also return whether the frame states it."""
    for entry in (COORD_NAME, NAME) if is_coord else (NAME, COORD_NAME):
        if entry in entries:
            value = entries[entry]
            return (None if value is None else _require_name(entry, value)), True
    return None, False


def _require_name(entry: str, value: Any) -> str:
    if not isinstance(value, str):
        raise _invalid(entry, f"a name must be text, not {_type_text(value)}")
    if not value or len(value) > MAX_NAME_LENGTH:
        raise _invalid(entry, f"a name of {len(value)} characters, not 1 to {MAX_NAME_LENGTH}")
    return value


def _strings(entries: Mapping[str, Any], shape: Sequence[int]) -> tuple[str, ...] | None:
    """Read the elements of a coordinate that xarray-blosc2 stores as text in vlmeta."""
    if "labels" not in entries or str(entries.get("dtype")) != "string":
        return None
    stored = entries["labels"]
    if not isinstance(stored, list | tuple) or not all(isinstance(each, str) for each in stored):
        raise _invalid("labels", "the elements of a coordinate of text must be a list of text")
    if tuple(shape) != (len(stored),):
        raise _invalid("labels", f"{len(stored)} elements of text for an array of shape {shape}")
    return tuple(stored)


def _attrs(entries: Mapping[str, Any]) -> dict[str, Any]:
    found = _decode_entries(entries, (name for name in OWN_ATTRS if name in entries))
    if ATTRS in entries:
        # as JSON or as a map
        stored = entries[ATTRS]
        try:
            stored = json.loads(stored) if isinstance(stored, str) else stored
        except (ValueError, RecursionError) as error:
            raise _invalid(ATTRS, f"it is not JSON: {str(error) or 'nested too deep'}") from error
        found |= _require_map(ATTRS, stored)
    return found | _other_attrs(entries, _OWN | _BOOKKEEPING)


def _require_map(entry: str, stored: Any) -> dict[str, Any]:
    if not isinstance(stored, dict) or not all(isinstance(name, str) for name in stored):
        raise _invalid(
            entry, f"attributes must be a map of names to values, not {_type_text(stored)}"
        )
    return stored


def typed_attrs(stored: Any) -> dict[str, Any]:
    """Convert the unpacked msgpack map of the attributes whose types JSON loses.

    It has 0-d arrays in place of NumPy scalars. Raises `FrameFormatError` unless it is a map with
    text keys.
    """
    return {n: unpacked(value) for n, value in _require_map(TYPED_ATTRS, stored).items()}


def _other_attrs(entries: Mapping[str, Any], without: Iterable[str]) -> dict[str, Any]:
    """Collect the entries of users, which become attributes."""
    names = [name for name in entries if name not in without and not name.startswith(_PREFIX)]
    return _decode_entries(entries, names)


def _decode_entries(entries: Mapping[str, Any], names: Iterable[str]) -> dict[str, Any]:
    found = {}
    for name in names:
        try:
            found[name] = unpacked(entries[name])
        except B2ndError as error:
            # an entry of another program: the array is usable without it
            warnings.warn(f"omitted from the attributes: {error}", stacklevel=level_of_caller())
    return found


def _coords(entries: Mapping[str, Any]) -> dict[str, bytes]:
    """Read the coordinates inside the frame of one array."""
    if COORDS not in entries:
        return {}
    stored = entries[COORDS]
    if not isinstance(stored, dict):
        raise _invalid(
            COORDS, f"coordinates must be a map of names to frames, not {_type_text(stored)}"
        )
    for name, frame in stored.items():
        _require_name(COORDS, name)
        if not isinstance(frame, bytes):
            raise _invalid(COORDS, f"{name!r} is {_type_text(frame)}, not the bytes of a frame")
    if problem := too_many_coords({name: len(frame) for name, frame in stored.items()}):
        raise _invalid(COORDS, problem)
    return stored


def _invalid(entry: str, problem: str) -> FrameFormatError:
    return FrameFormatError(f"in the metadata entry {entry!r}: {problem}")


def _type_text(value: Any) -> str:
    return "nothing" if value is None else f"a value of type {type(value).__name__}"


def pack_labels(labels: Labels) -> dict[str, Any]:
    """Convert labels to entries of vlmeta, as Python values."""
    entries: dict[str, Any] = {DIMS: list(labels.dims)} if labels.has_dims else {TYPED_ATTRS: {}}
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
    """Select the attributes that JSON can store and those whose type it loses; some are both."""
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

    return _map_values(value, array_of)


def unpacked(value: Any) -> Any:
    """Convert an unpacked msgpack value: 0-d arrays become scalars, other arrays are copied."""

    def own(leaf: Any) -> Any:
        # unpacked arrays are read-only views of the stored bytes
        return leaf.copy()[()] if isinstance(leaf, np.ndarray) else leaf

    return _map_values(value, own)


def _map_values(value: Any, convert: Callable[[Any], Any]) -> Any:
    """Apply a function to all values inside lists, tuples and maps."""
    if isinstance(value, list | tuple):
        return type(value)(_map_values(each, convert) for each in value)
    if isinstance(value, Mapping):
        return {key: _map_values(each, convert) for key, each in value.items()}
    return convert(value)
