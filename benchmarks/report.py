"""Results as JSON and Markdown, and their parser from JSON."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

from benchmarks.model import Figures, ScenarioResult, Verdict

JSON_NAME = "results.json"

CONDITIONS = (
    "Each contender runs in a process of its own, with {threads} threads. A warm-up comes first, "
    "and its results are compared. Then come {repeat} rounds, in which the contenders take turns "
    "in shuffled order (with 0 rounds, the first run counts). Data is in the page cache (warm). "
    "Time is the median of the rounds and its spread, CPU the median of the time of all cores. "
    "Memory is the peak of resident memory, and its rise above the process with its libraries "
    "imported and the arrays made that it writes. Each run opens its file anew, and no contender "
    "keeps decoded data between runs; this package keeps the parsed metadata of local frames and "
    "checks that they are unchanged. Files get a new name in each run and are removed after it. "
    "Before a run that writes, dirty pages of the page cache are written to the disk. These two "
    "steps are not timed. “Memory used before”: if a contender needs over 256 MiB, another process "
    "used as much before each run, so none waits for memory that the virtual machine has given "
    "back to its host."
)


def write(
    folder: Path, run: Mapping[str, Any], results: Sequence[ScenarioResult], text: str
) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    scenarios = [_as_json(result) for result in results]
    document = {**run, "scenarios": scenarios}
    (folder / JSON_NAME).write_text(json.dumps(document, indent=2) + "\n")
    (folder / "results.md").write_text(text)


def read(path: Path) -> tuple[dict[str, Any], list[ScenarioResult]]:
    """Read the run and its results, as written by `write`."""
    document = json.loads(path.read_text())
    return document, [_from_json(one) for one in document.pop("scenarios")]


def markdown(run: Mapping[str, Any], results: Sequence[ScenarioResult]) -> str:
    lines = ["# Benchmarks", "", *conditions([run])]
    for result in results:
        lines += section(result)
    return "\n".join(lines)


def conditions(runs: Sequence[Mapping[str, Any]]) -> list[str]:
    """The method, with the machine of the last run."""
    last = runs[-1]
    machine = last["machine"]
    versions = ", ".join(f"{name} {version}" for name, version in machine["packages"].items())
    return [
        CONDITIONS.format(**last),
        "",
        *map(_command, runs),
        *(["- Scenarios that several of these measured: as the last one did"] if runs[1:] else []),
        f"- {machine['cpu']}, {machine['usable_cores']} cores, "
        f"{machine['memory_bytes'] / 1e9:.0f} GB",
        f"- {machine['system']}, Python {machine['python']}, {versions}",
        "",
    ]


def _command(run: Mapping[str, Any]) -> str:
    machine = run["machine"]
    described = (
        f"- `{machine['command']}`, {machine['date']}, revision {machine['revision']}, load "
        f"{run['load_before']:.1f} before and {run['load_after']:.1f} after"
    )
    if run["memory_used_before"]:
        described += "; memory used before"
    return described


def section(result: ScenarioResult) -> list[str]:
    """One scenario: its figures, omitted contenders, verdicts on targets."""
    lines = [
        f"## {result.case}: {result.scenario}",
        "",
        f"{result.title}.",
        "",
        *table(_figures_rows(result)),
    ]
    if result.dirty_bytes is not None:
        lines += [
            "",
            f"Dirty in the page cache before a run: at most {_bytes(result.dirty_bytes)}.",
        ]
    if result.left_out:
        lines += ["", *(f"Left out: {line}." for line in result.left_out)]
    if result.verdicts:
        rows = [["target", "contender", "value", ""], ["---", "---", "---:", "---"]]
        rows += [[verdict.target, *verdict_cells(verdict)] for verdict in result.verdicts]
        lines += ["", *table(rows)]
    return [*lines, ""]


def verdict_cells(verdict: Verdict) -> list[str]:
    reached = "reached" if verdict.is_reached else "**not reached**"
    return [verdict.contender, f"{verdict.value:.3g}", reached]


def reference(result: ScenarioResult) -> Figures | None:
    """The reference of ratios: the first of our contenders with times."""
    return next((one for one in result.figures if one.is_ours and one.seconds), None)


def table(rows: Sequence[Sequence[str]]) -> list[str]:
    return [f"| {' | '.join(row)} |" for row in rows]


def _as_json(result: ScenarioResult) -> dict[str, Any]:
    document = asdict(result)
    ours = reference(result)
    for one, figures in zip(document["figures"], result.figures, strict=True):
        # JSON has no infinity
        one["median_seconds"] = figures.median if figures.seconds else None
        one["ratio"] = figures.median / ours.median if figures.seconds and ours else None
    for verdict in document["verdicts"]:
        verdict["value"] = verdict["value"] if math.isfinite(verdict["value"]) else None
    return document


def _from_json(document: dict[str, Any]) -> ScenarioResult:
    names = {one.name for one in fields(Figures)}
    figures = [
        Figures(**{name: value for name, value in one.items() if name in names})
        for one in document["figures"]
    ]
    verdicts = [
        Verdict(**{**one, "value": math.inf if one["value"] is None else one["value"]})
        for one in document["verdicts"]
    ]
    return ScenarioResult(**{**document, "figures": figures, "verdicts": verdicts})


def _figures_rows(result: ScenarioResult) -> list[list[str]]:
    ours = reference(result)
    counted = list(dict.fromkeys(what for figures in result.figures for what in figures.counts))
    written = any(figures.written for figures in result.figures)
    header = ["contender", "time", "min .. max", "CPU"]
    header += [f"time / {ours.contender if ours else 'ours'}", "memory", "peak", *counted]
    header += ["written"] if written else []
    rows = [header, ["---", *["---:"] * (len(header) - 1)]]
    for figures in result.figures:
        row = _figures_row(figures, ours)
        if figures.seconds:
            row += [
                _count(figures.counts[what]) if what in figures.counts else "" for what in counted
            ]
            row += [_bytes(figures.written)] if written else []
        rows.append(row + [""] * (len(header) - len(row)))
    return rows


def _figures_row(figures: Figures, ours: Figures | None) -> list[str]:
    if not figures.seconds:
        return [figures.contender, cell(figures)]
    return [
        figures.contender,
        _ms(figures.median),
        f"{_ms(min(figures.seconds))} .. {_ms(max(figures.seconds))}",
        _ms(_cpu(figures)),
        f"{figures.median / ours.median:.2f}" if ours else "",
        f"+{figures.growth / 1e6:.0f} MB",
        f"{figures.resident_peak / 1e6:.0f} MB",
    ]


def cell(figures: Figures) -> str:
    """Time, CPU time and memory of a contender."""
    if not figures.seconds:
        return f"failed: {figures.failure}".replace("|", "/")
    return f"{_ms(figures.median)}, {_ms(_cpu(figures))}, +{figures.growth / 1e6:.0f} MB"


def _cpu(figures: Figures) -> float:
    return sorted(figures.cpu_seconds)[len(figures.cpu_seconds) // 2]


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.3g} ms" if seconds < 1 else f"{seconds:.2f} s"


def _count(value: float) -> str:
    return f"{value:g}" if value == round(value) else f"{value:.3g}"


def _bytes(count: int) -> str:
    return f"{count / 1e6:.4g} MB" if count >= 1e6 else f"{count / 1e3:.3g} kB"
