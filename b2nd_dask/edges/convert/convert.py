"""`convert`: one format to another, out of core, all or nothing.

`of_zarr` and `of_h5py` let `to_b2nd` take arrays and groups of these libraries.
"""

from __future__ import annotations

import errno
import os
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

from b2nd_dask.edges.convert.frames import folder_writer, frame_writer, read_frames, reduce_to_array
from b2nd_dask.edges.convert.npy import npy_writer, npz_writer, read_npy, read_npz
from b2nd_dask.edges.convert.read_hdf5 import hdf5_tree, read_hdf5
from b2nd_dask.edges.convert.shared import Options, compare, label_of, location_of, readable
from b2nd_dask.edges.convert.write_hdf5 import hdf5_writer
from b2nd_dask.edges.convert.zarr_store import read_zarr, zarr_tree, zarr_writer
from b2nd_dask.edges.datasets.staged import local_target, staged
from b2nd_dask.edges.datasets.tree import Tree, announce, entries_of, keep_attrs
from b2nd_dask.graph.read.from_b2nd import from_b2nd
from b2nd_dask.graph.resources import Progress, available, nbytes_of
from b2nd_dask.graph.write.to_b2nd import Writer, write_array
from b2nd_dask.storage import Secrets, split_path


class _Format(NamedTuple):
    """Suffixes, reader and writer of a format."""

    suffixes: tuple[str, ...]
    read: Callable[[str, Options], Tree]
    writer: Callable[[Tree, Options], Callable[[Path], None]]
    """Checks a tree, adapts it to the format, and returns the function that writes it."""


_FRAMES = ("b2nd", "b2d", "b2z")
_CHUNKED = (*_FRAMES, "zarr", "hdf5", "netcdf")
#: Options of a new target, and the formats that have them.
_OPTIONS = {"blocks": _FRAMES, "chunks": _CHUNKED, "cparams": _CHUNKED, "stats": _FRAMES}
_CATERVA = (".caterva", ".cat2", ".cat")
FORMATS = {
    "b2nd": _Format((".b2nd", *_CATERVA), read_frames, frame_writer),
    "b2d": _Format((".b2d",), read_frames, folder_writer),
    "b2z": _Format((".b2z", ".b2e"), read_frames, partial(folder_writer, packed=True)),
    "zarr": _Format((".zarr", ".zip", ".zr", ".zgroup"), read_zarr, zarr_writer),
    "hdf5": _Format((".h5", ".hdf5", ".hdf", ".he5", ".mat"), read_hdf5, hdf5_writer),
    "netcdf": _Format(
        (".nc", ".nc4", ".cdf", ".netcdf"), read_hdf5, partial(hdf5_writer, netcdf=True)
    ),
    "npy": _Format((".npy",), read_npy, npy_writer),
    "npz": _Format((".npz",), read_npz, npz_writer),
}


def convert(
    src: str | os.PathLike[str],
    dst: str | os.PathLike[str],
    *,
    source_format: str | None = None,
    target_format: str | None = None,
    member: str | None = None,
    dtype: Any = None,
    chunks: int | tuple[int, ...] | None = None,
    blocks: int | tuple[int, ...] | None = None,
    cparams: Any = None,
    stats: bool = False,
    max_mem: int | float | str | None = None,
    overwrite: bool = False,
    skip: bool = False,
    check: bool = False,
    other_files: bool = False,
    storage_options: Mapping[str, Any] | None = None,
    progress: Progress | None = None,
) -> str:
    """Convert between frames and zarr, HDF5 / NetCDF-4, npy and npz, and from Caterva.

    The target has the same elements, dims and attributes. Memory holds only blocks of an array.
    Packed values (``scale_factor``) stay packed. The target appears when it is complete.

    Parameters
    ----------
    src, dst : str or os.PathLike
        The suffix gives the format: ``.b2nd`` (one array, with its coordinates; also Caterva's
        ``.caterva``), ``.b2d`` (directory), ``.b2z`` (one file of several arrays), ``.zarr`` (also
        ``.zip``; written as version 3), ``.h5``, ``.nc``, ``.npy``, ``.npz``. For frames and zarr
        ``src`` may be a URL. It may end in ``::/group/array`` to convert only this member; `dst` in
        HDF5 may do so to name its one array.
    source_format, target_format : str, optional
        ``"b2nd"``, ``"b2d"``, ``"b2z"``, ``"zarr"``, ``"hdf5"``, ``"netcdf"``, ``"npy"`` or
        ``"npz"``, if the suffix does not give it.
    member : str, optional
        The group or array of `src` to convert; if both have this name, the array (the group is
        ``"name/"``).
    dtype : dtype-like, optional
        Dtype of the elements of a Caterva frame, which does not store it.
    chunks, blocks, cparams : optional
        Options of the target, as for `to_b2nd`; sizes are integers or tuples of them. By default
        the chunks of the source; small ones are merged, large ones divided. zarr and HDF5 support
        only their own codecs.
    stats : bool
        Add statistics to the frames of numbers and times, as `to_b2nd`.
    max_mem : int or str, optional
        Bytes of memory for blocks, or a text such as ``"512MB"``.
    overwrite : bool
        Replace an existing target; the old one stays until the new one is complete.
    skip : bool
        Leave out arrays that the target cannot hold (such as Python objects), with a warning,
        instead of an error.
    check : bool
        Compare all elements with the source before the target appears.
    other_files : bool
        Also read elements from other files that the source refers to: HDF5's virtual datasets and
        external storage, symbolic links out of a zarr directory. The author of the source may
        refer to any file that you can read.
    storage_options : mapping, optional
        Options of the fsspec file system if `src` is a URL.
    progress : callable, optional
        Takes the number of finished blocks and the number of all blocks.

    Returns
    -------
    str
        Path of the target.

    Raises
    ------
    FileExistsError
        The target exists, and `overwrite` is false; or it is a part of an existing file, or holds
        something other than arrays.
    FileNotFoundError
        The source, the member or the directory of the target does not exist.
    TypeError
        The target cannot hold the elements of an array, and `skip` is false.
    ValueError
        The format is unknown, the source damaged, an option invalid or the memory too small; or
        source and target are the same, or one contains the other.
    ImportError
        A package is missing; the message says how to install it.

    Warns
    -----
    UserWarning
        The target cannot hold some attributes, names or unlimited axes. The warning comes before
        the first write.

    Examples
    --------
    >>> import numpy as np, b2nd_dask
    >>> folder = tempfile.mkdtemp()
    >>> np.save(f"{folder}/x.npy", np.arange(12.0).reshape(3, 4))
    >>> path = convert(f"{folder}/x.npy", f"{folder}/x.b2nd", check=True)
    >>> b2nd_dask.open_b2nd(path)[1]
    array([4., 5., 6., 7.])
    """
    # ~ is the home in paths of all formats, as in the target
    path = os.path.expanduser(os.fspath(src))  # noqa: PTH111 - Path's raises if no such user exists
    source, member = _split_member(path, member)
    target, inner = _split_member(os.fspath(dst), None)
    read_as = _format_of(source, source_format, "source_format")
    write_as = _format_of(target, target_format, "target_format")
    bound = None if max_mem is None else nbytes_of(max_mem)
    place = _place_of(target, inner, write_as)
    if dtype is not None and read_as not in _FRAMES:
        raise ValueError("dtype= is only for Caterva frames, which do not store it: omit it")
    _require_apart(source, place)
    with tempfile.TemporaryDirectory(prefix="b2nd-dask-") as scratch:
        new = (chunks, blocks, cparams, stats or None, progress)
        given = (storage_options, dtype, other_files, Path(scratch))
        options = Options(bound, available().threads, *new, *given)
        tree = _read(source, read_as, options)
        if member is not None:
            tree = tree.part(member, with_coords=write_as == "b2nd")
        if inner is not None:
            _rename(tree, inner.strip("/"))
        write = _writer_of(tree, write_as, options)
        advice = "overwrite=True (--overwrite)"
        with staged(place, replace=overwrite, advice=advice, any_format=True) as ready:
            announce(tree, target, skip=skip, unlimited=write_as in ("hdf5", "netcdf"))
            write(ready)
            if check:
                own = replace(options, storage_options=None, dtype=None)
                compare(tree, _read(str(ready), write_as, own), options.block_nbytes)
    return target


def _split_member(path: str, member: str | None) -> tuple[str, str | None]:
    """Split ``file.h5::/group/dataset``, unless this is the name of a file.

    Raises ValueError if `path` and `member` name different members.
    """
    # behind the last URL of a chain, as in zip://x.zarr::https://host/x.zip
    mark = path.find("::", max(0, path.rfind("://")))
    if mark < 0 or os.path.lexists(path):
        return path, member
    before, inner = path[:mark], path[mark + 2 :]
    if not inner:
        return before, member
    if member is not None and member.strip("/") != inner.strip("/"):
        raise ValueError(f"{label_of(path)}: member={member!r} names another member; give only one")
    return before, inner


def _format_of(path: str, given: str | None, argument: str) -> str:
    """The format of a file: the user's choice, the value of `argument`, or that of its suffix."""
    if given is not None:
        if given not in FORMATS:
            raise ValueError(f"{argument}={given!r}: known are {', '.join(FORMATS)}")
        return given
    name = PurePosixPath(split_path(path)[0]).name.lower()
    for known, how in FORMATS.items():
        if name.endswith(how.suffixes):
            return known
    # the path of a store's member: the suffix is that of an earlier part
    for known in ("b2z", "b2d", "zarr"):
        if any(part.lower().endswith(FORMATS[known].suffixes) for part in path.split("/")):
            return known
    raise ValueError(
        f"{label_of(path)}: no format has its suffix; choose one by "
        f"{argument}={' | '.join(FORMATS)}"
    )


def _place_of(target: str, inner: str | None, write_as: str) -> Path:
    """The path of the file or directory to write; `inner` is the user's name for its one array."""
    place = local_target(target)
    if place.suffix in (".b2e", *_CATERVA):
        raise ValueError(f"{target}: such files are only read; write a .b2nd or a .b2z")
    if inner is not None and write_as not in ("hdf5", "netcdf"):
        raise ValueError(f"{target}::{inner}: only a dataset in HDF5 can be named by ::")
    if inner is not None and os.path.lexists(place):
        raise FileExistsError(
            errno.EEXIST,
            f"convert would replace the whole file, not only {inner}; convert to another file",
            str(place),
        )
    return place


def _rename(tree: Tree, name: str) -> None:
    """Change the name of a tree's one array; its coordinates keep theirs."""
    old, member = reduce_to_array(tree, with_coords=True)
    coords = {n: each for n, each in tree.members.items() if n != old}
    if name in coords:
        raise ValueError(f"{tree.label}: its coordinate is called {name}; choose another name")
    tree.members = {name: member, **coords}


def _require_apart(source: str, place: Path) -> None:
    """Check that replacing the target does not remove the source."""
    location = location_of(source)
    if location.is_url:
        return
    origin, target = Path(os.path.realpath(location.url)), Path(os.path.realpath(place))
    if origin == target:
        raise ValueError(f"{place}: source and target are the same; choose another target")
    if origin in target.parents or target in origin.parents:
        raise ValueError(
            f"{place}: one of {origin} and {target} lies inside the other, so the write would "
            "remove or change the source; choose another target"
        )


def _read(path: str, read_as: str, options: Options) -> Tree:
    """Read the tree of a source."""
    if read_as in _FRAMES:
        return FORMATS[read_as].read(path, options)
    label = label_of(path)
    with readable(label, Secrets(path, options.storage_options)):
        if "://" in label and read_as != "zarr":
            raise ValueError(f"{label}: only frames and zarr are read from URLs; download the file")
        return FORMATS[read_as].read(path, options)


def _writer_of(tree: Tree, write_as: str, options: Options) -> Callable[[Path], None]:
    """The function that writes a tree; checks all that can be checked before."""
    if not any(level.members or level.refused for _, level in tree.levels()) and not tree.attrs:
        raise ValueError(f"{tree.label}: it contains no array")
    options.check_sizes(tree)
    options.check_memory(tree)
    for name, formats in _OPTIONS.items():
        if getattr(options, name) is not None and write_as not in formats:
            raise ValueError(f"{name}= is for {', '.join(formats)}, not for {write_as}: omit it")
    return FORMATS[write_as].writer(tree, options)


def of_zarr(given: Any) -> Writer | None:
    """The writer of an array or a group of zarr for `to_b2nd`; None for zarr's other objects."""
    if type(given).__name__ not in ("Array", "Group"):
        return None
    # the path of a store may be a URL with secrets
    label = Secrets("").hide(str(given.store_path))
    return _writer(zarr_tree(given, label, Options()))


def of_h5py(given: Any) -> Writer | None:
    """The writer of a dataset, group or file of h5py for `to_b2nd`; None for its other objects."""
    kind = type(given).__name__
    if kind not in ("Dataset", "Group", "File"):
        return None
    # a dataset that the user has opened may lie in other files
    options = Options(other_files=kind == "Dataset")
    return _writer(hdf5_tree(given, f"{given.file.filename}::{given.name}", options))


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
    mode, fsync = options.pop("mode", "w-"), options.pop("fsync", True)
    unknown = [name for name in options if name not in _OPTIONS]
    if unknown or mode not in ("w-", "w"):
        names = ", ".join(f"{name}=" for name in unknown) or f"mode={mode!r}"
        raise ValueError(
            f"{names}: a group becomes a new directory, and its options are chunks=, blocks=, "
            'cparams=, stats=, fsync= and mode= "w-" or "w". For others write its arrays one by one'
        )
    target = local_target(urlpath)
    if target.suffix not in (".b2d", ".b2z"):
        raise ValueError(
            f"{target}: write a group of arrays to a local directory (NAME.b2d) or file (NAME.b2z)"
        )
    # without max_mem: the user's scheduler runs the blocks
    chosen = Options(**options)
    chosen.check_axes(tree)
    write = FORMATS[target.suffix.removeprefix(".")].writer(tree, chosen)
    announce(tree, "a frame", skip=None)
    with staged(target, replace=mode == "w", advice='mode="w"', fsync=fsync) as ready:
        write(ready)
    return {
        f"{group}/{name}".lstrip("/"): from_b2nd(target, component=f"{group}/{member.stem(name)}")
        for group, level in tree.levels()
        for name, member in level.members.items()
    }
