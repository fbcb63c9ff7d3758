"""`rechunk_big`: `rechunk` of an array that is as big as the memory.

Without cubed: in 26 minutes, with other work beside it, it had written over 26 GB of intermediate
files, and was not done when the disk was full.
"""

from __future__ import annotations

from benchmarks.cases import rechunk
from benchmarks.model import Case, Scenario


def scenarios(quick: bool) -> list[Scenario]:
    shape = rechunk.QUICK_SHAPE if quick else rechunk.BIG_SHAPE
    return [rechunk.scenario(shape, with_cubed=False)]


CASE = Case("rechunk_big", "maps to time series, 20 GB", scenarios, False)
