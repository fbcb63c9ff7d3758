"""The planes of a 3-D array, and a slider to look through them: each is read when it is shown."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from b2nd_dask.edges.extras import require
from b2nd_dask.edges.plot.canvas import plain
from b2nd_dask.edges.plot.sources import Axis, Source, check_colours

if TYPE_CHECKING:
    from matplotlib.figure import Figure

#: Elements along a side of a plane; of more, every second, third, ... is read.
_MOST_PIXELS = 1200
#: Planes that are kept, the one that is shown and its neighbours among them.
_KEPT = 8
_STEPS = {"left": -1, "right": 1, "down": -1, "up": 1, "pageup": 10, "pagedown": -10}


@dataclass(frozen=True, eq=False)
class Planes:
    """Planes along one axis of an array, and how they are drawn."""

    count: int
    axis: Axis
    sides: tuple[Axis, Axis]
    tall: float
    """Height of a plane for a width of 1."""
    title: str
    read: Callable[[int], NDArray[Any]]
    """Reads a plane by its number."""

    @classmethod
    def of(cls, source: Source, axis: int | str) -> Planes:
        """Find the planes of an array along an axis.

        Raises
        ------
        ValueError
            Another number of axes, no elements, no such axis.
        TypeError
            Elements that have no colour.
        """
        array = source.array
        along = _axis_number(source, axis)
        kept = [n for n, length in enumerate(array.shape) if length != 1 or n == along]
        others = [n for n in range(array.ndim) if n not in kept]
        kept = sorted(kept + others[: max(0, 3 - len(kept))])
        if len(kept) != 3 or 0 in array.shape:
            remedy = f", as x[{', '.join('0' * (array.ndim - 3))}]" if len(kept) > 3 else ""
            raise ValueError(
                f"an array of shape {array.shape} is no stack of planes: give 3 axes{remedy}"
            )
        check_colours(array)
        sides = [n for n in kept if n != along]
        steps = {n: max(1, -(-array.shape[n] // _MOST_PIXELS)) for n in sides}

        def read(number: int) -> NDArray[Any]:
            index = tuple(
                number if n == along else slice(None, None, steps[n]) if n in steps else 0
                for n in range(array.ndim)
            )
            # a Frame gives elements, a dask array a task
            return np.asarray(array[index])

        height, width = (array.shape[n] for n in sides)
        axes = source.axes[sides[0]], source.axes[sides[1]]
        tall = min(max(height / width, 0.3), 3.0)
        return cls(array.shape[along], source.axes[along], axes, tall, source.title, read)

    def label(self, number: int) -> str:
        """Say which plane it is, by its coordinate where the axis has one."""
        at: Any = number if self.axis.coordinate is None else f"{self.axis.coordinate[number]:g}"
        return f"{self.axis.label}: {at}"

    @property
    def placed(self) -> dict[str, Any]:
        """How `imshow` draws a plane."""
        rows = self.sides[0].coordinate
        up = rows is not None and rows[-1] > rows[0]
        return {
            "origin": "lower" if up else "upper",
            "interpolation": "nearest",
            "aspect": "auto" if self.tall in (0.3, 3.0) else "equal",
        }


def _axis_number(source: Source, axis: int | str) -> int:
    ndim = int(source.array.ndim)
    names = [one.label.partition(" [")[0] for one in source.axes]
    if isinstance(axis, str):
        if axis not in names:
            raise ValueError(f"no axis is called {axis!r}; there are {', '.join(names)}")
        return names.index(axis)
    if not -ndim <= axis < ndim:
        raise ValueError(f"axis={axis} of an array of {ndim} axes")
    return axis % ndim


class SliceBrowser:
    """Shows one plane of an array, and a slider to choose it.

    Parameters
    ----------
    planes : Planes
        What to show.
    figure : matplotlib.figure.Figure
        Where.
    image : dict
        For `imshow`.
    """

    def __init__(self, planes: Planes, figure: Figure, image: dict[str, Any]) -> None:
        self._planes = planes
        # ends with the figure
        pool = ThreadPoolExecutor(1, "b2nd-planes")
        self._asked = lru_cache(_KEPT)(lambda number: pool.submit(planes.read, number))
        self.axes, below = figure.subplots(2, 1, height_ratios=(20, 1))
        self._has_limits = any(name in image for name in ("vmin", "vmax", "norm", "clim"))
        middle = planes.count // 2
        plane = self._plane(middle)
        self.image = self.axes.imshow(plane, **{**planes.placed, **image})
        self.axes.set(ylabel=plain(planes.sides[0].label), xlabel=plain(planes.sides[1].label))
        figure.colorbar(self.image, ax=self.axes, shrink=0.8)
        if planes.title:
            figure.suptitle(plain(planes.title), fontsize=10)
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
        """Read a plane, unless it is kept; the thread goes on with those beside it."""
        try:
            found = self._asked(number).result()
        except BaseException:
            # it may succeed the next time
            self._asked.cache_clear()
            raise
        for beside in (number + 1, number - 1):
            if 0 <= beside < self._planes.count:
                self._asked(beside)
        return found

    def _name(self, number: int, plane: NDArray[Any]) -> None:
        self.axes.set_title(plain(self._planes.label(number)), fontsize=9)
        known = plane[np.isfinite(plane)]
        if self._has_limits or not known.size:
            return
        # colours keep their meaning from plane to plane, as far as they can
        low, high = self.image.get_clim()
        fresh = not np.isfinite([low, high]).all()
        low, high = (known.min(), known.max()) if fresh else (low, high)
        self.image.set_clim(min(low, known.min()), max(high, known.max()))

    def _press(self, event: Any) -> None:
        if event.key in _STEPS:
            most = self._planes.count - 1
            self.slider.set_val(min(max(self.slider.val + _STEPS[event.key], 0), most))
