"""Frames, directories of frames and stores of python-blosc2."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from b2nd_dask.edges.datasets.tree import Member, Tree
from b2nd_dask.edges.xarray.places import (
    COORD,
    Place,
    in_group,
    location_of,
    manifest_of,
    place_of,
)
from b2nd_dask.format.labels.unpack import unpack_labels
from b2nd_dask.frame.access import frame_at, open_b2nd
from b2nd_dask.frame.array import Frame
from b2nd_dask.graph.read.from_b2nd import from_b2nd
from b2nd_dask.storage import printable


def read_frames(path: str, dtype: Any, storage_options: Mapping[str, Any] | None) -> Tree:
    """Describe a frame, a directory of frames or a store.

    Parameters
    ----------
    dtype : dtype-like, optional
        Of the elements of a frame of Caterva, which stores none.
    """
    location, group = location_of(path, storage_options)
    place = place_of(location)
    if place is None:
        return _single(open_b2nd(path, dtype=dtype, storage_options=storage_options), path)
    if dtype is not None:
        raise ValueError("dtype= is for a single frame of Caterva, which stores none: leave it out")
    return _tree(in_group(place, group), path, storage_options)


def _tree(place: Place, label: str, storage_options: Mapping[str, Any] | None) -> Tree:
    manifest = manifest_of(place)
    if manifest.geogrid:
        raise ValueError(
            f"{label}: xarray-blosc2 packed {', '.join(manifest.geogrid)} as a geogrid: open it by "
            'xarray.open_dataset(PATH, engine="b2nd") and write it from there'
        )
    tree = Tree(label, attrs=dict(manifest.attrs))
    names = place.arrays()
    if names is None:
        names = [*manifest.data_vars, *(COORD + name for name in manifest.coords)]
    for name in names:
        frame = Frame(frame_at(place.locate(name)))
        plain = name.removeprefix(COORD)
        member = member_of(frame, is_coord=name != plain, attrs=manifest.variable_attrs.get(plain))
        tree.members[plain] = member
    for name in place.groups():
        tree.groups[name] = _tree(place.inside(name), f"{label}/{printable(name)}", storage_options)
    return tree


def _single(frame: Frame, label: str) -> Tree:
    """A frame; one that holds its coordinates is a group of the array and these."""
    found = unpack_labels(frame.vlmeta, frame.shape)
    member = member_of(frame)
    if not found.labels.coords:
        return Tree(label, member)
    tree = Tree(label, members={found.labels.name or "values": member})
    for name, raw in found.labels.coords.items():
        tree.members[name] = member_of(open_b2nd(raw), is_coord=True)
    return tree


def member_of(
    frame: Frame, *, is_coord: bool = False, attrs: Mapping[str, Any] | None = None
) -> Member:
    """Describe an opened frame."""
    found = unpack_labels(frame.vlmeta, frame.shape)
    labels = found.labels
    return Member(
        from_b2nd(frame),
        labels.dims if found.has_dims else None,
        {**(attrs or {}), **labels.attrs},
        labels.name,
        is_coord or labels.is_coord,
    )
