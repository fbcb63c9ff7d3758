"""The chunk grid as SVG: a strip, a plane, or sheets above each other, of a bounded size.

Each cell is a chunk, or where there are too many a box of neighbours. Axes along which there is one
chunk only are left out; axes before the last three become one.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from html import escape

import numpy as np
from numpy.typing import NDArray

from b2nd_dask.edges.display.cells import MIXED, binned_kinds, cell_text, step_for
from b2nd_dask.edges.display.chunk_values import KINDS
from b2nd_dask.frame.info import lengths_text

#: The most cells along the axes of a strip, a plane, and sheets.
_MOST = {0: (), 1: (96,), 2: (48, 64), 3: (8, 20, 28)}
#: Pixels of the longest side, and the least of the other.
_LONG, _SHORT, _STRIP = 230, 40, 26
#: How a sheet lies: its rows go to the left, and are so much closer together.
_SKEW, _FLAT, _GAP = 0.45, 0.36, 8
#: Pixels of all sheets together, which lie flatter where they are many.
_STACK = 260
#: Narrower cells have no lines between them.
_LINED = 5.0
#: Pixels for texts: below, left and right of sheets. So much smaller are these.
_MARGIN, _LEFT, _BESIDE, _SMALLER = 16, 58.0, 50, 0.68


@dataclass(frozen=True)
class ChunkGrid:
    """Chunks to draw: axes with their names, lengths and positions of the cells."""

    kinds: NDArray[np.uint8]
    shape: tuple[int, ...]
    chunks: tuple[int, ...]
    names: tuple[str, ...]

    @property
    def ndim(self) -> int:
        """Axes that are drawn."""
        return len(self.shape)


def draw_chunks(
    kinds: NDArray[np.uint8],
    shape: tuple[int, ...],
    chunks: tuple[int, ...],
    names: tuple[str, ...] = (),
) -> tuple[str, bool]:
    """Draw the chunks of an array, in the colours of their kinds.

    Parameters
    ----------
    kinds : ndarray of uint8
        In the shape of the chunk grid.
    shape, chunks : tuple of int
        Elements of the array and of a chunk along each axis.
    names : tuple of str, optional
        Of the axes.

    Returns
    -------
    str
        An `svg` element, and what its cells stand for where these are not the chunks themselves.
    bool
        Whether cells stand for chunks of several kinds.
    """
    if not kinds.size:
        return '<div class="b2nd-soft">no chunks</div>', False
    whole = _drawn_axes(ChunkGrid(kinds, shape, chunks, names or ("",) * len(shape)))
    step = step_for(whole.kinds.shape, _MOST[whole.ndim])
    cells = replace(
        whole,
        kinds=binned_kinds(whole.kinds, step),
        chunks=tuple(c * s for c, s in zip(whole.chunks, step, strict=True)),
    )
    label = f"grid of {lengths_text(kinds.shape)} chunks"
    picture = _sheets(cells, label)
    text = cell_text(step)
    note = f'<div class="b2nd-soft">{text}</div>' if text else ""
    return picture + note, bool((cells.kinds == MIXED).any())


def _drawn_axes(grid: ChunkGrid) -> ChunkGrid:
    """Leave out axes of one chunk; join those before the last two of the others."""
    counts = grid.kinds.shape
    kept = [axis for axis, count in enumerate(counts) if count > 1]
    first, last = kept[:-2], kept[-2:]
    joined = [] if not first else [math.prod(counts[axis] for axis in first)]
    kinds = grid.kinds.reshape((*joined, *(counts[axis] for axis in last)))
    shape = tuple(grid.shape[axis] for axis in last)
    chunks = tuple(grid.chunks[axis] for axis in last)
    names = tuple(grid.names[axis] for axis in last)
    if len(first) == 1:
        (axis,) = first
        shape, chunks = (grid.shape[axis], *shape), (grid.chunks[axis], *chunks)
        names = (grid.names[axis], *names)
    elif first:
        # of several axes together only chunks can be counted
        together = "axes " + ", ".join(map(str, first))
        shape, chunks, names = (joined[0], *shape), (1, *chunks), (together, *names)
    return ChunkGrid(kinds, shape, chunks, names)


def _sheets(grid: ChunkGrid, label: str) -> str:
    """Planes above each other, which lie; or one that stands."""
    is_stack = grid.ndim == 3
    width, height = _sides(grid.shape[-2:], _SMALLER if is_stack else 1)
    columns, rows = _edges(grid, -1, width), _edges(grid, -2, height)
    sheets = grid.kinds.reshape(-1, len(rows) - 1, len(columns) - 1)
    flat = min(_FLAT, (_STACK / len(sheets) - _GAP) / height) if is_stack else 1.0
    skew, left = (_SKEW, _LEFT) if is_stack else (0.0, 1.0)
    shift, pitch = skew * height, flat * height + _GAP
    parts = []
    for number, sheet in enumerate(sheets):
        top = 2 + number * pitch
        matrix = f"matrix(1,0,{-skew},{flat:.3f},{left + shift:.1f},{top:.1f})"
        parts.append(f'<g transform="{matrix}">{_cells(sheet, rows, columns)}</g>')
        if is_stack:
            at = left + shift / 2 - 14, top + flat * height / 2 + 4
            parts.append(_text(*at, _positions(grid, number), "end"))
    bottom = 2 + (len(sheets) - 1) * pitch + flat * height
    if grid.ndim:
        parts.append(_text(left + width / 2, bottom + 13, _axis_text(grid, -1)))
    right = left + width + shift / 2 + 6
    if grid.ndim > 1:
        parts.append(_text(right, bottom - flat * height / 2 + 8, _axis_text(grid, -2), "start"))
    if is_stack and grid.names[0]:
        parts.insert(0, _text(0, 12, _short(grid.names[0]), "start"))
    beside = _BESIDE if grid.ndim > 1 else 1
    return _svg(left + width + shift + beside, bottom + _MARGIN, label, "".join(parts))


def _positions(grid: ChunkGrid, number: int) -> str:
    """What a sheet has of the first axis."""
    start = number * grid.chunks[0]
    stop = min(start + grid.chunks[0], grid.shape[0])
    return f"{start}:{stop}" if stop - start > 1 else str(start)


def _sides(shape: tuple[int, ...], scale: float = 1.0) -> tuple[float, float]:
    """Width and height, in proportion unless one side would be too short."""
    if len(shape) < 2:
        return (1.4 * _LONG if shape else _STRIP), _STRIP
    longest = max(shape)
    height, width = (scale * max(_LONG * n / longest, _SHORT) for n in shape)
    return width, height


def _edges(grid: ChunkGrid, axis: int, length: float) -> NDArray[np.float64]:
    """Where cells begin and end along an axis, in pixels; of a missing axis its ends."""
    if grid.ndim < -axis:
        return np.array([0.0, length])
    at = np.arange(grid.kinds.shape[axis] + 1) * grid.chunks[axis]
    edges: NDArray[np.float64] = np.minimum(at, grid.shape[axis]) * (length / grid.shape[axis])
    return edges


def _cells(
    kinds: NDArray[np.uint8], rows: NDArray[np.float64], columns: NDArray[np.float64]
) -> str:
    """Cells in the colours of their kinds, one path for each colour, and lines between them."""
    parts = []
    for code, kind in KINDS.items():
        path = "".join(_runs(kinds == code, rows, columns))
        if path:
            parts.append(f'<path class="b2nd-{kind.css}" d="{path}"/>')
    wide = min(columns[-1] / (len(columns) - 1), rows[-1] / (len(rows) - 1))
    if wide >= _LINED:
        lines = "".join(f"M{x:.1f},0V{rows[-1]:.1f}" for x in columns[1:-1])
        lines += "".join(f"M0,{y:.1f}H{columns[-1]:.1f}" for y in rows[1:-1])
        parts.append(f'<path class="b2nd-lines" d="{lines}"/>')
    parts.append(f'<path class="b2nd-edge" d="M0,0H{columns[-1]:.1f}V{rows[-1]:.1f}H0Z"/>')
    return "".join(parts)


def _runs(
    chosen: NDArray[np.bool_], rows: NDArray[np.float64], columns: NDArray[np.float64]
) -> Iterator[str]:
    """Boxes of the chosen cells, those beside each other in one."""
    for row, line in enumerate(chosen):
        edges = np.flatnonzero(np.diff(np.concatenate([[False], line, [False]]).astype(np.int8)))
        top, height = rows[row], rows[row + 1] - rows[row]
        for first, stop in edges.reshape(-1, 2).tolist():
            x, width = columns[first], columns[stop] - columns[first]
            yield f"M{x:.1f},{top:.1f}h{width:.1f}v{height:.1f}h{-width:.1f}z"


def _axis_text(grid: ChunkGrid, axis: int) -> str:
    name = _short(grid.names[axis])
    return f"{name}: {grid.shape[axis]}" if name else str(grid.shape[axis])


def _short(name: str) -> str:
    return name if len(name) <= 14 else f"{name[:13]}\u2026"


def _text(x: float, y: float, text: str, anchor: str = "middle") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'


def _svg(width: float, height: float, label: str, body: str) -> str:
    size = f'width="{width:.0f}" height="{height:.0f}" viewBox="0 0 {width:.0f} {height:.0f}"'
    return f'<svg role="img" aria-label="{escape(label)}" {size}>{body}</svg>'
