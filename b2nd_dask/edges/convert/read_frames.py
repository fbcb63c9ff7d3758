"""Frames, directories of frames and stores of python-blosc2."""

from __future__ import annotations

from dataclasses import replace

from b2nd_dask.edges.convert.options import Source
from b2nd_dask.edges.datasets.places import OpenOptions, Place
from b2nd_dask.edges.datasets.tree import Member, Tree
from b2nd_dask.edges.xarray.backend import levels_of, open_source
from b2nd_dask.edges.xarray.variables import NAMELESS, Contents, contents_of_place


def read_frames(source: Source) -> Tree:
    """Describe a frame, a directory of frames or a store."""
    options = OpenOptions(own_labels=True, dtype=source.dtype)

    def tree(found: Contents | Place) -> Tree:
        if isinstance(found, Contents):
            return _single(found, source.label)
        if source.dtype is not None:
            raise ValueError(
                "dtype= is only for single Caterva frames, which do not store it; omit it"
            )
        return _tree(found, source.label, options)

    return open_source(source.path, source.storage_options, options, None, tree)


def _tree(place: Place, label: str, options: OpenOptions) -> Tree:
    """The tree of a place as the xarray engine opens it: no uncommitted elements, no sidecars."""
    trees: dict[str, Tree] = {}
    for path, level in levels_of(place):
        above, _, name = path.rpartition("/")
        tree = trees[above or "/"].inside(name) if name else Tree(label)
        assert tree is not None, "levels_of goes no deeper"  # noqa: S101
        contents = contents_of_place(level, options)
        tree.attrs, tree.members = contents.attrs, _members(contents)
        trees[path] = tree
    return trees["/"]


def _single(contents: Contents, label: str) -> Tree:
    """The tree of a frame: one array, or a group if the frame has embedded coordinates."""
    members = _members(contents)
    if len(members) == 1:
        ((name, member),) = members.items()
        return Tree(label, replace(member, name=None if name == NAMELESS else name))
    return Tree(label, members={n if n != NAMELESS else "values": m for n, m in members.items()})


def _members(contents: Contents) -> dict[str, Member]:
    found = {}
    for name, variable in contents.variables.items():
        labels = contents.labels[name]
        dims = tuple(map(str, variable.dims)) if labels.has_dims else None
        elements = variable.chunk(variable.encoding.get("preferred_chunks", {})).data
        found[name] = Member(elements, dims, dict(variable.attrs), is_coord=labels.is_coord)
    return found
