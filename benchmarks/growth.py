"""How time and memory grow: ``python -m benchmarks.growth RESULTS.JSON...`` writes GROWTH.md.

The figures come from runs of ``python -m benchmarks growth_chunks growth_layers ...``.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from pathlib import Path

import click

from benchmarks import plots, report
from benchmarks.cases import CASES
from benchmarks.cases.growth import DASK_ALONE
from benchmarks.model import ScenarioResult

HERE = Path(__file__).parent
#: Slopes up to this are called linear: times of a busy machine scatter.
LINEAR = 1.1

HEAD = """\
# How time and memory grow

Each graph is computed twice: as this package optimizes it, and by dask alone (the same graph with
`b2nd_dask.optimize` off), which stops at sizes that take minutes. A cell has the figure of the
largest graph and, in brackets, the slope: the power with which the figure grows, fitted to the
upper half of the points. A slope of 1 is linear. CPU time is that of all threads. Memory is the
rise of resident memory, at its peak and before the first task. Each graph has its own process.

Made by `python -m benchmarks.growth` from runs of `python -m benchmarks growth_chunks` and its
like, {date}, {cpu}, {usable_cores} cores, Python {python}, dask {dask}{quick}.

"""


def markdown(results: Sequence[ScenarioResult]) -> str:
    """The tables of each case, and the measures that grow faster than the graph."""
    lines, steep = list[str](), list[str]()
    for case, group in groupby(results, lambda result: result.case):
        members = list(group)
        lines += [f"## {CASES[case].title.capitalize()}", ""]
        lines += [*report.table(list(_rows(members))), "", f"![{case}](plots/{case}.png)", ""]
        steep += [f"- `{case}`, {line}" for line in _steep(members)]
    verdict = ["## Above linear", "", *(steep or ["Nothing."]), ""]
    return "\n".join([*lines, *verdict])


def _rows(results: Sequence[ScenarioResult]) -> Iterator[list[str]]:
    names = plots.measures(results)
    yield ["graph", results[0].axis or "", *names]
    yield ["---", *["---:"] * (1 + len(names))]
    for contender in _contenders(results):
        points = {name: plots.line(results, contender, name) for name in names}
        largest = f"{points[names[0]][-1][0]:,.0f}"
        yield [contender, largest, *(_cell(line) for line in points.values())]


def _cell(line: Sequence[tuple[float, float]]) -> str:
    told = f"{line[-1][1]:.3g}"
    return f"{told} ({plots.slope(line):.2f})" if line[1:] else told


def _steep(results: Sequence[ScenarioResult]) -> Iterator[str]:
    """Our measures that grow faster than the graph, each with the slope of dask alone."""
    for contender in _contenders(results):
        both = () if contender.startswith(DASK_ALONE) else (contender, DASK_ALONE + contender)
        for name in plots.measures(results) if both else ():
            lines = [plots.line(results, each, name) for each in both]
            lines = [line for line in lines if line[1:]]
            if lines and plots.slope(lines[0]) > LINEAR:
                told = (f"{plots.slope(line):.2f} up to {line[-1][0]:,.0f}" for line in lines)
                yield f"{contender}: {name} {', dask alone '.join(told)}"


def _contenders(results: Sequence[ScenarioResult]) -> list[str]:
    return list(dict.fromkeys(one.contender for result in results for one in result.figures))


@click.command()
@click.argument("sources", nargs=-1, required=True, type=click.Path(exists=True, path_type=Path))
@click.option("--into", type=click.Path(file_okay=False, path_type=Path), default=HERE)
def main(sources: tuple[Path, ...], into: Path) -> None:
    """Make GROWTH.md and its plots from the results.json of runs of the cases `growth_*`."""
    runs, parts = zip(*map(report.read, sources), strict=True)
    results = [result for part in parts for result in part]
    plots.write(into / "plots", results)
    machine, quick = runs[-1]["machine"], any(run["quick"] for run in runs)
    told = "; small sizes: not a measurement" if quick else ""
    head = HEAD.format(**machine, dask=machine["packages"]["dask"], quick=told)
    (into / "GROWTH.md").write_text(head + markdown(results))
    click.echo(into / "GROWTH.md")


if __name__ == "__main__":
    main()
