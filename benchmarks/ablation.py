"""What each rewrite rule of our optimizer pays: ``python -m benchmarks.ablation``.

Writes ABLATION.md: for each case of `benchmarks.cases.ablation` the figures with all rules, and how
many times as much it takes without some. Time is CPU time of all cores, which the load of a machine
changes less than wall time.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import click
from rich.console import Console

from benchmarks import machine, report
from benchmarks.cases.ablation import CASE, RULES, VARIANTS
from benchmarks.harness import Settings, run_case
from benchmarks.model import Figures, ScenarioResult

HERE = Path(__file__).parent
#: A rule that saves less than this of everything does not pay.
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
    results = run_case(CASE, settings, Console(stderr=True).print)
    text = markdown(settings, results, before)
    output.write_text(text)
    click.echo(text)


def markdown(settings: Settings, results: Sequence[ScenarioResult], load: float) -> str:
    about = machine.describe()
    lines = [
        "# What each rule of the optimizer pays",
        "",
        "With all rules the figure itself, else the ratio to it: above 1 the rules that are left "
        "out pay. CPU time of all cores, tasks of the optimized graph, and how far resident memory "
        f"rose at its peak (medians of {settings.repeat} rounds in turns, the peak of them all; "
        f"{settings.threads} threads). Made by `python -m benchmarks.ablation`, {about['date']}, "
        f"revision {about['revision']}, dask {about['packages']['dask']}, load {load:.1f} before"
        f"{'; small sizes: not a measurement' if settings.quick else ''}.",
        "",
    ]
    for name, (unit, value) in MEASURES.items():
        rows = [_header(name, unit), ["---", *["---:"] * len(VARIANTS)]]
        rows += [_row(one, value, name) for one in results]
        lines += [f"## {name}", "", *report.table(rows), ""]
    return "\n".join([*lines, "## Verdict", "", *(_verdict(results, rule) for rule in RULES), ""])


def _header(name: str, unit: str) -> list[str]:
    names = list(VARIANTS)
    return [name, f"{names[0]}{f' ({unit})' if unit else ''}", *names[1:]]


def _row(result: ScenarioResult, value: Callable[[Figures], float], name: str) -> list[str]:
    every, *others = result.figures
    cells = [_ratio(one, every, name) for one in others]
    first = f"{value(every):.4g}" if every.seconds else "failed"
    return [
        f"`{result.scenario}`",
        first,
        *("failed" if math.isinf(cell) else f"{cell:.2f}" for cell in cells),
    ]


def _ratio(one: Figures, every: Figures, name: str) -> float:
    _, value = MEASURES[name]
    if not one.seconds:
        return math.inf  # it ran out of memory
    mine, all_rules = value(one), value(every)
    if name == "memory":
        mine, all_rules = max(mine, LEAST_MEMORY), max(all_rules, LEAST_MEMORY)
    return mine / all_rules


def _verdict(results: Sequence[ScenarioResult], rule: str) -> str:
    best = {
        name: max((_without(rule, name, one), one.scenario) for one in results) for name in MEASURES
    }
    pays = any(ratio > 1 + LEAST for ratio, _ in best.values())
    told = ", ".join(f"{name} {ratio:.2f} (`{where}`)" for name, (ratio, where) in best.items())
    return f"- **{rule}** {'pays' if pays else 'does not pay'}: at most {told}"


def _without(rule: str, name: str, result: ScenarioResult) -> float:
    every, *others = result.figures
    (figures,) = (one for one in others if one.contender == f"without {rule}")
    return _ratio(figures, every, name)


if __name__ == "__main__":
    main()
