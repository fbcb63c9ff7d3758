"""`write_dense`: an array in memory to a new file."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks import grids, peers, writers
from benchmarks.arrays import ArrayData, Index, chunk_slices
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


CASE = Case("write_dense", "write a float64 array from memory, without and with fsync", scenarios)


def _scenario(array: ArrayData, name: str, synced: bool) -> Scenario:
    dask_array = partial(writers.from_memory, array)
    return Scenario(
        name=name,
        title=f"{array.title()}; {writers.how_synced(synced)}",
        datasets=(),
        contenders=(
            writers.b2nd_dask(dask_array, array, synced=synced),
            writers.dask_to_zarr(dask_array, array, synced=synced),
            writers.dask_to_zarr(dask_array, array, synced=synced, empty_check=False),
            writers.python_blosc2(partial(_blosc2_writer, array), array, synced=synced),
            writers.raw_limit(partial(_chunks, array), array, synced=synced),
        ),
        targets=(
            speedup_over(peers.PYTHON_BLOSC2, 1.2),
            speedup_over(writers.TO_ZARR, 1.6),
            speedup_over(writers.TO_ZARR_UNCHECKED, 1.6),
            times_as_long_as(peers.RAW_LIMIT, 1.2),
        ),
        observe=partial(writers.require_equal, array.pieces),
        writes=True,
    )


def _blosc2_writer(array: ArrayData, paths: Paths, threads: int) -> Callable[..., Any]:
    import blosc2

    return partial(blosc2.asarray, array.in_memory())


def _chunks(
    array: ArrayData, paths: Paths, threads: int
) -> Callable[[], Iterator[Callable[[], NDArray[Any]]]]:
    items = array.in_memory()

    def chunk(where: Index) -> NDArray[Any]:
        return np.ascontiguousarray(items[where])

    slices = chunk_slices(array.shape, array.chunks)
    return lambda: (partial(chunk, where) for where in slices)
