"""A few elements of a frame, where these cost next to nothing to read."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from b2nd_dask.frame.array import Frame, reference_of

#: Bytes that are fetched and decoded for it, at most.
MOST_FETCHED, MOST_DECODED = 1 << 20, 8 << 20
#: Elements of each end of an axis.
_ENDS = 3
#: Longer texts of an element are cut off.
_MOST_TEXT = 20
_DOTS = "\u2026"


def preview(frame: Frame) -> str:
    """Elements at the corners of the array's first plane, in lines.

    Returns
    -------
    str
        Why there are none, where they would have to be fetched from a store, or are too much to
        read.
    """
    if not frame.size:
        return "no elements"
    reference = reference_of(frame)
    corners = _corners(frame.shape)
    if math.prod(map(len, corners)) * frame.dtype.itemsize > MOST_FETCHED:
        return "not read, since its elements are large"
    regions = list(itertools.product(*corners))
    costs = reference.read_costs(regions)
    if reference.is_remote and costs.visits.any():
        return "not read, since the frame is in a store"
    fetched, decoded = int(costs.fetched.sum()), int(costs.decoded.sum())
    if fetched > MOST_FETCHED or decoded > MOST_DECODED:
        return f"not read, since {decoded:,} bytes would have to be decoded"
    last = [len(axis) for axis in corners[-2:]]
    parts = [reference.read_axes(region).reshape(_plane_of(region)) for region in regions]
    rows = last[0] if len(last) == 2 else 1
    columns = len(parts) // rows
    joined = np.block([parts[row * columns : (row + 1) * columns] for row in range(rows)])
    where = f"[{'0, ' * (frame.ndim - 2)}:, :]" if frame.ndim > 2 else ""
    return "\n".join([*([where] if where else []), *_lines(joined, frame.shape)])


def _corners(shape: tuple[int, ...]) -> list[list[range]]:
    """Both ends of the last two axes, one range where they meet; the first of the others."""
    corners = []
    for axis, length in enumerate(shape):
        if axis < len(shape) - 2:
            corners.append([range(1)])
        elif length <= 2 * _ENDS + 1:
            corners.append([range(length)])
        else:
            corners.append([range(_ENDS), range(length - _ENDS, length)])
    return corners


def _plane_of(region: tuple[range, ...]) -> tuple[int, int]:
    """Rows and columns of what is read of a region."""
    lengths = [1, 1, *map(len, region)]
    return lengths[-2], lengths[-1]


def _lines(elements: NDArray[Any], shape: tuple[int, ...]) -> list[str]:
    """Rows of elements, with dots for what is left out between them."""
    texts = [[_element(value) for value in row] for row in elements]
    if len(shape) > 1 and shape[-2] > elements.shape[0]:
        texts.insert(_ENDS, [_DOTS] * len(texts[0]))
    width = max(len(text) for row in texts for text in row)
    lines = [[text.rjust(width) for text in row] for row in texts]
    if shape and shape[-1] > elements.shape[1]:
        lines = [[*row[:_ENDS], _DOTS, *row[_ENDS:]] for row in lines]
    return ["  ".join(row) for row in lines]


def _element(value: Any) -> str:
    # never cut off: their ends tell them apart
    if isinstance(value, np.datetime64):
        unit: Any = None if np.datetime_data(value.dtype)[0] in ("Y", "M") else "auto"
        return "NaT" if np.isnat(value) else str(np.datetime_as_string(value, unit=unit))
    if isinstance(value, np.timedelta64):
        return str(value)
    if isinstance(value, np.floating | np.complexfloating):
        text = f"{value:.6g}"
    else:
        text = str(value) if isinstance(value, np.number | np.bool_) else repr(value.item())
    return text if len(text) <= _MOST_TEXT else f"{text[: _MOST_TEXT - 1]}{_DOTS}"
