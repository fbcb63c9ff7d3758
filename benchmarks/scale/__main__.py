"""Command line: `python -m benchmarks.scale measure | check | predict`."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path

import click

from benchmarks.report import table
from benchmarks.scale.costs import MEASURED, Cluster, Costs, Store, Workload
from benchmarks.scale.model import Prediction, predict

#: Of a task, as `chunks="auto"` makes them.
TASK_NBYTES = 128 << 20
CHUNK_NBYTES = 1 << 20
RATIO = 4.0
CHUNKS = (10**6, 10**8)
WORKERS = (100, 1000)

costs_option = click.option(
    "--costs", type=click.Path(exists=True, path_type=Path), default=MEASURED, show_default=True,
    help="What `measure` has written.",
)  # fmt: skip


@click.group()
def main() -> None:
    """What very large frames cost on clusters: measured steps, a model, real runs."""


@main.command()
@click.option("--output", type=click.Path(path_type=Path), default=MEASURED, show_default=True)
def measure(output: Path) -> None:
    """Measure the costs of single steps here, and keep them."""
    from benchmarks.scale.measure import measure as measured

    costs = measured(lambda text: click.echo(text, err=True))
    costs.save(output)
    click.echo(json.dumps(asdict(costs), indent=2))


@main.command()
@costs_option
def check(costs: Path) -> None:
    """Hold the model against real runs on 1, 2, 4 and 8 worker processes here."""
    from benchmarks.scale.check import check as checked

    rows = [["run", "workers", "predicted", "measured", "ratio", "requests: predicted", "counted"]]
    rows += [["---", *["---:"] * 6]]
    for one in checked(Costs.load(costs)):
        counted = [f"{n:g}" if n else "" for n in (one.predicted_requests, one.measured_requests)]
        rows.append(
            [one.name, str(one.workers), f"{one.predicted:.2f} s", f"{one.measured:.2f} s",
             f"{one.measured / one.predicted:.2f}", *counted]
        )  # fmt: skip
    click.echo("\n".join(table(rows)))


@main.command(name="predict")
@costs_option
@click.option("--chunk", type=int, default=CHUNK_NBYTES, show_default=True, help="Bytes.")
def predicted(costs: Path, chunk: int) -> None:
    """Compute time, memory and requests of large frames on large clusters over a store."""
    known, store = Costs.load(costs), Store()
    header = ["chunks", "workers", "work", "time", "longest step", "tasks", "requests", "client",
              "scheduler", "worker", "worker that commits", "limits"]  # fmt: skip
    rows = [header, ["---:", "---:", "---", "---:", "---", *["---:"] * 6, "---"]]
    steps = []
    for work, cluster in _cases(chunk):
        prediction = predict(work, cluster, known, store)
        name = "x * 2 + 1" if work.writes else "sum"
        rows.append([f"{work.chunks:,}", f"{cluster.workers:,}", name, *_cells(prediction)])
        lasting = ", ".join(
            f"{step} {_time(seconds)}" for step, seconds in prediction.steps.items() if seconds
        )
        steps.append(f"- {work.chunks:,} chunks, {cluster.workers:,} workers, {name}: {lasting}")
    click.echo("\n".join([*table(rows), "", *steps]))


def _cases(chunk: int) -> Iterator[tuple[Workload, Cluster]]:
    for chunks in CHUNKS:
        for workers in WORKERS:
            work = Workload(chunks, chunk, RATIO, max(1, TASK_NBYTES // chunk))
            yield work, Cluster(workers)
            yield replace(work, writes=True), Cluster(workers)


def _cells(prediction: Prediction) -> list[str]:
    longest = max(prediction.steps, key=lambda name: prediction.steps[name])
    return [
        _time(prediction.seconds),
        longest,
        f"{prediction.tasks:,}",
        f"{prediction.requests:.3g}",
        _size(prediction.client_nbytes),
        _size(prediction.scheduler_nbytes),
        _size(prediction.tasks_nbytes),
        _size(prediction.worker_nbytes),
        "; ".join(prediction.limits),
    ]


def _time(seconds: float) -> str:
    if seconds >= 7200:
        return f"{seconds / 3600:.1f} h"
    return f"{seconds / 60:.0f} min" if seconds >= 600 else f"{seconds:.3g} s"


def _size(nbytes: float) -> str:
    return f"{nbytes / 1e9:.1f} GB" if nbytes >= 1e9 else f"{nbytes / 1e6:.0f} MB"


if __name__ == "__main__":
    main()
