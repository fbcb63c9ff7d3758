"""Results as JSON and as Markdown."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.model import Figures, ScenarioResult

CONDITIONS = (
    "Each contender works in a process of its own, all with {threads} threads. One warm-up, after "
    "which results are compared; then {repeat} rounds in which the contenders take turns. Data is "
    "in the page cache (warm). Time is the median of the rounds and its spread, CPU the median of "
    "the time of all cores. Memory is how far resident memory rose at its peak above the process "
    "with its libraries imported (and what it writes from memory made), and the peak itself. "
    "Files are written anew in each round and removed after it. What was written before may still "
    "be on its way to the disk meanwhile: times with an fsync vary with it."
)


def write(
    folder: Path, run: Mapping[str, Any], results: Sequence[ScenarioResult], text: str
) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    scenarios = [_as_json(result) for result in results]
    document = {**run, "scenarios": scenarios}
    (folder / "results.json").write_text(json.dumps(document, indent=2) + "\n")
    (folder / "results.md").write_text(text)


def markdown(run: Mapping[str, Any], results: Sequence[ScenarioResult]) -> str:
    machine = run["machine"]
    versions = ", ".join(f"{name} {version}" for name, version in machine["packages"].items())
    lines = [
        "# Benchmarks",
        "",
        CONDITIONS.format(**run),
        "",
        f"- `{machine['command']}`, {machine['date']}, revision {machine['revision']}",
        f"- {machine['cpu']}, {machine['usable_cores']} cores, "
        f"{machine['memory_bytes'] / 1e9:.0f} GB, load {run['load_before']:.1f} before and "
        f"{run['load_after']:.1f} after",
        f"- {machine['system']}, Python {machine['python']}, {versions}",
        "",
    ]
    for result in results:
        lines += _section(result)
    return "\n".join(lines)


def _as_json(result: ScenarioResult) -> dict[str, Any]:
    document = asdict(result)
    for one, figures in zip(document["figures"], result.figures, strict=True):
        one["median_seconds"] = figures.median
        one["ratio"] = figures.median / _reference(result).median
    return document


def _reference(result: ScenarioResult) -> Figures:
    """What ratios are relative to: the first of ours."""
    return next(figures for figures in result.figures if figures.is_ours)


def _section(result: ScenarioResult) -> list[str]:
    reference = _reference(result)
    header = ["contender", "time", "min .. max", "CPU", f"time / {reference.contender}"]
    rows = [[*header, "memory", "peak", "written"], ["---", *["---:"] * 7]]
    rows += [_figures_row(figures, reference) for figures in result.figures]
    if not any(figures.written for figures in result.figures):
        rows = [row[:-1] for row in rows]
    lines = [f"## {result.case}: {result.scenario}", "", f"{result.title}.", "", *_table(rows)]
    if result.verdicts:
        verdicts = [["target", "contender", "value", ""], ["---", "---", "---:", "---"]]
        verdicts += [
            [
                verdict.target,
                verdict.contender,
                f"{verdict.value:.3g}",
                "reached" if verdict.is_reached else "**not reached**",
            ]
            for verdict in result.verdicts
        ]
        lines += ["", *_table(verdicts)]
    return [*lines, ""]


def _figures_row(figures: Figures, reference: Figures) -> list[str]:
    cpu = sorted(figures.cpu_seconds)[len(figures.cpu_seconds) // 2]
    return [
        figures.contender,
        _ms(figures.median),
        f"{_ms(min(figures.seconds))} .. {_ms(max(figures.seconds))}",
        _ms(cpu),
        f"{figures.median / reference.median:.2f}",
        f"+{figures.growth / 1e6:.0f} MB",
        f"{figures.resident_peak / 1e6:.0f} MB",
        _bytes(figures.written),
    ]


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.3g} ms" if seconds < 1 else f"{seconds:.2f} s"


def _bytes(count: int) -> str:
    return f"{count / 1e6:.4g} MB" if count >= 1e6 else f"{count / 1e3:.3g} kB"


def _table(rows: Sequence[Sequence[str]]) -> list[str]:
    return [f"| {' | '.join(row)} |" for row in rows]
