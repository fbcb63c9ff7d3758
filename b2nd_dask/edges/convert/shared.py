"""What all formats share: options, the blocks and copies of arrays, errors that name the source.

A block is whole stored chunks. A copy assigns regions of the target; the number of threads, each
with a block, bounds its memory.
"""

from __future__ import annotations

import errno
import math
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum
from itertools import islice
from pathlib import Path
from typing import Any

import dask.array as da
import numpy as np
from dask.array.core import normalize_chunks
from dask.base import tokenize

from b2nd_dask.edges.datasets.tree import Member, Tree
from b2nd_dask.errors import B2ndError
from b2nd_dask.graph.read.blocks import Chunks, regions_of
from b2nd_dask.graph.read.sizes import MAX_TASKS, is_length
from b2nd_dask.graph.resources import Progress
from b2nd_dask.storage import Location, Secrets, public_error, public_url

#: Bytes of a block: smaller chunks are read together, larger ones singly.
_BLOCK_NBYTES = 8 << 20
#: Copies of a block in memory while it is read and compressed.
_COPIES = 4
#: Estimated bytes of a text of any length, with its Python object.
_TEXT_NBYTES = 64
#: Most regions that wait for one thread.
_AT_ONCE = 16


@dataclass(frozen=True)
class Options:
    """Options of all readers and writers."""

    max_mem: int | None = None
    """Bytes of memory for the blocks of all threads together; None for no limit."""
    threads: int = 1
    chunks: Any = None
    blocks: Any = None
    cparams: Any = None
    stats: bool | None = None
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

    def given(self, name: str, shape: tuple[int, ...], *, clip: bool = True) -> Any:
        """The user's chunks or blocks; with `clip`, at most the lengths of an array.

        None if they are for another number of axes; -1 and texts stay.
        """
        sizes = getattr(self, name)
        if isinstance(sizes, tuple | list) and len(sizes) != len(shape):
            return None
        sizes = (sizes,) * len(shape) if is_length(sizes) else sizes
        if not clip or not isinstance(sizes, tuple | list):
            return sizes
        axes = zip(sizes, shape, strict=True)
        return tuple(min(int(size), max(1, n)) if is_length(size) else size for size, n in axes)

    def chunks_of(self, array: da.Array) -> tuple[int, ...]:
        """Lengths of a chunk of the target; by default those of the array's largest dask block."""
        sizes = self.given("chunks", array.shape) or array.chunksize
        axes = zip(sizes, array.shape, strict=True)
        return tuple(max(1, n if size == -1 else size) for size, n in axes)

    def check_sizes(self, tree: Tree) -> None:
        """Raise ValueError if the user's sizes are neither positive nor -1, or fit no array."""
        self.check_axes(tree)
        for name, sizes in (("chunks", self.chunks), ("blocks", self.blocks)):
            numbers = sizes if isinstance(sizes, tuple | list) else (sizes,)
            if sizes is not None and not all(is_length(n) and (n > 0 or n == -1) for n in numbers):
                raise ValueError(f"{name}={sizes!r}: give positive numbers, or -1 for a whole axis")

    def check_axes(self, tree: Tree) -> None:
        """Raise ValueError if no array has as many axes as the user's chunks or blocks."""
        axes = sorted({member.array.ndim for _, member in tree.walk()})
        for name in ("chunks", "blocks"):
            sizes = getattr(self, name)
            if isinstance(sizes, tuple | list) and len(sizes) not in axes:
                raise ValueError(
                    f"{name}={sizes!r} has {len(sizes)} numbers, but arrays of {tree.label} have "
                    f"{' or '.join(map(str, axes))} axes"
                )

    def check_memory(self, tree: Tree) -> None:
        """Raise ValueError if a chunk of an array, in source or target, exceeds `max_mem`."""
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


def label_of(path: str) -> str:
    """Path as it is, or URL without secrets, for messages."""
    return public_url(path) if "://" in path else path


def location_of(path: str) -> Location:
    """The location of a source: a URL if it has ``://``, else a local path of any name."""
    return Location.of(path if "://" in path else Path(path))


@contextmanager
def readable(label: str, secrets: Secrets | None = None) -> Iterator[None]:
    """Name the source, `label`, in errors of other libraries.

    An error without `label` becomes a ValueError with it; a TypeError, or an OSError with an error
    number, keeps its type. An error of a URL is replaced by one without secrets.
    """
    try:
        yield
    except (ImportError, MemoryError, B2ndError):
        raise
    except Exception as error:
        if "://" in label:
            failure = public_error(error, label, secrets or Secrets(label))
        elif str(error).startswith(label) or getattr(error, "filename", None) == label:
            raise
        else:
            raise _named(error, label) from error
    else:
        return
    # raised outside of the except clause, where no variable refers to the original
    raise failure


def _named(error: Exception, label: str) -> Exception:
    if isinstance(error, TypeError):
        return TypeError(f"{label}: {error}")
    if isinstance(error, OSError) and (error.errno or isinstance(error, FileNotFoundError)):
        return OSError(error.errno or errno.ENOENT, error.strerror or str(error), label)
    reason = f"{type(error).__name__}: {error}"
    return ValueError(f"{label}: it cannot be read and may be damaged: {reason}")


class _Named:
    """Wraps an array of another library to name it in errors of reads, and to choose its dtype."""

    def __init__(self, source: Any, label: str, dtype: np.dtype[Any]) -> None:
        self._source, self._label, self.dtype = source, label, dtype
        self.shape = tuple(source.shape)
        self.ndim = len(self.shape)

    def __dask_tokenize__(self) -> str:
        return str(tokenize(self._source))

    def __getitem__(self, index: Any) -> Any:
        with readable(self._label):
            found = self._source[index]
            # NumPy would cut longer texts
            if self.dtype.kind == "U" and _longest(found) > self.dtype.itemsize // 4:
                raise OSError("the array changed after it was opened: a text is longer")
            return np.asarray(found, self.dtype)


def lazy(
    source: Any,
    unit: Sequence[int] | None,
    block_nbytes: int,
    label: str,
    dtype: np.dtype[Any],
) -> da.Array:
    """Make a dask array from an array that is stored in chunks, which becomes part of the graph.

    `unit` has the lengths of the smallest part to read; None if any part can be read.
    """
    array: da.Array = da.from_array(
        _Named(source, label, dtype),
        chunks=blocks_of(source.shape, unit, dtype.itemsize, block_nbytes),
        lock=False,
        meta=np.empty((0,) * len(source.shape), dtype),
    )
    return array


def text_dtype(
    texts: Any, unit: Sequence[int] | None, block_nbytes: int, label: str
) -> np.dtype[Any]:
    """Choose the dtype for texts of any length by reading all: elements of frames have a length."""
    blocks = blocks_of(texts.shape, unit, _TEXT_NBYTES, block_nbytes)
    with readable(label):
        longest = (_longest(texts[region]) for region in regions_of(blocks))
        return np.dtype(f"U{max(longest, default=0) or 1}")


def _longest(texts: Any) -> int:
    flat = np.ravel(texts)
    return flat.itemsize // 4 if flat.dtype.kind == "U" else max(map(len, flat), default=0)


def blocks_of(
    shape: Sequence[int], unit: Sequence[int] | None, itemsize: int, nbytes: int
) -> Chunks:
    """Lengths of blocks: whole units, as many along the last axes as fit into `nbytes`.

    Raises TypeError if they are more than a graph can hold.

    Examples
    --------
    >>> blocks_of((100, 64, 64), (1, 32, 32), 8, 1 << 20)
    ((32, 32, 32, 4), (64,), (64,))
    >>> blocks_of((4, 64, 64), None, 8, 1 << 16)
    ((2, 2), (64,), (64,))
    """
    units = [1] * len(shape) if unit is None else unit
    sizes = [max(1, min(u, n)) for u, n in zip(units, shape, strict=True)]
    for axis in reversed(range(len(shape))):
        have = math.prod(sizes) * max(1, itemsize)
        times = max(1, min(nbytes // have, -(-shape[axis] // sizes[axis])))
        sizes[axis] = min(max(1, shape[axis]), sizes[axis] * times)
    # a file of some bytes may declare any shape
    count = math.prod(max(1, -(-n // size)) for n, size in zip(shape, sizes, strict=True))
    if count > MAX_TASKS:
        raise TypeError(f"it has {count} blocks, and a graph can hold {MAX_TASKS} tasks")
    found: Chunks = normalize_chunks(tuple(sizes), tuple(shape))
    return found


class Copier:
    """Copies the arrays of a tree block by block, and reports the number of finished blocks."""

    def __init__(self, tree: Tree, options: Options) -> None:
        self._options, self._done = options, 0
        full = (each for _, each in tree.walk() if each.array.size)
        self._total = sum(math.prod(map(len, self._blocks(each))) for each in full)

    def _blocks(self, member: Member) -> Chunks:
        """Blocks of whole chunks: no two threads write to the same chunk."""
        array, options = member.array, self._options
        unit = options.chunks_of(array)
        return blocks_of(array.shape, unit, array.dtype.itemsize, options.block_nbytes)

    def copy(self, member: Member, target: Any) -> None:
        """Assign all regions of a target: ``target[region] = elements``."""
        array, blocks = member.array, self._blocks(member)
        if not array.size:
            return

        def copy(region: tuple[slice, ...]) -> None:
            # computed in this thread: the number of workers bounds the memory
            elements = array[region].compute(scheduler="synchronous")
            target[region if region else ...] = np.asarray(elements)

        workers = self._options.workers(math.prod(map(max, blocks)) * array.dtype.itemsize)
        regions = regions_of(blocks)
        with ThreadPoolExecutor(workers) as pool:
            # not all at once: `map` takes memory for each of perhaps millions of regions, and the
            # threads go on with these after an error
            while some := list(islice(regions, _AT_ONCE * workers)):
                for _ in pool.map(copy, some):
                    self._done += 1
                    if self._options.progress is not None:
                        self._options.progress(self._done, self._total)


def compare(source: Tree, written: Tree, block_nbytes: int) -> None:
    """Raise ValueError if elements of two trees differ; reads whole chunks of the written one."""
    found = dict(written.walk())
    # a single frame has no path in its tree
    alone = next(iter(found.values())) if len(found) == 1 else None
    for path, member in source.walk():
        other = found.get(path, alone)
        if other is None or other.array.shape != member.array.shape:
            raise ValueError(f"{written.label}: {path!r} is missing, or has not the source's shape")
        shape, itemsize = member.array.shape, member.array.dtype.itemsize
        unit: Any = other.array.chunksize
        for region in regions_of(blocks_of(shape, unit, itemsize, block_nbytes)):
            first, second = da.compute(member.array[region], other.array[region])
            if not _same(np.asarray(first), np.asarray(second)):
                raise ValueError(f"{written.label}: elements of {path!r} differ at {region}")


def _same(first: Any, second: Any) -> bool:
    """Whether elements are equal; NaN equals NaN, NaT equals NaT."""
    if first.dtype.names:
        return all(_same(first[name], second[name]) for name in first.dtype.names)
    floats = first.dtype.kind in "fcmM" and second.dtype.kind in "fcmM"
    return bool(np.array_equal(first, second, equal_nan=floats))
