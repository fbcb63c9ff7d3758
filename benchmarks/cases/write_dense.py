"""`write_dense`: an array in memory to a new file."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks import dense, writers
from benchmarks.compression import COMPRESSIONS, Compression
from benchmarks.model import Case, Paths, Scenario
from benchmarks.targets import speedup_over, times_as_long_as


def scenarios(quick: bool) -> list[Scenario]:
    return [_scenario(how, dense.nchunks(quick)) for how in COMPRESSIONS]


CASE = Case("write_dense", "write a dense float64 array from memory", scenarios)


def _scenario(how: Compression, nchunks: int) -> Scenario:
    dask_source = partial(_dask_array, nchunks)
    return Scenario(
        name=how.name,
        title=f"{dense.title(how, nchunks)}; b2nd_dask syncs the file to the disk before it gives "
        "it its name, the others leave that to the system unless marked",
        datasets=(),
        contenders=(
            writers.b2nd_dask(dask_source, how),
            writers.b2nd_dask(dask_source, how, synced=False),
            writers.dask_to_zarr(dask_source, how),
            writers.dask_to_zarr(dask_source, how, empty_check=False),
            writers.python_blosc2(partial(_blosc2_writer, nchunks), how),
            writers.raw_limit(partial(_chunks, nchunks), how),
            writers.raw_limit(partial(_chunks, nchunks), how, synced=True),
        ),
        targets=(
            speedup_over(writers.TO_ZARR, 1.5),
            speedup_over(writers.TO_ZARR_UNCHECKED, 1.5),
            times_as_long_as(writers.PYTHON_BLOSC2, 1.0),
            times_as_long_as(writers.RAW_LIMIT, 1.25),
            times_as_long_as(writers.RAW_LIMIT_SYNCED, 1.25),
        ),
        observe=partial(writers.require_equal, partial(dense.values, nchunks)),
        writes=True,
    )


def _dask_array(nchunks: int, paths: Paths, threads: int) -> Any:
    import dask.array as da

    return da.from_array(dense.in_memory(nchunks), chunks=dense.CHUNK)


def _blosc2_writer(nchunks: int, paths: Paths, threads: int) -> Callable[..., Any]:
    import blosc2

    return partial(blosc2.asarray, dense.in_memory(nchunks))


def _chunks(nchunks: int, paths: Paths, threads: int) -> list[Callable[[], NDArray[np.float64]]]:
    rows = dense.in_memory(nchunks).reshape(nchunks, dense.CHUNK)
    return [partial(rows.__getitem__, i) for i in range(nchunks)]
