"""A map of the chunks of a frame: the kind, the compression or a statistic of each."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from b2nd_dask.edges.display.chunk_values import (
    BY,
    CODECS,
    KINDS,
    PALETTE,
    STATISTICS,
    By,
    ChunkValues,
    Layout,
    cell_text,
    chunk_values,
    is_logarithmic,
    panels_of,
    step_for,
)
from b2nd_dask.edges.plot.sources import (
    axes_for,
    frame_of,
    legend_below,
    plain,
    short_path,
    title_of,
    whole_ticks,
)
from b2nd_dask.format.index import ChunkKind
from b2nd_dask.frame.array import Frame, reference_of
from b2nd_dask.frame.info import axis_names
from b2nd_dask.lazy import require

if TYPE_CHECKING:
    from matplotlib.axes import Axes

#: Most panels, and most cells along an axis of a panel; most cells along an axis of a 2-D array.
_MOST_PANELS, _MOST_IN_A_PANEL, _MOST_CELLS = 36, 256, 1024
#: A 1-D array with more chunks than this takes several rows.
_MOST_IN_A_ROW = 64
#: Most cells along a side of a picture with lines between cells.
_MOST_LINED = 80
_SUBJECTS = {"kind": "kinds", "cbytes": "compressed bytes", "ratio": "compression ratio"}


def chunk_map(frame: Any, by: By = "kind", *, ax: Axes | None = None, cmap: Any = None) -> Axes:
    """Draw the grid of chunks of a frame, each chunk as a cell.

    No chunk is decoded: index, statistics and the headers of local chunks are enough.
    Arrays of more than two axes are drawn as panels, one for each chunk along the first axes.
    If there are too many chunks, a cell combines neighbouring ones.

    Parameters
    ----------
    frame : path, URL, bytes, Frame, dask array or DataArray
        A frame, or an array that reads exactly one frame.
    by : {"kind", "cbytes", "ratio", "codec", "min", "max", "mean", "nans", "nonzeros"}
        Value for the colours. "kind": data, zeros, NaN, one value or never written. "cbytes":
        compressed bytes; for a frame in a store the distance to the next chunk, since no chunk is
        fetched. "ratio": compression ratio. "codec": codec. The others are statistics of the
        chunk's elements, which the frame must hold (see `Frame.stats`).
    ax : matplotlib.axes.Axes, optional
        Axes for the map; by default those of a new figure.
    cmap : optional
        Colour map for numbers; ``"viridis"`` by default.

    Returns
    -------
    matplotlib.axes.Axes

    Raises
    ------
    ImportError
        matplotlib is not installed.
    ValueError
        `by` is unknown, asks for codecs of a frame in a store, for sizes of a sparse frame in a
        store, or for a statistic that the frame does not hold.

    Examples
    --------
    >>> import tempfile, pathlib, numpy as np, b2nd_dask
    >>> import matplotlib; matplotlib.use("agg")
    >>> path = pathlib.Path(tempfile.mkdtemp(), "eye.b2nd")
    >>> _ = b2nd_dask.to_b2nd(np.eye(60), path, chunks=(20, 20))
    >>> ax = b2nd_dask.plot.chunk_map(path)
    >>> ax.figure.savefig(path.with_suffix(".png"))
    """
    if by not in BY:
        raise ValueError(f"by={by!r}; a map shows one of {', '.join(map(repr, BY))}")
    opened = frame_of(frame)
    values = chunk_values(opened, by)
    axes = axes_for(ax)
    if values.codes.size:
        layout = _layout(values.codes.shape, opened.chunks)
        _draw(axes, values, layout, cmap)
        axes.set_aspect(_aspect(layout, opened.chunks, axes.images[0].get_size()))
        _label(axes, opened, layout)
    else:
        axes.set_axis_off()
        axes.text(0.5, 0.5, "no chunks", transform=axes.transAxes, ha="center")
    title = title_of(opened) if by in STATISTICS else short_path(opened.path)
    subject = _SUBJECTS.get(by, f"{by}s" if by == "codec" else by)
    axes.set_title(plain(f"{title}: {subject} of chunks"), loc="left", fontsize=10)
    return axes


def _layout(grid: tuple[int, ...], chunks: tuple[int, ...]) -> Layout:
    """Divide the chunk grid into cells, and these into rows or panels."""
    counts = panels_of(grid)
    if len(grid) < 2:
        step = step_for(counts, (_MOST_IN_A_ROW * _MOST_CELLS, 1, 1))
        count = -(-counts[0] // step[0])
        row = min(max(_MOST_IN_A_ROW, math.isqrt(2 * count)), _MOST_CELLS)
        return Layout(counts, step, min(row, count))
    if len(grid) == 2:
        return Layout(counts, step_for(counts, (1, _MOST_CELLS, _MOST_CELLS)), 1)
    step = step_for(counts, (_MOST_PANELS, _MOST_IN_A_PANEL, _MOST_IN_A_PANEL))
    panels, rows, columns = Layout(counts, step, 1).cells
    tall = rows * chunks[-2] / max(columns * chunks[-1], 1)
    across = max(1, min(panels, round(math.sqrt(panels * 1.6 * tall))))
    return Layout(counts, step, across, (max(1, round(0.3 * rows)), max(1, round(0.1 * columns))))


def _draw(axes: Axes, values: ChunkValues, layout: Layout, cmap: Any) -> None:
    """Draw all cells, with a colour scale for numbers, and the legend."""
    codes = layout.kinds(values.codes)
    palette = np.zeros((256, 4))
    for code in (*KINDS, *range(CODECS, CODECS + len(values.codecs))):
        palette[code] = (*_colour(code, values.by), 1)
    colours = np.round(palette * 255).astype(np.uint8)[codes]
    if values.numbers is not None:
        numbers = layout.means(values.numbers)
        known = np.isfinite(numbers)
        if known.any():
            colours[known] = _scale(axes, values, numbers[known], cmap)
            codes = codes[~known]
    axes.imshow(colours, interpolation="nearest")
    if max(colours.shape) <= _MOST_LINED:
        _draw_lines(axes, *colours.shape[:2])
    patch = require("plot", "matplotlib.patches").Patch
    handles = [
        patch(facecolor=palette[code], edgecolor="#888888", lw=0.5, label=plain(text))
        for code, text in values.legend(codes)
    ]
    if handles:
        legend_below(axes, 3, handles=handles)


def _colour(code: int, by: str) -> Any:
    """The colour of a codec or of a kind; kinds are pale in maps of other values."""
    to_rgb = require("plot", "matplotlib.colors").to_rgb
    if code >= CODECS:
        return to_rgb(PALETTE[(code - CODECS) % len(PALETTE)])
    colour = np.array(to_rgb(KINDS[code].light))
    return colour if by == "kind" or code == ChunkKind.ZEROS else 0.3 * colour + 0.7


def _scale(axes: Axes, values: ChunkValues, numbers: NDArray[np.float64], cmap: Any) -> Any:
    """Colours of numbers; also draws the colour bar."""
    colors = require("plot", "matplotlib.colors")
    low, high = float(numbers.min()), float(numbers.max())
    norm = colors.LogNorm if is_logarithmic(values.by, low, high) else colors.Normalize
    mappable = require("plot", "matplotlib.cm").ScalarMappable
    scale = mappable(norm(low, high if high > low else low + 1), cmap or "viridis")
    bar = axes.figure.colorbar(scale, ax=axes, shrink=0.8, label=values.unit)
    if values.by != "ratio":
        bar.ax.yaxis.set_major_formatter(lambda number, _: values.text(number))
    return scale.to_rgba(numbers, bytes=True)


def _draw_lines(axes: Axes, rows: int, columns: int) -> None:
    """Draw lines between cells, in the colour of the background."""
    axes.set_xticks(np.arange(0.5, columns - 1), minor=True)
    axes.set_yticks(np.arange(0.5, rows - 1), minor=True)
    axes.tick_params(which="minor", length=0)
    axes.grid(which="minor", color=axes.get_facecolor(), linewidth=0.5)


def _aspect(layout: Layout, chunks: tuple[int, ...], picture: tuple[int, ...]) -> Any:
    """Height of a cell of width 1: that of its chunks, or "auto" if the picture is too long."""
    if len(chunks) < 2:
        return "equal" if picture[0] > 1 else 0.12 * picture[1]
    height = layout.cell_height(chunks)
    return height if 0.2 <= height * picture[0] / picture[1] <= 5 else "auto"


def _label(axes: Axes, frame: Frame, layout: Layout) -> None:
    """Label the axes and the panels."""
    names = axis_names(reference_of(frame))
    along = [
        f"{name}, chunks of {length}" for name, length in zip(names, frame.chunks, strict=True)
    ]
    if frame.ndim != 2:
        axes.set_xticks([])
        axes.set_yticks([])
    if frame.ndim > 1:
        axes.set_ylabel(plain(along[-2]))
    if frame.ndim == 2:
        whole_ticks(axes.xaxis, 6)
        whole_ticks(axes.yaxis, 6)
    elif frame.ndim > 2:
        _name_panels(axes, layout, frame.chunk_kinds().shape[:-2], ", ".join(names[:-2]))
    if along:
        order = ", row by row" * (frame.ndim == 1 and layout.cells[0] > layout.across)
        step = layout.step[{1: slice(1), 2: slice(1, 3)}.get(frame.ndim, slice(3))]
        axes.set_xlabel(plain("; ".join(filter(None, [along[-1] + order, cell_text(step)]))))


def _name_panels(axes: Axes, layout: Layout, grid: tuple[int, ...], names: str) -> None:
    """Write the positions along the first axes above each panel."""
    axes.set_frame_on(False)
    for panel in range(layout.cells[0]):
        first = panel * layout.step[0]
        last = min(first + layout.step[0], layout.counts[0]) - 1
        ends = [
            ", ".join(map(str, np.unravel_index(n, grid))) for n in dict.fromkeys((first, last))
        ]
        text = " \u2013 ".join(ends)
        text = f"{names}: {text}" if panel == 0 else text
        top, left = layout.corner(panel)
        axes.text(left - 0.5, top - 0.7, plain(text), fontsize=7, va="bottom", ha="left")
