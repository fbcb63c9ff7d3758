"""The chunk grid of a frame as rows of cells, so many as a terminal has room for."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from b2nd_dask.edges.display.chunk_values import (
    binned_kinds,
    binned_means,
    chunk_sizes,
    step_for,
    with_codecs,
)
from b2nd_dask.frame.chunk_table import ChunkTable

#: Codes of cells: kinds of chunks below; levels of a value, and codecs, from here on.
LEVELS = 16
#: No cell.
GAP = 255
#: Levels that a terminal shows of a value.
MOST_LEVELS = 8


@dataclass(frozen=True, eq=False)
class Picture:
    """Codes of cells in rows, and what they stand for."""

    cells: NDArray[np.uint8]
    """2-d: kinds of chunks, or `LEVELS` and a level or the number of a codec."""
    step: tuple[int, ...]
    """Chunks that a cell stands for, along rows and columns."""
    is_wrapped: bool
    """Whether one axis goes on in the next row."""
    panels: int
    """Planes side by side, one for each position along the axes before rows and columns."""
    bounds: tuple[float, float] | None = None
    """Of the lowest and the highest level."""


def picture_of(
    table: ChunkTable,
    by: str,
    at: tuple[int, ...],
    rows: int,
    columns: int,
    statistic: NDArray[np.float64] | None = None,
) -> Picture:
    """Arrange the chunks of a frame.

    Parameters
    ----------
    by : str
        "kind", "cbytes", "ratio", "codec" or the name of a statistic.
    at : tuple of int
        Positions in the chunk grid along the first axes, of those that the picture leaves out.
        What is left of them gives planes side by side; where these are too many it is projected,
        and a cell stands for the chunks of all positions.
    rows, columns : int
        The most cells.
    statistic : ndarray of float64, optional
        What cells show of all chunks, in C order; NaN where nothing is known.
    """
    codes = with_codecs(table, LEVELS) if by == "codec" else table.kinds
    values, spreads = statistic, statistic is None
    if by in ("cbytes", "ratio"):
        values = chunk_sizes(table, by)
    values = None if values is None else values.reshape(codes.shape)
    if at:
        codes, values = codes[at], None if values is None else values[at]
    shape = codes.shape
    if len(shape) > 2 and 0 not in shape:
        panels = math.prod(shape[:-2])
        width = _panels_in_a_row(shape[-1], columns)
        if width * shape[-1] <= columns and -(-panels // width) * (shape[-2] + 1) <= rows + 1:
            flat, bounds = (panels, *shape[-2:]), None
            cells = codes.reshape(flat)
            if values is not None:
                cells, bounds = _with_levels(cells, values.reshape(flat), spreads=spreads)
            return Picture(_side_by_side(cells, width), (1, 1), False, panels, bounds)
    return _one_plane(codes, values, rows, columns, spreads=spreads)


def _one_plane(
    codes: NDArray[np.uint8],
    values: NDArray[np.float64] | None,
    rows: int,
    columns: int,
    *,
    spreads: bool,
) -> Picture:
    """Project the first axes, and let cells stand for several chunks where there are many."""
    shape = codes.shape
    flat: tuple[int, ...] = (*(1,) * (2 - len(shape)), *shape[-2:])
    wraps = len(shape) == 1 and shape[0] > columns
    most = (rows, columns)
    if wraps:
        most = (1, -(-shape[0] // step_for(shape, (rows * columns,))[0]))
    step = step_for(flat, most)
    if len(shape) > 2:
        projected = math.prod(shape[:-2])
        flat, step = (projected, *flat), (max(1, projected), *step)
    cells, bounds = binned_kinds(codes.reshape(flat), step), None
    if values is not None:
        means = binned_means(values.reshape(flat), step)
        cells, bounds = _with_levels(cells, means, spreads=spreads)
    plane = cells.reshape(cells.shape[-2:])
    return Picture(_wrapped(plane, columns) if wraps else plane, step[-2:], wraps, 1, bounds)


def _panels_in_a_row(width: int, columns: int) -> int:
    """How many panels stand side by side: with cells of two characters where these fit."""
    room = columns // 2 if width <= columns // 2 else columns
    return max(1, (room + 1) // (width + 1))


def _side_by_side(panels: NDArray[np.uint8], width: int) -> NDArray[np.uint8]:
    """Put panels into one picture, with a gap between them."""
    count, rows, columns = panels.shape
    width = min(width, count)
    down = -(-count // width)
    picture = np.full((down * (rows + 1), width * (columns + 1)), GAP, np.uint8)
    for number, panel in enumerate(panels):
        top, left = number // width * (rows + 1), number % width * (columns + 1)
        picture[top : top + rows, left : left + columns] = panel
    return picture[:-1, :-1]


def _with_levels(
    cells: NDArray[np.uint8], values: NDArray[np.float64], *, spreads: bool
) -> tuple[Any, Any]:
    """Cells with a level where they have a value; logarithmic where they may and do spread."""
    known = np.isfinite(values)
    if not known.any():
        return cells, None
    low, high = float(values[known].min()), float(values[known].max())
    scaled = (
        np.log(values[known] / low) / np.log(high / low)
        if spreads and high > 20 * low
        else ((values[known] - low) / max(high - low, 1e-300))
    )
    levels = cells.copy()
    levels[known] = LEVELS + np.minimum(scaled * MOST_LEVELS, MOST_LEVELS - 1).astype(np.uint8)
    return levels, (low, high)


def _wrapped(row: NDArray[np.uint8], columns: int) -> NDArray[np.uint8]:
    """Rows of one long row; what is left of the last has no cells."""
    count = row.shape[1]
    padded = np.full(-(-count // columns) * columns, GAP, np.uint8)
    padded[:count] = row[0]
    return padded.reshape(-1, columns)
