"""Plots of the chunks of frames: a map of their values, and how well they are compressed."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

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
    require_known,
    step_for,
)
from b2nd_dask.edges.plot.sources import (
    frame_of,
    legend_below,
    new_figure,
    plain,
    short_path,
    title_of,
    whole_ticks,
)
from b2nd_dask.format.chunk.chunk_header import ChunkKind
from b2nd_dask.frame.array import Frame, reference_of
from b2nd_dask.frame.chunk_table import ChunkTable, chunk_table
from b2nd_dask.frame.info import axis_names, decimal, ratio_text
from b2nd_dask.lazy import require

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

#: Most panels, and most cells along an axis of a panel; most cells along an axis of a 2-D array.
_MOST_PANELS, _MOST_IN_A_PANEL, _MOST_CELLS = 36, 256, 1024
#: Most frames to compare; number of the largest chunks to name; bins of a histogram.
_MOST_FRAMES, _LARGEST, _BINS = 6, 10, 40
#: A 1-D array with more chunks than this takes several rows.
_MOST_IN_A_ROW = 64
#: Most cells along a side of a picture with lines between cells.
_MOST_LINED = 80
_SUBJECTS = {"kind": "kinds", "cbytes": "compressed bytes", "codec": "codecs"}


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
    axes = new_figure((6.4, 4.8)).subplots() if ax is None else ax
    if values.codes.size:
        layout = _layout(values.codes.shape, opened.chunks)
        _draw(axes, values, layout, cmap)
        axes.set_aspect(_aspect(layout, opened.chunks, axes.images[0].get_size()))
        _label(axes, opened, layout)
    else:
        axes.set_axis_off()
        axes.text(0.5, 0.5, "no chunks", transform=axes.transAxes, ha="center")
    title = title_of(opened) if by in STATISTICS else short_path(opened.path)
    subject = _SUBJECTS.get(by, values.unit)
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
    axes.imshow(colours, interpolation="nearest")
    if values.numbers is not None:
        numbers = layout.means(values.numbers)
        known = np.isfinite(numbers)
        if known.any():
            _draw_numbers(axes, values, np.ma.masked_array(numbers, ~known), cmap)
            codes = codes[~known]
    if max(colours.shape) <= _MOST_LINED:
        # lines between cells, in the colour of the background
        axes.set_xticks(np.arange(0.5, colours.shape[1] - 1), minor=True)
        axes.set_yticks(np.arange(0.5, colours.shape[0] - 1), minor=True)
        axes.tick_params(which="minor", length=0)
        axes.grid(which="minor", color=axes.get_facecolor(), linewidth=0.5)
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


def _draw_numbers(axes: Axes, values: ChunkValues, numbers: Any, cmap: Any) -> None:
    """Draw the cells with numbers over those of kinds, with a colour bar."""
    low, high = float(numbers.min()), float(numbers.max())
    norm = "log" if is_logarithmic(values.by, low, high) else "linear"
    shown = axes.imshow(numbers, cmap or "viridis", norm, interpolation="nearest")
    shown.set_clim(low, high if high > low else low + 1)
    bar = axes.figure.colorbar(shown, ax=axes, shrink=0.8, label=values.unit)
    if values.by != "ratio":
        bar.ax.yaxis.set_major_formatter(lambda number, _: values.text(number))


def _aspect(layout: Layout, chunks: tuple[int, ...], picture: tuple[int, ...]) -> Any:
    """Height of a cell of width 1: that of its chunks, or "auto" if the picture is too long."""
    if len(chunks) < 2:
        return "equal" if picture[0] > 1 else 0.12 * picture[1]
    height = layout.cell_height(chunks)
    return height if 0.2 <= height * picture[0] / picture[1] <= 5 else "auto"


def _label(axes: Axes, frame: Frame, layout: Layout) -> None:
    """Label the axes and the panels."""
    reference = reference_of(frame)
    names = axis_names(reference)
    along = [
        f"{name}, chunks of {length}" for name, length in zip(names, frame.chunks, strict=True)
    ]
    if frame.ndim == 2:
        whole_ticks(axes.xaxis, 6)
        whole_ticks(axes.yaxis, 6)
    else:
        axes.set(xticks=[], yticks=[])
    if frame.ndim > 1:
        axes.set_ylabel(plain(along[-2]))
    if frame.ndim > 2:
        _name_panels(axes, layout, reference.grid.counts[:-2], ", ".join(names[:-2]))
    if along:
        order = ", row by row" * (frame.ndim == 1 and layout.cells[0] > layout.across)
        step = layout.step[:1] if frame.ndim == 1 else layout.step[-frame.ndim :]
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


def compression(frames: Any, *, figure: Figure | None = None) -> Figure:
    """Show the compression of one frame, or compare several.

    Three panels: a histogram of the chunks' compression ratios; the share of chunks of each kind,
    with the bytes before and after; the largest chunks, by their coordinates in the chunk grid.

    Parameters
    ----------
    frames : path, URL, bytes, Frame, dask array or DataArray, or a list of these
        One to six frames.
    figure : matplotlib.figure.Figure, optional
        Figure for the panels; by default a new one.

    Returns
    -------
    matplotlib.figure.Figure

    Raises
    ------
    ImportError
        matplotlib is not installed.
    ValueError
        No frame or more than six, or a sparse frame in a store: its index has no chunk sizes.

    Examples
    --------
    >>> import tempfile, pathlib, numpy as np, b2nd_dask
    >>> import matplotlib; matplotlib.use("agg")
    >>> path = pathlib.Path(tempfile.mkdtemp(), "a.b2nd")
    >>> _ = b2nd_dask.to_b2nd(np.arange(1e4), path, chunks=500)
    >>> len(b2nd_dask.plot.compression(path).axes)
    3
    """
    inputs = frames if isinstance(frames, list | tuple) else [frames]
    if not 0 < len(inputs) <= _MOST_FRAMES:
        raise ValueError(f"{len(inputs)} frames; from 1 to {_MOST_FRAMES} are shown side by side")
    opened = [frame_of(one) for one in inputs]
    tables = [chunk_table(reference_of(frame)) for frame in opened]
    for frame, table in zip(opened, tables, strict=True):
        require_known(frame, table, "cbytes")
    figure = figure or new_figure((10, 3.6))
    ratios, kinds, largest = figure.subplots(1, 3, width_ratios=(1.2, 1, 1))
    _draw_ratios(ratios, opened, tables)
    _draw_kinds(kinds, opened, tables)
    _draw_largest(largest, opened, tables)
    return figure


def _draw_ratios(axes: Axes, frames: list[Frame], tables: list[ChunkTable]) -> None:
    axes.set_title("chunks with data", loc="left", fontsize=10)
    axes.set(xlabel="compression ratio", ylabel="chunks")
    ratios = [each.chunk_nbytes / np.maximum(each.nbytes[each.data], 1) for each in tables]
    some = np.concatenate(ratios)
    if not len(some):
        axes.text(0.5, 0.5, "no chunk has data", transform=axes.transAxes, ha="center")
        return
    low, high = float(some.min()), float(some.max())
    bins: Any = _BINS
    if is_logarithmic("ratio", low, high):
        # wider by a little: rounding must not exclude the extremes
        bins = np.geomspace(low * (1 - 1e-9), high * (1 + 1e-9), _BINS + 1)
        axes.set_xscale("log")
    overall = [f"ratio {ratio_text(f.cratio)}" if f.cbytes else "no data" for f in frames]
    labels = [plain(f"{short_path(f.path)}: {o}", 40) for f, o in zip(frames, overall, strict=True)]
    style: dict[str, Any] = {"histtype": "stepfilled", "alpha": 0.5} if len(frames) > 1 else {}
    axes.hist(ratios, bins, color=PALETTE[: len(frames)], label=labels, **style)
    # reversed: matplotlib lists the last histogram first
    legend_below(axes, 1, reverse=len(frames) > 1)


def _draw_kinds(axes: Axes, frames: list[Frame], tables: list[ChunkTable]) -> None:
    """Draw a bar per frame: the shares of kinds of chunks, with the bytes in the label."""
    axes.set_title("kinds of chunks", loc="left", fontsize=10)
    rows, totals = range(len(frames)), [max(each.kinds.size, 1) for each in tables]
    left = np.zeros(len(frames))
    for code, kind in KINDS.items():
        shares = 100 * np.array([each.counts.get(code, 0) for each in tables]) / totals
        if shares.any():
            axes.barh(
                rows, shares, 0.6, left, color=kind.light, label=kind.name, ec="#888888", lw=0.5
            )
            left += shares
    labels = [
        f"{plain(short_path(f.path), 24)}\n{decimal(f.nbytes)} \u2192 {decimal(f.cbytes)}"
        for f in frames
    ]
    axes.set_yticks(rows, labels, fontsize="small")
    axes.set(xlim=(0, 100), xlabel="share of chunks (%)", ylim=(len(frames) - 0.4, -0.6))
    if left.any():
        legend_below(axes, 2)


def _draw_largest(axes: Axes, frames: list[Frame], tables: list[ChunkTable]) -> None:
    axes.set_title("largest chunks", loc="left", fontsize=10)
    nbytes = np.concatenate([each.nbytes[each.data] for each in tables])
    chunks = np.concatenate([each.stored[each.data] for each in tables])
    owners = np.repeat(np.arange(len(tables)), [np.count_nonzero(each.data) for each in tables])
    names = []
    for row, at in enumerate(np.argsort(-nbytes, kind="stable")[:_LARGEST]):
        axes.barh(row, nbytes[at], color=PALETTE[owners[at]])
        cell = reference_of(frames[owners[at]]).grid.cell(int(chunks[at]))
        names.append(f"({', '.join(map(str, cell))})")
    axes.set_yticks(range(len(names)), names, fontsize="small")
    axes.set(xlabel="compressed", ylim=(max(len(names), 1) - 0.4, -0.6))
    axes.xaxis.set_major_formatter(lambda value, _: decimal(round(value)))
    axes.xaxis.set_major_locator(require("plot", "matplotlib.ticker").MaxNLocator(3))
