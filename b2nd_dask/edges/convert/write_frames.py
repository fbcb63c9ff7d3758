"""A tree as one frame, or as a directory or an archive of frames."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path

import dask

from b2nd_dask.edges.convert.options import Options
from b2nd_dask.edges.datasets.entries import drop_unstorable, entries_of
from b2nd_dask.edges.datasets.frames import (
    check_layout,
    finish_folder,
    pack_folder,
    packed_frame,
    stem_of,
)
from b2nd_dask.edges.datasets.tree import Member, Tree
from b2nd_dask.edges.progress import tasks_shown
from b2nd_dask.format.labels.labels import too_many_coords
from b2nd_dask.graph.write.to_b2nd import to_b2nd


def check_frames(tree: Tree, *, single: bool) -> None:
    """Check that a tree can be frames.

    Raises
    ------
    ValueError
        Several arrays for one frame; names that no file can have.
    """
    drop_unstorable(tree)
    if single:
        data_of(tree)
    elif tree.only is None:
        check_layout(
            tree,
            "rename it in the source, or convert the arrays by member= (--member) one by one",
        )


def data_of(tree: Tree) -> tuple[str | None, Member, dict[str, Member]]:
    """The one array of a tree, and its coordinates.

    Raises
    ------
    ValueError
        There are several, or none.
    """
    if tree.only is not None:
        return tree.only.name, tree.only, {}
    data = {n: m for n, m in tree.members.items() if not m.is_coordinate(n)} or tree.members
    if len(data) != 1 or tree.groups:
        raise ValueError(
            f"{tree.label} holds {tree.listed()}: a .b2nd file is one array. Choose it by member= "
            "(--member NAME), or write all of them to a directory (.b2d) or a file (.b2z)"
        )
    ((name, member),) = data.items()
    coords = {
        n: m
        for n, m in tree.members.items()
        if n != name and set(m.dims or ()) <= set(member.dims or ())
    }
    if problem := too_many_coords({n: int(each.array.nbytes) for n, each in coords.items()}):
        raise ValueError(f"{tree.label}: {problem}: write a directory (.b2d)")
    return name, member, coords


def write_frame(tree: Tree, ready: Path, options: Options) -> None:
    """Write the array of a tree, with its coordinates in the frame."""
    name, member, coords = data_of(tree)
    packed = {each: packed_frame(coords[each], each) for each in coords}
    _write(member, name, ready, options, coords=packed)


def write_folder(tree: Tree, ready: Path, options: Options, *, is_root: bool = True) -> None:
    """Write a directory of frames, with `dataset.json` last."""
    ready.mkdir()
    if tree.only is not None:
        tree = Tree(tree.label, members={tree.only.name or "values": tree.only})
    for name, member in tree.members.items():
        stem = stem_of(name, is_coord=member.is_coordinate(name))
        _write(member, name, ready / f"{stem}.b2nd", options)
    for name, group in tree.groups.items():
        write_folder(group, ready / name, options, is_root=False)
    finish_folder(tree, ready, is_root=is_root)


def write_archive(tree: Tree, ready: Path, options: Options) -> None:
    """Write a .b2z."""
    folder = ready.with_name("frames.part")
    write_folder(tree, folder, options)
    pack_folder(folder, ready)


def _write(
    member: Member,
    name: str | None,
    path: Path,
    options: Options,
    *,
    coords: dict[str, bytes] | None = None,
) -> None:
    chunks = options.chunks
    if isinstance(chunks, tuple | list) and len(chunks) != member.array.ndim:
        # of a coordinate, beside the arrays that they are meant for
        chunks = None
    limit = options.budget.nbytes
    bar = tasks_shown(options.progress) if options.progress else nullcontext()
    with dask.config.set(num_workers=options.budget.threads) if limit else nullcontext(), bar:
        to_b2nd(
            member.array,
            path,
            chunks=chunks,
            blocks=options.blocks if chunks is not None else None,
            cparams=options.cparams,
            vlmeta=entries_of(member, name, coords=coords),
            meta={},
            max_mem=limit if limit and chunks is not None else None,
            # what is staged is synced as a whole
            fsync=False,
        )
