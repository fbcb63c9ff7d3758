"""Files of NumPy: .npy, read from where it lies, and .npz."""

from __future__ import annotations

import shutil
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
from dask.array.core import normalize_chunks

from b2nd_dask.edges.convert.lazy import Budget, block_of
from b2nd_dask.edges.datasets.tree import Member, Tree
from b2nd_dask.frame.write.new_frame import check_storable
from b2nd_dask.graph.write.numpy_arrays import array_in_blocks, mapped_array
from b2nd_dask.storage import printable


def read_npy(path: str, budget: Budget) -> Tree:
    """Describe a .npy file."""
    return Tree(path, _member(Path(path), path, budget))


def read_npz(path: str, budget: Budget, scratch: Path) -> Tree:
    """Describe the arrays of a .npz file.

    Parameters
    ----------
    scratch : Path
        A directory for the arrays, which cannot be read in parts as they are compressed.
    """
    tree = Tree(path)
    if not zipfile.is_zipfile(path):
        Path(path).stat()
        raise ValueError(f"{path}: it is no .npz file (a zip of .npy files)")
    with zipfile.ZipFile(path) as archive:
        for number, entry in enumerate(archive.infolist()):
            name = entry.filename.removesuffix(".npy")
            # a name from the file is never one on the disk
            plain = scratch / f"{number}.npy"
            with archive.open(entry) as packed, plain.open("wb") as out:
                shutil.copyfileobj(packed, out, 1 << 20)
            try:
                tree.members[name] = _member(plain, f"{path}::{printable(name)}", budget)
            except TypeError as error:
                tree.refused.append(str(error))
    return tree


def _member(path: Path, label: str, budget: Budget) -> Member:
    try:
        elements = np.load(path, mmap_mode="r", allow_pickle=False)
    except (ValueError, EOFError) as error:
        if "Array can't be memory-mapped" in str(error) or "allow_pickle" in str(error):
            raise TypeError(f"{label}: Python objects have no form in a frame") from error
        raise ValueError(f"{label}: it is no .npy file, or a damaged one: {error}") from error
    if not isinstance(elements, np.ndarray):
        raise ValueError(f"{label}: it is no .npy file")  # noqa: TRY004 - of the file, not of an argument
    check_storable(elements.dtype)
    source: Any = mapped_array(elements)
    if source is None:
        source = np.array(elements)
    sizes = block_of(elements.shape, None, elements.dtype.itemsize, budget.block)
    return Member(array_in_blocks(source, normalize_chunks(sizes, elements.shape)))
