"""Frames in xarray without dask: an indexing operation reads only its selection."""

from __future__ import annotations

import asyncio
from typing import Any, Self

import numpy as np
from xarray.backends import BackendArray
from xarray.core import indexing

from b2nd_dask.format.manifest import Geogrid
from b2nd_dask.frame.array import Frame, reference_of
from b2nd_dask.frame.read.positions import positions_in, read_outer, read_pointwise


def presented(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """The dtype in which xarray gets the elements of a frame.

    Texts and records have the native byte order: xarray's own cast to that order makes texts four
    times as long, and fails for records.
    """
    return dtype.newbyteorder("=") if dtype.kind in "UV" else dtype


class FrameArray(BackendArray):
    """A frame behind xarray's lazy indexing.

    Immutable, so copies share it. Safe in threads; pickles as a reference to one version of the
    frame. The committed shape may be less than that of the frame, and is ``()`` for a scalar.
    """

    def __init__(self, frame: Frame, shape: tuple[int, ...] | None = None) -> None:
        self.frame = frame
        self.shape = frame.shape if shape is None else shape
        self.dtype = presented(frame.dtype)

    def __dask_tokenize__(self) -> tuple[Any, ...]:
        return ("b2nd_dask.FrameArray", self.frame, self.shape)

    def __copy__(self) -> Self:
        return self

    def __deepcopy__(self, memo: Any) -> Self:
        return self

    async def async_getitem(self, key: indexing.ExplicitIndexer) -> Any:
        """Read in a thread, for xarray's asynchronous loading."""
        return await asyncio.to_thread(self.__getitem__, key)

    def __getitem__(self, key: indexing.ExplicitIndexer) -> Any:
        return self._elements(key).astype(self.dtype, copy=False)

    def _elements(self, key: indexing.ExplicitIndexer) -> Any:
        # slices end at the shape: the frame may be longer
        index, axes = list(key.tuple), [*map(range, self.shape)]
        if len(axes) < self.frame.ndim:
            # a scalar is stored as an array of one element
            return self.frame[0]
        if isinstance(key, indexing.VectorizedIndexer):
            return read_pointwise(reference_of(self.frame), index, axes)
        dropped = [at for at, k in enumerate(index) if not (isinstance(k, slice) or np.ndim(k))]
        for at in dropped:
            position = int(positions_in(index[at], axes[at]))
            index[at], axes[at] = slice(None), range(position, position + 1)
        return np.squeeze(read_outer(self._read, self.frame, index, axes), tuple(dropped))

    def _read(self, axes: tuple[range, ...]) -> Any:
        return self.frame[tuple(map(_slice, axes))]


def _slice(axis: range) -> slice:
    """The positions of a range, also of a descending one, as a slice."""
    return slice(axis.start, axis.stop if axis.stop >= 0 else None, axis.step) if axis else slice(0)


class GeogridArray(FrameArray):
    """A variable packed by xarray-blosc2: integers, maybe as differences along the last axis.

    For differences a read starts at the first element of a row and ends at the last selected one.
    """

    def __init__(self, frame: Frame, shape: tuple[int, ...], how: Geogrid) -> None:
        super().__init__(frame, shape)
        self._how = how
        self.dtype = np.dtype(how.dtype)

    def __dask_tokenize__(self) -> tuple[Any, ...]:
        return ("b2nd_dask.GeogridArray", super().__dask_tokenize__(), repr(self._how))

    def _elements(self, key: indexing.ExplicitIndexer) -> Any:
        if isinstance(key, indexing.VectorizedIndexer):
            outer = indexing.IndexingSupport.OUTER
            return indexing.explicit_indexing_adapter(key, self.shape, outer, self._outer)
        return self._outer(key.tuple)

    def _outer(self, key: tuple[Any, ...]) -> Any:
        how = self._how
        if not how.row_diff or not self.shape:
            elements = super()._elements(indexing.OuterIndexer(key))
        else:
            *others, last = key
            chosen = np.arange(self.shape[-1])[last]
            until = np.max(chosen, initial=-1) + 1
            packed = super()._elements(indexing.OuterIndexer((*others, slice(0, until))))
            # in the packed dtype, where sums wrap around like the differences
            elements = np.cumsum(packed, -1, dtype=packed.dtype)[..., chosen]
        return elements.astype(np.float64) * how.scale_factor + how.add_offset
