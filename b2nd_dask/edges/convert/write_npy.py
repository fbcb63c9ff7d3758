"""A tree as files of NumPy, which hold elements and nothing else."""

from __future__ import annotations

import errno
import io
import os
import zipfile
from pathlib import Path
from typing import Any

import numpy as np

from b2nd_dask.edges.convert.copying import Copier
from b2nd_dask.edges.convert.options import Options
from b2nd_dask.edges.convert.write_frames import data_of
from b2nd_dask.edges.datasets.tree import Member, Tree

#: Errors of posix_fallocate on file systems that cannot allocate.
_NO_ALLOCATION = (errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS)
_ZEROS_NBYTES = 1 << 20


def check_npy(tree: Tree, options: Options, *, single: bool) -> None:
    """Check that a tree can be .npy (one array) or .npz; labels are noted as lost."""
    for name in ("chunks", "cparams"):
        if getattr(options, name) is not None:
            raise ValueError(
                f"{name}=: files of NumPy are neither cut nor compressed; leave it out"
            )
    if single:
        _, member, coords = data_of(tree)
        if coords:
            tree.lost.append(f"the coordinates {', '.join(coords)}")
        pairs = [("", member)]
    else:
        pairs = list(tree.walk())
    for path, member in pairs:
        if member.attrs:
            tree.lost.append(f"attributes of {path or tree.label}: {', '.join(member.attrs)}")
        if member.dims:
            tree.lost.append(f"dims of {path or tree.label}: {', '.join(member.dims)}")
    if tree.attrs:
        tree.lost.append(f"attributes of {tree.label}: {', '.join(tree.attrs)}")


def write_npy(tree: Tree, ready: Path, options: Options) -> None:
    """Write the one array of a tree."""
    member = data_of(tree)[1]
    _write(member, ready, Copier(Tree(tree.label, member), options))


def write_npz(tree: Tree, ready: Path, options: Options) -> None:
    """Write all arrays of a tree, uncompressed as `numpy.savez` does."""
    copier = Copier(tree, options)
    with zipfile.ZipFile(ready, "w", zipfile.ZIP_STORED, allowZip64=True) as archive:
        for path, member in tree.walk():
            plain = ready.with_name("array.part")
            _write(member, plain, copier)
            archive.write(plain, f"{path or member.name or 'values'}.npy")
            plain.unlink()


def _write(member: Member, path: Path, copier: Copier) -> None:
    array = member.array
    if not array.size:
        # not by its name, to which NumPy adds a suffix
        with path.open("wb") as file:
            np.save(file, np.empty(array.shape, array.dtype))
        return
    target: Any = np.lib.format.open_memmap(path, "w+", array.dtype, array.shape)
    _allocate(path, target.offset, target.nbytes)
    copier.copy(member, target)
    target.flush()


def _allocate(path: Path, start: int, nbytes: int) -> None:
    """Take the space of a file now: on a full disk a write to mapped memory ends the process.

    Parameters
    ----------
    start, nbytes : int
        Where the elements are.
    """
    with path.open("r+b", buffering=0) as file:
        try:
            os.posix_fallocate(file.fileno(), 0, start + nbytes)
        except AttributeError:
            # a system without the call
            _fill(file, start, nbytes)
        except OSError as error:
            if error.errno not in _NO_ALLOCATION:
                raise
            _fill(file, start, nbytes)


def _fill(file: io.FileIO, start: int, nbytes: int) -> None:
    zeros = memoryview(bytes(min(nbytes, _ZEROS_NBYTES)))
    file.seek(start)
    while nbytes:
        nbytes -= file.write(zeros[:nbytes])
