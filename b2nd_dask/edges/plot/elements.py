"""Pictures of the elements of arrays: thumbnails of large planes, and the planes of a stack."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any, Literal, get_args

import dask.array as da
import numpy as np
from numpy.typing import NDArray

from b2nd_dask.edges.display.chunk_values import binned, binned_means
from b2nd_dask.edges.plot.sources import (
    Axis,
    Planes,
    Source,
    drawn_axes,
    new_figure,
    plain,
    source_of,
    whole_ticks,
)
from b2nd_dask.frame.array import Frame
from b2nd_dask.graph.read.from_b2nd import from_b2nd
from b2nd_dask.lazy import require

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Method = Literal["mean", "max", "nearest"]
#: Most bytes of a block of whole squares, unless a single square is larger.
_BLOCK_NBYTES = 128 << 20
_METHODS = get_args(Method)


def thumbnail(
    x: Any,
    *,
    size: int = 400,
    method: Method = "mean",
    ax: Axes | None = None,
    colorbar: bool = True,
    **image: Any,
) -> Axes:
    """Draw a large 2-D array as a small picture, without loading it.

    Each pixel shows a square of elements. NaN are ignored unless a square has nothing else.

    Parameters
    ----------
    x : path, URL, Frame, dask array or DataArray
        An array of two axes; more axes must have length 1. Evenly spaced coordinates of a DataArray
        label the axes.
    size : int
        Pixels along the longer side, at most.
    method : {"mean", "max", "nearest"}
        Value of a pixel: the mean or the maximum of its square, or one element of it: the middle
        one, or an earlier one if the squares at the edge end before. Mean and maximum read all
        chunks; "nearest" decodes only the blocks of these elements.
    ax : matplotlib.axes.Axes, optional
        Axes for the picture; by default those of a new figure.
    colorbar : bool
        Whether to draw a colour bar.
    **image
        Arguments of `matplotlib.axes.Axes.imshow`: `cmap`, `vmin`, `vmax`, `norm`, ...

    Returns
    -------
    matplotlib.axes.Axes
        Its image holds the pixels: ``ax.images[0].get_array()``.

    Raises
    ------
    ImportError
        matplotlib is not installed.
    ValueError
        Another number of axes, no elements, an unknown shape or method, a size below 1.
    TypeError
        Elements that have no colour (texts, times, records, complex numbers), or a mask.

    Examples
    --------
    >>> import tempfile, pathlib, numpy as np, b2nd_dask
    >>> import matplotlib; matplotlib.use("agg")
    >>> path = pathlib.Path(tempfile.mkdtemp(), "a.b2nd")
    >>> _ = b2nd_dask.to_b2nd(np.arange(1e6).reshape(1000, 1000), path, chunks=(250, 250))
    >>> ax = b2nd_dask.plot.thumbnail(path, size=100)
    >>> ax.images[0].get_array().shape
    (100, 100)
    """
    if method not in _METHODS:
        raise ValueError(f"method={method!r}; use one of {', '.join(map(repr, _METHODS))}")
    if size < 1:
        raise ValueError(f"size={size}; a picture needs at least one pixel")
    source = source_of(x)
    array, axes_of = _plane(source)
    axes = new_figure((6.4, 4.4)).subplots() if ax is None else ax
    step = max(1, -(-max(array.shape) // size))
    shown = _draw(axes, _pixels(array, step, method), axes_of, array.shape, (step, step), image)
    if source.title:
        axes.set_title(plain(source.title), loc="left", fontsize=10)
    if colorbar:
        axes.figure.colorbar(shown, ax=axes, shrink=0.8)
    return axes


def _plane(source: Source) -> tuple[da.Array, list[Axis]]:
    """The array without surplus axes of length 1; two axes must remain."""
    array, kept = source.array, drawn_axes(source, 2, "a picture")
    index = tuple(slice(None) if axis in kept else 0 for axis in range(array.ndim))
    if isinstance(array, Frame):
        array = from_b2nd(array, chunks="auto")
    elif not isinstance(array, da.Array):
        array = (array if array.chunks else array.chunk("auto")).data
    return array[index], [source.axes[axis] for axis in kept]


def _pixels(array: da.Array, step: int, method: Method) -> NDArray[Any]:
    """Compute a pixel for each square of `step` x `step` elements."""
    if method == "nearest":
        rows, columns = (slice(min(step // 2, (n - 1) % step), None, step) for n in array.shape)
        return np.asarray(array[rows, columns])
    if step == 1:
        return np.asarray(array)
    squares = array.rechunk(_block_sizes(array, step))
    chunks = tuple(tuple(-(-n // step) for n in along) for along in squares.chunks)
    if method == "mean":
        bins, dtype = binned_means, np.dtype(np.float64)
    else:
        bins, dtype = partial(binned, np.fmax), array.dtype
    return np.asarray(squares.map_blocks(bins, (step, step), chunks=chunks, dtype=dtype))


def _block_sizes(array: da.Array, step: int) -> tuple[int, int]:
    """Lengths of blocks of whole squares: about those of the array, at most `_BLOCK_NBYTES`."""
    rows, columns = (max(1, round(max(along) / step)) for along in array.chunks)
    most = max(_BLOCK_NBYTES // array.dtype.itemsize // step**2, 1)
    while rows * columns > most:
        rows, columns = (rows // 2, columns) if rows > columns else (rows, columns // 2)
    return max(rows, 1) * step, max(columns, 1) * step


def _draw(
    axes: Axes,
    pixels: NDArray[Any],
    sides: Sequence[Axis],
    shape: tuple[int, ...],
    step: tuple[int, ...],
    image: dict[str, Any],
) -> Any:
    """Draw a plane of an array of `shape`; a pixel stands for `step` elements along each side."""
    origin = image.get("origin") or sides[0].origin
    extent = _extent(sides, tuple(s * n for s, n in zip(step, pixels.shape, strict=True)), origin)
    counted = [side.coordinate is None for side in sides]
    tall = abs(extent[2] - extent[3]) / max(abs(extent[1] - extent[0]), 1e-300)
    placed: dict[str, Any] = {
        "extent": extent,
        "origin": origin,
        "aspect": "equal" if counted[0] == counted[1] and 0.2 <= tall <= 5 else "auto",
        "interpolation": "nearest",
    }
    shown = axes.imshow(pixels, **(placed | image))
    if "extent" not in image:
        # the last pixels may exceed the array
        left, right, bottom, top = _extent(sides, shape, origin)
        axes.set(xlim=(left, right), ylim=(bottom, top))
        for axis, is_counted in zip((axes.yaxis, axes.xaxis), counted, strict=True):
            if is_counted:
                whole_ticks(axis)
    axes.set(xlabel=plain(sides[1].label), ylabel=plain(sides[0].label))
    return shown


def _extent(
    sides: Sequence[Axis], counts: tuple[int, ...], origin: str
) -> tuple[float, float, float, float]:
    """Edges of the first `counts` elements as `imshow` takes them: left, right, bottom, top."""
    (first, last), (left, right) = (side.ends(n) for side, n in zip(sides, counts, strict=True))
    return (left, right, first, last) if origin == "lower" else (left, right, last, first)


#: Parts of the names of other backends with windows.
_WINDOWS = ("ipympl", "widget")
_MOST_PLANES = 100
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
        Another number of axes, no elements, an unknown shape, no such axis, a count below 1.
    TypeError
        Elements that have no colour, or a mask.

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
    name = require("plot", "matplotlib").get_backend().lower()
    backends = require("plot", "matplotlib.backends")
    windows = backends.backend_registry.list_builtin(backends.BackendFilter.INTERACTIVE)
    return name in windows or any(part in name for part in _WINDOWS)


def _mosaic(
    planes: Planes, numbers: list[int], figure: Figure | None, image: dict[str, Any]
) -> Figure:
    """Draw planes side by side with a common colour scale."""
    count = len(numbers)
    columns = min(count, round((count * 1.5 * planes.tall) ** 0.5))
    rows = -(-count // columns)
    figure = figure or new_figure((min(2.2 * columns, 11) + 0.8, min(2.2 * rows * planes.tall, 11)))
    grid = figure.subplots(rows, columns, squeeze=False)
    others = dict(image)
    scale = require("plot", "matplotlib.cm").ScalarMappable(others.pop("norm", None))
    scale.set_clim(others.pop("vmin", None), others.pop("vmax", None))
    elements = [planes.read(number) for number in numbers]
    scale.norm.autoscale_None(np.concatenate([plane[np.isfinite(plane)] for plane in elements]))
    for axes, number, plane in zip(grid.flat, numbers, elements, strict=False):
        shown = _draw(axes, plane, *planes.layout, others | {"norm": scale.norm})
        axes.set_title(plain(planes.label(number)), fontsize=8)
    for axes in grid.flat:
        axes.set_axis_off()
    figure.colorbar(shown, ax=grid, shrink=0.7)
    return figure


class SliceBrowser:
    """Shows one plane of an array, and a slider to choose it; `image` has arguments of `imshow`."""

    def __init__(self, planes: Planes, figure: Figure, image: dict[str, Any]) -> None:
        self._planes = planes
        # its thread ends after the figure is deleted
        pool = ThreadPoolExecutor(1, "b2nd-planes")
        self._requested = lru_cache(_KEPT)(lambda number: pool.submit(planes.read, number))
        self.axes, below = figure.subplots(2, 1, height_ratios=(20, 1))
        self._bounds: list[Any] = []
        self._has_limits = any(name in image for name in ("vmin", "vmax", "norm", "clim"))
        middle = planes.count // 2
        plane = self._plane(middle)
        self.image = _draw(self.axes, plane, *planes.layout, image)
        figure.colorbar(self.image, ax=self.axes, shrink=0.8)
        label, last = plain(planes.axis.label, 24), max(planes.count - 1, 1)
        slider = require("plot", "matplotlib.widgets").Slider
        self.slider = slider(below, label, 0, last, valinit=middle, valstep=1, valfmt="%d")
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
            plane: NDArray[Any] = self._requested(number).result()
        except BaseException:
            # removes the error from the cache: the next read may succeed
            self._requested.cache_clear()
            raise
        for beside in (number + 1, number - 1):
            if 0 <= beside < self._planes.count:
                self._requested(beside)
        return plane

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
