"""Planes of a 3-D array: with a slider where there is a window, beside each other elsewhere."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from b2nd_dask.edges.extras import require
from b2nd_dask.edges.plot.browser import Planes, SliceBrowser
from b2nd_dask.edges.plot.canvas import new_figure, plain
from b2nd_dask.edges.plot.sources import source_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure

#: Backends without a window: those that only draw, and Jupyter's pictures.
_WINDOWS = ("ipympl", "widget")
_MOST_PLANES = 100


def slices(
    x: Any,
    axis: int | str = 0,
    *,
    interactive: bool | None = None,
    count: int = 12,
    figure: Figure | None = None,
    **image: Any,
) -> Figure:
    """Look through the planes of a 3-D array, without loading it.

    With a slider (and the arrow keys) each plane is read when it is shown, and the next one in
    advance. Otherwise some planes, from the first to the last, are drawn beside each other. Of
    planes that have more elements than a screen has pixels, every second, third, ... is read.

    Parameters
    ----------
    x : path, URL, Frame, dask array or DataArray
        Of three axes, and maybe others of length 1.
    axis : int or str
        Along which the planes lie, by number, or by name where the axes have some.
    interactive : bool, optional
        Whether there is a slider; by default where matplotlib's backend has windows
        (``%matplotlib widget`` in Jupyter).
    count : int
        Planes that are drawn without a slider.
    figure : matplotlib.figure.Figure, optional
        Where to draw; by default in a new one.
    **image
        For `matplotlib.axes.Axes.imshow`: `cmap`, `vmin`, `vmax`, ...

    Returns
    -------
    matplotlib.figure.Figure
        It keeps the slider.

    Raises
    ------
    ImportError
        matplotlib is not installed.
    ValueError
        Another number of axes, no elements, no such axis, a count below 1.
    TypeError
        Elements that have no colour.

    Examples
    --------
    >>> import tempfile, pathlib, numpy as np, b2nd_dask
    >>> import matplotlib; matplotlib.use("agg")
    >>> path = pathlib.Path(tempfile.mkdtemp(), "a.b2nd")
    >>> _ = b2nd_dask.to_b2nd(np.arange(6000.0).reshape(20, 20, 15), path, chunks=(5, 10, 15))
    >>> figure = b2nd_dask.plot.slices(path, axis=2, count=4)
    >>> [ax.get_title() for ax in figure.axes[:4]]
    ['axis 2: 0', 'axis 2: 5', 'axis 2: 9', 'axis 2: 14']
    """
    if not 1 <= count <= _MOST_PLANES:
        raise ValueError(f"count={count}; from 1 to {_MOST_PLANES} planes are drawn")
    planes = Planes.of(source_of(x), axis)
    if interactive is None:
        interactive = _has_windows()
    if interactive:
        figure = figure or new_figure((6, 6))
        # a slider that nobody refers to does not move
        setattr(figure, "b2nd_browser", SliceBrowser(planes, figure, image))  # noqa: B010
        return figure
    numbers = np.unique(np.linspace(0, planes.count - 1, min(count, planes.count)).round())
    return _mosaic(planes, numbers.astype(int).tolist(), figure, image)


def _has_windows() -> bool:
    matplotlib = require("plot", "matplotlib")
    backends = require("plot", "matplotlib.backends")
    name = str(matplotlib.get_backend()).lower()
    windows = backends.backend_registry.list_builtin(backends.BackendFilter.INTERACTIVE)
    return name in windows or any(part in name for part in _WINDOWS)


def _mosaic(
    planes: Planes, numbers: list[int], figure: Figure | None, image: dict[str, Any]
) -> Figure:
    """Draw planes beside each other, in the same colours."""
    found = [planes.read(number) for number in numbers]
    columns = _columns(len(found), planes.tall)
    rows = -(-len(found) // columns)
    figure = figure or new_figure((min(2.2 * columns, 11) + 0.8, min(2.2 * rows * planes.tall, 11)))
    grid = figure.subplots(rows, columns, squeeze=False)
    colours = {**limits(found), **image}
    for axes, number, plane in zip(grid.flat, numbers, found, strict=False):
        shown = axes.imshow(plane, **{**planes.placed, **colours})
        axes.set_title(plain(planes.label(number)), fontsize=8)
    for axes in grid.flat:
        axes.set_axis_off()
    figure.colorbar(shown, ax=grid, shrink=0.7)
    if planes.title:
        figure.suptitle(plain(planes.title), fontsize=10)
    return figure


def _columns(count: int, tall: float) -> int:
    """Columns of a grid of planes that is wider than high, with few empty places."""
    wanted = max(1, min(count, round((count * 1.5 * tall) ** 0.5)))
    near = range(max(1, wanted - 1), min(count, wanted + 1) + 1)
    return min(near, key=lambda columns: (-count % columns, abs(columns - wanted)))


def limits(found: list[NDArray[Any]]) -> dict[str, Any]:
    """Colours that all planes share."""
    known = [plane[np.isfinite(plane)] for plane in found]
    known = [values for values in known if values.size]
    if not known:
        return {}
    return {"vmin": min(v.min() for v in known), "vmax": max(v.max() for v in known)}
