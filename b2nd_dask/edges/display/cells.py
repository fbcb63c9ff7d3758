"""The chunk grid as cells of a picture: neighbours in one cell, planes in panels side by side."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from b2nd_dask.frame.info import lengths_text

#: Codes of a cell with chunks of several kinds, and of the space between panels.
MIXED, GAP = 9, 255


def step_for(counts: tuple[int, ...], most: tuple[int, ...]) -> tuple[int, ...]:
    """Chunks per cell along each axis, for at most `most` cells."""
    return tuple(max(1, -(-n // m)) for n, m in zip(counts, most, strict=True))


def binned_kinds(kinds: NDArray[np.uint8], step: tuple[int, ...]) -> NDArray[np.uint8]:
    """Combine neighbouring chunks into cells: their common kind, or `MIXED`.

    Examples
    --------
    >>> binned_kinds(np.array([0, 0, 1, 1, 0, 1, 4], np.uint8), (2,))
    array([0, 1, 9, 4], dtype=uint8)
    """
    if kinds.size and not any(kinds.strides):
        counts = tuple(-(-n // s) for n, s in zip(kinds.shape, step, strict=True))
        return np.broadcast_to(kinds.reshape(-1)[:1].reshape(()), counts)
    low, high = (_binned(ufunc, kinds, step) for ufunc in (np.minimum, np.maximum))
    mixed: NDArray[Any] = np.where(low == high, low, np.uint8(MIXED))
    return mixed.astype(np.uint8)


def binned_means(values: NDArray[np.float64], step: tuple[int, ...]) -> NDArray[np.float64]:
    """Mean of the numbers in each cell; NaN for a cell without numbers.

    Examples
    --------
    >>> binned_means(np.array([1.0, 3, np.nan, np.nan, 5]), (2,))
    array([ 2., nan,  5.])
    """
    total = _binned(np.add, np.nan_to_num(values), step)
    count = _binned(np.add, np.isfinite(values).astype(np.float64), step)
    means: NDArray[np.float64] = np.full(total.shape, np.nan)
    np.divide(total, count, out=means, where=count > 0)
    return means


def _binned(ufunc: np.ufunc, values: NDArray[Any], step: tuple[int, ...]) -> NDArray[Any]:
    """Reduce each cell of `step` chunks along each axis; fewer at the edge."""
    for axis, size in enumerate(step):
        if size > 1:
            values = ufunc.reduceat(values, np.arange(0, values.shape[axis], size), axis)
    return values


def panels_of(grid: tuple[int, ...]) -> tuple[int, int, int]:
    """The chunk grid as panels of rows and columns: all axes before the last two become one.

    In a grid of one axis each chunk is a panel of one cell; these fill row after row without gaps.
    """
    if len(grid) < 2:
        return math.prod(grid), 1, 1
    return math.prod(grid[:-2]), grid[-2], grid[-1]


@dataclass(frozen=True)
class Layout:
    """Arrangement of the chunks of a grid in a picture."""

    counts: tuple[int, int, int]
    """Numbers of panels, and of rows and columns of chunks."""
    step: tuple[int, ...]
    """Chunks per cell along each of these."""
    across: int
    """Panels side by side."""
    gap: tuple[int, int] = (0, 0)
    """Cells above each panel, and between panels side by side."""

    @property
    def cells(self) -> tuple[int, ...]:
        """Numbers of panels, and of rows and columns of cells in each."""
        return tuple(-(-n // s) for n, s in zip(self.counts, self.step, strict=True))

    def cell_height(self, chunks: tuple[int, ...]) -> float:
        """Height of a cell of width 1, by the lengths of chunks; cells in rows are squares."""
        if len(chunks) < 2:
            return 1
        high, wide = (c * s for c, s in zip(chunks[-2:], self.step[1:], strict=True))
        return high / max(wide, 1)

    def corner(self, panel: int) -> tuple[int, int]:
        """Row and column of the first cell of a panel."""
        down, across = divmod(panel, self.across)
        (_, rows, columns), (above, between) = self.cells, self.gap
        return down * (rows + above) + above, across * (columns + between)

    def placed(self, cells: NDArray[Any], gap: Any) -> NDArray[Any]:
        """Cells of all panels as one picture, with the value `gap` between them."""
        (panels, rows, columns), (above, between) = cells.shape, self.gap
        down, across = -(-panels // self.across), self.across
        boxes = np.full((down * across, rows + above, columns + between), gap, cells.dtype)
        boxes[:panels, above:, :columns] = cells
        tiles = boxes.reshape(down, across, *boxes.shape[1:]).swapaxes(1, 2)
        picture = tiles.reshape(down * (rows + above), across * (columns + between))
        return picture[:, : picture.shape[1] - between]

    def kinds(self, codes: NDArray[np.uint8]) -> NDArray[np.uint8]:
        """The picture of the chunks' codes."""
        return self.placed(binned_kinds(codes.reshape(self.counts), self.step), GAP)

    def means(self, numbers: NDArray[np.float64]) -> NDArray[np.float64]:
        """The picture of the chunks' numbers; NaN for a cell without numbers."""
        return self.placed(binned_means(numbers.reshape(self.counts), self.step), np.nan)


def cell_text(step: tuple[int, ...]) -> str:
    """Text about the chunks in a cell; empty for one chunk per cell."""
    return f"a cell: up to {lengths_text(step)} chunks" if max(step, default=1) > 1 else ""


def layout_for(grid: tuple[int, ...], rows: int, columns: int, *, doubled: bool = False) -> Layout:
    """Arrange a chunk grid in at most `rows` x `columns` cells, with panels side by side.

    If `doubled`, a cell takes two columns if they fit.
    """
    counts = panels_of(grid)
    if len(grid) < 2:
        step = step_for(counts, (rows * columns, 1, 1))
        return Layout(counts, step, max(1, min(-(-counts[0] // step[0]), columns)))
    _, down, wide = Layout(counts, step_for(counts, (1, rows, columns)), 1).cells
    room = columns // 2 if doubled and wide <= columns // 2 else columns
    across = max(1, (room + 1) // (wide + 1))
    panels = across * max(1, (rows + 1) // (down + 1))
    return Layout(
        counts, step_for(counts, (panels, rows, columns)), min(across, max(1, counts[0])), (1, 1)
    )


def layout_text(names: tuple[str, ...], layout: Layout, at: tuple[int, ...] = ()) -> str:
    """Text about rows, columns, panels and cells.

    The layout has the axes behind those with selected positions, `at`, in the chunk grid.
    """
    if not names:
        return "one chunk"
    parts = [f"{name} {position}" for name, position in zip(names, at, strict=False)]
    left = names[len(at) : -2]
    if left:
        many = layout.step[0]
        each = f"each {many} chunks" if many > 1 else "each"
        panels = f"a panel for {each}" if layout.cells[0] > 1 else "all"
        parts.append(f"{panels} of {', '.join(left)}")
    if len(names) > 1:
        parts.append(f"rows {names[-2]}, columns {names[-1]}")
    else:
        parts.append(names[-1] + ", row by row" * (layout.cells[0] > layout.across))
    step = layout.step[1:] if len(names) > 1 else layout.step[:1]
    return "; ".join([*parts, cell_text(step) or "a cell is a chunk"])
