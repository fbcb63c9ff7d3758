"""Small pictures of large 2-D arrays, computed block by block."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Literal, get_args

import dask.array as da
import numpy as np
from numpy.typing import NDArray

from b2nd_dask.edges.display.chunk_values import binned, binned_means
from b2nd_dask.edges.plot.sources import (
    Axis,
    Source,
    axes_for,
    drawn_axes,
    plain,
    source_of,
    whole_ticks,
)
from b2nd_dask.frame.array import Frame
from b2nd_dask.graph.read.from_b2nd import from_b2nd

if TYPE_CHECKING:
    from matplotlib.axes import Axes

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
        Value of a pixel: the mean or the maximum of its square, or the element in the middle. Mean
        and maximum read all chunks; "nearest" decodes only the blocks with one of these
        elements.
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
        Another number of axes, no elements, an unknown method, a size below 1.
    TypeError
        Elements that have no colour: texts, times, records, complex numbers.

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
    axes = axes_for(ax, (6.4, 4.4))
    step = max(1, -(-max(array.shape) // size))
    pixels = _pixels(array, step, method)
    extent = _extent(axes_of, tuple(step * n for n in pixels.shape))
    counted = [axis.coordinate is None for axis in axes_of]
    tall = abs(extent[2] - extent[3]) / max(abs(extent[1] - extent[0]), 1e-300)
    placed: dict[str, Any] = {
        "extent": extent,
        "origin": axes_of[0].origin,
        "aspect": "equal" if counted[0] == counted[1] and 0.2 <= tall <= 5 else "auto",
        "interpolation": "nearest",
    }
    shown = axes.imshow(pixels, **(placed | image))
    if "extent" not in image:
        # the squares of the last pixels may exceed the array
        left, right, bottom, top = _extent(axes_of, array.shape)
        axes.set(xlim=(left, right), ylim=(bottom, top))
        for axis, is_counted in zip((axes.yaxis, axes.xaxis), counted, strict=True):
            if is_counted:
                whole_ticks(axis)
    axes.set(xlabel=plain(axes_of[1].label), ylabel=plain(axes_of[0].label))
    if source.title:
        axes.set_title(plain(source.title), loc="left", fontsize=10)
    if colorbar:
        axes.figure.colorbar(shown, ax=axes, shrink=0.8)
    return axes


def _plane(source: Source) -> tuple[da.Array, list[Axis]]:
    """The array without surplus axes of length 1; two axes must remain."""
    array, kept = source.array, drawn_axes(source, 2, "a picture")
    index = tuple(slice(None) if axis in kept else 0 for axis in range(array.ndim))
    # blocks of dask's default size
    array = from_b2nd(array, chunks="auto") if isinstance(array, Frame) else array
    return array[index], [source.axes[axis] for axis in kept]


def _pixels(array: da.Array, step: int, method: Method) -> NDArray[Any]:
    """Compute a pixel for each square of `step` x `step` elements."""
    if method == "nearest":
        rows, columns = (slice(min(step // 2, n - 1), None, step) for n in array.shape)
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


def _extent(axes: list[Axis], counts: tuple[int, ...]) -> tuple[float, float, float, float]:
    """Edges of the first `counts` elements as `imshow` takes them: left, right, bottom, top."""
    (first, last), (left, right) = (axis.ends(n) for axis, n in zip(axes, counts, strict=True))
    up = axes[0].origin == "lower"
    return (left, right, first, last) if up else (left, right, last, first)
