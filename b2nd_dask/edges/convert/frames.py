"""Frames, directories and archives of frames, stores of python-blosc2: read, and written."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import dask

from b2nd_dask.edges.convert.shared import Options, label_of
from b2nd_dask.edges.datasets.places import Place, levels_of
from b2nd_dask.edges.datasets.staged import check_layout, write_dataset
from b2nd_dask.edges.datasets.tree import (
    Member,
    Tree,
    check_coords,
    embedded,
    entries_of,
    keep_attrs,
)
from b2nd_dask.format.labels import NAME
from b2nd_dask.format.statistics import supports_statistics
from b2nd_dask.graph.resources import tasks_shown
from b2nd_dask.graph.write.to_b2nd import Write, to_b2nd
from b2nd_dask.lazy import require

if TYPE_CHECKING:
    from b2nd_dask.edges.xarray.variables import Contents


def read_frames(path: str, given: Options) -> Tree:
    """Describe a frame, a directory of frames or a store."""
    # imported at first use: the other formats work without xarray
    require("convert", "xarray")
    from b2nd_dask.edges.xarray.backend import open_source
    from b2nd_dask.edges.xarray.variables import NAMELESS, Contents, OpenOptions, contents_of

    label = label_of(path)

    def tree_of(found: Contents | Place, options: OpenOptions) -> Tree:
        if isinstance(found, Contents):
            # a frame with embedded coordinates is a group
            is_array = len(found.variables) == 1
            nameless = "" if is_array else "values"
            members = {nameless if n == NAMELESS else n: m for n, m in _members(found).items()}
            return Tree(label, members=members, is_array=is_array)
        if given.dtype is not None:
            raise ValueError(
                "dtype= is only for single Caterva frames, which do not store it; omit it"
            )
        # as the xarray engine opens it: no uncommitted elements, no sidecars
        trees = {"": Tree(label)}
        for group, level in levels_of(found):
            above, _, name = group.rpartition("/")
            tree = trees[above].inside(name) if name else trees[""]
            assert tree is not None, "levels_of goes no deeper"  # noqa: S101
            contents = contents_of(level, options)
            tree.attrs, tree.members = contents.attrs, _members(contents)
            trees[group] = tree
        return trees[""]

    how = OpenOptions(given.storage_options, own_labels=True, dtype=given.dtype)
    return open_source(path, how, tree_of)


def _members(contents: Contents) -> dict[str, Member]:
    found = {}
    for name, variable in contents.variables.items():
        labels = contents.labels[name]
        dims = tuple(map(str, variable.dims)) if labels.has_dims else None
        elements = variable.chunk(variable.encoding.get("preferred_chunks", {})).data
        found[name] = Member(elements, dims, dict(variable.attrs), is_coord=labels.is_coord)
    return found


def frame_writer(tree: Tree, options: Options) -> Callable[[Path], None]:
    """The function that writes the array of a tree as a frame with embedded coordinates.

    Raises ValueError as `reduce_to_array` and `check_coords`.
    """
    keep_attrs(tree)
    name, member = reduce_to_array(tree, with_coords=True)
    coords = {n: each for n, each in tree.members.items() if n != name}
    check_coords(coords, tree.label)
    if tree.attrs:
        tree.lost.append(f"attributes of {tree.label}: {', '.join(tree.attrs)}")

    def write(ready: Path) -> None:
        # coordinates are read only now: the target is one that may be written
        vlmeta = entries_of(member, name or None, coords=embedded(coords, tree.label))
        if not name:
            # the file name is the name
            vlmeta.pop(NAME, None)
        storage = _storage(member, options, clip=False)
        how = {"vlmeta": vlmeta, "meta": {}, "fsync": False, **storage}
        _write(member.array, ready, how, options)

    return write


def reduce_to_array(tree: Tree, *, with_coords: bool) -> tuple[str, Member]:
    """Reduce a tree to its one array, perhaps with its coordinates; others are losses.

    Returns the array and its name. Raises ValueError if there are several arrays, or none.
    """
    coords = tree.coords
    data = {n: m for n, m in tree.members.items() if n not in coords} or tree.members
    if len(data) != 1 or tree.groups:
        raise ValueError(
            f"{tree.label} holds {tree.listed()}; the target can hold one array. Choose it by "
            "member= (--member NAME), or write all to a directory (.b2d) or file (.b2z, .npz)"
        )
    ((name, member),) = data.items()
    kept = tree.coords_of(name) if with_coords else data
    if left_out := [n for n in tree.members if n not in kept]:
        tree.lost.append(f"the coordinates {', '.join(left_out)}")
    tree.members = kept
    return name, member


def folder_writer(tree: Tree, options: Options, *, packed: bool = False) -> Callable[[Path], None]:
    """The function that writes a directory of frames, or an archive if `packed`.

    The frames are written one after the other; each may use all of `max_mem`. Raises ValueError as
    `check_layout`.
    """
    keep_attrs(tree)
    group = tree.as_group()
    check_layout(
        group, "rename it in the source, or convert the arrays one by one by member= (--member)"
    )

    group.convert(lambda member: replace(member, storage=_storage(member, options)))

    def write(writes: Iterable[Write]) -> None:
        for each in writes:
            _write(*each, options)

    return partial(write_dataset, group, write=write, packed=packed)


def _storage(member: Member, options: Options, *, clip: bool = True) -> dict[str, Any]:
    shape = member.array.shape
    asked = chunks = options.given("chunks", shape, clip=clip)
    if asked is None and options.max_mem is not None:
        # chunks of the size of blocks, which fit into max_mem: default chunks may be larger
        chunks = options.chunks_of(member.array)
    return {
        "chunks": chunks,
        "blocks": options.given("blocks", shape, clip=clip),
        "cparams": options.cparams,
        "stats": bool(options.stats) and supports_statistics(member.array.dtype),
        "max_mem": None if asked is None else options.max_mem,
    }


def _write(array: Any, path: Path, how: Mapping[str, Any], options: Options) -> None:
    threads = {} if options.max_mem is None else {"num_workers": options.threads}
    bar = tasks_shown(options.progress) if options.progress else nullcontext()
    with dask.config.set(threads), bar:
        to_b2nd(array, path, **how)
