"""The registry of cases."""

from __future__ import annotations

from benchmarks.cases import dense_sum, open_million
from benchmarks.model import Case

CASES: dict[str, Case] = {case.name: case for case in (dense_sum.CASE, open_million.CASE)}
