"""vlmeta and manifest of what is written (docs/format.md, Labels)."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from typing import Any

import numpy as np

from b2nd_dask.edges.convert.attributes import NotKeptError, as_json, loses_type
from b2nd_dask.edges.convert.tree import Member, Tree
from b2nd_dask.format.labels.labels import (
    ATTRS,
    COORD_NAME,
    COORDS,
    DIMS,
    IS_COORD,
    NAME,
    OWN_ATTRS,
    TYPED_ATTRS,
)
from b2nd_dask.format.labels.manifest import VERSION
from b2nd_dask.format.values import pack_value


def entries_of(
    member: Member, name: str | None, *, coords: Mapping[str, bytes] | None = None
) -> dict[str, Any]:
    """Entries of vlmeta for an array: dims, name and attributes.

    An array of which the source names no dims has its attributes as entries of their own, as
    python-blosc2 has them, where they are few.
    """
    attrs = dict(member.attrs)
    if member.dims is None and not attrs:
        return {}
    dims = member.dims
    if dims is None:
        dims = tuple(f"dim_{axis}" for axis in range(member.array.ndim))
    entries: dict[str, Any] = {DIMS: list(dims)}
    if name is not None and member.is_coordinate(name):
        entries |= {IS_COORD: True, COORD_NAME: name}
    else:
        entries[NAME] = name
    for own in OWN_ATTRS:
        if type(attrs.get(own)) is str:
            entries[own] = attrs.pop(own)
    plain, typed = split_attrs(attrs)
    if plain:
        entries[ATTRS] = json.dumps(plain)
    if typed:
        entries[TYPED_ATTRS] = typed
    if coords:
        entries[COORDS] = dict(coords)
    return entries


def split_attrs(attrs: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Attributes as JSON has them, and those of which that loses the type."""
    plain, typed = {}, {}
    for name, value in attrs.items():
        if loses_type(value):
            typed[name] = _as_arrays(value)
        try:
            plain[name] = as_json(value)
        except NotKeptError:
            continue
    return plain, typed


def _as_arrays(value: Any) -> Any:
    """Numbers of NumPy as arrays without axes: msgpack keeps no dtype of a number."""
    if isinstance(value, np.generic):
        return np.asarray(value)
    if isinstance(value, list):
        return [_as_arrays(each) for each in value]
    return value


def check_attrs(tree: Tree) -> None:
    """Move attributes that msgpack cannot hold from all arrays to what is lost."""
    for owner, attrs in _all_attrs(tree):
        for name, value in list(attrs.items()):
            try:
                pack_value(value)
                json.dumps(split_attrs({name: value})[0])
            except (TypeError, ValueError, OverflowError) as error:
                del attrs[name]
                tree.lost.append(f"attribute {name!r} of {owner} ({error})")


def _all_attrs(tree: Tree) -> list[tuple[str, dict[str, Any]]]:
    own = [(tree.label, tree.attrs)]
    members = list(tree.members.items()) + ([(tree.label, tree.only)] if tree.only else [])
    own += [(name, member.attrs) for name, member in members]  # type: ignore[misc]
    return own + [each for group in tree.groups.values() for each in _all_attrs(group)]


def manifest_json(tree: Tree) -> bytes:
    """`dataset.json` of a group."""
    coords = [name for name, each in tree.members.items() if each.is_coordinate(name)]
    sizes: dict[str, int] = {}
    for member in tree.members.values():
        for dim, size in zip(member.dims or (), member.array.shape, strict=False):
            sizes.setdefault(dim, size)
    plain, typed = split_attrs(tree.attrs)
    own: dict[str, Any] = {"version": VERSION}
    if typed:
        own["attrs"] = base64.b64encode(pack_value(typed)).decode()
    stored = {
        "data_vars": [name for name in tree.members if name not in coords],
        "coords": coords,
        "dims": sizes,
        "attrs": plain,
        "variable_attrs": {
            name: split_attrs(each.attrs)[0] for name, each in tree.members.items() if each.attrs
        },
        "b2nd": own,
    }
    return json.dumps(stored, indent=1).encode()
