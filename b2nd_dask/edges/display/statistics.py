"""What pictures of the chunk grid show of each chunk, beside its kind: sizes, codec, statistics."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from b2nd_dask.format.statistics import supports_statistics
from b2nd_dask.frame.array import Frame
from b2nd_dask.frame.chunk_table import ChunkTable

#: What `Frame.stats` knows of each chunk.
STATISTICS = ("min", "max", "mean", "nans", "nonzeros")


def require_known(frame: Frame, table: ChunkTable, by: str) -> None:
    """Check that codecs or sizes of chunks are known where they are to be shown.

    Raises
    ------
    ValueError
        They are not, since they stand in chunks that are in a store.
    """
    if by == "codec" and not table.is_exact:
        raise ValueError(f"{frame.path}: codecs stand in the chunks, which are in a store")
    if by in ("cbytes", "ratio") and len(table.stored) and not len(table.nbytes):
        raise ValueError(f"{frame.path}: a sparse frame in a store says no sizes of its chunks")


def chunk_sizes(table: ChunkTable, by: str) -> NDArray[np.float64]:
    """Compressed bytes ("cbytes") or ratio of each chunk, in C order; NaN of those without data."""
    values = np.full(table.kinds.size, np.nan)
    if len(table.stored):
        nbytes = np.maximum(table.nbytes[table.data], 1)
        values[table.stored[table.data]] = nbytes if by == "cbytes" else table.chunk_nbytes / nbytes
    return values


def with_codecs(table: ChunkTable, first: int) -> NDArray[np.uint8]:
    """Kinds of chunks; of those that hold data the number of the codec, from `first` on."""
    if table.codecs is None:
        return table.kinds
    flat = table.kinds.reshape(-1).copy()
    flat[table.stored[table.data]] = first + table.codecs[table.data]
    return flat.reshape(table.kinds.shape)


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
