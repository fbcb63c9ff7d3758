"""What several cases let their contenders do with a dask array."""

from __future__ import annotations

from typing import Any


def dask_sum(array: Any) -> float:
    return float(array.sum().compute())
