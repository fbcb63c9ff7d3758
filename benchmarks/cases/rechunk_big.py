"""`rechunk_big`: `rechunk` of an array that is as big as the memory."""

from __future__ import annotations

from benchmarks.cases import rechunk
from benchmarks.model import Case, Scenario


def scenarios(quick: bool) -> list[Scenario]:
    return [rechunk.scenario(rechunk.QUICK_SHAPE if quick else rechunk.BIG_SHAPE)]


CASE = Case("rechunk_big", "maps to time series, 20 GB", scenarios, False)
