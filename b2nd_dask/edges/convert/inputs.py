"""Inputs of `to_b2nd` from zarr and h5py: arrays with their labels, groups as directories."""

from __future__ import annotations

from functools import partial
from typing import Any

from b2nd_dask.edges.convert.convert import FORMATS, OPTIONS, announce
from b2nd_dask.edges.convert.options import Options
from b2nd_dask.edges.convert.read_hdf5 import Reading, hdf5_member, hdf5_tree
from b2nd_dask.edges.convert.zarr_store import zarr_tree
from b2nd_dask.edges.datasets.staged import local_target, staged
from b2nd_dask.edges.datasets.tree import Member, Tree, entries_of, keep_attrs
from b2nd_dask.graph.read.from_b2nd import from_b2nd
from b2nd_dask.graph.write.to_b2nd import Writer, write_array


def of_zarr(given: Any) -> Writer | None:
    """The writer of an array or a group of zarr; None for other objects of zarr."""
    if type(given).__name__ not in ("Array", "Group"):
        return None
    return _writer(zarr_tree(given, str(given.store_path), Options()))


def of_h5py(given: Any) -> Writer | None:
    """The writer of a dataset, a group or a file of h5py; None for other objects of h5py."""
    kind = type(given).__name__
    if kind not in ("Dataset", "Group", "File"):
        return None
    label = f"{given.file.filename}::{given.name}"
    if kind != "Dataset":
        return _writer(hdf5_tree(given, label, Options()))
    tree = Tree(label, is_array=True)
    name = (given.name or "").rpartition("/")[2]
    # a dataset that the user has opened
    reading = Reading(Options(other_files=True))
    tree.members[name] = hdf5_member(given, label, tree.lost, reading)
    return _writer(tree)


def _writer(tree: Tree) -> Writer:
    """The function that writes a group or a single array."""
    if not tree.is_array:
        return partial(_write_group, tree)
    keep_attrs(tree)
    announce(tree, "a frame", skip=None)
    ((name, member),) = tree.members.items()
    return partial(write_array, member.array, labels=entries_of(member, name or None))


def _write_group(tree: Tree, urlpath: Any, **options: Any) -> dict[str, Any]:
    """Write a group like `convert`; return its arrays by their paths."""
    mode = options.get("mode", "w-")
    unknown = [name for name in options if name not in (*OPTIONS, "mode", "fsync")]
    if unknown or mode not in ("w-", "w"):
        names = ", ".join(f"{name}=" for name in unknown) or f"mode={mode!r}"
        raise ValueError(
            f"{names}: a group becomes a new directory, and its options are chunks=, blocks=, "
            'cparams=, fsync= and mode= "w-" or "w". For others write its arrays one by one'
        )
    target = local_target(urlpath)
    if target.suffix not in (".b2d", ".b2z"):
        raise ValueError(
            f"{target}: write a group of arrays to a local directory (NAME.b2d) or file (NAME.b2z)"
        )
    # without max_mem: the user's scheduler runs the blocks
    chosen = Options(**{name: options[name] for name in OPTIONS if name in options})
    how = FORMATS[target.suffix.removeprefix(".")]
    how.check(tree, chosen)
    announce(tree, "a frame", skip=None)
    replace, fsync = mode == "w", options.get("fsync", True)
    with staged(target, replace=replace, advice='mode="w"', fsync=fsync) as ready:
        how.write(tree, ready, chosen)
    return {path: from_b2nd(target, component=_key(path, member)) for path, member in tree.walk()}


def _key(path: str, member: Member) -> str:
    """Key of an array in the directory, with the prefix of coordinates."""
    group, _, name = path.rpartition("/")
    return f"{group}/{member.stem(name)}"
