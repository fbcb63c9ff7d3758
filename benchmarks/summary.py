"""`RESULTS.md`: a run's targets at a glance, its pictures, then every figure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks import plots, report
from benchmarks.model import ScenarioResult

NAME = "RESULTS.md"


def write(folder: Path, sources: Sequence[Path]) -> list[Path]:
    """Make the file and its pictures from the JSON of some runs; their paths.

    Of a scenario that several have measured the last counts.
    """
    runs, parts = zip(*map(report.read, sources), strict=True)
    results = list({(one.case, one.scenario): one for part in parts for one in part}.values())
    pictures = plots.write(folder / "plots", results)
    target = folder / NAME
    names = [str(path.relative_to(folder)) for path in pictures]
    target.write_text(_text(runs, results, names))
    return [target, *pictures]


def _text(
    runs: Sequence[Mapping[str, Any]], results: Sequence[ScenarioResult], pictures: list[str]
) -> str:
    quick = ["**A run with `--quick`: a trial of the code, not a measurement.**", ""]
    lines = ["# Benchmarks", "", *(quick if any(run["quick"] for run in runs) else [])]
    lines += report.conditions(runs)
    lines += ["## Targets", "", *report.table(_targets(results)), "", "## Plots", ""]
    # the overview, which is the last, comes first
    for name in reversed(pictures):
        lines += [f"![{Path(name).stem}]({name})", ""]
    for result in results:
        lines += report.section(result)
    return "\n".join(lines)


def _targets(results: Sequence[ScenarioResult]) -> list[list[str]]:
    rows = [["case", "target", "contender", "value", ""], ["---", "---", "---", "---:", "---"]]
    return rows + [
        [f"{result.case}: {result.scenario}", verdict.target, *report.verdict_cells(verdict)]
        for result in results
        for verdict in result.verdicts
    ]
