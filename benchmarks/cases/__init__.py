"""The registry of cases."""

from __future__ import annotations

from benchmarks.cases import (
    dense_sum,
    integrity,
    open_million,
    transform,
    transform_big,
    write_constant,
    write_dense,
)
from benchmarks.model import Case

_MODULES = (
    dense_sum,
    open_million,
    write_dense,
    transform,
    transform_big,
    write_constant,
    integrity,
)

CASES: dict[str, Case] = {module.CASE.name: module.CASE for module in _MODULES}
