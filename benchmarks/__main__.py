"""Command line of the benchmarks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.table import Table

from benchmarks import machine, plots, report, summary
from benchmarks.cases import CASES
from benchmarks.harness import DisagreementError, Settings, run_case
from benchmarks.model import ScenarioResult
from benchmarks.worker import WorkerError

HERE = Path(__file__).parent


def _list_cases(context: click.Context, _: click.Parameter, wanted: bool) -> None:
    if not wanted:
        return
    table = Table("case", "scenario", "what")
    for case in CASES.values():
        note = "" if case.by_default else " (only when named)"
        table.add_row(case.name, "", case.title + note, style="bold")
        for scenario in case.scenarios(False):
            table.add_row("", scenario.name, scenario.title)
    Console().print(table)
    context.exit()


@click.command()
@click.argument("cases", metavar="[CASE]...", nargs=-1, type=click.Choice(list(CASES)))
@click.option(
    "--list", is_flag=True, is_eager=True, expose_value=False, callback=_list_cases,
    help="Show the cases and end.",
)  # fmt: skip
@click.option(
    "--results", "sources", type=click.Path(exists=True, dir_okay=False, path_type=Path),
    multiple=True, help="Make RESULTS.md and its plots from the results.json of runs and end.",
)  # fmt: skip
@click.option(
    "--into", type=click.Path(exists=True, file_okay=False, path_type=Path), default=HERE,
    help="Where RESULTS.md goes.",
)  # fmt: skip
@click.option("--quick", is_flag=True, help="Small sizes: a trial of the code, not a measurement.")
@click.option(
    "--repeat", type=click.IntRange(min=0), default=7, show_default=True,
    help="Rounds behind the first run; with 0 that one counts.",
)  # fmt: skip
@click.option(
    "--threads", type=click.IntRange(min=1), default=machine.usable_cores,
    help="Threads of every contender; by default, the cores.",
)  # fmt: skip
@click.option(
    "--seed", type=int, default=0, show_default=True,
    help="Of the order in which contenders take turns, which is shuffled in each round.",
)  # fmt: skip
@click.option(
    "--scenario", metavar="TEXT", default="", help="Only those of which the name holds the text.",
)  # fmt: skip
@click.option(
    "--data", type=click.Path(file_okay=False, path_type=Path), default=HERE / "data",
    help="Where data is made and kept.",
)  # fmt: skip
@click.option(
    "--output", type=click.Path(file_okay=False, path_type=Path), default=HERE / "results",
    help="Where results.json, results.md and the plots go; written after each case.",
)  # fmt: skip
def main(
    cases: tuple[str, ...], output: Path, sources: tuple[Path, ...], into: Path, **options: Any
) -> None:
    """Measure b2nd_dask beside its peers: the usual cases, or those named."""
    if sources:
        for path in summary.write(into, sources):
            click.echo(path)
        return
    settings = Settings(**options)
    run = {
        "machine": machine.describe(),
        "quick": settings.quick,
        "repeat": settings.repeat,
        "threads": settings.threads,
        "seed": settings.seed,
        "page_cache": "warm",
        "memory_used_before": True,
        "load_before": machine.load(),
    }
    progress = Console(stderr=True)
    results: list[ScenarioResult] = []
    text = ""
    try:
        for name in cases or [case.name for case in CASES.values() if case.by_default]:
            results += run_case(CASES[name], settings, progress.print)
            run["load_after"] = machine.load()
            text = report.markdown(run, results)
            # after each case: a run takes long, and a later one may fail
            report.write(output, run, results, text)
    except (DisagreementError, WorkerError) as error:
        raise click.ClickException(str(error)) from None
    plots.write(output / "plots", results)
    click.echo(text)


if __name__ == "__main__":
    main()
