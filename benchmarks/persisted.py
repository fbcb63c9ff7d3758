"""Memory and time of `persist_compressed`: ``python -m benchmarks.persisted``.

Compared with `dask.array.Array.persist` of the same blocks, in two threads; medians of five runs.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any

import dask
import dask.array as da
import numpy as np
from dask.sizeof import sizeof
from numpy.typing import NDArray

from b2nd_dask import persist_compressed
from b2nd_dask.edges.cli.demo import find_mask, land_bands
from b2nd_dask.frame.compressed import CompressedArray

RUNS = 5


def main() -> None:
    """Measure, and print a table in Markdown."""
    dask.config.set(scheduler="threads", num_workers=2)
    print("| elements | memory | persist | sum | slice |\n| --- | --- | --- | --- | --- |")
    for name, elements, chunks in datasets():
        print(f"| {name}, {elements.nbytes / 1e6:.0f} MB | {row(elements, chunks)} |")


def datasets() -> Iterator[tuple[str, NDArray[Any], tuple[int, int]]]:
    """Yield arrays to compress: a name, elements, and lengths of blocks."""
    mask = find_mask()
    if mask is not None:
        yield "land mask", next(land_bands(mask, 4320)), (720, 7200)
    rows, columns = np.ogrid[:6000, :4000]
    field = 280 + 20 * np.sin(columns / 200) * np.cos(rows / 150)
    noise = np.random.default_rng(0).normal(0, 0.3, field.shape)
    yield "temperatures as float64, rounded to 0.1", np.round(field + noise, 1), (1000, 1000)
    yield "the same as float32", np.round(field + noise, 1).astype("f4"), (1000, 1000)


def row(elements: NDArray[Any], chunks: tuple[int, int]) -> str:
    """Measure one array, plain and compressed."""
    x = da.from_array(elements, chunks=chunks)
    plain, persisted = timed(lambda: x.map_blocks(np.copy).persist())
    compressed, kept = timed(lambda: persist_compressed(x))
    nbytes = sum(sizeof(block) for block in held(kept))
    cells = [f"1/{elements.nbytes / nbytes:.1f}", f"{plain:.2f} -> {compressed:.2f} s"]
    for before, after in ((persisted.sum(), kept.sum()), (persisted[5:9, :99], kept[5:9, :99])):
        times = [timed(array.compute)[0] * 1e3 for array in (before, after)]
        cells.append(f"{times[0]:.1f} -> {times[1]:.1f} ms")
    return " | ".join(cells)


def held(array: da.Array) -> list[CompressedArray]:
    """List the compressed blocks of an array in this process."""
    found = (getattr(task, "value", task) for task in dict(array.__dask_graph__()).values())
    return [value for value in found if isinstance(value, CompressedArray)]


def timed(work: Callable[[], Any]) -> tuple[float, Any]:
    """Median time of some runs, and the last result."""
    times = []
    for _ in range(RUNS):
        start = time.perf_counter()
        result = work()
        times.append(time.perf_counter() - start)
    return statistics.median(times), result


if __name__ == "__main__":
    main()
