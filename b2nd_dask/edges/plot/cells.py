"""The cells of a chunk map: one picture of a grid of any number of axes, and of bounded size."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from b2nd_dask.edges.display.chunk_values import binned_kinds, binned_means, step_for
from b2nd_dask.edges.plot.canvas import plain, whole_ticks
from b2nd_dask.frame.info import lengths_text

if TYPE_CHECKING:
    from matplotlib.axes import Axes

#: Cells along an axis, and panels of arrays with more than two axes; more become boxes of chunks.
_MOST_CELLS, _MOST_PANELS = 1024, 36
#: More chunks in a row go on in the next.
_MOST_IN_A_ROW = 64
#: Cells along an axis that have lines between them.
_MOST_LINED = 80


@dataclass(frozen=True, eq=False)
class Cells:
    """The cells of a map: rows and columns, in panels where there are more axes."""

    panels: tuple[int, int, int]
    """Panels, and rows and columns of each."""
    counts: tuple[int, ...]
    """Of the chunk grid, its first axes joined."""
    step: tuple[int, ...]
    """Chunks that a cell stands for."""
    chunks: tuple[int, ...]
    names: tuple[str, ...]
    is_wrapped: bool
    first: tuple[int, ...]
    """Chunks along the axes that panels are for."""

    @classmethod
    def of(cls, grid: tuple[int, ...], chunks: tuple[int, ...], names: tuple[str, ...]) -> Cells:
        """Divide the chunk grid of a frame."""
        if len(grid) > 2:
            counts: tuple[int, ...] = (math.prod(grid[:-2]), *grid[-2:])
            most: tuple[int, ...] = (_MOST_PANELS, _MOST_CELLS // 4, _MOST_CELLS // 4)
        else:
            counts, most = grid, (_MOST_CELLS,) * len(grid)
        most = (_MOST_CELLS * 64,) if len(grid) == 1 else most
        step = step_for(counts, most)
        cells = [-(-n // s) for n, s in zip(counts, step, strict=True)]
        wrapped = len(cells) == 1 and cells[0] > _MOST_IN_A_ROW
        if wrapped:
            width = min(max(_MOST_IN_A_ROW, math.isqrt(2 * cells[0])), _MOST_CELLS)
            panels = (1, -(-cells[0] // width), width)
        else:
            panels = (*([1, 1, 1][: 3 - len(cells)]), *cells)  # type: ignore[assignment]
        return cls(panels, counts, step, chunks, names, wrapped, grid[:-2])

    def in_cells(self, values: NDArray[Any], *, mean: bool = False) -> NDArray[Any]:
        """Values of chunks as values of cells: kinds, or means of numbers without NaN."""
        values = values.reshape(self.counts)
        if mean:
            return binned_means(values, self.step)
        return binned_kinds(values, self.step)

    def tiled(self, colours: NDArray[np.uint8]) -> NDArray[np.uint8]:
        """Put the colours of the cells into one picture, panels beside each other."""
        panels, rows, columns = self.panels
        flat = colours.reshape(-1, 4)
        padded = np.zeros((panels * rows * columns, 4), np.uint8)
        padded[: len(flat)] = flat
        boxes = padded.reshape(panels, rows, columns, 4)
        if len(self.counts) < 3:
            only: NDArray[np.uint8] = boxes[0]
            return only
        picture = np.zeros((*self._extent(), 4), np.uint8)
        for number, box in enumerate(boxes):
            top, left = self._corner(number)
            picture[top : top + rows, left : left + columns] = box
        return picture

    def aspect(self, picture: tuple[int, ...]) -> Any:
        """Height of a cell for one of width 1: as the chunks have it, unless that is too long."""
        if len(self.counts) < 2:
            return "equal" if picture[0] > 1 else 0.12 * picture[1]
        cell = [c * s for c, s in zip(self.chunks[-2:], self.step[-2:], strict=True)]
        whole = cell[0] * picture[0] / max(cell[1] * picture[1], 1)
        return cell[0] / max(cell[1], 1) if 0.2 <= whole <= 5 else "auto"

    def label(self, axes: Axes) -> None:
        """Say what the axes are; name the panels."""
        step = (
            f"; a cell: up to {lengths_text(self.step)} chunks"
            if max(self.step, default=1) > 1
            else ""
        )
        if self.is_wrapped or len(self.counts) != 2:
            axes.set_xticks([])
            axes.set_yticks([])
        if len(self.counts) == 2:
            axes.set_ylabel(plain(f"{self.names[0]}, chunks of {self.chunks[0]}"))
            axes.set_xlabel(plain(f"{self.names[1]}, chunks of {self.chunks[1]}{step}"))
            whole_ticks(axes.xaxis, 6)
            whole_ticks(axes.yaxis, 6)
        elif len(self.counts) == 1:
            order = ", row by row" if self.is_wrapped else ""
            axes.set_xlabel(plain(f"{self.names[0]}, chunks of {self.chunks[0]}{order}{step}"))
        elif self.counts:
            axes.set_ylabel(plain(f"{self.names[-2]}, chunks of {self.chunks[-2]}"))
            axes.set_xlabel(plain(f"{self.names[-1]}, chunks of {self.chunks[-1]}{step}"))
            self._name_panels(axes)

    def _name_panels(self, axes: Axes) -> None:
        axes.set_frame_on(False)
        before = ", ".join(self.names[:-2])
        for number in range(self.panels[0]):
            top, left = self._corner(number)
            first, last = (
                number * self.step[0],
                min((number + 1) * self.step[0], self.counts[0]) - 1,
            )
            text = self._chunk_text(first)
            text = text if first == last else f"{text} \u2013 {self._chunk_text(last)}"
            text = f"{before}: {text}" if number == 0 else text
            axes.text(left - 0.5, top - 0.7, plain(text), fontsize=7, va="bottom", ha="left")

    def _chunk_text(self, number: int) -> str:
        """Coordinates of a chunk along the first axes."""
        return ", ".join(map(str, np.unravel_index(number, self.first)))

    def draw_lines(self, axes: Axes) -> None:
        """Draw lines between cells, where these are not too small."""
        panels, rows, columns = self.panels
        is_one = len(self.counts) < 3
        picture = (rows, columns) if is_one else self._extent()
        if max(picture) > _MOST_LINED or not self.counts:
            return
        how: dict[str, Any] = {"colors": "white", "linewidth": 0.5}
        for number in range(panels):
            top, left = (0, 0) if is_one else self._corner(number)
            across, down = np.arange(1, rows) + top - 0.5, np.arange(1, columns) + left - 0.5
            axes.hlines(across, left - 0.5, left + columns - 0.5, **how)
            axes.vlines(down, top - 0.5, top + rows - 0.5, **how)

    def _columns(self) -> int:
        panels, rows, columns = self.panels
        ratio = (rows * self.chunks[-2]) / max(columns * self.chunks[-1], 1)
        return max(1, min(panels, round(math.sqrt(panels * 1.6 * ratio))))

    def _pitch(self) -> tuple[int, int]:
        _, rows, columns = self.panels
        return rows + max(1, round(0.3 * rows)), columns + max(1, round(0.1 * columns))

    def _corner(self, number: int) -> tuple[int, int]:
        down, across = self._pitch()
        row, column = divmod(number, self._columns())
        return row * down + down - self.panels[1], column * across

    def _extent(self) -> tuple[int, int]:
        down, across = self._pitch()
        columns = self._columns()
        # nothing is right of the last column
        return -(-self.panels[0] // columns) * down, (columns - 1) * across + self.panels[2]
