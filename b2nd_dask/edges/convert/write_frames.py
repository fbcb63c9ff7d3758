"""A tree as one frame, or as a directory or an archive of frames."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import dask

from b2nd_dask.edges.convert.options import Options
from b2nd_dask.edges.datasets.frames import check_coords, check_layout, embedded, write_dataset
from b2nd_dask.edges.datasets.tree import Member, Tree, entries_of, keep_attrs
from b2nd_dask.edges.progress import tasks_shown
from b2nd_dask.format.labels.labels import NAME
from b2nd_dask.graph.write.to_b2nd import Write, to_b2nd


def check_frame(tree: Tree, _options: Options) -> None:
    """Check that a tree can be one frame; remove attributes it cannot hold.

    Raises ValueError as `data_of` and `check_coords`.
    """
    keep_attrs(tree)
    _, _, coords = data_of(tree)
    check_coords(coords, tree.label)


def check_frames(tree: Tree, _options: Options) -> None:
    """Check that names in a tree can be those of files; remove attributes frames cannot hold."""
    keep_attrs(tree)
    if tree.only is None:
        check_layout(
            tree,
            "rename it in the source, or convert the arrays one by one by member= (--member)",
        )


def data_of(tree: Tree) -> tuple[str | None, Member, dict[str, Member]]:
    """The one array of a tree, and its coordinates.

    Raises ValueError if there are several, or none.
    """
    if tree.only is not None:
        return tree.only.name, tree.only, {}
    coords = tree.coords
    data = {n: m for n, m in tree.members.items() if n not in coords} or tree.members
    if len(data) != 1 or tree.groups:
        raise ValueError(
            f"{tree.label} holds {tree.listed()}; the target can hold one array. Choose it by "
            "member= (--member NAME), or write all to a directory (.b2d) or file (.b2z, .npz)"
        )
    ((name, member),) = data.items()
    others = tree.coords_of(member, name)
    del others[name]
    return name, member, others


def write_frame(tree: Tree, ready: Path, options: Options) -> None:
    """Write the array of a tree as a frame with embedded coordinates."""
    name, member, coords = data_of(tree)
    vlmeta = entries_of(member, name, coords=embedded(coords, tree.label))
    if name is None:
        # the file name is the name
        vlmeta.pop(NAME, None)
    how = {"vlmeta": vlmeta, "meta": {}, "fsync": False}
    _write(member.array, ready, {**how, **_storage(member, options)}, options)


def write_folder(tree: Tree, ready: Path, options: Options, *, packed: bool = False) -> None:
    """Write a directory of frames one after the other; each may use all of `max_mem`."""

    def write(writes: Iterable[Write]) -> None:
        for each in writes:
            _write(*each, options)

    group = tree.as_group()
    for _, level in group.levels():
        for name, member in level.members.items():
            level.members[name] = replace(member, storage=_storage(member, options))
    write_dataset(group, ready, write, packed=packed)


write_archive = partial(write_folder, packed=True)


def _storage(member: Member, options: Options) -> dict[str, Any]:
    ndim = member.array.ndim
    asked = chunks = options.given("chunks", ndim)
    if asked is None and options.max_mem is not None:
        # chunks of the size of blocks, which fit into max_mem: default chunks may be larger
        chunks = options.chunks_of(member.array)
    return {
        "chunks": chunks,
        "blocks": options.given("blocks", ndim),
        "cparams": options.cparams,
        "max_mem": None if asked is None else options.max_mem,
    }


def _write(array: Any, path: Path, how: Mapping[str, Any], options: Options) -> None:
    threads = {} if options.max_mem is None else {"num_workers": options.threads}
    bar = tasks_shown(options.progress) if options.progress else nullcontext()
    with dask.config.set(threads), bar:
        to_b2nd(array, path, **how)
