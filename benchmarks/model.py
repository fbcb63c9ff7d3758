"""What a case is made of, and what measuring it gives."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

#: Where each data set of a scenario lies, by its name; where it writes, an empty folder, `TARGET`.
Paths = Mapping[str, Path]
#: Name of the folder that a contender writes into; it is emptied after each run.
TARGET = "target"
#: What is timed.
Run = Callable[[], Any]
#: Imports a library and sets its number of threads, which is not timed.
Prepare = Callable[[Paths, int], Run]


@dataclass(frozen=True)
class Dataset:
    """Data on disk, made once and kept."""

    name: str
    filename: str
    recipe: Mapping[str, Any]
    """All that decides the content, as JSON: data of another recipe is never taken."""
    build: Callable[[Path], None]


@dataclass(frozen=True)
class Contender:
    """One way to do the work of a scenario."""

    name: str
    prepare: Prepare
    is_ours: bool = False


@dataclass(frozen=True)
class Figures:
    """Measurements of one contender."""

    contender: str
    is_ours: bool
    seconds: Sequence[float]
    """Wall time of each round."""
    cpu_seconds: Sequence[float]
    """Time of all cores, of each round."""
    resident_before: int
    """Bytes, with all libraries imported."""
    resident_peak: int
    """Bytes, the highest of all rounds and of the warm-up."""
    written: int = 0
    """Bytes of the files that a run made."""

    @property
    def median(self) -> float:
        return statistics.median(self.seconds)

    @property
    def growth(self) -> int:
        return self.resident_peak - self.resident_before


@dataclass(frozen=True)
class Target:
    """A figure that one of our contenders should reach."""

    text: str
    limit: float
    is_upper_limit: bool
    value: Callable[[Figures, Mapping[str, Figures]], float]
    """From ours and from the figures of all contenders by name."""


@dataclass(frozen=True)
class Scenario:
    """The same work done by several contenders on the same data."""

    name: str
    title: str
    datasets: Sequence[Dataset]
    contenders: Sequence[Contender]
    targets: Sequence[Target]
    observe: Callable[[Any], Any] = lambda result: result
    """From a contender's result to numbers that must agree; not timed."""
    rtol: float = 0.0
    writes: bool = False
    """Whether its contenders write, into a folder of each one's own."""


@dataclass(frozen=True)
class Case:
    """A family of scenarios."""

    name: str
    title: str
    scenarios: Callable[[bool], Sequence[Scenario]]
    """Takes whether the sizes are to be small."""
    by_default: bool = True
    """Whether it runs where no case is named."""


@dataclass(frozen=True)
class Verdict:
    """How one of our contenders stands to a target."""

    contender: str
    target: str
    value: float
    is_reached: bool


@dataclass(frozen=True)
class ScenarioResult:
    case: str
    scenario: str
    title: str
    figures: Sequence[Figures]
    verdicts: Sequence[Verdict]
