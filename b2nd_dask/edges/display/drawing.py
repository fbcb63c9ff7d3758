"""The chunk grid as SVG, of a bounded size: cells as the command `map` arranges them."""

from __future__ import annotations

from html import escape

import numpy as np
from numpy.typing import NDArray

from b2nd_dask.edges.display.cells import MIXED, layout_for, layout_text
from b2nd_dask.edges.display.chunk_values import KINDS
from b2nd_dask.frame.info import lengths_text

#: Cells down and across, and pixels of the longer side.
_ROWS, _COLUMNS, _LONG = 40, 64, 280
#: Height of a picture for a width of 1; chunks that are longer than that are drawn shorter.
_FLAT, _TALL = 0.1, 1.0


def draw_chunks(
    kinds: NDArray[np.uint8], chunks: tuple[int, ...], names: tuple[str, ...]
) -> tuple[str, bool]:
    """Draw the chunks of an array, in the colours of their kinds.

    Parameters
    ----------
    kinds : ndarray of uint8
        In the shape of the chunk grid.
    chunks : tuple of int
        Elements of a chunk along each axis.
    names : tuple of str
        Of the axes.

    Returns
    -------
    str
        An `svg` element, and what rows, columns and cells are.
    bool
        Whether cells stand for chunks of several kinds.
    """
    if not kinds.size:
        return '<div class="b2nd-soft">no chunks</div>', False
    layout = layout_for(kinds.shape, _ROWS, _COLUMNS)
    codes = layout.kinds(kinds)[layout.gap[0] :]
    rows, columns = codes.shape
    high, wide = (c * s for c, s in zip((1, 1, *chunks)[-2:], layout.step[1:], strict=True))
    square = len(chunks) < 2
    tall = np.clip(rows / columns * (1 if square else high / max(wide, 1)), _FLAT, _TALL)
    size = f'width="{_LONG}" height="{_LONG * tall:.0f}" viewBox="0 0 {columns} {rows}"'
    label = f"grid of {lengths_text(kinds.shape)} chunks"
    paths = []
    for code, kind in KINDS.items():
        cells = np.argwhere(codes == code).tolist()
        if cells:
            boxes = "".join(f"M{column},{row}h1v1h-1z" for row, column in cells)
            paths.append(f'<path class="b2nd-{kind.css}" d="{boxes}"/>')
    svg = f'<svg role="img" aria-label="{label}" {size} preserveAspectRatio="none">'
    text = f'<div class="b2nd-soft">{escape(layout_text(names, layout))}</div>'
    return f"{svg}{''.join(paths)}</svg>{text}", bool((codes == MIXED).any())
