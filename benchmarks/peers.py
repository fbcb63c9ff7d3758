"""Contenders that work on the same data, each as its documentation advises.

`prepare` imports libraries, so a process has only those of its contender: the import of b2nd_dask,
for instance, changes how python-blosc2 treats the GIL. Each run opens its file again.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from tempfile import TemporaryFile
from threading import local
from typing import Any

import numpy as np

from benchmarks.arrays import B2ND, ZARR
from benchmarks.model import Contender, Paths, Run

Work = Callable[[Any], Any]

OURS = "b2nd_dask"
OURS_AUTO = "b2nd_dask chunks='auto'"
OPEN_B2ND = "b2nd_dask open_b2nd"
PYTHON_BLOSC2 = "python-blosc2"
FROM_ARRAY = "da.from_array(blosc2)"
FROM_ARRAY_AUTO = "da.from_array(blosc2) chunks='auto'"
ZARR_ALONE = "zarr"
FROM_ZARR = "da.from_zarr"
FROM_ZARR_AUTO = "da.from_zarr chunks='auto'"
RAW_LIMIT = "raw limit"
RAW_LIMIT_READING = "raw limit and reading the file"


def b2nd_dask(work: Work, *, chunks: Any = None) -> Contender:
    """b2nd_dask; `work` gets the dask array."""

    def prepare(paths: Paths, threads: int) -> Run:
        from b2nd_dask import from_b2nd

        use_dask_threads(threads)
        return lambda: work(from_b2nd(paths[B2ND], chunks=chunks))

    return Contender(OURS if chunks is None else OURS_AUTO, prepare, is_ours=True)


def open_b2nd(work: Work) -> Contender:
    """b2nd_dask without dask; `work` gets the `Frame`, which decodes with its own threads."""

    def prepare(paths: Paths, threads: int) -> Run:
        from b2nd_dask import open_b2nd

        return lambda: work(open_b2nd(paths[B2ND], threads=threads))

    return Contender(OPEN_B2ND, prepare, is_ours=True)


def python_blosc2(work: Work) -> Contender:
    """python-blosc2 alone, with its own threads; `work` gets the `blosc2.NDArray`."""

    def prepare(paths: Paths, threads: int) -> Run:
        open_array = blosc2_opener(paths, threads)
        return lambda: work(open_array())

    return Contender(PYTHON_BLOSC2, prepare)


def dask_from_array(work: Work, *, chunks: Any = None) -> Contender:
    """dask over python-blosc2, by default one task for each chunk.

    Its slices hold the GIL, so python-blosc2's threads do the work.
    """

    def prepare(paths: Paths, threads: int) -> Run:
        import dask.array as da

        use_dask_threads(threads)
        open_array = blosc2_opener(paths, threads)

        def run() -> Any:
            array = open_array()
            return work(da.from_array(array, chunks=chunks or array.chunks))

        return run

    return Contender(FROM_ARRAY_AUTO if chunks else FROM_ARRAY, prepare)


def zarr_alone(work: Work) -> Contender:
    """zarr 3 with its own threads; `work` gets the `zarr.Array`."""

    def prepare(paths: Paths, threads: int) -> Run:
        import zarr

        use_zarr_threads(threads)
        return lambda: work(zarr.open_array(str(paths[ZARR]), mode="r"))

    return Contender(ZARR_ALONE, prepare)


def dask_from_zarr(work: Work, *, chunks: Any = None) -> Contender:
    """dask over zarr 3, by default one task for each chunk."""

    def prepare(paths: Paths, threads: int) -> Run:
        import dask.array as da

        use_dask_threads(threads)
        use_zarr_threads(threads)
        options = {} if chunks is None else {"chunks": chunks}
        return lambda: work(da.from_zarr(str(paths[ZARR]), **options))

    return Contender(FROM_ZARR_AUTO if chunks else FROM_ZARR, prepare)


def raw_limit_of_sum(*, reading: bool = False) -> Contender:
    """Decode and add up chunks, each thread in one buffer.

    The chunks are in memory, or are read from a file one by one.
    """

    def prepare(paths: Paths, threads: int) -> Run:
        import blosc2

        blosc2.set_releasegil(True)
        array = blosc2.open(str(paths[B2ND]), mode="r")
        chunks = [array.schunk.get_chunk(i) for i in range(array.schunk.nchunks)]
        file = TemporaryFile(buffering=0)  # noqa: SIM115  the work needs it until the end
        ends = list(itertools.accumulate(map(file.write, chunks)))
        mine = local()

        def from_file(number: int) -> memoryview:
            length = len(chunks[number])
            data = memoryview(mine.data)[:length]
            os.preadv(file.fileno(), [data], ends[number] - length)
            return data

        def chunk_sum(number: int) -> float:
            if not hasattr(mine, "buffer"):
                mine.buffer = np.empty(array.chunks, array.dtype)
                mine.data = bytearray(max(map(len, chunks)))
            chunk = from_file(number) if reading else chunks[number]
            blosc2.decompress2(chunk, dst=mine.buffer.view(np.uint8), nthreads=1)
            return float(mine.buffer.sum())

        pool = ThreadPoolExecutor(threads)
        return lambda: sum(pool.map(chunk_sum, range(len(chunks))))

    return Contender(RAW_LIMIT_READING if reading else RAW_LIMIT, prepare)


def bounded(contender: Contender, limit: int) -> Contender:
    """The same contender in a process with limited private memory."""
    return replace(contender, name=bounded_name(contender.name, limit), memory_limit=limit)


def bounded_name(name: str, limit: int) -> str:
    return f"{name} in {limit >> 20} MiB"


def blosc2_opener(paths: Paths, threads: int) -> Callable[[], Any]:
    import blosc2

    blosc2.set_nthreads(threads)
    dparams = blosc2.DParams(nthreads=threads)
    return lambda: blosc2.open(str(paths[B2ND]), mode="r", dparams=dparams)


def use_dask_threads(threads: int) -> None:
    import dask

    dask.config.set(scheduler="threads", num_workers=threads)


def use_zarr_threads(threads: int) -> None:
    import zarr

    # its guide advises to lower both for dask, which has its own threads
    zarr.config.set({"threading.max_workers": threads, "async.concurrency": threads})
