"""Contenders that write the same array, each as its documentation advises.

`prepare` imports libraries; see `benchmarks.peers`. Each run writes to a new path and returns a
function that opens it, for the comparison, which is not timed. Contenders that sync do so within
their time.
"""

from __future__ import annotations

import importlib
import itertools
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks import disk, peers
from benchmarks.arrays import ArrayData, Index
from benchmarks.compression import Compression
from benchmarks.model import TARGET, Contender, Paths, Run

#: Returns a function that a run calls, from the paths of the data and the number of threads.
Source = Callable[[Paths, int], Callable[..., Any]]

TO_ZARR = "da.to_zarr"
TO_ZARR_UNCHECKED = "da.to_zarr, write_empty_chunks"
EXPRESSION_TO_ZARR = "dask_array.to_zarr"


def scenario_name(how: Compression, synced: bool) -> str:
    return f"{how.name} fsync" if synced else how.name


def how_synced(synced: bool) -> str:
    return "fsync of all that was written" if synced else "without fsync"


def b2nd_dask(
    source: Source, array: ArrayData, *, synced: bool, name: str = peers.OURS, **others: Any
) -> Contender:
    """b2nd_dask; `source` returns a function that makes a dask array, `others` are options."""

    def prepare(paths: Paths, threads: int) -> Run:
        import blosc2

        from b2nd_dask import to_b2nd

        peers.use_dask_threads(threads)
        made = source(paths, threads)
        fresh = fresh_paths(paths, ".b2nd")
        params = array.how.blosc2_params()
        options = {"chunks": array.chunks, "blocks": array.blocks, "cparams": params, **others}

        def run() -> Callable[[], Any]:
            path = next(fresh)
            to_b2nd(made(), path, fsync=synced, **options)
            return lambda: blosc2.open(str(path), mode="r")

        return run

    return Contender(name, prepare, is_ours=True)


def dask_to_zarr(
    source: Source,
    array: ArrayData,
    *,
    synced: bool,
    empty_check: bool = True,
    library: str = "dask.array",
) -> Contender:
    """dask over zarr 3; `source` returns a function that makes an array of `dask` or `dask_array`.

    By default zarr compares every element with the fill value, to omit such chunks.
    """

    def prepare(paths: Paths, threads: int) -> Run:
        import zarr

        da = importlib.import_module(library)
        peers.use_dask_threads(threads)
        peers.use_zarr_threads(threads)
        made = source(paths, threads)
        fresh = fresh_paths(paths, ".zarr")
        options = {
            "compressors": array.zarr_codec(),
            "config": {"write_empty_chunks": not empty_check},
        }
        if library == "dask_array":
            options = {"zarr_array_kwargs": options}

        def run() -> Callable[[], Any]:
            path = next(fresh)
            # without the lock of mode="w": there is nothing to overwrite
            da.to_zarr(made(), str(path), **options)
            _sync_if(synced, path)
            return lambda: zarr.open_array(str(path), mode="r")

        return run

    if library == "dask_array":
        return Contender(EXPRESSION_TO_ZARR, prepare, needs=(library,))
    return Contender(TO_ZARR if empty_check else TO_ZARR_UNCHECKED, prepare)


def python_blosc2(source: Source, array: ArrayData, *, synced: bool) -> Contender:
    """python-blosc2 alone; `source` returns a function that writes with given arguments."""

    def prepare(paths: Paths, threads: int) -> Run:
        import blosc2

        blosc2.set_nthreads(threads)
        write = source(paths, threads)
        fresh = fresh_paths(paths, ".b2nd")
        cparams = blosc2.CParams(**array.how.blosc2_params(nthreads=threads))
        options = {"chunks": array.chunks, "blocks": array.blocks, "cparams": cparams}

        def run() -> Callable[[], Any]:
            path = next(fresh)
            write(urlpath=str(path), mode="w", **options)
            _sync_if(synced, path)
            return lambda: blosc2.open(str(path), mode="r")

        return run

    return Contender(peers.PYTHON_BLOSC2, prepare)


def raw_limit(source: Source, array: ArrayData, *, synced: bool) -> Contender:
    """compress2 and pwrite in bare threads; `source` returns a function that makes chunks."""

    def prepare(paths: Paths, threads: int) -> Run:
        import blosc2

        from benchmarks.rawfile import RawFile

        blosc2.set_releasegil(True)
        chunks = source(paths, threads)
        sizes = {"typesize": array.dtype.itemsize, "blocksize": array.block_nbytes}
        params = array.how.blosc2_params(**sizes)
        compress = partial(blosc2.compress2, nthreads=1, **params)
        fresh = fresh_paths(paths, ".raw")

        def run() -> Callable[[], Any]:
            path = next(fresh)
            raw = RawFile.write(path, array, chunks(), compress, threads)
            _sync_if(synced, path)
            return lambda: raw

        return run

    return Contender(peers.RAW_LIMIT, prepare)


def from_memory(array: ArrayData, paths: Paths, threads: int) -> Callable[[], Any]:
    """A source: a dask array of an array in memory, in blocks of its chunks."""
    import dask.array as da

    x = da.from_array(array.in_memory(), chunks=array.chunks)
    return lambda: x


def fresh_paths(paths: Paths, suffix: str) -> Iterator[Path]:
    """Paths of runs, each with a new name."""
    return (paths[TARGET] / f"array-{number}{suffix}" for number in itertools.count())


def require_equal(
    expected: Callable[[], Iterable[tuple[Index | slice, NDArray[Any]]]],
    opened: Callable[[], Any],
) -> tuple[int, ...]:
    """Read the written array and compare all elements."""
    array = opened()
    for where, items in expected():
        np.testing.assert_array_equal(array[where], items)
    return tuple(array.shape)


def _sync_if(synced: bool, path: Path) -> None:
    if synced:
        disk.sync(path)
