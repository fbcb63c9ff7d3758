"""h5py with the blosc2 filter of hdf5plugin, alone and under dask."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from benchmarks.arrays import HDF5, HDF5_NAME
from benchmarks.model import Contender, Paths, Run
from benchmarks.peers import Work, use_dask_threads

H5PY = "h5py (blosc2 filter)"
FROM_H5PY = "da.from_array(h5py)"
NEEDS = ("h5py", "hdf5plugin")
#: HDF5's cache of decoded chunks, of 1 MB by default, would hold none of these files' chunks, so
#: that reads of a few elements would decode the same chunk again and again.
CHUNK_CACHE = 64 * 2**20


def h5py_alone(work: Work) -> Contender:
    """HDF5 has a lock of its own; the filter decodes with threads. `work` gets the dataset."""

    def prepare(paths: Paths, threads: int) -> Run:
        read = _reader(paths, threads)
        return lambda: read(work)

    return Contender(H5PY, prepare, needs=NEEDS)


def dask_from_h5py(work: Work, *, chunks: Any = None) -> Contender:
    """By default one task for each chunk. `work` gets the dask array and computes."""

    def prepare(paths: Paths, threads: int) -> Run:
        import dask.array as da

        use_dask_threads(threads)
        read = _reader(paths, threads)

        def wrapped(dataset: Any) -> Any:
            # a name of its own: without one dask would hash the whole file
            return work(da.from_array(dataset, chunks=chunks or dataset.chunks, name=False))

        return lambda: read(wrapped)

    return Contender(FROM_H5PY, prepare, needs=NEEDS)


def _reader(paths: Paths, threads: int) -> Callable[[Work], Any]:
    # read by the C-Blosc2 that is inside the filter
    os.environ["BLOSC_NTHREADS"] = str(threads)
    import h5py
    import hdf5plugin  # noqa: F401 - registers the filter

    def read(work: Work) -> Any:
        with h5py.File(paths[HDF5], "r", rdcc_nbytes=CHUNK_CACHE) as file:
            return work(file[HDF5_NAME])

    return read
