"""Common parts of plots: inputs as frames, as labelled arrays or their planes; axes and texts."""

from __future__ import annotations

import reprlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import dask.array as da
import numpy as np
from numpy.typing import NDArray

from b2nd_dask.frame.access import open_b2nd
from b2nd_dask.frame.array import Frame, reference_of
from b2nd_dask.frame.info import axis_names, packing_of
from b2nd_dask.graph.read.from_b2nd import expressions, is_expression
from b2nd_dask.graph.write.options import source_frames
from b2nd_dask.lazy import require

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis as DrawnAxis
    from matplotlib.figure import Figure


@dataclass(frozen=True, eq=False)
class Axis:
    """Name and coordinate of an axis of a plot."""

    name: str
    coordinate: NDArray[Any] | None = None
    """Evenly spaced numbers, one for each element; None to count elements."""
    unit: str = ""
    """Unit of the coordinate, such as ``" [m]"``."""

    @property
    def label(self) -> str:
        """Name and unit."""
        return self.name + self.unit

    @property
    def origin(self) -> str:
        """Argument of `imshow` for rows: coordinates increase upwards, row numbers downwards."""
        rows = self.coordinate
        return "lower" if rows is not None and rows[-1] > rows[0] else "upper"

    def ends(self, count: int) -> tuple[float, float]:
        """Outer edges of the first `count` elements."""
        first, space = -0.5, 1.0
        if self.coordinate is not None:
            # not in the coordinate's dtype, in which a difference may overflow
            start, last = float(self.coordinate[0]), float(self.coordinate[-1])
            space = (last - start) / (len(self.coordinate) - 1)
            first = start - space / 2
        return first, first + space * count


@dataclass(frozen=True, eq=False)
class Source:
    """An array to plot, with labels and a title."""

    array: Any
    """A dask array; or a Variable of xarray or a Frame, which read planes without a graph."""
    axes: tuple[Axis, ...]
    title: str


def source_of(x: Any) -> Source:
    """Open the user's input as an array; raise TypeError if it is none."""
    if _is_labelled(x):
        axes = tuple(_axis_of(x, dim) for dim in x.dims)
        return Source(x.variable, axes, str(x.name or ""))
    array = _dask_array_of(x)
    if array is not None:
        return Source(array, tuple(Axis(f"axis {axis}") for axis in range(array.ndim)), "")
    frame = x if isinstance(x, Frame) else open_b2nd(x)
    names = axis_names(reference_of(frame))
    return Source(frame, tuple(map(Axis, names)), title_of(frame))


def frame_of(x: Any) -> Frame:
    """Open the user's input as a frame; raise ValueError if it reads none, or several."""
    if isinstance(x, Frame):
        return x
    array = _dask_array_of(x.chunk().data if _is_labelled(x) else x)
    if array is None:
        # without verification: a map is also drawn of a frame with damaged metadata
        return open_b2nd(x, verify=False)
    frames = source_frames(array)
    if len(frames) != 1:
        raise ValueError(
            f"the array reads {len(frames) or 'no'} frames, but only the chunks of one can be "
            "shown; pass its path, or open_b2nd(path)"
        )
    return Frame(frames[0])


def _dask_array_of(x: Any) -> da.Array | None:
    """Make a dask array of an array without labels; None for any other object."""
    if is_expression(x):
        return expressions().classic_array(x)  # type: ignore[no-any-return]
    return da.asarray(x) if isinstance(x, da.Array | np.ndarray) else None


def drawn_axes(source: Source, count: int, what: str, *always: int) -> list[int]:
    """The `count` axes of an array to draw: those longer than 1, and those in `always`.

    If they are too few, the first axes of length 1 are added: a row is a plane. Raises ValueError
    for another number of axes, no elements or an unknown shape, TypeError for elements that have
    no colour and for masks; the messages explain what to give instead.
    """
    shape = source.array.shape
    kept = [axis for axis, length in enumerate(shape) if length != 1 or axis in always]
    others = [axis for axis in range(len(shape)) if axis not in kept]
    kept = sorted(kept + others[: max(0, count - len(kept))])
    if 0 in shape:
        raise ValueError(f"an array of shape {shape} has no elements")
    if np.isnan(shape).any():
        raise ValueError(f"the shape {shape} is unknown: call x.compute_chunk_sizes() first")
    if len(kept) != count:
        advice = f", as x[{', '.join('0' * kept[-count])}]" if len(kept) > count else ""
        if count == 2 and len(kept) == 3:
            advice += ", or look through its planes with b2nd_dask.plot.slices"
        raise ValueError(f"an array of shape {shape} is not {what}; give {count} axes{advice}")
    _check_colours(source.array)
    return kept


def _check_colours(array: Any) -> None:
    """Raise TypeError if elements are not numbers, which alone have colours, or are masked."""
    if isinstance(getattr(array, "_meta", None), np.ma.MaskedArray):
        raise TypeError("masks are not drawn: give da.ma.filled(x, value)")
    dtype = array.dtype
    if dtype.kind in "biuf":
        return
    remedy = _REMEDIES.get(dtype.kind, "")
    if dtype.names:
        # a field of numbers, if there is one
        field = next((name for name in dtype.names if dtype[name].kind in "biuf"), dtype.names[0])
        remedy = f"give one field of the records, as x[{reprlib.repr(field)}]"
    if remedy and isinstance(array, Frame):
        remedy += ", where x = b2nd_dask.from_b2nd(path)"
    raise TypeError(f"elements of dtype {dtype} have no colour: {remedy or 'they are not drawn'}")


_REMEDIES = {
    "c": "convert them first, as x.real or abs(x)",
    "M": "convert them first, as x.astype('i8') or "
    "(x - np.datetime64('2000-01-01')) / np.timedelta64(1, 'D')",
    "m": "convert them first, as x.astype('i8') or x / np.timedelta64(1, 's')",
}


#: Most elements along a side of a plane; of a longer side every second, third, ... is read.
_MOST_PIXELS = 1200


class Planes:
    """Planes along one axis of an array, with axes and shape for drawing.

    Raises ValueError if there is no such axis, and the errors of `drawn_axes`.
    """

    def __init__(self, source: Source, axis: int | str) -> None:
        array, self._along = source.array, _axis_number(source, axis)
        kept = drawn_axes(source, 3, "a stack of planes", self._along)
        self._array, self._sides = array, [n for n in kept if n != self._along]
        self.count, self.title = array.shape[self._along], source.title
        self.axis, *sides = (source.axes[n] for n in (self._along, *self._sides))
        shape = tuple(array.shape[n] for n in self._sides)
        self._step = tuple(max(1, -(-n // _MOST_PIXELS)) for n in shape)
        self.layout = sides, shape, self._step
        """Rows and columns of a plane, their numbers of elements, and of elements for a pixel."""
        self.tall = min(max(shape[0] / shape[1], 0.3), 3.0)
        """Height of a plane for a width of 1."""

    def read(self, number: int) -> NDArray[Any]:
        """Read a plane by its number."""
        index: list[int | slice] = [0] * self._array.ndim
        index[self._along] = number
        for n, step in zip(self._sides, self._step, strict=True):
            index[n] = slice(None, None, step)
        # a Frame returns elements, other arrays are computed by asarray
        return np.asarray(self._array[tuple(index)])

    def label(self, number: int) -> str:
        """Name of a plane, by its coordinate if the axis has one."""
        at: Any = number if self.axis.coordinate is None else self.axis.coordinate[number]
        # all digits of an integer, such as 20250131; twelve hide the errors of 3 * 0.1
        text = f"{float(str(at)):.12g}" if isinstance(at, np.floating) else str(at)
        return f"{self.axis.label}: {text}"


def _axis_number(source: Source, axis: int | str) -> int:
    names = [one.name for one in source.axes]
    if isinstance(axis, str) and axis not in names:
        raise ValueError(f"no axis is called {axis!r}; the axes are {', '.join(names)}")
    number = names.index(axis) if isinstance(axis, str) else axis
    return int(np.lib.array_utils.normalize_axis_index(number, len(names), f"axis={axis}"))


def title_of(frame: Frame) -> str:
    """Last part of a frame's path; "as stored" is added for packed elements."""
    packed = ", as stored" if packing_of(reference_of(frame)) else ""
    return short_path(frame.path) + packed


def short_path(path: str) -> str:
    """The last part of a path."""
    return path.rstrip("/").rpartition("/")[2] or path


def _is_labelled(x: Any) -> bool:
    # not by isinstance, which would need an import of xarray; `data` of an instance would load it
    return all(hasattr(type(x), name) for name in ("dims", "coords", "data", "name", "chunk"))


def _axis_of(x: Any, dim: Any) -> Axis:
    name, found = str(dim), x.coords.get(dim)
    if found is None or found.ndim != 1 or found.size < 2 or found.dtype.kind not in "iuf":
        return Axis(name)
    values = np.asarray(found.values)
    steps = np.diff(values.astype(np.float64)) if np.isfinite(values).all() else np.zeros(1)
    if not (steps[0] and np.allclose(steps, steps.mean(), rtol=1e-3, atol=0)):
        return Axis(name)
    units = found.attrs.get("units")
    return Axis(name, values, f" [{units}]" if isinstance(units, str) else "")


_MOST_TEXT = 60
#: Lines of text from the axes to a legend below them, whatever the height of the axes.
_BELOW = 4.34


def new_figure(size: tuple[float, float]) -> Figure:
    """Make a figure that appears in notebooks and windows."""
    figure: Figure = require("plot", "matplotlib.pyplot").figure(figsize=size)
    # padding in inches; less cuts off the tops of letters
    figure.set_layout_engine("constrained", h_pad=0.08, w_pad=0.08)
    return figure


def plain(text: object, most: int = _MOST_TEXT) -> str:
    r"""Escape a text from a file for matplotlib, and shorten it."""
    shown = str(text)
    shown = shown if shown.isprintable() else repr(shown)
    # a dollar would start a formula
    return (shown if len(shown) <= most else f"\u2026{shown[1 - most :]}").replace("$", r"\$")


def whole_ticks(axis: DrawnAxis, most: int = 9) -> None:
    """Put the ticks of an axis only at whole numbers, even if there is just one."""
    locator = require("plot", "matplotlib.ticker").MaxNLocator
    axis.set_major_locator(locator(most, integer=True, min_n_ticks=1))


def legend_below(axes: Axes, columns: int, **legend: Any) -> None:
    """Put the legend below the axes, where it covers nothing."""
    axes.legend(
        frameon=False,
        fontsize="small",
        loc="upper center",
        bbox_to_anchor=(0.5, 0),
        borderaxespad=_BELOW,
        ncols=columns,
        **legend,
    )
