"""Measure the contenders of a scenario side by side."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from benchmarks.datasets import ensure
from benchmarks.model import TARGET, Case, Figures, Paths, Scenario, ScenarioResult
from benchmarks.targets import judge
from benchmarks.worker import Sample, Task, Worker


@dataclass(frozen=True)
class Settings:
    quick: bool
    repeat: int
    threads: int
    data: Path


class DisagreementError(RuntimeError):
    """Contenders give different results: their times mean nothing."""


def run_case(case: Case, settings: Settings, say: Callable[[str], None]) -> list[ScenarioResult]:
    results = []
    for scenario in case.scenarios(settings.quick):
        say(f"{case.name} {scenario.name}: data")
        paths = {one.name: ensure(one, settings.data) for one in scenario.datasets}
        say(f"{case.name} {scenario.name}: {len(scenario.contenders)} contenders")
        figures = measure(case, scenario, paths, settings)
        verdicts = judge(scenario.targets, {one.contender: one for one in figures})
        results.append(ScenarioResult(case.name, scenario.name, scenario.title, figures, verdicts))
    return results


def measure(case: Case, scenario: Scenario, paths: Paths, settings: Settings) -> list[Figures]:
    """Warm up, compare the results, then time round by round."""
    with ExitStack() as stack:
        workers = [
            stack.enter_context(
                Worker(
                    Task(
                        case.name,
                        scenario.name,
                        contender.name,
                        settings.quick,
                        settings.threads,
                        {**paths, **_target(scenario, settings, stack)},
                    )
                )
            )
            for contender in scenario.contenders
        ]
        # all have finished their imports before the first one is measured
        before = [worker.resident_before() for worker in workers]
        warm_ups = [worker.warm_up() for worker in workers]
        require_agreement(scenario, [observed for _, observed in warm_ups])
        rounds = [_round(workers, number) for number in range(settings.repeat)]
    return [
        _figures(scenario, place, before[place], warm_ups[place][0], [one[place] for one in rounds])
        for place in range(len(workers))
    ]


def _target(scenario: Scenario, settings: Settings, stack: ExitStack) -> Paths:
    """A folder for what one contender writes, beside the data."""
    if not scenario.writes:
        return {}
    settings.data.mkdir(parents=True, exist_ok=True)
    folder = TemporaryDirectory(dir=settings.data, prefix="written-")
    return {TARGET: Path(stack.enter_context(folder))}


def require_agreement(scenario: Scenario, observed: Sequence[Any]) -> None:
    """Hold every result against the first."""
    names = [contender.name for contender in scenario.contenders]
    for name, other in zip(names[1:], observed[1:], strict=True):
        try:
            np.testing.assert_allclose(other, observed[0], rtol=scenario.rtol, atol=0)
        except AssertionError as error:
            raise DisagreementError(
                f"{scenario.name}: {name} and {names[0]} differ: {error}"
            ) from None


def _round(workers: Sequence[Worker], number: int) -> list[Sample]:
    """One run of each; every round begins with another, since each feels what ran before it."""
    samples: dict[int, Sample] = {}
    for step in range(len(workers)):
        place = (number + step) % len(workers)
        samples[place] = workers[place].run()
    return [samples[place] for place in range(len(workers))]


def _figures(
    scenario: Scenario, place: int, before: int, warm_up: Sample, samples: Sequence[Sample]
) -> Figures:
    contender = scenario.contenders[place]
    return Figures(
        contender.name,
        contender.is_ours,
        [one.seconds for one in samples],
        [one.cpu_seconds for one in samples],
        before,
        max(one.resident_peak for one in (warm_up, *samples)),
        warm_up.written,
    )
