"""Where in a region a repeated element lies, seen from the places that a reduction keeps."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from b2nd_dask.format.grid import AxisSlice


class ConstantRuns(Protocol):
    """Where an element is repeated. Arrays have length 1 along the reduced axes."""

    @property
    def counts(self) -> NDArray[np.int64]:
        """How often, at each kept place."""

    @property
    def firsts(self) -> tuple[NDArray[np.int64], ...]:
        """Position of the first one in C order, along each reduced axis.

        Any position where the element does not occur.
        """


class Box:
    """All places of a box.

    Parameters
    ----------
    out : tuple of slice
        The box in the region.
    axis : tuple of int
        Reduced axes.

    Examples
    --------
    >>> box = Box((slice(2, 5), slice(0, 2)), axis=(0,))
    >>> box.counts, box.firsts
    (array([[3, 3]]), (array([[2, 2]]),))
    """

    def __init__(self, out: tuple[slice, ...], axis: tuple[int, ...]) -> None:
        self._out = out
        self._axis = axis
        self._shape = tuple(1 if i in axis else s.stop - s.start for i, s in enumerate(out))

    @property
    def counts(self) -> NDArray[np.int64]:
        """As `Places.counts`."""
        reduced = (self._out[i] for i in self._axis)
        return np.full(self._shape, math.prod(s.stop - s.start for s in reduced), np.int64)

    @property
    def firsts(self) -> tuple[NDArray[np.int64], ...]:
        """As `Places.firsts`."""
        return tuple(np.full(self._shape, self._out[i].start, np.int64) for i in self._axis)


class Cells:
    """All places of some cells of a grid.

    Parameters
    ----------
    pieces : sequence of list of Piece
        The cells along each axis.
    chosen : ndarray of bool
        Which cells, in C order.
    axis : tuple of int
        Reduced axes.
    """

    def __init__(
        self, pieces: Sequence[list[AxisSlice]], chosen: NDArray[np.bool_], axis: tuple[int, ...]
    ) -> None:
        self._pieces = pieces
        self._chosen = chosen.reshape([len(cells) for cells in pieces])
        self._axis = axis

    @property
    def counts(self) -> NDArray[np.int64]:
        """As `Places.counts`."""
        counts = self._chosen.astype(np.int64)
        for i in self._axis:
            counts = np.moveaxis(np.moveaxis(counts, i, -1) @ self._lengths(i)[:, None], -1, i)
        return self._spread(counts)

    @property
    def firsts(self) -> tuple[NDArray[np.int64], ...]:
        """As `Places.firsts`."""
        kept = [i for i in range(self._chosen.ndim) if i not in self._axis]
        cells = self._chosen.transpose(*kept, *self._axis)
        reduced = cells.shape[len(kept) :]
        # the first element in C order is the corner of the first cell in C order
        first = np.argmax(cells.reshape(*cells.shape[: len(kept)], -1), axis=-1)
        numbers = np.unravel_index(np.expand_dims(first, self._axis), reduced)
        return tuple(
            self._spread(self._starts(i)[along])
            for i, along in zip(self._axis, numbers, strict=True)
        )

    def _spread(self, values: NDArray[np.int64]) -> NDArray[np.int64]:
        """Values of cells, at each kept place of them."""
        for i in range(self._chosen.ndim):
            if i not in self._axis:
                values = np.repeat(values, self._lengths(i), axis=i)
        return values

    def _lengths(self, axis: int) -> NDArray[np.int64]:
        return np.array([len(piece.inner) for piece in self._pieces[axis]], np.int64)

    def _starts(self, axis: int) -> NDArray[np.int64]:
        return np.array([piece.out.start for piece in self._pieces[axis]], np.int64)
