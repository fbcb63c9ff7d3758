"""What a case is made of, and what measuring it gives."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

#: Where each data set of a scenario lies, by its name; where it writes, an empty folder, `TARGET`.
Paths = Mapping[str, Path]
#: Name of the folder that a contender writes into; it is emptied after each run.
TARGET = "target"
#: What is timed.
Run = Callable[[], Any]
#: Imports a library and sets its number of threads, which is not timed.
Prepare = Callable[[Paths, int], Run]


class Counted(NamedTuple):
    """What a run may give where more than its time is measured."""

    result: Any
    counts: Callable[[], Mapping[str, float]]
    """Called when the time has been taken; figures by what they count."""


@dataclass(frozen=True)
class Dataset:
    """Data on disk, made once and kept."""

    name: str
    filename: str
    recipe: Mapping[str, Any]
    """All that decides the content, as JSON: data of another recipe is never taken."""
    build: Callable[[Path], None]
    needs: Sequence[str] = ()
    """Modules that the building imports beside those that the extra `bench` has everywhere."""


@dataclass(frozen=True)
class Contender:
    """One way to do the work of a scenario."""

    name: str
    prepare: Prepare
    is_ours: bool = False
    needs: Sequence[str] = ()
    """Modules that it imports; where one cannot be imported, the contender is left out."""
    memory_limit: int | None = None
    """Bytes of private memory that its process may have."""


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
    counts: Mapping[str, float] = field(default_factory=dict)
    """Medians of what was counted beside the time."""
    failure: str = ""
    """Why there are no times: it ran out of the memory that it was given."""

    @property
    def median(self) -> float:
        return statistics.median(self.seconds) if self.seconds else math.inf

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
    peer: str | None = None
    """The contender that ours is compared with; without its figures there is no verdict."""
    only: Sequence[str] = ()
    """Names of those of ours that it is for; all, where empty."""


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
    point: float | None = None
    """Where it lies on the axis of its case."""
    threads: int | None = None
    """Threads of every contender, where the scenario says how many."""
    all_processes: bool = False
    """Whether memory and CPU time are those of all processes of a contender together."""
    preload: Sequence[str] = ()
    """Modules that all of its contenders import: their processes are forks of one that has."""


@dataclass(frozen=True)
class Case:
    """A family of scenarios."""

    name: str
    title: str
    scenarios: Callable[[bool], Sequence[Scenario]]
    """Takes whether the sizes are to be small."""
    by_default: bool = True
    """Whether it runs where no case is named."""
    axis: str | None = None
    """What grows from scenario to scenario: the plot has lines over it instead of bars."""


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
    left_out: Sequence[str] = ()
    """Which contenders could not take part, and why."""
    axis: str | None = None
    point: float | None = None
    order: Sequence[Sequence[str]] = ()
    """Contenders of each round, as they ran."""
    dirty_bytes: int | None = None
    """The most that waited to be written to the disk when a run began, where contenders write."""
