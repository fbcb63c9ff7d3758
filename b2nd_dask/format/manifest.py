"""`dataset.json`: the manifest of a directory of frames.

The PyPI package xarray-blosc2 defines the layout. This package adds an entry ``b2nd``:
``{"version": 1, "attrs": TEXT}``. The text is base64 of a msgpack map: the attributes of the
dataset whose types JSON loses.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import blosc2

from b2nd_dask.errors import FrameFormatError, UnsupportedFrameError, locating
from b2nd_dask.format.labels import split_attrs, typed_attrs
from b2nd_dask.format.values import pack_value, unpack_value

#: Chunk size of an empty list of members.
_EMBED_CHUNK_NBYTES = 1 << 16
#: Name of the manifest file.
MANIFEST = "dataset.json"
#: Prefix of the file names of coordinates in the same directory.
COORD = "_coord_"
#: Most bytes of a manifest.
MAX_MANIFEST_NBYTES = 16 << 20
#: Most bytes of the name of a file without its suffix.
_MAX_STEM_NBYTES = 250
#: Version of the entry ``b2nd``.
VERSION = 1


@dataclass(frozen=True)
class Geogrid:
    """The packing of a variable by xarray-blosc2: integers, as differences along the last axis."""

    scale_factor: float
    add_offset: float
    dtype: str
    """Dtype of the unpacked elements."""
    row_diff: bool


@dataclass(frozen=True)
class Manifest:
    """The content of `dataset.json`; empty if there is none."""

    data_vars: tuple[str, ...] = ()
    coords: tuple[str, ...] = ()
    sizes: Mapping[str, int] = field(default_factory=dict)
    """Lengths of dims after the last append."""
    attrs: Mapping[str, Any] = field(default_factory=dict)
    variable_attrs: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    geogrid: Mapping[str, Geogrid] = field(default_factory=dict)
    group_by: tuple[str, ...] = ()
    groups: tuple[str, ...] = ()
    """Names of the datasets inside this one."""
    commits: bool = False
    """Whether an append is committed by new lengths of dims: only in manifests of this package."""

    @property
    def names(self) -> tuple[str, ...]:
        """Names of all variables."""
        return (*self.data_vars, *(name for name in self.coords if name not in self.data_vars))


def parse_manifest(raw: bytes) -> Manifest:
    """Parse the bytes of `dataset.json`.

    Raises `FrameFormatError` if it is not JSON, or an entry is invalid, which the error names;
    `UnsupportedFrameError` for variables in another storage format, or a newer version.
    """
    if len(raw) > MAX_MANIFEST_NBYTES:
        raise FrameFormatError(f"{len(raw)} bytes; the maximum is {MAX_MANIFEST_NBYTES}")
    try:
        stored = json.loads(raw)
    except (ValueError, RecursionError) as error:
        raise FrameFormatError(f"it is not JSON: {str(error) or 'nested too deep'}") from error
    if not isinstance(stored, dict):
        raise FrameFormatError("it is not a JSON object")
    packed = _map(stored, "zstd_dict").get("variables") or ()
    if packed:
        raise UnsupportedFrameError(
            "xarray-blosc2 compressed variables with a zstd dictionary (files .zstd, not frames): "
            "open the dataset with xarray_blosc2.open, and save it without zstd_dict="
        )
    own = _map(stored, "b2nd")
    if own and own.get("version") != VERSION:
        version = own.get("version")
        raise UnsupportedFrameError(f"version {version!r} of the manifest needs a newer b2nd_dask")
    attrs = dict(_map(stored, "attrs"))
    if lineage := stored.get("lineage"):
        # as xarray-blosc2 reads it: text, since netCDF attributes cannot be maps
        attrs["lineage"] = lineage if isinstance(lineage, str) else json.dumps(lineage)
    attrs |= _typed(own)
    variable_attrs = _map(stored, "variable_attrs")
    return Manifest(
        _names(stored, "data_vars"),
        _names(stored, "coords"),
        _sizes(stored),
        attrs,
        {name: _map(variable_attrs, name) for name in variable_attrs},
        {name: _geogrid(name, packing) for name, packing in _map(stored, "geogrid").items()},
        _names(stored, "group_by"),
        _names(own, "groups"),
        commits=bool(own) and not lineage,
    )


def _typed(own: dict[str, Any]) -> dict[str, Any]:
    if "attrs" not in own:
        return {}
    try:
        raw = base64.b64decode(own["attrs"], validate=True)
    except (TypeError, ValueError, binascii.Error) as error:
        raise _invalid("b2nd", f"its attributes are not base64: {error}") from error
    with locating(part="the entry 'b2nd'"):
        return typed_attrs(unpack_value(raw))


def _map(stored: Mapping[str, Any], entry: str) -> dict[str, Any]:
    value = stored.get(entry)
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise _invalid(entry, f"it must be a JSON object, not {type(value).__name__}")
    return value


def _names(stored: Mapping[str, Any], entry: str) -> tuple[str, ...]:
    value = stored.get(entry)
    if value is None:
        return ()
    if not isinstance(value, list):
        raise _invalid(entry, f"it must be a list of names, not {type(value).__name__}")
    for name in value:
        if not is_file_stem(name):
            raise _invalid(entry, f"{name!r} is not a valid file name")
    if len(set(value)) < len(value):
        raise _invalid(entry, "it names a variable twice")
    return tuple(value)


def is_file_stem(name: Any) -> bool:
    """Whether a name is a valid file name, not a path or a hidden file."""
    return (
        isinstance(name, str)
        and 0 < len(name.encode("utf-8", "surrogatepass")) <= _MAX_STEM_NBYTES
        and not name.startswith(".")
        # a lone half of a surrogate pair has no UTF-8
        and not any(c in "/\\\0" or "\ud800" <= c <= "\udfff" for c in name)
    )


def _sizes(stored: Mapping[str, Any]) -> dict[str, int]:
    sizes = _map(stored, "dims")
    for dim, size in sizes.items():
        if type(size) is not int or not 0 <= size < 1 << 63:
            raise _invalid("dims", f"the length of {dim!r} is {size!r}")
    return sizes


def _geogrid(name: str, packing: Any) -> Geogrid:
    if not isinstance(packing, dict):
        raise _invalid("geogrid", f"the packing of {name!r} is not a JSON object")
    # xarray-blosc2 writes values that are not Python numbers or bools as text
    try:
        scale, offset = float(packing["scale_factor"]), float(packing["add_offset"])
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise _invalid("geogrid", f"{name!r} has no scale_factor or add_offset") from error
    dtype = packing.get("original_dtype", "float32")
    if dtype not in ("float16", "float32", "float64"):
        raise _invalid("geogrid", f"{name!r} had the dtype {dtype!r}, which is not a float")
    row_diff = packing.get("row_diff", False) in (True, "True")
    return Geogrid(scale, offset, dtype, row_diff)


def _invalid(entry: str, problem: str) -> FrameFormatError:
    return FrameFormatError(f"in the entry {entry!r}: {problem}")


def build_manifest(manifest: Manifest) -> bytes:
    """Build the bytes of `dataset.json` for a dataset of this package.

    If a frame is longer than `sizes`, the elements behind them are not committed.
    """
    plain, typed = split_attrs(manifest.attrs)
    own: dict[str, Any] = {"version": VERSION}
    if typed:
        own["attrs"] = base64.b64encode(pack_value(typed)).decode()
    if manifest.groups:
        own["groups"] = list(manifest.groups)
    variable_attrs = manifest.variable_attrs.items()
    stored = {
        "data_vars": list(manifest.data_vars),
        "coords": list(manifest.coords),
        "dims": {dim: int(size) for dim, size in manifest.sizes.items()},
        "attrs": plain,
        "variable_attrs": {name: split_attrs(attrs)[0] for name, attrs in variable_attrs if attrs},
        "b2nd": own,
    }
    return json.dumps(stored, indent=1).encode()


def build_embed() -> bytes:
    """Build `embed.b2e`, without which python-blosc2 does not open a folder of frames."""
    # this metalayer of `TreeStore` makes python-blosc2 search for members beside the file
    marked = blosc2.SChunk(chunksize=_EMBED_CHUNK_NBYTES, meta={"b2tree": {"version": 1}})
    return bytes(marked.to_cframe())
