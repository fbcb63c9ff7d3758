"""Measure the contenders of a scenario side by side."""

from __future__ import annotations

import importlib
import itertools
import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import numpy as np

from benchmarks import disk, memory
from benchmarks.datasets import ensure
from benchmarks.model import TARGET, Case, Contender, Figures, Paths, Scenario, ScenarioResult
from benchmarks.targets import judge
from benchmarks.worker import Sample, Task, Worker, WorkerError

#: Below this the cost of new memory is negligible.
MUCH_MEMORY = 1 << 28


@dataclass(frozen=True)
class Settings:
    quick: bool
    repeat: int
    threads: int
    data: Path
    seed: int = 0
    """Seed of the order of contenders."""
    scenario: str = ""
    """Omit scenarios whose name does not contain this text."""


class DisagreementError(RuntimeError):
    """Contenders have different results, so their times mean nothing."""


def run_case(case: Case, settings: Settings, say: Callable[[str], None]) -> list[ScenarioResult]:
    return [
        _run_scenario(case, scenario, settings, say)
        for scenario in case.scenarios(settings.quick)
        if settings.scenario in scenario.name
    ]


def _run_scenario(
    case: Case, scenario: Scenario, settings: Settings, say: Callable[[str], None]
) -> ScenarioResult:
    reasons = {one.name: absence(one) for one in scenario.contenders}
    left_out = [f"{name}: {reason}" for name, reason in reasons.items() if reason]
    present = [one for one in scenario.contenders if not reasons[one.name]]
    say(f"{case.name} {scenario.name}: data")
    paths = {
        one.name: ensure(one, settings.data)
        for one in scenario.datasets
        if not missing_module(one.needs)
    }
    say(f"{case.name} {scenario.name}: {len(present)} contenders")
    for line in left_out:
        say(f"  left out: {line}")
    measured = measure(case, replace(scenario, contenders=present), paths, settings)
    return ScenarioResult(
        case.name,
        scenario.name,
        scenario.title,
        measured.figures,
        judge(scenario.targets, {one.contender: one for one in measured.figures}),
        left_out,
        case.axis,
        scenario.point,
        measured.order,
        measured.dirty_bytes,
    )


def absence(contender: Contender) -> str:
    """The reason why a contender cannot take part; empty if it can."""
    missing = missing_module(contender.needs)
    if missing:
        return missing
    if contender.memory_limit is not None and not memory.can_limit():
        return "this system does not bound the memory of a process"
    return ""


def missing_module(names: Sequence[str]) -> str:
    """The module that cannot be imported, and the reason; empty if there is none."""
    for name in names:
        try:
            importlib.import_module(name)
        except ImportError as error:
            return f"{name} cannot be imported ({error})"
    return ""


class Measured(NamedTuple):
    """The results of all contenders of a scenario, and their conditions."""

    figures: list[Figures]
    order: list[list[str]]
    """Names of the contenders in the order of each round."""
    dirty_bytes: int | None
    """Maximum of the dirty bytes at the start of a run."""


def measure(case: Case, scenario: Scenario, paths: Paths, settings: Settings) -> Measured:
    """Warm up, compare the results, then time round by round."""
    with ExitStack() as stack:
        tasks = _tasks(case, scenario, paths, settings, stack)
        workers = [stack.enter_context(Worker(task)) for task in tasks]
        # all have finished their imports before the first one is measured
        starts = [_start(worker, one) for worker, one in _pairs(workers, scenario)]
        before = _BeforeRun(scenario.writes)
        tries = [
            _try(worker, one, start, before)
            for (worker, one), start in zip(_pairs(workers, scenario), starts, strict=True)
        ]
        able = {
            contender.name: worker
            for (worker, contender), one in zip(_pairs(workers, scenario), tries, strict=True)
            if not one.failure
        }
        observed = [one.observed for one in tries if not one.failure]
        require_agreement(scenario, list(able), observed)
        before.memory = max((one.warm_up.resident_peak for one in tries if one.warm_up), default=0)
        order = shuffled(
            list(able), settings.repeat, f"{settings.seed} {case.name} {scenario.name}"
        )
        samples: dict[str, list[Sample]] = {name: [] for name in able}
        for name in itertools.chain(*order):
            before.prepare()
            samples[name].append(able[name].run())
    figures = [
        _figures(contender, one, samples.get(contender.name, []))
        for contender, one in zip(scenario.contenders, tries, strict=True)
    ]
    return Measured(figures, order, before.dirty_bytes if scenario.writes else None)


def _tasks(
    case: Case, scenario: Scenario, paths: Paths, settings: Settings, stack: ExitStack
) -> list[Task]:
    return [
        Task(
            case.name,
            scenario.name,
            contender.name,
            settings.quick,
            scenario.threads or settings.threads,
            {**paths, **target_folder(scenario, settings, stack)},
            scenario.all_processes,
            scenario.preload,
        )
        for contender in scenario.contenders
    ]


def shuffled(names: Sequence[str], rounds: int, seed: str) -> list[list[str]]:
    """The order of each round, shuffled, since a run affects the next one."""
    source = random.Random(seed)
    return [source.sample(names, len(names)) for _ in range(rounds)]


class _BeforeRun:
    """Gives each run the same conditions, independent of earlier runs."""

    def __init__(self, writes: bool) -> None:
        self._writes = writes
        self.memory = 0
        """Maximum bytes that a run needs."""
        self.dirty_bytes = 0
        """Maximum of the dirty bytes at the start of a run."""

    def prepare(self) -> None:
        if self._writes:
            self.dirty_bytes = max(self.dirty_bytes, disk.write_back())
        if self.memory > MUCH_MEMORY:
            memory.touch(self.memory)


class _Try(NamedTuple):
    """The outcome of a contender before the rounds."""

    resident_before: int = 0
    warm_up: Sample | None = None
    observed: Any = None
    failure: str = ""


def _pairs(workers: Sequence[Worker], scenario: Scenario) -> Iterator[tuple[Worker, Contender]]:
    return zip(workers, scenario.contenders, strict=True)


def _start(worker: Worker, contender: Contender) -> _Try:
    return _unless_bounded(contender, lambda: _Try(worker.resident_before()))


def _try(worker: Worker, contender: Contender, start: _Try, before: _BeforeRun) -> _Try:
    def warm_up() -> _Try:
        before.prepare()
        sample, observed = worker.warm_up()
        return start._replace(warm_up=sample, observed=observed)

    return start if start.failure else _unless_bounded(contender, warm_up)


def _unless_bounded(contender: Contender, step: Callable[[], _Try]) -> _Try:
    """A failure under a memory limit is a result; any other failure ends the run."""
    try:
        return step()
    except WorkerError as error:
        if contender.memory_limit is None:
            raise
        return _Try(failure=error.reason)


def target_folder(scenario: Scenario, settings: Settings, stack: ExitStack) -> Paths:
    """A folder for the files of one contender, beside the data."""
    if not scenario.writes:
        return {}
    settings.data.mkdir(parents=True, exist_ok=True)
    folder = TemporaryDirectory(dir=settings.data, prefix="written-")
    return {TARGET: Path(stack.enter_context(folder))}


def require_agreement(scenario: Scenario, names: Sequence[str], observed: Sequence[Any]) -> None:
    """Compare each result with the first one."""
    for name, other in zip(names[1:], observed[1:], strict=True):
        try:
            np.testing.assert_allclose(other, observed[0], rtol=scenario.rtol, atol=0)
        except AssertionError as error:
            raise DisagreementError(
                f"{scenario.name}: {name} and {names[0]} differ: {error}"
            ) from None


def _figures(contender: Contender, before: _Try, samples: Sequence[Sample]) -> Figures:
    warm_up = before.warm_up
    if warm_up is None:
        return Figures(
            contender.name, contender.is_ours, [], [], before.resident_before, 0,
            failure=before.failure,
        )  # fmt: skip
    # without rounds, for work of many minutes, the first run counts
    samples = samples or [warm_up]
    return Figures(
        contender.name,
        contender.is_ours,
        [one.seconds for one in samples],
        [one.cpu_seconds for one in samples],
        before.resident_before,
        max(one.resident_peak for one in (warm_up, *samples)),
        warm_up.written,
        {what: median(one.counts[what] for one in samples) for what in warm_up.counts},
    )
