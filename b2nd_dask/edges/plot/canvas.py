"""Axes to draw in, and texts from files as matplotlib is to show them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from b2nd_dask.edges.extras import require

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure

_MOST_TEXT = 60
#: Points from the axes to a legend below them.
_BELOW = 32


def axes_for(ax: Axes | None, size: tuple[float, float] = (6.4, 4.8)) -> Axes:
    """The axes that the user gave, or those of a new figure.

    Raises
    ------
    ImportError
        matplotlib is not installed.
    """
    if ax is not None:
        return ax
    axes: Axes = new_figure(size).subplots()
    return axes


def new_figure(size: tuple[float, float]) -> Figure:
    """Make a figure that notebooks and windows show.

    Raises
    ------
    ImportError
        matplotlib is not installed.
    """
    pyplot = require("plot", "matplotlib.pyplot")
    engine = require("plot", "matplotlib.layout_engine").ConstrainedLayoutEngine
    # inches; less cuts off the tops of letters
    figure: Figure = pyplot.figure(figsize=size, layout=engine(h_pad=0.08, w_pad=0.08))
    return figure


def plain(text: object, most: int = _MOST_TEXT) -> str:
    r"""A text that is shown as it is, though it may come from a file.

    Examples
    --------
    >>> plain("a $formula$")
    'a \\$formula\\$'
    """
    shown = str(text)
    shown = shown if shown.isprintable() else repr(shown)
    # dollars would begin a formula, which may not even be one
    return (shown if len(shown) <= most else f"\u2026{shown[1 - most :]}").replace("$", r"\$")


def whole_ticks(axis: Axis, most: int = 9) -> None:
    """Put ticks of an axis at whole numbers alone, be it at one."""
    locator = require("plot", "matplotlib.ticker").MaxNLocator
    axis.set_major_locator(locator(most, integer=True, min_n_ticks=1))


def legend_below(axes: Axes, columns: int, **legend: Any) -> None:
    """Name colours below the axes, where nothing is drawn behind."""
    transforms = require("plot", "matplotlib.transforms")
    # so many points below the axes, whatever their height is
    below = transforms.ScaledTranslation(0, -_BELOW / 72, axes.figure.dpi_scale_trans)
    axes.legend(
        frameon=False,
        fontsize="small",
        loc="upper center",
        bbox_to_anchor=(0.5, 0),
        bbox_transform=axes.transAxes + below,
        ncols=columns,
        **legend,
    )
