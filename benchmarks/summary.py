"""`RESULTS.md`: the results of the cases, each contender in a column."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks import plots, report
from benchmarks.model import ScenarioResult

NAME = "RESULTS.md"


def write(folder: Path, sources: Sequence[Path]) -> list[Path]:
    """Make the file and its pictures from the JSON of some runs; return their paths.

    If several runs have a scenario, the last one counts.
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
    return "\n".join([*lines, *report.conditions(runs), *tables(results, pictures)])


def tables(results: Sequence[ScenarioResult], pictures: Sequence[str]) -> list[str]:
    """A table for each case: its scenarios below each other, contenders side by side."""
    verdicts = [verdict for result in results for verdict in result.verdicts]
    reached = sum(verdict.is_reached for verdict in verdicts)
    named = {Path(name).stem: name for name in pictures}
    lines = [
        "Cells are the median time, the CPU time of all cores, and how far memory rose. Of the "
        f"{len(verdicts)} targets that the cases state {reached} are reached: the results.md that "
        "each run leaves has them one by one, with the spread of times and what was counted. "
        "`python -m benchmarks --results RUN/results.json` makes this page of runs.",
        "",
    ]
    if "overview" in named:
        lines += [f"![overview]({named['overview']})", ""]
    for case in dict.fromkeys(result.case for result in results):
        members = [result for result in results if result.case == case]
        plot = f"; [plot]({named[case]})" if case in named else ""
        data = {one.title.rpartition("; ")[0] for one in members}
        shared = data.pop() if len(data) == 1 else ""
        told = f". {shared}." if shared else ""
        lines += [f"## {case}", "", f"`python -m benchmarks {case}`{plot}{told}", ""]
        lines += [*report.table(_rows(members, shared)), ""]
    return lines


def _rows(results: Sequence[ScenarioResult], shared: str) -> list[list[str]]:
    names = list(dict.fromkeys(one.contender for result in results for one in result.figures))
    rows = [["job", *names], ["---", *["---:"] * len(names)]]
    for result in results:
        found = {one.contender: report.cell(one) for one in result.figures}
        title = result.title.removeprefix(f"{shared}; ")
        rows.append([f"**{result.scenario}**: {title}", *(found.get(n, "") for n in names)])
    return rows
