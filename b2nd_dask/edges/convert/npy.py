"""Files of NumPy: .npy and .npz. They hold only elements."""

from __future__ import annotations

import errno
import os
import shutil
import tempfile
import zipfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from b2nd_dask.edges.convert.frames import reduce_to_array
from b2nd_dask.edges.convert.shared import Copier, Options, blocks_of
from b2nd_dask.edges.datasets.tree import Member, Tree
from b2nd_dask.frame.write.new_frame import check_storable
from b2nd_dask.graph.write.input_arrays import array_in_blocks, mapped_array
from b2nd_dask.storage import printable

#: Errors of posix_fallocate on file systems that cannot allocate.
_NO_ALLOCATION = (errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS)
#: Bytes of zeros per write if the file system cannot allocate space.
_ZEROS_NBYTES = 1 << 20


def read_npy(path: str, options: Options) -> Tree:
    """Describe a .npy file."""
    member = _member(Path(path), path, options.block_nbytes)
    return Tree(path, members={"": member}, is_array=True)


def read_npz(path: str, options: Options) -> Tree:
    """Describe the arrays of a .npz file; they are unpacked into `scratch` to be read in parts."""
    tree = Tree(path)
    # a folder for each file: with check=True the written one is unpacked, too
    folder = Path(tempfile.mkdtemp(dir=options.scratch))
    with zipfile.ZipFile(path) as archive:
        for number, entry in enumerate(archive.infolist()):
            name = entry.filename.removesuffix(".npy")
            # names of unpacked files are numbers: a name from the archive is not trusted
            plain = folder / f"{number}.npy"
            with archive.open(entry) as packed, plain.open("wb") as out:
                shutil.copyfileobj(packed, out, 1 << 20)
            label = f"{path}::{printable(name)}"
            tree.add(name, partial(_member, plain, label, options.block_nbytes))
    return tree


def _member(path: Path, label: str, block_nbytes: int) -> Member:
    try:
        elements = np.lib.format.open_memmap(path, "r")
    except ValueError as error:
        if "Array can't be memory-mapped" in str(error):
            raise TypeError("a frame cannot hold Python objects") from error
        raise ValueError(f"{label}: it is not a .npy file, or it is damaged: {error}") from error
    check_storable(elements.dtype)
    source = mapped_array(elements) or np.array(elements)
    blocks = blocks_of(elements.shape, None, elements.dtype.itemsize, block_nbytes)
    return Member(array_in_blocks(source, blocks))


def npy_writer(tree: Tree, options: Options) -> Callable[[Path], None]:
    """Reduce a tree to its one array, and return the function that writes it."""
    _, member = reduce_to_array(tree, with_coords=False)
    tree.is_array = True
    _lose_labels(tree)
    return lambda ready: _write(member, ready, Copier(tree, options))


def npz_writer(tree: Tree, options: Options) -> Callable[[Path], None]:
    """The function that writes all arrays of a tree, uncompressed like `numpy.savez`."""
    _lose_labels(tree)
    return partial(_write_npz, tree, options)


def _lose_labels(tree: Tree) -> None:
    """Add the labels of a tree to the losses."""
    lost = [(f"attributes of {level.label}", [*level.attrs]) for _, level in tree.levels()]
    for path, member in tree.walk():
        owner = path or tree.label
        lost += [(f"attributes of {owner}", [*member.attrs])]
        lost += [(f"dims of {owner}", [*(member.dims or ())])]
    tree.lost += [f"{what}: {', '.join(names)}" for what, names in lost if names]


def _write_npz(tree: Tree, options: Options, ready: Path) -> None:
    copier = Copier(tree, options)
    with zipfile.ZipFile(ready, "w", zipfile.ZIP_STORED, allowZip64=True) as archive:
        for path, member in tree.as_group().walk():
            plain = ready.with_name("array.part")
            _write(member, plain, copier)
            archive.write(plain, f"{path}.npy")
            plain.unlink()


def _write(member: Member, path: Path, copier: Copier) -> None:
    dtype, shape = member.array.dtype, member.array.shape
    target: Any = np.lib.format.open_memmap(path, "w+", dtype, shape)
    _allocate(path, target.offset, target.nbytes)
    copier.copy(member, target)
    target.flush()


def _allocate(path: Path, start: int, nbytes: int) -> None:
    """Allocate the space of a file, whose elements are `nbytes` from the offset `start` on.

    On a full disk a write to mapped memory kills the process.
    """
    with path.open("r+b") as file:
        try:
            os.posix_fallocate(file.fileno(), 0, start + nbytes)
        except (AttributeError, OSError) as error:
            # macOS has no such call
            if getattr(error, "errno", errno.ENOSYS) not in _NO_ALLOCATION:
                raise
            file.seek(start)
            for at in range(0, nbytes, _ZEROS_NBYTES):
                file.write(bytes(min(_ZEROS_NBYTES, nbytes - at)))
