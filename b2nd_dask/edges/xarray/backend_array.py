"""Frames in xarray without dask: an indexing operation reads only its selection."""

from __future__ import annotations

import asyncio
import math
from abc import abstractmethod
from collections.abc import Callable
from typing import Any, Self

import numpy as np
from xarray.backends import BackendArray
from xarray.core import indexing

from b2nd_dask.format.manifest import Geogrid
from b2nd_dask.frame.array import Frame, reference_of
from b2nd_dask.frame.read.positions import Along, positions_in, read_along, read_pointwise


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


def presented(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """The dtype in which xarray gets the elements of a frame.

    Texts and records have the native byte order: xarray's own cast to that order makes texts four
    times as long, and fails for records.
    """
    return dtype.newbyteorder("=") if dtype.kind in "UV" else dtype


class FrameArray(_Shared):
    """A frame behind xarray's lazy indexing.

    Safe in threads; pickles as a reference to one version of the frame. The committed shape may be
    less than that of the frame, and is ``()`` for a scalar.
    """

    def __init__(self, frame: Frame, shape: tuple[int, ...] | None = None) -> None:
        self.frame = frame
        self.shape = frame.shape if shape is None else shape
        self.dtype = presented(frame.dtype)

    def __dask_tokenize__(self) -> tuple[Any, ...]:
        return ("b2nd_dask.FrameArray", self.frame, self.shape)

    def __getitem__(self, key: indexing.ExplicitIndexer) -> Any:
        return self._elements(key).astype(self.dtype, copy=False)

    def _elements(self, key: indexing.ExplicitIndexer) -> Any:
        if len(self.shape) < self.frame.ndim:
            # a scalar is stored as an array of one element
            return self.frame[0]
        if isinstance(key, indexing.VectorizedIndexer):
            return read_pointwise(reference_of(self.frame), key.tuple, [*map(range, self.shape)])
        return _adapted(key, self.shape, indexing.IndexingSupport.OUTER, self._read)

    def _read(self, key: tuple[Any, ...]) -> Any:
        """Read slices, and lists of positions along any axes."""
        # slices end at the shape: the frame may be longer
        pairs = zip(key, self.shape, strict=True)
        chosen = [range(n)[k] if isinstance(k, slice) else k for k, n in pairs]
        axis = next((at for at, index in enumerate(key) if isinstance(index, np.ndarray)), None)
        if axis is None:
            return self.frame[tuple(map(_basic, chosen))]
        others = (*chosen[:axis], *chosen[axis + 1 :])
        lengths = (len(each) for each in others if isinstance(each, range | np.ndarray))
        nbytes = self.dtype.itemsize * math.prod(lengths)
        # axes of integer indices are dropped from the result
        left = sum(isinstance(index, slice) for index in key[:axis])
        within = range(self.shape[axis])
        along = Along(left, self.frame.chunks[axis], self.frame.blocks[axis], within, nbytes)
        return read_along(
            lambda covered: self._read((*key[:axis], _basic(covered), *key[axis + 1 :])),
            positions_in(key[axis], within),
            along,
        )


def _basic(index: Any) -> Any:
    """An index of a frame for an ascending range, or an integer."""
    return slice(index.start, index.stop, index.step) if isinstance(index, range) else int(index)


def _adapted(
    key: indexing.ExplicitIndexer, shape: tuple[int, ...], support: Any, read: Callable[..., Any]
) -> Any:
    """Read by a key that the array supports; xarray then applies the rest of the selection."""
    if not isinstance(key, indexing.VectorizedIndexer):
        # in xarray 2026.9 empty selections by backward slices or arrays fail
        nothing = (
            not range(n)[k] if isinstance(k, slice) else not np.size(k)
            for k, n in zip(key.tuple, shape, strict=True)
        )
        pairs = zip(key.tuple, nothing, strict=True)
        key = type(key)(tuple(slice(0) if empty else k for k, empty in pairs))
    return indexing.explicit_indexing_adapter(key, shape, support, read)


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
