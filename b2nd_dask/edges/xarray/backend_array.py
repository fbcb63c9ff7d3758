"""Frames as xarray reads them without dask: each indexing reads what it selects."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from xarray.backends import BackendArray
from xarray.core import indexing

from b2nd_dask.format.labels.manifest import Geogrid
from b2nd_dask.frame.array import Frame, reference_of

#: Coordinates of single elements that are looked up at a time: 32 MB for each axis.
_POINTS = 1 << 22
#: Positions so near are read with what lies between them, also across chunks.
_NEAR = 2


class FrameArray(BackendArray):
    """A frame behind xarray's lazy indexing.

    Safe in threads; pickles as a reference to one version of the frame; copies share it.

    Parameters
    ----------
    frame : Frame
    shape : tuple of int, optional
        Less than that of the frame, where its end is not committed; ``()`` for its one element.
    """

    def __init__(self, frame: Frame, shape: tuple[int, ...] | None = None) -> None:
        self.frame = frame
        self.shape = frame.shape if shape is None else shape
        self.dtype = frame.dtype

    def __copy__(self) -> Self:
        return self

    def __deepcopy__(self, memo: Any) -> Self:
        return self

    def __dask_tokenize__(self) -> tuple[Any, ...]:
        return ("b2nd_dask.FrameArray", self.frame, self.shape)

    @property
    def region(self) -> tuple[slice, ...]:
        """The part of the frame that this is."""
        if len(self.shape) < self.frame.ndim:
            # the one element of an array of one axis
            return (slice(0, 1),)
        return tuple(slice(0, n) for n in self.shape)

    def __getitem__(self, key: indexing.ExplicitIndexer) -> Any:
        if len(self.shape) < self.frame.ndim:
            return self.frame[0]
        if isinstance(key, indexing.VectorizedIndexer):
            return _read_vectorized(self.frame, self.shape, key.tuple)
        if isinstance(key, indexing.OuterIndexer):
            return _read_outer(self.frame, self.shape, key.tuple)
        return self.frame[tuple(map(_inside, key.tuple, self.shape))]


def _inside(index: Any, size: int) -> Any:
    """An integer or slice of an axis that may go on behind its last position."""
    if not isinstance(index, slice):
        return int(index) + size if index < 0 else int(index)
    start, stop, step = index.indices(size)
    return slice(start, None if stop < 0 else stop, step)


def _positions(index: Any, size: int) -> NDArray[np.int64]:
    """Positions that an integer array selects, none of them negative."""
    array = np.asarray(index, np.int64)
    if array.size and not -size <= array.min() <= array.max() < size:
        raise IndexError(f"a position is out of bounds for an axis with size {size}")
    return np.where(array < 0, array + size, array)


def _read_outer(frame: Frame, shape: tuple[int, ...], key: tuple[Any, ...]) -> Any:
    """Read what arrays select along each axis, independently of each other."""
    chosen = [
        _positions(index, size) if isinstance(index, np.ndarray) else _inside(index, size)
        for index, size in zip(key, shape, strict=True)
    ]
    arrays = [axis for axis, index in enumerate(chosen) if isinstance(index, np.ndarray)]
    lengths = [_length(index, size) for index, size in zip(chosen, shape, strict=True)]
    out = np.empty(lengths, frame.dtype)
    if not out.size:
        return out[_finish(chosen)]
    boxes = {axis: list(_boxes(chosen[axis], frame.chunks[axis])) for axis in arrays}
    for combination in itertools.product(*(boxes[axis] for axis in arrays)):
        # an integer keeps its axis until the end
        source = [slice(i, i + 1) if isinstance(i, int) else i for i in chosen]
        into: list[Any] = [slice(None)] * frame.ndim
        picks: list[Any] = [slice(None)] * frame.ndim
        for axis, (box, where, inside) in zip(arrays, combination, strict=True):
            source[axis], into[axis], picks[axis] = box, where, inside
        elements = frame[tuple(source)]
        for axis in arrays:
            elements = elements.take(picks[axis], axis)
        out[_grid(into, lengths)] = elements
    return out[_finish(chosen)]


def _length(index: Any, size: int) -> int:
    if isinstance(index, np.ndarray):
        return index.size
    return len(range(size)[index]) if isinstance(index, slice) else 1


def _finish(chosen: list[Any]) -> tuple[Any, ...]:
    """Drop the axes of integers."""
    return tuple(0 if isinstance(index, int) else slice(None) for index in chosen)


def _boxes(
    positions: NDArray[np.int64], chunk: int
) -> Iterator[tuple[slice, NDArray[Any], NDArray[Any]]]:
    """Split positions into ranges that are read at once, none of them mostly for nothing.

    Yields
    ------
    tuple
        The range, which entries of `positions` lie in it, and where there.
    """
    order = np.argsort(positions, kind="stable")
    ascending = positions[order]
    gaps = np.diff(ascending)
    cuts = np.flatnonzero((np.diff(ascending // max(chunk, 1)) > 0) & (gaps > _NEAR)) + 1
    if len(gaps) and gaps[0] > 0 and (gaps == gaps[0]).all():
        # every nth position: a slice
        cuts = cuts[:0]
    for group in np.split(order, cuts):
        at = positions[group]
        steps = np.diff(at)
        step = int(steps[0]) if len(steps) and (steps == steps[0]).all() else 1
        step = max(step, 1)
        yield slice(int(at[0]), int(at[-1]) + 1, step), group, (at - at[0]) // step


def _grid(into: list[Any], lengths: list[int]) -> tuple[Any, ...]:
    """An index of the outer product of arrays and whole axes."""
    return np.ix_(
        *(np.arange(n) if isinstance(i, slice) else i for i, n in zip(into, lengths, strict=True))
    )


def _read_vectorized(frame: Frame, shape: tuple[int, ...], key: tuple[Any, ...]) -> Any:
    """Read points: arrays that go together, then the axes of slices."""
    arrays = [axis for axis, index in enumerate(key) if not isinstance(index, slice)]
    slices = [axis for axis, index in enumerate(key) if isinstance(index, slice)]
    shared = np.broadcast_shapes(*(np.shape(key[axis]) for axis in arrays))
    ranges = {axis: range(shape[axis])[key[axis]] for axis in slices}
    full = (*shared, *(len(ranges[axis]) for axis in slices))
    out = np.empty(math.prod(full), frame.dtype)
    chosen = {
        axis: np.broadcast_to(_positions(key[axis], shape[axis]), shared).ravel() for axis in arrays
    }
    reference = reference_of(frame)
    inner = math.prod(full[len(shared) :])
    for start in range(0, out.size, _POINTS):
        flat = np.arange(start, min(start + _POINTS, out.size))
        point, rest = np.divmod(flat, max(inner, 1))
        coords: list[Any] = [chosen[a][point] if a in chosen else None for a in range(frame.ndim)]
        for axis in reversed(slices):
            rest, at = np.divmod(rest, len(ranges[axis]))
            coords[axis] = ranges[axis].start + at * ranges[axis].step
        out[flat[0] : flat[-1] + 1] = reference.read_points(tuple(coords))
    return out.reshape(full)


class GeogridArray(BackendArray):
    """A variable that xarray-blosc2 packed: integers, differences along the last axis.

    A row is read from its begin to the last element that is selected.
    """

    def __init__(self, packed: FrameArray, how: Geogrid) -> None:
        self._packed = packed
        self._how = how
        self.shape = packed.shape
        self.dtype = np.dtype(how.dtype)

    def __copy__(self) -> Self:
        return self

    def __deepcopy__(self, memo: Any) -> Self:
        return self

    def __dask_tokenize__(self) -> tuple[Any, ...]:
        return ("b2nd_dask.GeogridArray", self._packed.__dask_tokenize__(), repr(self._how))

    def __getitem__(self, key: indexing.ExplicitIndexer) -> Any:
        if isinstance(key, indexing.OuterIndexer):
            # xarray below 2026.9 looks for the first of no positions
            none = (isinstance(index, np.ndarray) and not index.size for index in key.tuple)
            pairs = zip(key.tuple, none, strict=True)
            key = indexing.OuterIndexer(tuple(slice(0) if empty else i for i, empty in pairs))
        return indexing.explicit_indexing_adapter(
            key, self.shape, indexing.IndexingSupport.BASIC, self._read
        )

    def _read(self, key: tuple[Any, ...]) -> Any:
        how = self._how
        if how.row_diff and self.shape:
            *others, last = key
            chosen = range(self.shape[-1])[last] if isinstance(last, slice) else [last]
            until = max(chosen, default=-1) + 1
            whole = indexing.BasicIndexer((*others, slice(0, until)))
            elements = np.asarray(self._packed[whole])
            # of the packed dtype: sums of differences wrap around as the differences did
            elements = np.cumsum(elements, -1, dtype=elements.dtype)[..., last]
        else:
            elements = np.asarray(self._packed[indexing.BasicIndexer(key)])
        scaled = elements.astype(np.float64) * how.scale_factor + how.add_offset
        return scaled.astype(self.dtype)
