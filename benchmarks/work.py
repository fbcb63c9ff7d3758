"""Functions of dask arrays that several cases measure."""

from __future__ import annotations

from typing import Any


def dask_sum(array: Any) -> float:
    return float(array.sum().compute())
