"""Inputs of `to_b2nd` from zarr and h5py: arrays with their labels, groups as directories."""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path
from typing import Any

from b2nd_dask.edges.convert.convert import warn_of_lost
from b2nd_dask.edges.convert.options import Options
from b2nd_dask.edges.convert.read_hdf5 import hdf5_member, hdf5_tree
from b2nd_dask.edges.convert.write_frames import check_frames, write_archive, write_folder
from b2nd_dask.edges.convert.zarr_store import zarr_tree
from b2nd_dask.edges.datasets.frames import stem_of
from b2nd_dask.edges.datasets.staged import staged
from b2nd_dask.edges.datasets.tree import Tree, entries_of, keep_attrs
from b2nd_dask.graph.read.from_b2nd import from_b2nd
from b2nd_dask.graph.write.to_b2nd import Writer, write_array

#: Options of `to_b2nd` for groups.
_OPTIONS = ("chunks", "blocks", "cparams")


def of_zarr(given: Any) -> Writer | None:
    """The writer of an array or a group of zarr; None for other objects of zarr."""
    if type(given).__name__ not in ("Array", "Group"):
        return None
    return _writer(zarr_tree(given, str(given.store_path)), given.basename)


def of_h5py(given: Any) -> Writer | None:
    """The writer of a dataset, a group or a file of h5py; None for other objects of h5py."""
    kind = type(given).__name__
    if kind not in ("Dataset", "Group", "File"):
        return None
    label = f"{given.file.filename}::{given.name}"
    if kind != "Dataset":
        return _writer(hdf5_tree(given, label), None)
    tree = Tree(label)
    tree.only = hdf5_member(given, label, tree.lost)
    return _writer(tree, given.name and given.name.rpartition("/")[2])


def _writer(tree: Tree, name: str | None) -> Writer:
    """The function that writes a tree: a group, or a single array with its name."""
    if tree.only is None:
        return partial(_write_group, tree)
    keep_attrs(tree)
    warn_of_lost("a frame", tree.notes("lost"))
    return partial(write_array, tree.only.array, labels=entries_of(tree.only, name or None))


def _write_group(tree: Tree, urlpath: Any, **options: Any) -> dict[str, Any]:
    """Write a group like `convert`; return its arrays by their paths."""
    mode = options.get("mode", "w-")
    unknown = [name for name in options if name not in (*_OPTIONS, "mode", "fsync")]
    if unknown or mode not in ("w-", "w"):
        names = ", ".join(f"{name}=" for name in unknown) or f"mode={mode!r}"
        raise ValueError(
            f"{names}: a group becomes a new directory, and its options are chunks=, blocks=, "
            'cparams=, fsync= and mode= "w-" or "w". For others write its arrays one by one'
        )
    path = os.fspath(urlpath)
    if "://" in path or not path.endswith((".b2d", ".b2z")):
        raise ValueError(
            f"{path}: write a group of arrays to a local directory (NAME.b2d) or file (NAME.b2z)"
        )
    # without max_mem: the user's scheduler runs the blocks
    chosen = Options(**{name: options[name] for name in _OPTIONS if name in options})
    check_frames(tree, chosen)
    refused = tree.notes("refused")
    if refused:
        raise TypeError("; ".join(refused))
    warn_of_lost("a frame", tree.notes("lost"))
    target = Path(os.path.abspath(path))  # noqa: PTH100
    replace, fsync = mode == "w", options.get("fsync", True)
    with staged(target, replace=replace, advice='mode="w"', fsync=fsync) as ready:
        write = write_archive if path.endswith(".b2z") else write_folder
        write(tree, ready, chosen)
    return {name: from_b2nd(path, component=_key(name, tree)) for name, _ in tree.walk()}


def _key(name: str, tree: Tree) -> str:
    """Key of an array in the directory, with the prefix of coordinates."""
    group, _, last = name.rpartition("/")
    member = tree.part(name).only
    stem = stem_of(last, is_coord=member is not None and member.is_coordinate(last))
    return f"/{group}/{stem}" if group else f"/{stem}"
