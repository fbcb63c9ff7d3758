"""A map of the chunks of a frame: what each is, or how well it is compressed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from b2nd_dask.edges.display.chunk_values import (
    KINDS,
    MIXED,
    STATISTICS,
    chunk_sizes,
    chunk_statistic,
    require_known,
    statistic_text,
    with_codecs,
)
from b2nd_dask.edges.extras import require
from b2nd_dask.edges.plot.canvas import axes_for, colormap, legend_below, plain
from b2nd_dask.edges.plot.cells import Cells
from b2nd_dask.edges.plot.sources import frame_of, short_path, title_of
from b2nd_dask.format.index import ChunkKind
from b2nd_dask.frame.array import reference_of
from b2nd_dask.frame.chunk_table import ChunkTable, chunk_table
from b2nd_dask.frame.info import dims_of
from b2nd_dask.frame.sizes import decimal

if TYPE_CHECKING:
    from matplotlib.axes import Axes

By = Literal["kind", "cbytes", "ratio", "codec", "min", "max", "mean", "nans", "nonzeros"]
_BY = ("kind", "cbytes", "ratio", "codec", *STATISTICS)
#: Added to the number of a codec, so that it is no kind.
_CODECS = 100
#: Of the map of codecs: the palette of Okabe and Ito.
_CODEC_COLOURS = ("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#f0e442")


def chunk_map(frame: Any, by: By = "kind", *, ax: Axes | None = None, cmap: Any = None) -> Axes:
    """Draw the grid of chunks of a frame, each chunk a cell.

    No chunk is decoded: what the frame's index and the headers of local chunks say is enough.
    Arrays of more than two axes are drawn as panels, one for each chunk along the first axes.
    Where there are too many chunks a cell stands for some neighbours.

    Parameters
    ----------
    frame : path, URL, bytes, Frame, dask array or DataArray
        An array that reads one frame stands for this frame.
    by : {"kind", "cbytes", "ratio", "codec", "min", "max", "mean", "nans", "nonzeros"}
        What colours say: whether chunks hold data, zeros, NaN, one value, or were never written;
        their compressed bytes; their compression ratio; their codec. Of frames in a store the bytes
        are those up to the next chunk, since no chunk is asked for. The others are statistics of
        the chunk's elements, which the frame holds (see `Frame.stats`).
    ax : matplotlib.axes.Axes, optional
        Where to draw; by default in a new figure.
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
        An unknown `by`; codecs of a frame in a store; sizes of a sparse frame in a store; a
        statistic that the frame does not hold.

    Examples
    --------
    >>> import tempfile, pathlib, numpy as np, b2nd_dask
    >>> import matplotlib; matplotlib.use("agg")
    >>> path = pathlib.Path(tempfile.mkdtemp(), "eye.b2nd")
    >>> _ = b2nd_dask.to_b2nd(np.eye(60), path, chunks=(20, 20))
    >>> ax = b2nd_dask.plot.chunk_map(path)
    >>> ax.figure.savefig(path.with_suffix(".png"))
    """
    if by not in _BY:
        raise ValueError(f"by={by!r}; a map shows one of {', '.join(map(repr, _BY))}")
    opened = frame_of(frame)
    reference = reference_of(opened)
    table = chunk_table(reference)
    require_known(opened, table, by)
    axes = axes_for(ax)
    names = dims_of(reference) or tuple(f"axis {axis}" for axis in range(opened.ndim))
    cells = Cells.of(table.kinds.shape, opened.chunks, names)
    statistic = chunk_statistic(opened, by) if by in STATISTICS else None
    shown = _Shown(axes, cells, table, opened.dtype, statistic)
    if table.kinds.size:
        drawn = cells.tiled(_colours(shown, by, cmap))
        axes.imshow(drawn, interpolation="nearest", aspect=cells.aspect(drawn.shape))
        cells.label(axes)
        cells.draw_lines(axes)
        _legend(shown, by)
    else:
        axes.set_axis_off()
        axes.text(0.5, 0.5, "no chunks", transform=axes.transAxes, ha="center")
    title = title_of(opened) if by in STATISTICS else short_path(opened.path)
    axes.set_title(plain(f"{title}: {_SUBJECTS[by]}"), loc="left", fontsize=10)
    return axes


_SUBJECTS = {
    "kind": "kinds of chunks",
    "cbytes": "compressed bytes of chunks",
    "ratio": "compression ratio of chunks",
    "codec": "codecs of chunks",
    **{name: f"{name} of chunks" for name in STATISTICS},
}


@dataclass(frozen=True, eq=False)
class _Shown:
    """Where and what is drawn."""

    axes: Axes
    cells: Cells
    table: ChunkTable
    dtype: np.dtype[Any]
    statistic: NDArray[np.float64] | None
    """Of each chunk, where colours say one."""

    @property
    def counts(self) -> Mapping[int, int]:
        """How many chunks are shown as each kind."""
        if self.statistic is None:
            return self.table.counts
        # which special chunks have, too
        counts = np.bincount(self.table.kinds.reshape(-1)[np.isnan(self.statistic)])
        return {code: int(counts[code]) for code in np.flatnonzero(counts).tolist()}


def _colours(shown: _Shown, by: By, cmap: Any) -> NDArray[np.uint8]:
    """Colours of all cells, RGBA, in the order of the cells."""
    kinds = shown.table.kinds
    palette = np.zeros((256, 4), np.uint8)
    for code in KINDS:
        palette[code] = _rgba(_shade(code, by))
    if by == "codec" and shown.table.codecs is not None:
        for number in range(len(shown.table.codec_names)):
            palette[_CODECS + number] = _rgba(_CODEC_COLOURS[number % len(_CODEC_COLOURS)])
        kinds = with_codecs(shown.table, _CODECS)
    colours: NDArray[np.uint8] = palette[shown.cells.in_cells(kinds).reshape(-1)]
    if by in ("kind", "codec"):
        return colours
    values = chunk_sizes(shown.table, by) if shown.statistic is None else shown.statistic
    found = shown.cells.in_cells(values, mean=True).reshape(-1)
    known = np.isfinite(found)
    if known.any():
        scale = _scale(found[known], cmap, spread=shown.statistic is None)
        colours[known] = scale.to_rgba(found[known], bytes=True)
        bar = shown.axes.figure.colorbar(scale, ax=shown.axes, shrink=0.8, label=_UNITS.get(by, by))
        if by == "cbytes":
            bar.ax.yaxis.set_major_formatter(lambda value, _: decimal(round(value)))
        elif shown.statistic is not None:
            text = partial(statistic_text, name=by, dtype=shown.dtype)
            bar.ax.yaxis.set_major_formatter(lambda value, _: text(value))
    return colours


_UNITS = {"cbytes": "compressed bytes", "ratio": "compression ratio"}


def _scale(values: NDArray[np.float64], cmap: Any, *, spread: bool) -> Any:
    """Colours for numbers, logarithmic where they spread and may."""
    colors = require("plot", "matplotlib.colors")
    low, high = float(values.min()), float(values.max())
    norm = colors.LogNorm if spread and high > 20 * low else colors.Normalize
    mappable = require("plot", "matplotlib.cm").ScalarMappable
    return mappable(norm(low, high if high > low else low + 1), colormap(cmap or "viridis"))


def _legend(shown: _Shown, by: By) -> None:
    """Name the kinds that there are, with how many chunks are of each."""
    patch = require("plot", "matplotlib.patches").Patch
    handles = []
    total = max(shown.table.kinds.size, 1)
    is_mixed = bool((shown.cells.in_cells(shown.table.kinds) == MIXED).any())
    for code, kind in KINDS.items():
        count = shown.counts.get(code, 0)
        hidden = () if by == "kind" else (MIXED,) if by in STATISTICS else (ChunkKind.STORED, MIXED)
        if code in hidden or (not count and not (code == MIXED and is_mixed)):
            continue
        text = f"{kind.name}: {count:,} ({100 * count / total:.3g} %)" if count else kind.name
        handles.append(patch(facecolor=_shade(code, by), edgecolor="#888888", lw=0.5, label=text))
    if by == "codec" and shown.table.codecs is not None:
        for number, name in enumerate(shown.table.codec_names):
            colour = _CODEC_COLOURS[number % len(_CODEC_COLOURS)]
            count = int(np.count_nonzero(shown.table.codecs[shown.table.data] == number))
            if count:
                handles.append(patch(facecolor=colour, label=f"{name}: {count:,}"))
    if handles:
        legend_below(shown.axes, 3, handles=handles)


def _shade(code: int, by: By) -> str:
    """The colour of a kind; pale where other colours say something else."""
    colour = KINDS[code].light
    if by == "kind" or code == ChunkKind.ZEROS:
        return colour
    return "#" + "".join(
        f"{round(0.3 * part + 0.7 * 255):02x}" for part in bytes.fromhex(colour[1:])
    )


def _rgba(colour: str) -> tuple[int, int, int, int]:
    """Bytes of a colour such as ``#0072b2``."""
    red, green, blue = bytes.fromhex(colour[1:])
    return red, green, blue, 255
