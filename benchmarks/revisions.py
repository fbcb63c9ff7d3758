"""Compare the speed of two revisions of the package in the same scenarios, in turns.

Run ``python -m benchmarks.revisions --old DIR [--new DIR] [CASE]...``: each DIR is a checkout, with
an interpreter that has its dependencies (DIR/.venv/bin/python, unless another is named). Contenders
of b2nd_dask work in processes of their checkout, by its own `benchmarks.worker`; both get the same
data. Ratios are medians of new / old over the rounds: load that lasts longer than a round slows
both.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from multiprocessing import Pipe
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple, Self

import click

from benchmarks import machine
from benchmarks.arrays import HDF5, ZARR
from benchmarks.cases import CASES
from benchmarks.datasets import ensure
from benchmarks.harness import (
    DisagreementError,
    Settings,
    absence,
    missing_module,
    require_agreement,
    target_folder,
)
from benchmarks.model import Case, Contender, Paths, Scenario
from benchmarks.report import table
from benchmarks.worker import Sample, Worker, WorkerError

HERE = Path(__file__).parent
#: Shorter runs are repeated within a round.
ROUND_SECONDS = 0.3
MOST_RUNS = 30
HEADER = (
    ("scenario", "contender", "old", "wall new/old", "CPU new/old", ""),
    ("---", "---", "---:", "---:", "---:", "---"),
)
#: Runs in the process of a revision; also works in older ones.
CHILD = """if True:
    import json, sys
    from multiprocessing.connection import Connection
    from pathlib import Path
    from benchmarks.worker import Task, _serve
    task = json.loads(sys.argv[2])
    paths = {name: Path(path) for name, path in task.pop("paths").items()}
    _serve(Connection(int(sys.argv[1])), Task(paths=paths, **task))
"""


@dataclass(frozen=True)
class Revision:
    folder: Path
    python: Path

    @classmethod
    def of(cls, folder: Path, python: Path | None) -> Self:
        return cls(folder.resolve(), python or folder.resolve() / ".venv/bin/python")


class Ratios(NamedTuple):
    """Ratios new / old, and the wall time of the old one in seconds."""

    wall: float
    cpu: float
    old_seconds: float


class CheckoutWorker(Worker):
    """A contender in a process of another checkout."""

    def __init__(self, revision: Revision, contender: str, task: dict[str, Any]) -> None:
        self.name = f"{contender} ({revision.folder})"
        self._connection, theirs = Pipe()
        with theirs:
            self._child = subprocess.Popen(
                [revision.python, "-c", CHILD, str(theirs.fileno()), json.dumps(task, default=str)],
                cwd=revision.folder,
                pass_fds=[theirs.fileno()],
            )

    def __exit__(self, *error: object) -> None:
        self._connection.close()
        try:
            self._child.wait(10)
        except subprocess.TimeoutExpired:
            self._child.kill()
            self._child.wait()


@dataclass(frozen=True)
class Comparison:
    """One contender of a scenario, by the old and by the new revision."""

    case: Case
    scenario: Scenario
    contender: Contender
    data: Paths
    settings: Settings

    def ratios(self, pair: Sequence[Revision]) -> Ratios:
        """Let the revisions take turns."""
        with ExitStack() as stack:
            workers = [
                stack.enter_context(CheckoutWorker(one, self.contender.name, self._task(stack)))
                for one in pair
            ]
            for worker in workers:
                worker.resident_before()
            first = [worker.warm_up() for worker in workers]
            names = [worker.name for worker in workers]
            require_agreement(self.scenario, names, [observed for _, observed in first])
            longest = max(sample.seconds for sample, _ in first)
            runs = min(MOST_RUNS, max(1, round(ROUND_SECONDS / longest)))
            rounds = [_round(workers, number, runs) for number in range(self.settings.repeat)]
        return Ratios(
            median(new.seconds / old.seconds for old, new in rounds),
            median(new.cpu_seconds / old.cpu_seconds for old, new in rounds),
            median(old.seconds for old, _ in rounds) / runs,
        )

    def _task(self, stack: ExitStack) -> dict[str, Any]:
        return {
            "case": self.case.name,
            "scenario": self.scenario.name,
            "contender": self.contender.name,
            "quick": self.settings.quick,
            "threads": self.scenario.threads or self.settings.threads,
            "paths": {**self.data, **target_folder(self.scenario, self.settings, stack)},
        }


def _round(workers: Sequence[Worker], number: int, runs: int) -> tuple[Sample, ...]:
    """The sums of some runs of each; they take turns to begin a round."""
    samples: dict[int, list[Sample]] = {i: [] for i in range(len(workers))}
    for _ in range(runs):
        for i in sorted(samples, reverse=number % 2 == 1):
            samples[i].append(workers[i].run())
    return tuple(
        Sample(sum(one.seconds for one in some), sum(one.cpu_seconds for one in some), 0, 0, {})
        for some in samples.values()
    )


def _comparisons(cases: Sequence[Case], settings: Settings) -> Iterator[Comparison]:
    for case in cases:
        for scenario in case.scenarios(settings.quick):
            data = {
                one.name: ensure(one, settings.data)
                for one in scenario.datasets
                # the other formats are for peers
                if one.name not in {ZARR, HDF5} and not missing_module(one.needs)
            }
            for contender in scenario.contenders:
                if contender.is_ours:
                    yield Comparison(case, scenario, contender, data, settings)


def _row(one: Comparison, pair: Sequence[Revision], tolerance: float) -> list[str]:
    named = [f"{one.case.name}: {one.scenario.name}", one.contender.name]
    if reason := absence(one.contender):
        return [*named, "", "", "", f"left out: {reason}"]
    try:
        found = one.ratios(pair)
    except WorkerError as error:
        return [*named, "", "", "", f"failed: {error.reason}".replace("|", "/")]
    slower = min(found.wall, found.cpu) > 1 + tolerance
    figures = [f"{found.old_seconds * 1e3:.4g} ms", f"{found.wall:.3f}", f"{found.cpu:.3f}"]
    return [*named, *figures, "**slower**" if slower else ""]


@click.command()
@click.argument("cases", metavar="[CASE]...", nargs=-1, type=click.Choice(list(CASES)))
@click.option("--old", type=click.Path(exists=True, file_okay=False, path_type=Path), required=True)
@click.option(
    "--new", type=click.Path(exists=True, file_okay=False, path_type=Path), default=HERE.parent
)
@click.option("--old-python", type=click.Path(exists=True, path_type=Path))
@click.option("--new-python", type=click.Path(exists=True, path_type=Path))
@click.option("--quick", is_flag=True, help="Small sizes.")
@click.option("--repeat", type=click.IntRange(min=1), default=9, show_default=True)
@click.option("--threads", type=click.IntRange(min=1), default=machine.usable_cores)
@click.option("--tolerance", default=0.03, show_default=True, help="What is marked as slower.")
@click.option(
    "--data", type=click.Path(file_okay=False, path_type=Path), default=HERE / "data",
    help="Where data is made and kept.",
)  # fmt: skip
def main(
    cases: tuple[str, ...],
    old: Path,
    new: Path,
    old_python: Path | None,
    new_python: Path | None,
    tolerance: float,
    **options: Any,
) -> None:
    """Compare two revisions by the usual cases, or those named."""
    pair = Revision.of(old, old_python), Revision.of(new, new_python)
    chosen = [CASES[name] for name in cases] or [one for one in CASES.values() if one.by_default]
    try:
        click.echo("\n".join(table(HEADER)))
        for one in _comparisons(chosen, Settings(**options)):
            click.echo(table([_row(one, pair, tolerance)])[0])
    except DisagreementError as error:
        raise click.ClickException(str(error)) from None


if __name__ == "__main__":
    main()
