"""Frames in xarray without dask: an indexing operation reads only its selection."""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from collections.abc import Callable
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from xarray.backends import BackendArray
from xarray.core import indexing

from b2nd_dask.format.labels.manifest import Geogrid
from b2nd_dask.frame.array import Frame, reference_of

#: Points to read at a time: coordinates of 32 MB per axis.
_POINTS = 1 << 22
#: Positions at most so far apart are read together, even across chunks.
_NEAR = 2


class _Shared(BackendArray):
    """An immutable array: copies share it."""

    def __copy__(self) -> Self:
        return self

    def __deepcopy__(self, memo: Any) -> Self:
        return self

    @abstractmethod
    def __getitem__(self, key: indexing.ExplicitIndexer) -> Any: ...

    async def async_getitem(self, key: indexing.ExplicitIndexer) -> Any:
        return await asyncio.to_thread(self.__getitem__, key)


class FrameArray(_Shared):
    """A frame behind xarray's lazy indexing.

    Safe in threads; pickles as a reference to one version of the frame. The committed shape may be
    less than that of the frame, and is ``()`` for a scalar.
    """

    def __init__(self, frame: Frame, shape: tuple[int, ...] | None = None) -> None:
        self.frame = frame
        self.shape = frame.shape if shape is None else shape
        self.dtype = frame.dtype

    def __dask_tokenize__(self) -> tuple[Any, ...]:
        return ("b2nd_dask.FrameArray", self.frame, self.shape)

    def __getitem__(self, key: indexing.ExplicitIndexer) -> Any:
        if len(self.shape) < self.frame.ndim:
            # a scalar is stored as an array of one element
            return self.frame[0]
        if isinstance(key, indexing.VectorizedIndexer):
            return _read_points(self.frame, self.shape, key.tuple)
        return _adapted(key, self.shape, indexing.IndexingSupport.OUTER, self._read)

    def _read(self, key: tuple[Any, ...]) -> Any:
        """Read ascending positions along each axis; near ones and those of a chunk at once."""
        axis = next((at for at, index in enumerate(key) if isinstance(index, np.ndarray)), None)
        if axis is None:
            # slices end at the shape: the frame may be longer
            pairs = zip(key, self.shape, strict=True)
            return self.frame[
                tuple(slice(*k.indices(n)) if isinstance(k, slice) else int(k) for k, n in pairs)
            ]
        positions, chunk = _positions(key[axis], self.shape[axis]), self.frame.chunks[axis]
        cuts = (np.diff(positions // max(chunk, 1)) > 0) & (np.diff(positions) > _NEAR)
        # axes of integer indices are dropped from the result
        left = sum(isinstance(index, slice) for index in key[:axis])
        parts = []
        for run in np.split(positions, np.flatnonzero(cuts) + 1):
            first, stop = (int(run[0]), int(run[-1]) + 1) if run.size else (0, 0)
            elements = self._read((*key[:axis], slice(first, stop), *key[axis + 1 :]))
            parts.append(elements.take(run - first, left))
        # concatenate makes the byte order native; restore it
        return np.concatenate(parts, left).astype(self.dtype, copy=False)


def _adapted(
    key: indexing.ExplicitIndexer, shape: tuple[int, ...], support: Any, read: Callable[..., Any]
) -> Any:
    """Read by a key that the array supports; xarray then applies the rest of the selection."""
    if not isinstance(key, indexing.VectorizedIndexer):
        # before xarray 2026.9 empty selections by backward slices or arrays fail
        nothing = (
            not range(n)[k] if isinstance(k, slice) else not np.size(k)
            for k, n in zip(key.tuple, shape, strict=True)
        )
        pairs = zip(key.tuple, nothing, strict=True)
        key = type(key)(tuple(slice(0) if empty else k for k, empty in pairs))
    return indexing.explicit_indexing_adapter(key, shape, support, read)


def _positions(index: Any, size: int) -> NDArray[np.int64]:
    """Positions of an integer array, checked and made non-negative."""
    array = np.asarray(index, np.int64)
    if array.size and not -size <= array.min() <= array.max() < size:
        raise IndexError(f"a position is out of bounds for an axis with size {size}")
    return np.where(array < 0, array + size, array)


def _read_points(frame: Frame, shape: tuple[int, ...], key: tuple[Any, ...]) -> Any:
    """Read single elements; the key has an array of positions per axis, broadcast together."""
    coords = np.broadcast_arrays(*map(_positions, key, shape))
    out = np.empty(coords[0].size, frame.dtype)
    for start in range(0, out.size, _POINTS):
        part = slice(start, start + _POINTS)
        out[part] = reference_of(frame).read_points(tuple(each.flat[part] for each in coords))
    return out.reshape(coords[0].shape)


class GeogridArray(_Shared):
    """A variable packed by xarray-blosc2: integers, maybe as differences along the last axis.

    For differences a read starts at the first element of a row and ends at the last selected one.
    """

    def __init__(self, packed: FrameArray, how: Geogrid) -> None:
        self._packed = packed
        self._how = how
        self.shape = packed.shape
        self.dtype = np.dtype(how.dtype)

    def __dask_tokenize__(self) -> tuple[Any, ...]:
        return ("b2nd_dask.GeogridArray", self._packed.__dask_tokenize__(), repr(self._how))

    def __getitem__(self, key: indexing.ExplicitIndexer) -> Any:
        return _adapted(key, self.shape, indexing.IndexingSupport.BASIC, self._read)

    def _read(self, key: tuple[Any, ...]) -> Any:
        how = self._how
        if how.row_diff and self.shape:
            *others, last = key
            chosen = range(self.shape[-1])[last] if isinstance(last, slice) else [last]
            until = max(chosen, default=-1) + 1
            whole = indexing.BasicIndexer((*others, slice(0, until)))
            elements = np.asarray(self._packed[whole])
            # in the packed dtype, where sums wrap around like the differences
            elements = np.cumsum(elements, -1, dtype=elements.dtype)[..., last]
        else:
            elements = np.asarray(self._packed[indexing.BasicIndexer(key)])
        scaled = elements.astype(np.float64) * how.scale_factor + how.add_offset
        return scaled.astype(self.dtype)
