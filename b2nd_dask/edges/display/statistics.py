"""Statistics of chunks as numbers, for pictures of the chunk grid."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from b2nd_dask.format.statistics import supports_statistics
from b2nd_dask.frame.array import Frame

#: What `Frame.stats` knows of each chunk.
STATISTICS = ("min", "max", "mean", "nans", "nonzeros")


def chunk_statistic(frame: Frame, name: str) -> NDArray[np.float64]:
    """One statistic of each chunk, in C order of the chunk grid; NaN where there is none.

    Times are their ticks.

    Parameters
    ----------
    name : str
        One of `STATISTICS`.

    Raises
    ------
    ValueError
        The frame does not hold it.
    """
    if frame.stats is None:
        known = supports_statistics(frame.dtype)
        hint = "b2nd_dask.add_stats adds statistics" if known else f"elements of {frame.dtype}"
        raise ValueError(f"{frame.path}: no {name} is known of its chunks: {hint}")
    found = getattr(frame.stats.chunks, name)
    if found is None or found.dtype.kind == "c":
        raise ValueError(f"{frame.path}: the {name} of complex numbers has no place on a scale")
    values = np.ma.filled(_numbers(found).astype(np.float64), np.nan)
    values[~np.isfinite(values)] = np.nan
    return values.reshape(-1)


def statistic_text(value: float, name: str, dtype: np.dtype[Any]) -> str:
    """A number of `chunk_statistic` as people read it; times of the frame's dtype as times."""
    if dtype.kind in "mM" and name in ("min", "max", "mean"):
        return str(np.array(round(value), np.int64).view(dtype.newbyteorder("=")))
    return f"{value:.3g}"


def _numbers(column: NDArray[Any]) -> NDArray[Any]:
    if column.dtype.kind in "mM":
        return column.astype(column.dtype.newbyteorder("=")).view(np.int64)
    return column
