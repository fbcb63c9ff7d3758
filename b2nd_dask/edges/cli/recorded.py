"""Statistics of arrays from the records in their frames, for `stats`."""

from __future__ import annotations

from typing import Any

import numpy as np

from b2nd_dask.frame.array import Frame, reference_of


def recorded(frame: Frame) -> dict[str, Any] | None:
    """Count, NaN, zeros, minimum, maximum and mean; None where records do not say all of them.

    NumPy scalars, with None where elements have none.
    """
    stats = frame.stats
    if stats is None or stats.nans is None or stats.nonzeros is None:
        return None
    n = stats.size - stats.nans
    # as for what is computed: of dates no means
    has_mean = frame.dtype.kind not in "mM"
    if has_mean and n and stats.mean is None:
        return None
    return {
        "n": np.int64(n),
        "nan": np.int64(stats.nans),
        "zeros": np.int64(stats.size - stats.nonzeros),
        "min": stats.min,
        "max": stats.max,
        "mean": stats.mean if has_mean else None,
        "std": None,
    }


def records_of(frame: Frame) -> dict[str, int]:
    """How many chunks have records, of how many, and bytes that these take in the frame."""
    entry = reference_of(frame).parsed.statistics_entry
    columns = None if entry is None else entry.columns
    if entry is None or columns is None:
        return {"chunks": 0, "of": frame.nchunks, "nbytes": 0}
    known = int(np.count_nonzero(columns.known))
    return {"chunks": known, "of": frame.nchunks, "nbytes": len(entry.entry)}
