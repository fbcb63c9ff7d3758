"""Dask arrays of what other libraries store, in blocks of whole stored chunks."""

from __future__ import annotations

import errno
import itertools
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import dask.array as da
import numpy as np

from b2nd_dask.errors import B2ndError
from b2nd_dask.storage import public_url

Region = tuple[slice, ...]

#: Bytes of a block: smaller chunks are read together, larger ones by themselves.
BLOCK_NBYTES = 8 << 20
#: What reads and compresses a block holds it so many times.
_COPIES = 4


class Budget:
    """Bytes of memory that blocks may take.

    Parameters
    ----------
    nbytes : int, optional
        Of all threads together; None is no bound.
    """

    def __init__(self, nbytes: int | None, threads: int) -> None:
        self.nbytes = nbytes
        self.threads = threads

    @property
    def block(self) -> int:
        """Bytes that a block should have."""
        if self.nbytes is None:
            return BLOCK_NBYTES
        return min(BLOCK_NBYTES, self.nbytes // (_COPIES * self.threads))

    def check(self, label: str, unit: Sequence[int], itemsize: int) -> None:
        """Check that a stored chunk, which is decoded as a whole, fits.

        Raises
        ------
        ValueError
            It does not; the message says how much is needed.
        """
        nbytes = math.prod(unit) * itemsize
        if self.nbytes is not None and nbytes * _COPIES > self.nbytes:
            raise ValueError(
                f"{label}: max_mem={self.nbytes} is too little for its chunks of {nbytes} bytes, "
                f"each of which is decoded as a whole: give {nbytes * _COPIES} or more"
            )

    def workers(self, block_nbytes: int) -> int:
        """Threads that may hold a block at once."""
        if self.nbytes is None:
            return self.threads
        return max(1, min(self.threads, self.nbytes // max(1, _COPIES * block_nbytes)))


def label_of(source: str) -> str:
    """A path as it is, or a URL without secrets."""
    return public_url(source) if "://" in source else source


@contextmanager
def readable(label: str) -> Iterator[None]:
    """Make errors of other libraries say what they could not read.

    Raises
    ------
    ValueError
        For errors that do not name `label`; `OSError` for those of the system, `TypeError` for
        elements that a frame cannot hold.
    """
    try:
        yield
    except Exception as error:
        named = str(error).startswith(label) or getattr(error, "filename", None) == label
        if named or isinstance(error, ImportError | MemoryError | B2ndError):
            raise
        if isinstance(error, TypeError):
            raise TypeError(f"{label}: {error}") from error
        code = errno.ENOENT if isinstance(error, FileNotFoundError) else None
        if isinstance(error, OSError) and (code := error.errno or code) is not None:
            raise OSError(code, error.strerror or str(error), label) from error
        reason = f"{type(error).__name__}: {error}"
        raise ValueError(f"{label}: it cannot be read, perhaps it is damaged: {reason}") from error


@dataclass(frozen=True)
class _Named:
    """An array of another library, whose errors say which one cannot be read."""

    source: Any
    label: str

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.source.shape)

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def dtype(self) -> np.dtype[Any]:
        found: np.dtype[Any] = self.source.dtype
        return found

    def __getitem__(self, index: Any) -> Any:
        with readable(self.label):
            return self.source[index]


def lazy(source: Any, unit: Sequence[int] | None, budget: Budget, label: str) -> da.Array:
    """Make a dask array of an array that is stored in chunks.

    Parameters
    ----------
    source : array-like
        With shape, dtype and `__getitem__`; it travels to the tasks.
    unit : sequence of int, optional
        Elements of what is read at once; None where any part can be read.
    """
    array: da.Array = da.from_array(
        _Named(source, label),
        chunks=block_of(source.shape, unit, source.dtype.itemsize, budget.block),
        lock=False,
        meta=np.empty((0,) * len(source.shape), source.dtype),
    )
    return array


def unit_of(array: da.Array) -> tuple[int, ...]:
    """Chunks of the source, whose edges the blocks of its array have."""
    return tuple(max(1, *axis, 1) for axis in array.chunks)


def block_of(
    shape: Sequence[int], unit: Sequence[int] | None, itemsize: int, nbytes: int
) -> tuple[int, ...]:
    """Elements of a block: whole units, as many along the last axes as have so many bytes.

    Examples
    --------
    >>> block_of((100, 64, 64), (1, 32, 32), 8, 1 << 20)
    (32, 64, 64)
    >>> block_of((100, 64, 64), None, 8, 1 << 16)
    (2, 64, 64)
    """
    sizes = (
        [1] * len(shape)
        if unit is None
        else [max(1, min(u, n)) for u, n in zip(unit, shape, strict=True)]
    )
    for axis in reversed(range(len(shape))):
        have = math.prod(sizes) * max(1, itemsize)
        times = max(1, min(nbytes // have, -(-shape[axis] // sizes[axis])))
        sizes[axis] = min(max(1, shape[axis]), sizes[axis] * times)
    return tuple(sizes)


def regions(shape: tuple[int, ...], sizes: tuple[int, ...]) -> Iterator[Region]:
    """Cut a shape into regions, in C order."""
    axes = [
        [slice(start, min(start + size, n)) for start in range(0, n, size)]
        for size, n in zip(sizes, shape, strict=True)
    ]
    return itertools.product(*axes)
