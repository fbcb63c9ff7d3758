"""The planes of a 3-D array, each read when it is asked for."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from b2nd_dask.edges.plot.sources import Axis, Source, check_colours

#: Elements along a side of a plane; of more, every second, third, ... is read.
_MOST_PIXELS = 1200


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
