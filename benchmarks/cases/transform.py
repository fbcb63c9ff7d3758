"""`transform`: read an array, compute, and write the result, chunk by chunk."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from threading import local
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks import dense, peers, writers
from benchmarks.compression import COMPRESSIONS, Compression
from benchmarks.model import Case, Paths, Scenario
from benchmarks.targets import speedup_over, times_as_long_as


def scenarios(quick: bool) -> list[Scenario]:
    return [_scenario(how, dense.nchunks(quick)) for how in COMPRESSIONS]


CASE = Case("transform", "x*2+1 from a file to a new one of the same format", scenarios)


def _scenario(how: Compression, nchunks: int) -> Scenario:
    array = dense.array(how, nchunks)
    return Scenario(
        name=how.name,
        title=f"{dense.title(how, nchunks)}; b2nd_dask syncs the file to the disk before it gives "
        "it its name, the others leave that to the system unless marked",
        datasets=(array.b2nd, array.zarr),
        contenders=(
            writers.b2nd_dask(of_b2nd, how),
            writers.b2nd_dask(of_b2nd, how, synced=False),
            writers.dask_to_zarr(of_zarr, how),
            writers.dask_to_zarr(of_zarr, how, empty_check=False),
            writers.python_blosc2(_blosc2_writer, how),
            writers.raw_limit(_decoders, how),
            writers.raw_limit(_decoders, how, synced=True),
        ),
        targets=(
            speedup_over(writers.TO_ZARR, 1.6),
            speedup_over(writers.TO_ZARR_UNCHECKED, 1.6),
            times_as_long_as(writers.RAW_LIMIT_SYNCED, 1.25),
        ),
        observe=partial(writers.require_equal, partial(expected, nchunks)),
        writes=True,
    )


def transformed(array: Any) -> Any:
    return array * 2 + 1


def expected(nchunks: int) -> Iterator[tuple[slice, NDArray[np.float64]]]:
    for where, items in dense.values(nchunks):
        yield where, transformed(items)


def of_b2nd(paths: Paths, threads: int) -> Any:
    from b2nd_dask import from_b2nd

    return transformed(from_b2nd(paths["b2nd"]))


def of_zarr(paths: Paths, threads: int) -> Any:
    import dask.array as da

    return transformed(da.from_zarr(str(paths["zarr"])))


def _blosc2_writer(paths: Paths, threads: int) -> Callable[..., Any]:
    opened = peers.blosc2_opener(paths, threads)
    return lambda **options: transformed(opened()).compute(**options)


def _decoders(paths: Paths, threads: int) -> list[Callable[[], NDArray[np.float64]]]:
    """Functions that decode a chunk into this thread's buffer and compute there."""
    import blosc2

    array = blosc2.open(paths["b2nd"], mode="r")
    chunks = [array.schunk.get_chunk(i) for i in range(array.schunk.nchunks)]
    mine = local()

    def decoded(chunk: bytes) -> NDArray[np.float64]:
        if not hasattr(mine, "items"):
            mine.items = np.empty(dense.CHUNK)
        blosc2.decompress2(chunk, dst=mine.items.view(np.uint8), nthreads=1)
        items: NDArray[np.float64] = mine.items
        items *= 2
        items += 1
        return items

    return [partial(decoded, chunk) for chunk in chunks]
