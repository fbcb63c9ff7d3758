"""What `to_b2nd` takes of zarr and h5py: arrays with their labels, groups as directories."""

from __future__ import annotations

import os
import warnings
from functools import partial
from pathlib import Path
from typing import Any

from b2nd_dask.edges.convert.lazy import Budget
from b2nd_dask.edges.convert.options import Options
from b2nd_dask.edges.convert.read_hdf5 import hdf5_member, hdf5_tree
from b2nd_dask.edges.convert.read_zarr import zarr_member, zarr_tree
from b2nd_dask.edges.convert.write_frames import check_frames, write_archive, write_folder
from b2nd_dask.edges.datasets.entries import drop_unstorable, entries_of
from b2nd_dask.edges.datasets.frames import stem_of
from b2nd_dask.edges.datasets.staged import staged
from b2nd_dask.edges.datasets.tree import Tree
from b2nd_dask.errors import level_of_caller
from b2nd_dask.graph.read.from_b2nd import from_b2nd
from b2nd_dask.graph.write.to_b2nd import Writer
from b2nd_dask.graph.write.write_array import write_array

#: Options of `to_b2nd` that a group takes.
_OPTIONS = ("chunks", "blocks", "cparams")


def _budget() -> Budget:
    return Budget(None, 1)


def of_zarr(given: Any) -> Writer | None:
    """An array or a group of zarr; None for another object of the package."""
    kind = type(given).__name__
    if kind == "Array":
        tree = Tree(_label(given))
        tree.only = zarr_member(given, tree.label, _budget(), tree.lost)
        return _labelled(tree)
    if kind != "Group":
        return None
    return partial(_write_group, zarr_tree(given, _label(given), _budget()))


def of_h5py(given: Any) -> Writer | None:
    """A dataset, a group or a file of h5py; None for another object of the package."""
    kind = type(given).__name__
    if kind == "Dataset":
        tree = Tree(f"{given.file.filename}::{given.name}")
        tree.only = hdf5_member(given, tree.label, _budget(), tree.lost)
        return _labelled(tree)
    if kind not in ("Group", "File"):
        return None
    squeeze = "_NCProperties" in given.file.attrs
    label = f"{given.file.filename}::{given.name}"
    return partial(_write_group, hdf5_tree(given, label, _budget(), squeeze=squeeze))


def _label(given: Any) -> str:
    return str(given.store_path)


def _labelled(tree: Tree) -> Writer | None:
    drop_unstorable(tree)
    _warn(tree)
    if tree.only is None:
        return None
    return partial(write_array, tree.only.array, labels=entries_of(tree.only, None))


def _write_group(tree: Tree, urlpath: Any, **options: Any) -> dict[str, Any]:
    """Write a group as `convert` does; returns its arrays by their paths."""
    mode = options.get("mode", "w-")
    unknown = [name for name in options if name not in (*_OPTIONS, "mode", "fsync")]
    if unknown or mode not in ("w-", "w"):
        names = ", ".join(f"{name}=" for name in unknown) or f"mode={mode!r}"
        raise ValueError(
            f"{names}: a group becomes a new directory, with chunks=, blocks=, cparams=, fsync= "
            'and mode= "w-" or "w"; write its arrays one by one for the others'
        )
    path = os.fspath(urlpath)
    if "://" in path or not path.endswith((".b2d", ".b2z")):
        raise ValueError(
            f"{path}: a group of arrays becomes a local directory (NAME.b2d) or file (NAME.b2z)"
        )
    check_frames(tree, single=False)
    refused = tree.notes("refused")
    if refused:
        raise TypeError("; ".join(refused))
    _warn(tree)
    chosen = {name: options[name] for name in _OPTIONS if name in options}
    target = Path(os.path.abspath(path))  # noqa: PTH100
    replace, fsync = mode == "w", options.get("fsync", True)
    with staged(target, replace=replace, advice='mode="w"', fsync=fsync) as made:
        write = write_archive if path.endswith(".b2z") else write_folder
        write(tree, made.ready, Options(_budget(), **chosen))
    return {name: from_b2nd(path, component=_key(name, tree)) for name, _ in tree.walk()}


def _key(name: str, tree: Tree) -> str:
    """Key of an array in the directory: coordinates have a prefix."""
    group, _, last = name.rpartition("/")
    member = tree.part(name).only
    stem = stem_of(last, is_coord=member is not None and member.is_coordinate(last))
    return f"/{group}/{stem}" if group else f"/{stem}"


def _warn(tree: Tree) -> None:
    lost = tree.notes("lost")
    if lost:
        warnings.warn(
            f"a frame cannot hold: {'; '.join(lost)}", UserWarning, stacklevel=level_of_caller()
        )
