"""Options of a conversion, and paths with members."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any

import dask.array as da

from b2nd_dask.edges.datasets.tree import Tree
from b2nd_dask.edges.progress import Progress
from b2nd_dask.storage import Location, public_url

#: Bytes of a block: smaller chunks are read together, larger ones singly.
_BLOCK_NBYTES = 8 << 20
#: Copies of a block in memory while it is read and compressed.
_COPIES = 4


def label_of(path: str) -> str:
    """Path as it is, or URL without secrets, for messages."""
    return public_url(path) if "://" in path else path


def location_of(path: str) -> Location:
    """The location of a source: a URL if it has ``://``, else a local path of any name."""
    return Location.of(path if "://" in path else Path(path))


def split_member(path: str, member: str | None) -> tuple[str, str | None]:
    """Split ``file.h5::/group/dataset``, unless this is the name of a file.

    Raises ValueError if `path` and `member` name different members.
    """
    before, mark, inner = path.partition("::")
    if os.path.lexists(path):
        return path, member
    if not mark or not inner:
        return before, member
    if member is not None and member.strip("/") != inner.strip("/"):
        raise ValueError(f"{label_of(path)}: member={member!r} names another member; give only one")
    return before, inner


@dataclass(frozen=True)
class Options:
    """Options of all readers and writers."""

    max_mem: int | None = None
    """Bytes of memory for the blocks of all threads together; None for no limit."""
    threads: int = 1
    chunks: Any = None
    blocks: Any = None
    cparams: Any = None
    progress: Progress | None = None
    storage_options: Mapping[str, Any] | None = None
    """Of the source, if it is a URL."""
    dtype: Any = None
    """Dtype of the elements of a Caterva frame, which does not store it."""
    other_files: bool = False
    """Whether elements may come from other files that the source refers to."""
    scratch: Path = Path()
    """A directory to unpack compressed files that cannot be read in parts."""

    @property
    def block_nbytes(self) -> int:
        """Bytes of a block, as a target."""
        if self.max_mem is None:
            return _BLOCK_NBYTES
        return min(_BLOCK_NBYTES, self.max_mem // (_COPIES * self.threads))

    def workers(self, block_nbytes: int) -> int:
        """Number of threads that may each hold a block of this size."""
        if self.max_mem is None:
            return self.threads
        return max(1, min(self.threads, self.max_mem // max(1, _COPIES * block_nbytes)))

    def given(self, name: str, ndim: int) -> Any:
        """The user's chunks or blocks; None if they are for another number of axes."""
        sizes = getattr(self, name)
        return None if isinstance(sizes, tuple | list) and len(sizes) != ndim else sizes

    def chunks_of(self, array: da.Array) -> tuple[int, ...]:
        """Lengths of a chunk of the target; by default those of the array's largest dask block."""
        sizes = self.given("chunks", array.ndim) or array.chunksize
        sizes = (sizes,) * array.ndim if isinstance(sizes, int) else sizes
        return tuple(
            max(1, n if size == -1 else min(size, n))
            for size, n in zip(sizes, array.shape, strict=True)
        )

    def check_sizes(self, tree: Tree) -> None:
        """Check the user's chunks and blocks.

        Raises ValueError if they are neither positive nor -1, or no array has as many axes.
        """
        axes = sorted({member.array.ndim for _, member in tree.walk()})
        for name in ("chunks", "blocks"):
            sizes = getattr(self, name)
            if sizes is None:
                continue
            numbers = sizes if isinstance(sizes, tuple | list) else (sizes,)
            if not all(isinstance(n, int) and (n > 0 or n == -1) for n in numbers):
                raise ValueError(f"{name}={sizes!r}: give positive numbers, or -1 for a whole axis")
            if isinstance(sizes, tuple | list) and len(numbers) not in axes:
                raise ValueError(
                    f"{name}={sizes!r} has {len(numbers)} numbers, but arrays of {tree.label} have "
                    f"{' or '.join(map(str, axes))} axes"
                )

    def check_memory(self, tree: Tree) -> None:
        """Check that a chunk of each array, in source and target, fits into `max_mem`.

        Raises ValueError if `max_mem` is too small.
        """
        if self.max_mem is None:
            return
        for path, member in tree.walk():
            array = member.array
            units = (array.chunksize, self.chunks_of(array))
            nbytes = max(map(math.prod, units)) * array.dtype.itemsize
            if nbytes * _COPIES > self.max_mem:
                raise ValueError(
                    f"{path or tree.label}: max_mem={self.max_mem} is too little for its "
                    f"chunks of {nbytes} bytes, which are decoded whole; give "
                    f"{nbytes * _COPIES} or more"
                )


def compression_by_name(cparams: Any, codec: str, clevel: int) -> tuple[str, int, list[str]]:
    """Names of codec and filters, and the level, in `cparams` as for frames; else the defaults."""
    given = cparams if isinstance(cparams, Mapping) else vars(cparams)
    asked = given.get("filters", "shuffle") or ()
    chosen = [given.get("codec", codec), *([asked] if isinstance(asked, str | Enum) else asked)]
    # names or enum members of python-blosc2
    codec, *filters = (str(getattr(each, "name", each)).lower() for each in chosen)
    return codec, int(given.get("clevel", clevel)), filters
