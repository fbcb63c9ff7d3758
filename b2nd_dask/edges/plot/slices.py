"""Planes of a 3-D array: with a slider in a window, otherwise side by side."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from b2nd_dask.edges.plot.sources import (
    Source,
    drawn_axes,
    new_figure,
    plain,
    source_of,
)
from b2nd_dask.lazy import require

if TYPE_CHECKING:
    from matplotlib.figure import Figure

#: Parts of the names of other backends with windows.
_WINDOWS = ("ipympl", "widget")
_MOST_PLANES = 100
#: Most elements along a side of a plane; of a longer side every second, third, ... is read.
_MOST_PIXELS = 1200
#: Planes in the cache, with the current one and its neighbours.
_KEPT = 8
_STEPS = {"left": -1, "right": 1, "down": -1, "up": 1, "pageup": 10, "pagedown": -10}


def slices(
    x: Any,
    axis: int | str = 0,
    *,
    interactive: bool | None = None,
    count: int = 12,
    figure: Figure | None = None,
    **image: Any,
) -> Figure:
    """Browse the planes of a 3-D array without loading it.

    With a slider (and the arrow keys) each plane is read when it is shown, and its neighbours in
    advance. Otherwise some planes, from the first to the last, are drawn side by side. If a plane
    has more elements than a screen has pixels, every second, third, ... element is read.

    Parameters
    ----------
    x : path, URL, Frame, dask array or DataArray
        An array of three axes; more axes must have length 1.
    axis : int or str
        Axis to step along, by number or by name.
    interactive : bool, optional
        Whether to show a slider; by default if matplotlib's backend has windows
        (``%matplotlib widget`` in Jupyter).
    count : int
        Number of planes without a slider.
    figure : matplotlib.figure.Figure, optional
        Figure for the planes; by default a new one.
    **image
        Arguments of `matplotlib.axes.Axes.imshow`: `cmap`, `vmin`, `vmax`, ...

    Returns
    -------
    matplotlib.figure.Figure
        The figure; it holds a reference to the slider.

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
        raise ValueError(f"count={count} must be from 1 to {_MOST_PLANES} planes")
    planes = Planes(source_of(x), axis)
    if interactive is None:
        interactive = _has_windows()
    if interactive:
        figure = figure or new_figure((6, 6))
        # the figure refers to the slider: without a reference it does not move
        setattr(figure, "b2nd_browser", SliceBrowser(planes, figure, image))  # noqa: B010
    else:
        numbers = np.unique(np.linspace(0, planes.count - 1, min(count, planes.count)).round())
        figure = _mosaic(planes, numbers.astype(int).tolist(), figure, image)
    if planes.title:
        figure.suptitle(plain(planes.title), fontsize=10)
    return figure


def _has_windows() -> bool:
    matplotlib = require("plot", "matplotlib")
    backends = require("plot", "matplotlib.backends")
    name = str(matplotlib.get_backend()).lower()
    windows = backends.backend_registry.list_builtin(backends.BackendFilter.INTERACTIVE)
    return name in windows or any(part in name for part in _WINDOWS)


def _mosaic(
    planes: Planes, numbers: list[int], figure: Figure | None, image: dict[str, Any]
) -> Figure:
    """Draw planes side by side with a common colour scale."""
    found = [planes.read(number) for number in numbers]
    columns = max(1, min(len(found), round((len(found) * 1.5 * planes.tall) ** 0.5)))
    rows = -(-len(found) // columns)
    figure = figure or new_figure((min(2.2 * columns, 11) + 0.8, min(2.2 * rows * planes.tall, 11)))
    grid = figure.subplots(rows, columns, squeeze=False)
    how = planes.placed | image
    scale = require("plot", "matplotlib.cm").ScalarMappable(how.pop("norm", None))
    scale.set_clim(how.pop("vmin", None), how.pop("vmax", None))
    scale.norm.autoscale_None(np.concatenate([plane[np.isfinite(plane)] for plane in found]))
    for axes, number, plane in zip(grid.flat, numbers, found, strict=False):
        shown = axes.imshow(plane, norm=scale.norm, **how)
        axes.set_title(plain(planes.label(number)), fontsize=8)
    for axes in grid.flat:
        axes.set_axis_off()
    figure.colorbar(shown, ax=grid, shrink=0.7)
    return figure


class Planes:
    """Planes along one axis of an array, with axes and shape for drawing.

    Raises ValueError for another number of axes, no elements or no such axis, TypeError for
    elements that have no colour.
    """

    def __init__(self, source: Source, axis: int | str) -> None:
        array, self._along = source.array, _axis_number(source, axis)
        kept = drawn_axes(source, 3, "a stack of planes", self._along)
        self._array, self._sides = array, [n for n in kept if n != self._along]
        self.count, self.title = array.shape[self._along], source.title
        self.axis, *self.sides = (source.axes[n] for n in (self._along, *self._sides))
        height, width = (array.shape[n] for n in self._sides)
        self.tall = min(max(height / width, 0.3), 3.0)
        """Height of a plane for a width of 1."""

    def read(self, number: int) -> NDArray[Any]:
        """Read a plane by its number."""
        index: list[int | slice] = [0] * self._array.ndim
        index[self._along] = number
        for n in self._sides:
            index[n] = slice(None, None, max(1, -(-self._array.shape[n] // _MOST_PIXELS)))
        # a Frame returns elements, a dask array is computed by asarray
        return np.asarray(self._array[tuple(index)])

    def label(self, number: int) -> str:
        """Name of a plane, by its coordinate if the axis has one."""
        at: Any = number if self.axis.coordinate is None else f"{self.axis.coordinate[number]:g}"
        return f"{self.axis.label}: {at}"

    @property
    def placed(self) -> dict[str, Any]:
        """Arguments of `imshow` for a plane."""
        return {
            "origin": self.sides[0].origin,
            "interpolation": "nearest",
            "aspect": "auto" if self.tall in (0.3, 3.0) else "equal",
        }


def _axis_number(source: Source, axis: int | str) -> int:
    names = [one.label.partition(" [")[0] for one in source.axes]
    if isinstance(axis, str) and axis not in names:
        raise ValueError(f"no axis is called {axis!r}; the axes are {', '.join(names)}")
    number = names.index(axis) if isinstance(axis, str) else axis
    return int(np.lib.array_utils.normalize_axis_index(number, len(names), f"axis={axis}"))


class SliceBrowser:
    """Shows one plane of an array, and a slider to choose it; `image` is for `imshow`."""

    def __init__(self, planes: Planes, figure: Figure, image: dict[str, Any]) -> None:
        self._planes = planes
        # its thread ends after the figure is deleted
        pool = ThreadPoolExecutor(1, "b2nd-planes")
        self._asked = lru_cache(_KEPT)(lambda number: pool.submit(planes.read, number))
        self.axes, below = figure.subplots(2, 1, height_ratios=(20, 1))
        self._bounds: list[Any] = []
        self._has_limits = any(name in image for name in ("vmin", "vmax", "norm", "clim"))
        middle = planes.count // 2
        plane = self._plane(middle)
        self.image = self.axes.imshow(plane, **(planes.placed | image))
        self.axes.set(ylabel=plain(planes.sides[0].label), xlabel=plain(planes.sides[1].label))
        figure.colorbar(self.image, ax=self.axes, shrink=0.8)
        widgets = require("plot", "matplotlib.widgets")
        self.slider = widgets.Slider(
            below,
            plain(planes.axis.label, 24),
            0,
            max(planes.count - 1, 1),
            valinit=middle,
            valstep=1,
            valfmt="%d",
        )
        self.slider.on_changed(self.show)
        figure.canvas.mpl_connect("key_press_event", self._press)
        self._name(middle, plane)

    def show(self, number: float) -> None:
        """Show a plane."""
        at = min(int(number), self._planes.count - 1)
        plane = self._plane(at)
        self.image.set_data(plane)
        self._name(at, plane)
        self.axes.figure.canvas.draw_idle()

    def _plane(self, number: int) -> NDArray[Any]:
        """Read a plane, or take it from the cache; prefetch its neighbours in the thread."""
        try:
            found = self._asked(number).result()
        except BaseException:
            # removes the error from the cache: the next read may succeed
            self._asked.cache_clear()
            raise
        for beside in (number + 1, number - 1):
            if 0 <= beside < self._planes.count:
                self._asked(beside)
        return found

    def _name(self, number: int, plane: NDArray[Any]) -> None:
        self.axes.set_title(plain(self._planes.label(number)), fontsize=9)
        known = plane[np.isfinite(plane)]
        if known.size and not self._has_limits:
            # limits only widen, so that colours change little from plane to plane
            bounds = [known.min(), known.max(), *self._bounds]
            self._bounds = [min(bounds), max(bounds)]
            self.image.set_clim(*self._bounds)

    def _press(self, event: Any) -> None:
        if event.key in _STEPS:
            most = self._planes.count - 1
            self.slider.set_val(min(max(self.slider.val + _STEPS[event.key], 0), most))
