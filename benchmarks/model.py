"""The data model: cases, scenarios, contenders, and their figures."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

#: Path of each data set of a scenario, by name; if it writes, also of an empty folder, `TARGET`.
Paths = Mapping[str, Path]
#: Name of the folder that a contender writes into; it is emptied after each run.
TARGET = "target"
#: The function that is timed.
Run = Callable[[], Any]
#: Imports a library and sets its number of threads, which is not timed.
Prepare = Callable[[Paths, int], Run]


class Counted(NamedTuple):
    """A result of a run with further measures."""

    result: Any
    counts: Callable[[], Mapping[str, float]]
    """Called after the timing; returns further figures by name."""


@dataclass(frozen=True)
class Dataset:
    """Data on disk, made once and reused."""

    name: str
    filename: str
    recipe: Mapping[str, Any]
    """All parameters of the content, as JSON: data of another recipe is not used."""
    build: Callable[[Path], None]
    needs: Sequence[str] = ()
    """Modules that `build` imports, besides those that the extra `bench` always installs."""


@dataclass(frozen=True)
class Contender:
    """An implementation of the work of a scenario."""

    name: str
    prepare: Prepare
    is_ours: bool = False
    needs: Sequence[str] = ()
    """Modules that it imports; if one cannot be imported, the contender is omitted."""
    memory_limit: int | None = None
    """Maximum bytes of private memory of its process."""


@dataclass(frozen=True)
class Figures:
    """Measurements of one contender."""

    contender: str
    is_ours: bool
    seconds: Sequence[float]
    """Wall time of each round."""
    cpu_seconds: Sequence[float]
    """CPU time of all cores in each round."""
    resident_before: int
    """Bytes after the import of all libraries."""
    resident_peak: int
    """Bytes, the highest of all rounds and of the warm-up."""
    written: int = 0
    """Bytes of the files that a run made."""
    counts: Mapping[str, float] = field(default_factory=dict)
    """Medians of the further figures."""
    failure: str = ""
    """Why there are no times: it exceeded its memory limit."""

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
    """Computes the figure from ours and from the figures of all contenders by name."""
    peer: str | None = None
    """The contender that ours is compared with; without its figures there is no verdict."""
    only: Sequence[str] = ()
    """Names of our contenders with this target; all if empty."""


@dataclass(frozen=True)
class Scenario:
    """The same work done by several contenders on the same data."""

    name: str
    title: str
    datasets: Sequence[Dataset]
    contenders: Sequence[Contender]
    targets: Sequence[Target]
    observe: Callable[[Any], Any] = lambda result: result
    """Converts a result to numbers that must agree between contenders; not timed."""
    rtol: float = 0.0
    writes: bool = False
    """Whether its contenders write, each into its own folder."""
    point: float | None = None
    """Its position on the axis of its case."""
    threads: int | None = None
    """Threads of each contender, if the scenario sets them."""
    all_processes: bool = False
    """Whether memory and CPU time are those of all processes of a contender together."""
    preload: Sequence[str] = ()
    """Modules of all its contenders, whose processes are forks of one that has imported them."""


@dataclass(frozen=True)
class Case:
    """A family of scenarios."""

    name: str
    title: str
    scenarios: Callable[[bool], Sequence[Scenario]]
    """Makes the scenarios; its argument is whether sizes are small."""
    by_default: bool = True
    """Whether it runs if no case is named."""
    axis: str | None = None
    """The quantity that grows between scenarios: the plot has lines over it instead of bars."""


@dataclass(frozen=True)
class Verdict:
    """The comparison of one of our contenders with a target."""

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
    """The contenders that could not take part, and the reasons."""
    axis: str | None = None
    point: float | None = None
    order: Sequence[Sequence[str]] = ()
    """Contenders in the order of each round."""
    dirty_bytes: int | None = None
    """Maximum of the dirty bytes at the start of a run, if contenders write."""
