"""A slider to look through planes: each is read when it is shown, its neighbours in advance."""

from __future__ import annotations

from collections import OrderedDict
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from b2nd_dask.edges.extras import require
from b2nd_dask.edges.plot.canvas import plain
from b2nd_dask.edges.plot.slices import Planes

if TYPE_CHECKING:
    from matplotlib.figure import Figure

#: Planes that are kept, the one that is shown and its neighbours among them.
_KEPT = 8
_STEPS = {"left": -1, "right": 1, "down": -1, "up": 1, "pageup": 10, "pagedown": -10}


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
        self._kept = _KeptPlanes(planes)
        self.axes, below = figure.subplots(2, 1, height_ratios=(20, 1))
        self._has_limits = any(name in image for name in ("vmin", "vmax", "norm", "clim"))
        middle = planes.count // 2
        plane = self._kept.get(middle)
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
        figure.canvas.mpl_connect("close_event", lambda _: self._kept.close())
        self._name(middle, plane)

    def show(self, number: float) -> None:
        """Show a plane."""
        at = min(int(number), self._planes.count - 1)
        plane = self._kept.get(at)
        self.image.set_data(plane)
        self._name(at, plane)
        self.axes.figure.canvas.draw_idle()

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


class _KeptPlanes:
    """The planes that were shown last and their neighbours, which a thread reads in advance."""

    def __init__(self, planes: Planes) -> None:
        self._planes = planes
        self._pool: ThreadPoolExecutor | None = ThreadPoolExecutor(1, "b2nd-planes")
        self._found: OrderedDict[int, Future[NDArray[Any]]] = OrderedDict()

    def get(self, number: int) -> NDArray[Any]:
        """A plane; asks for the next ones."""
        found = self._asked(number).result()
        for beside in (number + 1, number - 1):
            if 0 <= beside < self._planes.count:
                self._asked(beside)
        while len(self._found) > _KEPT:
            _, oldest = self._found.popitem(last=False)
            oldest.cancel()
        return found

    def close(self) -> None:
        """End the thread; planes are read by the caller from now on."""
        if self._pool is not None:
            self._pool.shutdown(wait=False, cancel_futures=True)
            self._pool = None

    def _asked(self, number: int) -> Future[NDArray[Any]]:
        future = self._found.pop(number, None)
        failed = future is not None and (
            future.cancelled() or (future.done() and future.exception())
        )
        if future is None or failed:
            if self._pool is None:
                future = Future()
                future.set_result(self._planes.read(number))
            else:
                future = self._pool.submit(self._planes.read, number)
        self._found[number] = future
        return future
