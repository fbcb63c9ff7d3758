"""The benefit of each rewrite rule of the optimizer: ``python -m benchmarks.ablation``.

Writes ABLATION.md: for each case of `benchmarks.cases.ablation` the figures with all rules, and the
ratios without some. Time is CPU time of all cores, which the load of a machine
changes less than wall time.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

import click
from rich.console import Console

from benchmarks import machine, report
from benchmarks.cases.ablation import CASE, GRAPH, RULES, VARIANTS
from benchmarks.harness import Settings, run_case
from benchmarks.model import Figures, ScenarioResult

HERE = Path(__file__).parent
#: A rule that saves a smaller share of all measures has no benefit.
LEAST = 0.05
MEASURES: Mapping[str, tuple[str, Callable[[Figures], float]]] = {
    "CPU time": ("ms", lambda one: median(one.cpu_seconds) * 1e3),
    "tasks": ("", lambda one: one.counts["tasks"]),
    "memory": ("MB", lambda one: one.growth / 1e6),
}
#: Smaller growth of memory is noise.
LEAST_MEMORY = 20.0


@click.command()
@click.option("--quick", is_flag=True, help="Small sizes: a trial of the code, not a measurement.")
@click.option("--repeat", type=click.IntRange(min=1), default=5, show_default=True)
@click.option("--threads", type=click.IntRange(min=1), default=machine.usable_cores)
@click.option(
    "--data", type=click.Path(file_okay=False, path_type=Path), default=HERE / "data",
    help="Where data is made and kept.",
)  # fmt: skip
@click.option(
    "--output", type=click.Path(dir_okay=False, path_type=Path), default=HERE / "ABLATION.md"
)
def main(output: Path, **options: Any) -> None:
    """Leave out each rule, and all of them."""
    settings = Settings(**options)
    before = machine.load()
    results: list[ScenarioResult] = []
    for scenario in CASE.scenarios(settings.quick):
        alone = replace(CASE, scenarios=lambda _, one=scenario: [one])
        results += run_case(alone, settings, Console(stderr=True).print)
        # after each scenario: a run takes long
        text = markdown(settings, results, before)
        output.write_text(text)
    click.echo(text)


def markdown(settings: Settings, results: Sequence[ScenarioResult], load: float) -> str:
    about = machine.describe()
    lines = [
        "# What each rule of the optimizer pays",
        "",
        "The first column of each table has the figure with all rules. The other columns have its "
        "ratio without some rules: above 1 these rules pay, and = means that they change no task. "
        "Measures are the CPU time of all cores, the tasks that run, and the rise of resident "
        f"memory at its peak (medians of {settings.repeat} rounds in turns, the highest peak; "
        f"{settings.threads} threads). Made by `python -m benchmarks.ablation`, {about['date']}, "
        f"revision {about['revision']}, dask {about['packages']['dask']}, load {load:.1f} before"
        f"{'; small sizes: not a measurement' if settings.quick else ''}.",
        "",
    ]
    for name, (unit, value) in MEASURES.items():
        rows = [_header(name, unit), ["---", *["---:"] * len(VARIANTS)]]
        rows += [_row(one, value, name) for one in results]
        lines += [f"## {name}", "", *report.table(rows), ""]
    return "\n".join([*lines, "## Verdict", "", *(verdict(results, rule) for rule in RULES), ""])


def _header(name: str, unit: str) -> list[str]:
    names = list(VARIANTS)
    return [name, f"{names[0]}{f' ({unit})' if unit else ''}", *names[1:]]


def _row(result: ScenarioResult, value: Callable[[Figures], float], name: str) -> list[str]:
    every, *others = result.figures
    first = f"{value(every):.4g}" if every.seconds else "failed"
    return [f"`{result.scenario}`", first, *(_cell(one, every, name) for one in others)]


def _cell(one: Figures, every: Figures, name: str) -> str:
    ratio = _ratio(one, every, name)
    if math.isinf(ratio):
        return "failed"
    return "=" if _is_same(one, every) else f"{ratio:.2f}"


def _is_same(one: Figures, every: Figures) -> bool:
    """Whether the tasks are the same without the omitted rules."""
    graphs = one.counts.get(GRAPH), every.counts.get(GRAPH)
    return graphs[0] == graphs[1] is not None


def _ratio(one: Figures, every: Figures, name: str) -> float:
    _, value = MEASURES[name]
    if not one.seconds:
        return math.inf  # it ran out of memory
    mine, all_rules = value(one), value(every)
    if name == "memory":
        mine, all_rules = max(mine, LEAST_MEMORY), max(all_rules, LEAST_MEMORY)
    return mine / all_rules


def verdict(results: Sequence[ScenarioResult], rule: str) -> str:
    """The scenario where a rule saves most, among those whose tasks it changes."""
    changed = [
        (one, result.figures[0], result.scenario)
        for result in results
        for one in result.figures
        if one.contender == f"without {rule}" and not _is_same(one, result.figures[0])
    ]
    if not changed:
        return f"- **{rule}** does not pay: it changes none of these"
    best = {
        name: max((_ratio(one, every, name), where) for one, every, where in changed)
        for name in MEASURES
    }
    saved = [name for name, (ratio, _) in best.items() if ratio > 1 + LEAST]
    slower = [f"`{where}`" for one, every, where in changed if _is_slower(every, one)]
    told = ", ".join(f"{name} {ratio:.2f} (`{where}`)" for name, (ratio, where) in best.items())
    text = f"- **{rule}** {'pays' if saved else 'does not pay'}: of {len(changed)} at most {told}"
    return text + (f"; with it all rounds are slower: {', '.join(slower)}" if slower else "")


def _is_slower(one: Figures, other: Figures) -> bool:
    """Whether the fastest round is slower than the slowest one of another, by more than `LEAST`."""
    times = one.cpu_seconds, other.cpu_seconds
    return all(times) and min(times[0]) > max(times[1]) * (1 + LEAST)


if __name__ == "__main__":
    main()
