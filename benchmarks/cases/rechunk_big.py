"""`rechunk_big`: `rechunk` of an array that is as big as the memory.

Without cubed: after 26 minutes, with other work beside it, it had filled a disk with 30 GB of
intermediate files, and was not done.
"""

from __future__ import annotations

from benchmarks.cases import rechunk
from benchmarks.model import Case, Scenario


def scenarios(quick: bool) -> list[Scenario]:
    shape = rechunk.QUICK_SHAPE if quick else rechunk.BIG_SHAPE
    return [rechunk.scenario(shape, with_cubed=False)]


CASE = Case("rechunk_big", "maps to time series, 20 GB", scenarios, False)
