"""Ways to write the same array, each used as its documentation advises.

Libraries are imported in `prepare`; see `benchmarks.peers`. Every run gives a function that opens
what it wrote, for the comparison that is not timed.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks import dense, peers
from benchmarks.compression import Compression
from benchmarks.model import TARGET, Contender, Paths, Run
from benchmarks.rawfile import RawFile

#: From where the data lies and the number of threads to what a contender writes.
Source = Callable[[Paths, int], Any]

OURS = f"{peers.OURS} (fsync)"
OURS_UNSYNCED = f"{peers.OURS}, its fsync taken out"
TO_ZARR = "da.to_zarr (no fsync)"
TO_ZARR_UNCHECKED = "da.to_zarr, write_empty_chunks (no fsync)"
PYTHON_BLOSC2 = "python-blosc2 (no fsync)"
RAW_LIMIT = "raw limit (no fsync)"
RAW_LIMIT_SYNCED = "raw limit (fsync)"


def b2nd_dask(source: Source, how: Compression, *, synced: bool = True) -> Contender:
    """Our own; `source` gives a dask array."""

    def prepare(paths: Paths, threads: int) -> Run:
        import blosc2

        from b2nd_dask import to_b2nd

        if not synced:
            # what the write costs without waiting for the disk, as the others do not
            os.fsync = lambda fd: None
        peers.use_dask_threads(threads)
        array = source(paths, threads)
        path = paths[TARGET] / "array.b2nd"

        def run() -> Callable[[], Any]:
            params = how.blosc2_params()
            to_b2nd(array, path, mode="w", chunks=dense.CHUNK, blocks=dense.BLOCK, cparams=params)
            return lambda: blosc2.open(str(path), mode="r")

        return run

    return Contender(OURS if synced else OURS_UNSYNCED, prepare, is_ours=True)


def dask_to_zarr(source: Source, how: Compression, *, empty_check: bool = True) -> Contender:
    """dask over zarr 3; `source` gives a dask array.

    By default zarr compares every item with the fill value, to leave such chunks out.
    """

    def prepare(paths: Paths, threads: int) -> Run:
        import dask.array as da
        import zarr

        peers.use_dask_threads(threads)
        peers.use_zarr_threads(threads)
        array = source(paths, threads)
        path = str(paths[TARGET] / "array.zarr")
        options = {
            "compressors": how.zarr_codec(dense.ITEM, dense.BLOCK * dense.ITEM),
            "config": {"write_empty_chunks": not empty_check},
        }

        def run() -> Callable[[], Any]:
            # without a lock, which mode="w" would take; what it could overwrite is not there
            da.to_zarr(array, path, **options)
            return lambda: zarr.open_array(path, mode="r")

        return run

    return Contender(TO_ZARR if empty_check else TO_ZARR_UNCHECKED, prepare)


def python_blosc2(source: Source, how: Compression) -> Contender:
    """python-blosc2 alone; `source` gives a function that writes with the arguments it gets."""

    def prepare(paths: Paths, threads: int) -> Run:
        import blosc2

        blosc2.set_nthreads(threads)
        write = source(paths, threads)
        path = str(paths[TARGET] / "array.b2nd")
        cparams = blosc2.CParams(**how.blosc2_params(nthreads=threads))

        def run() -> Callable[[], Any]:
            write(
                urlpath=path,
                mode="w",
                chunks=(dense.CHUNK,),
                blocks=(dense.BLOCK,),
                cparams=cparams,
            )
            return lambda: blosc2.open(path, mode="r")

        return run

    return Contender(PYTHON_BLOSC2, prepare)


def raw_limit(source: Source, how: Compression, *, synced: bool = False) -> Contender:
    """compress2 and pwrite in bare threads; `source` gives the chunks as functions."""

    def prepare(paths: Paths, threads: int) -> Run:
        import blosc2

        blosc2.set_releasegil(True)
        chunks = source(paths, threads)
        params = how.blosc2_params(typesize=dense.ITEM, blocksize=dense.BLOCK * dense.ITEM)
        compress = partial(blosc2.compress2, nthreads=1, **params)
        path = paths[TARGET] / "array.raw"

        def run() -> Callable[[], Any]:
            raw = RawFile.write(path, chunks, compress, threads, synced=synced)
            return lambda: raw

        return run

    return Contender(RAW_LIMIT_SYNCED if synced else RAW_LIMIT, prepare)


def require_equal(
    expected: Callable[[], Iterator[tuple[slice, NDArray[Any]]]], opened: Callable[[], Any]
) -> tuple[int, ...]:
    """Read what was written and hold every item against what it should be."""
    array = opened()
    for where, items in expected():
        np.testing.assert_array_equal(array[where], items)
    return tuple(array.shape)
