"""Run batches of mutated frames and collect the findings."""

from __future__ import annotations

import json
import signal
from typing import TYPE_CHECKING, Any, NamedTuple

from tests.forked import run_to_end
from tests.fuzz.files import Files, to_text
from tests.fuzz.probe import run_cases

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

SECONDS = 800
"""Seconds for a process; a single case has a shorter limit."""


class Finding(NamedTuple):
    """A case that ended neither with values nor with a documented error."""

    number: int
    what: str


def store_seeds(seeds: dict[str, Files], path: Path) -> Path:
    """Store frames for the processes that read them."""
    texts = {name: to_text(files) for name, files in seeds.items()}
    path.write_text(json.dumps(texts), "ascii")
    return path


def run_batch(seeds: Path, seed: int, first: int, count: int) -> Iterator[Finding]:
    """Run mutations in separate processes; continue after each case that ends its process."""
    stop = first + count
    while first < stop:
        lines, how = _run(seeds, (seed, first, stop - first))
        yield from _findings(lines, how)
        first = stop if how is None else _last_begun(lines, how) + 1


def run_kept(cases: Sequence[Path], folder: Path) -> Iterator[Finding]:
    """Run stored cases unchanged, in one process."""
    path = folder / "cases.json"
    path.write_text(json.dumps({p.stem: p.read_text("ascii") for p in cases}), "ascii")
    yield from _findings(*_run(path, None))


def _run(
    path: Path, mutations: tuple[int, int, int] | None
) -> tuple[list[dict[str, Any]], str | None]:
    """Run a process; return its findings, and its exit if it failed."""
    ended = run_to_end(run_cases, path, mutations, seconds=SECONDS)
    lines = [json.loads(line) for line in ended.stdout.splitlines() if line.startswith("{")]
    if any("finished" in line for line in lines):
        return lines, None
    how = signal.Signals(-ended.code).name if ended.code < 0 else f"exit code {ended.code}"
    return lines, f"the process ended: {how} {ended.stderr[-3000:]}"


def _findings(lines: list[dict[str, Any]], how: str | None) -> Iterator[Finding]:
    yield from (Finding(line["found"], line["what"]) for line in lines if "found" in line)
    if how is not None:
        yield Finding(_last_begun(lines, how), how)


def _last_begun(lines: list[dict[str, Any]], how: str) -> int:
    begun = [line["begun"] for line in lines if "begun" in line]
    if not begun:
        raise RuntimeError(how)
    return int(begun[-1])
