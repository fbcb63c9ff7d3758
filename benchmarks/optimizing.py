"""What optimizing a graph costs beside dask's own: ``python -m benchmarks.optimizing``.

CPU time of this process, the least of some runs in turns: the load of a machine changes it less
than wall time. Nothing is computed.
"""

from __future__ import annotations

import gc
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import click
import dask.array as da
from dask.highlevelgraph import HighLevelGraph
from rich.console import Console
from rich.table import Table

from b2nd_dask import from_b2nd, to_b2nd

Graph = list[da.Array]


def frames(folder: Path, scale: int) -> tuple[Path, Path]:
    """A frame of four chunks, and one of many."""
    small, grid = folder / "small.b2nd", folder / "grid.b2nd"
    to_b2nd(da.ones((100, 100), chunks=(25, 100)), small, chunks=(25, 100))
    side = 100 * scale
    to_b2nd(da.ones((side, side), chunks=10), grid, chunks=(10, 10))
    return small, grid


def programs(small: Path, grid: Path, scale: int) -> Iterator[tuple[str, Graph]]:
    """Graphs of many layers, of many blocks, and of many frames."""
    x, y = from_b2nd(small), from_b2nd(grid)
    for count in (40 * scale, 160 * scale):
        yield f"{count} sums of one frame", [(x + i).sum() for i in range(count)]
    chain = x
    for _ in range(100 * scale):
        chain = chain + 1
    yield f"a chain of {100 * scale} layers", [chain]
    blocks = y.npartitions
    yield f"x.sum() of {blocks} chunks", [y.sum()]
    yield f"x * 2 + 1 of {blocks} chunks", [y * 2 + 1]
    yield f"(x - x.mean(axis=0)).std() of {blocks} chunks", [(y - y.mean(axis=0)).std()]
    yield f"(x * 2)[5:-5, ::3].sum(axis=0) of {blocks} chunks", [(y * 2)[5:-5, ::3].sum(axis=0)]
    yield f"x.rechunk(rows) * 2 of {blocks} chunks", [y.rechunk((10, -1)) * 2]


@click.command()
@click.option("--quick", is_flag=True, help="Small graphs: a trial, not a measurement.")
@click.option("--repeat", type=click.IntRange(min=1), default=5, show_default=True)
def main(quick: bool, repeat: int) -> None:
    """Optimize graphs by dask alone, and with the rules of this package."""
    table = Table("graph", "dask ms", "ours ms", "times", "tasks dask", "tasks ours")
    scale = 1 if quick else 10
    seconds: defaultdict[str, tuple[list[float], list[float]]] = defaultdict(lambda: ([], []))
    tasks: dict[str, list[str]] = {}
    with tempfile.TemporaryDirectory() as folder:
        paths = frames(Path(folder), scale)
        for _ in range(repeat):
            # each time of new graphs: layers remember the tasks that they once made
            for own, ours in zip(programs(*paths, scale), programs(*paths, scale), strict=True):
                name = own[0]
                # looked up here: the hook depends on dask's configuration
                optimizers = da.optimization.optimize, da.Array.__dask_optimize__
                found = [
                    _optimized(each, arrays)
                    for each, (_, arrays) in zip(optimizers, (own, ours), strict=True)
                ]
                for known, (taken, _) in zip(seconds[name], found, strict=True):
                    known.append(taken)
                tasks[name] = [str(count) for _, count in found]
    for name, both in seconds.items():
        dasks, mine = map(min, both)
        figures = f"{dasks * 1e3:.1f}", f"{mine * 1e3:.1f}", f"{mine / dasks:.2f}"
        table.add_row(name, *figures, *tasks[name])
    Console().print(table)


def _optimized(optimize: Callable[..., Any], arrays: Graph) -> tuple[float, int]:
    """The CPU time of optimizing the graph of some arrays, and how many tasks are left."""
    graph = HighLevelGraph.merge(*(array.dask for array in arrays))
    keys = [array.__dask_keys__() for array in arrays]
    gc.collect()
    start = time.process_time()
    made = optimize(graph, keys)
    return time.process_time() - start, len(made)


if __name__ == "__main__":
    main()
