"""`transform`: read an array, compute, and write the result, chunk by chunk."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from threading import local
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks import grids, peers, writers
from benchmarks.arrays import B2ND, ZARR, ArrayData, Index
from benchmarks.compression import COMPRESSIONS
from benchmarks.model import Case, Paths, Scenario
from benchmarks.targets import speedup_over, times_as_long_as


def scenarios(quick: bool) -> list[Scenario]:
    usual = [
        _scenario(grids.matrix(how, quick), writers.scenario_name(how, synced), synced)
        for synced in (False, True)
        for how in COMPRESSIONS
    ]
    return usual + [
        _scenario(grids.matrix_of_rows(how, quick, size), f"{how.name} {size} MB", False)
        for how in COMPRESSIONS
        for size in grids.CHUNK_MEGABYTES
    ]


CASE = Case("transform", "x * 2 + 1 from a file to a new one, without and with fsync", scenarios)


def _scenario(array: ArrayData, name: str, synced: bool) -> Scenario:
    return Scenario(
        name=name,
        title=f"{array.title()}; {writers.how_synced(synced)}",
        datasets=(array.b2nd, array.zarr),
        contenders=(
            writers.b2nd_dask(of_b2nd, array, synced=synced),
            writers.dask_to_zarr(of_zarr, array, synced=synced),
            writers.dask_to_zarr(of_zarr, array, synced=synced, empty_check=False),
            writers.python_blosc2(_blosc2_writer, array, synced=synced),
            writers.raw_limit(partial(_decoders, array), array, synced=synced),
        ),
        targets=(
            speedup_over(writers.TO_ZARR, 1.6),
            speedup_over(writers.TO_ZARR_UNCHECKED, 1.6),
            times_as_long_as(peers.RAW_LIMIT, 1.25),
        ),
        observe=partial(writers.require_equal, partial(expected, array)),
        writes=True,
    )


def transformed(array: Any) -> Any:
    return array * 2 + 1


def expected(array: ArrayData) -> Iterator[tuple[Index, NDArray[Any]]]:
    for where, items in array.pieces():
        yield where, transformed(items)


def of_b2nd(paths: Paths, threads: int) -> Callable[[], Any]:
    from b2nd_dask import from_b2nd

    return lambda: transformed(from_b2nd(paths[B2ND]))


def of_zarr(paths: Paths, threads: int) -> Callable[[], Any]:
    import dask.array as da

    return lambda: transformed(da.from_zarr(str(paths[ZARR])))


def _blosc2_writer(paths: Paths, threads: int) -> Callable[..., Any]:
    opened = peers.blosc2_opener(paths, threads)
    return lambda **options: transformed(opened()).compute(**options)


def _decoders(
    array: ArrayData, paths: Paths, threads: int
) -> Callable[[], Iterator[Callable[[], NDArray[Any]]]]:
    """Functions that decode a chunk into this thread's buffer and compute there.

    The blocks of a chunk follow each other as its elements do, since they span its last axis.
    """
    import blosc2

    opened = blosc2.open(paths[B2ND], mode="r")
    chunks = [opened.schunk.get_chunk(i) for i in range(opened.schunk.nchunks)]
    mine = local()

    def decoded(chunk: bytes) -> NDArray[Any]:
        if not hasattr(mine, "items"):
            mine.items = np.empty(array.chunks, array.dtype)
        items: NDArray[Any] = mine.items
        blosc2.decompress2(chunk, dst=items.reshape(-1).view(np.uint8), nthreads=1)
        items *= 2
        items += 1
        return items

    return lambda: (partial(decoded, chunk) for chunk in chunks)
