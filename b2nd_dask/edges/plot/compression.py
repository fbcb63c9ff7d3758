"""Compression of frames: ratios of their chunks, shares of kinds, the largest chunks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from b2nd_dask.edges.display.chunk_values import KINDS, PALETTE, is_logarithmic, require_known
from b2nd_dask.edges.plot.sources import frame_of, legend_below, new_figure, plain, short_path
from b2nd_dask.frame.array import Frame, reference_of
from b2nd_dask.frame.chunk_table import ChunkTable, chunk_table
from b2nd_dask.frame.info import decimal, ratio_text
from b2nd_dask.lazy import require

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_MOST_FRAMES, _LARGEST, _BINS = 6, 10, 40


class _Looked(NamedTuple):
    name: str
    frame: Frame
    table: ChunkTable
    nbytes: NDArray[np.int64]
    """Compressed bytes of the chunks with data."""
    chunks: NDArray[np.int64]
    """Numbers of these chunks."""


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
    given = (
        list(frames)
        if isinstance(frames, Sequence) and not isinstance(frames, str | bytes)
        else [frames]
    )
    if not 0 < len(given) <= _MOST_FRAMES:
        raise ValueError(f"{len(given)} frames; from 1 to {_MOST_FRAMES} are shown side by side")
    looked = [_look(frame_of(one)) for one in given]
    figure = figure or new_figure((10, 3.6))
    ratios, kinds, largest = figure.subplots(1, 3, width_ratios=(1.2, 1, 1))
    _draw_ratios(ratios, looked)
    _draw_kinds(kinds, looked)
    _draw_largest(largest, looked)
    return figure


def _look(frame: Frame) -> _Looked:
    table = chunk_table(reference_of(frame))
    require_known(frame, table, "cbytes")
    nbytes, chunks = (column[table.data] for column in (table.nbytes, table.stored))
    return _Looked(short_path(frame.path), frame, table, nbytes, chunks)


def _draw_ratios(axes: Axes, looked: list[_Looked]) -> None:
    axes.set_title("chunks with data", loc="left", fontsize=10)
    axes.set(xlabel="compression ratio", ylabel="chunks")
    ratios = [one.table.chunk_nbytes / np.maximum(one.nbytes, 1) for one in looked]
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
    labels = [plain(f"{one.name}: {_overall(one)}", 40) for one in looked]
    how: dict[str, Any] = {"histtype": "stepfilled", "alpha": 0.5} if len(looked) > 1 else {}
    axes.hist(ratios, bins, color=PALETTE[: len(looked)], label=labels, **how)
    # reversed: matplotlib lists the last histogram first
    legend_below(axes, 1, reverse=len(looked) > 1)


def _overall(one: _Looked) -> str:
    return f"ratio {ratio_text(one.frame.cratio)}" if one.frame.cbytes else "no data"


def _draw_kinds(axes: Axes, looked: list[_Looked]) -> None:
    """Draw a bar per frame: the shares of kinds of chunks, with the bytes in the label."""
    axes.set_title("kinds of chunks", loc="left", fontsize=10)
    rows, totals = range(len(looked)), [max(one.table.kinds.size, 1) for one in looked]
    left = np.zeros(len(looked))
    for code, kind in KINDS.items():
        shares = 100 * np.array([one.table.counts.get(code, 0) for one in looked]) / totals
        if shares.any():
            look: dict[str, Any] = {"color": kind.light, "ec": "#888888", "lw": 0.5}
            axes.barh(rows, shares, 0.6, left, label=kind.name, **look)
            left += shares
    labels = [
        f"{plain(one.name, 24)}\n{decimal(one.frame.nbytes)} \u2192 {decimal(one.frame.cbytes)}"
        for one in looked
    ]
    axes.set_yticks(rows, labels, fontsize="small")
    axes.set(xlim=(0, 100), xlabel="share of chunks (%)", ylim=(len(looked) - 0.4, -0.6))
    if left.any():
        legend_below(axes, 2)


def _draw_largest(axes: Axes, looked: list[_Looked]) -> None:
    axes.set_title("largest chunks", loc="left", fontsize=10)
    found = [
        (int(one.nbytes[at]), number, int(one.chunks[at]))
        for number, one in enumerate(looked)
        for at in np.argsort(-one.nbytes, kind="stable")[:_LARGEST]
    ]
    found = sorted(found, key=lambda row: -row[0])[:_LARGEST]
    names = []
    for row, (nbytes, number, chunk) in enumerate(found):
        axes.barh(row, nbytes, color=PALETTE[number])
        cell = reference_of(looked[number].frame).grid.cell(chunk)
        names.append(f"({', '.join(map(str, cell))})")
    axes.set_yticks(range(len(names)), names, fontsize="small")
    axes.set(xlabel="compressed", ylim=(max(len(names), 1) - 0.4, -0.6))
    axes.xaxis.set_major_formatter(lambda value, _: decimal(round(value)))
    axes.xaxis.set_major_locator(require("plot", "matplotlib.ticker").MaxNLocator(3))
