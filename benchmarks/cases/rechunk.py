"""`rechunk`: maps to time series, within a stated memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import psutil
from numpy.typing import NDArray

from benchmarks import peers
from benchmarks.arrays import ArrayData, Index
from benchmarks.clusters import on_cluster
from benchmarks.compression import ZSTD
from benchmarks.model import TARGET, Case, Contender, Paths, Run, Scenario
from benchmarks.targets import resident_below, speedup_over, times_as_long_as

SEED = 20240305
#: Of the frame that is written: every time, of so many rows and columns.
ROWS, COLUMNS = 10, 50
MAX_MEMORY = 512_000_000
#: What peers may have that state no bound.
MOST_MEMORY = int(psutil.virtual_memory().total * 0.6)

OURS = "b2nd_dask.rechunk"
CUBED = "cubed on zarr"
DASK = "dask.array.rechunk on zarr"
COPY = "b2nd_dask, one read and one write"
COPY_ZARR = "dask on zarr, one read and one write"

#: Maps, their rows and their columns.
SHAPE = (800, 800, 800)
BIG_SHAPE = (2000, 1600, 1600)
QUICK_SHAPE = (40, 200, 200)


def scenarios(quick: bool) -> list[Scenario]:
    return [scenario(QUICK_SHAPE if quick else SHAPE)]


CASE = Case("rechunk", "maps to time series, 2 GB", scenarios)


def scenario(shape: tuple[int, int, int], *, with_cubed: bool = True) -> Scenario:
    array = maps(shape)
    chunks = (shape[0], ROWS, COLUMNS)
    ours = Contender(OURS, partial(_prepare_ours, chunks), is_ours=True)
    in_dask = Contender(DASK, partial(_prepare_dask, chunks))
    bounded = replace(in_dask, memory_limit=MOST_MEMORY)
    cubed = (Contender(CUBED, partial(_prepare_cubed, chunks), needs=("cubed",)),)
    return Scenario(
        name="maps to time series",
        title=f"{array.title()}, to chunks of {chunks[0]:,} x {ROWS} x {COLUMNS} with "
        f"`max_mem` of {MAX_MEMORY / 1e6:g} MB; memory and CPU of all processes together. dask "
        f"states no bound and may have {MOST_MEMORY / 1e9:.0f} GB. One read and one write keep the "
        "chunks as they are",
        datasets=(array.b2nd, array.zarr),
        contenders=(
            ours,
            on_cluster(ours),
            Contender(COPY, _prepare_copy, is_ours=True),
            Contender(COPY_ZARR, _prepare_copy_zarr),
            bounded,
            *(cubed if with_cubed else ()),
        ),
        targets=(
            resident_below(1000, OURS),
            times_as_long_as(COPY, 2, OURS),
            *((speedup_over(CUBED, 3, OURS),) if with_cubed else ()),
            speedup_over(DASK, 3, OURS),
        ),
        observe=partial(checksum, shape),
        writes=True,
        all_processes=True,
    )


def maps(shape: tuple[int, int, int]) -> ArrayData:
    """A smooth field that drifts, with noise, in steps of 1/8: a map of each time is a chunk."""
    chunks = (1, *shape[1:])
    blocks = (1, max(1, shape[1] // 16), shape[2])
    recipe = {
        "data": "sum of sines along each axis, noise of -2/8 .. 2/8, in steps of 1/8",
        "seed": SEED,
        "shape": shape,
        "blocks": blocks,
        "codec": ZSTD.codec,
        "clevel": ZSTD.clevel,
    }
    pieces = partial(_maps, shape)
    return ArrayData("maps", shape, chunks, blocks, np.dtype(np.float32), ZSTD, recipe, pieces)


def _maps(shape: tuple[int, int, int]) -> Iterator[tuple[Index, NDArray[Any]]]:
    rng = np.random.default_rng(SEED)
    rows, columns = (100 * np.sin(np.arange(n, dtype=np.float32) / 50) for n in shape[1:])
    still = rows[:, None] + columns
    for time in range(shape[0]):
        noise = rng.integers(-2, 3, shape[1:], dtype=np.int8)
        now = np.round((still + np.float32(100 * np.sin(time / 50))) * 8)
        yield np.s_[time : time + 1, :, :], ((now + noise) / 8)[None]


def checksum(shape: tuple[int, int, int], opened: Callable[[], Any]) -> NDArray[np.uint64]:
    """Shape, chunks apart, and the sum of all elements' bits, each times odd numbers of its axes.

    The same of each way to cut the array, and another where elements change places.
    """
    array = opened()
    assert tuple(array.shape) == shape
    rng = np.random.default_rng(SEED)
    times, rows, columns = (
        rng.integers(0, 2**63, n, np.uint64) * np.uint64(2) + np.uint64(1) for n in shape
    )
    step = tuple(array.chunks)
    total = np.zeros((), np.uint64)
    for i in range(0, shape[0], step[0]):
        for j in range(0, shape[1], step[1]):
            bits = np.asarray(array[i : i + step[0], j : j + step[1]]).view(np.uint32)
            lines = np.zeros(bits.shape[:2], np.uint64)
            for k in range(0, shape[2], COLUMNS):
                part = bits[:, :, k : k + COLUMNS].astype(np.uint64)
                lines += part @ columns[k : k + COLUMNS]
            total += times[i : i + step[0]] @ (lines @ rows[j : j + step[1]])
    return np.array([*shape, total >> np.uint64(32), total & np.uint64(0xFFFFFFFF)], np.uint64)


def _prepare_ours(chunks: tuple[int, ...], paths: Paths, threads: int) -> Run:
    import blosc2

    from b2nd_dask import rechunk

    peers.use_dask_threads(threads)
    target = paths[TARGET] / "series.b2nd"

    def run() -> Callable[[], Any]:
        params = ZSTD.blosc2_params()
        rechunk(paths["b2nd"], target, chunks=chunks, cparams=params, max_mem=MAX_MEMORY)
        return lambda: blosc2.open(str(target), mode="r")

    return run


def _prepare_copy(paths: Paths, threads: int) -> Run:
    import blosc2

    from b2nd_dask import from_b2nd, to_b2nd

    peers.use_dask_threads(threads)
    target = paths[TARGET] / "maps.b2nd"

    def run() -> Callable[[], Any]:
        # behind a function that may be anything the chunks have to be decoded and compressed
        array = from_b2nd(paths["b2nd"]).map_blocks(_unchanged)
        to_b2nd(array, target, cparams=ZSTD.blosc2_params())
        return lambda: blosc2.open(str(target), mode="r")

    return run


def _unchanged(items: NDArray[np.float32]) -> NDArray[np.float32]:
    return items


def _zarr_target(paths: Paths, shape: tuple[int, ...], chunks: tuple[int, ...]) -> Any:
    import zarr

    return zarr.create_array(
        str(paths[TARGET] / "array.zarr"),
        shape=shape,
        chunks=chunks,
        dtype=np.float32,
        # blocks as the library chooses them, as in the frames
        compressors=ZSTD.zarr_codec(4, 0),
    )


def _prepare_dask(chunks: tuple[int, ...], paths: Paths, threads: int) -> Run:
    import dask.array as da
    import zarr

    peers.use_dask_threads(threads)
    peers.use_zarr_threads(threads)

    def run() -> Callable[[], Any]:
        array = da.from_zarr(str(paths["zarr"])).rechunk(chunks)
        target = _zarr_target(paths, array.shape, chunks)
        da.store(array, target, lock=False)
        return lambda: zarr.open_array(target.store, mode="r")

    return run


def _prepare_copy_zarr(paths: Paths, threads: int) -> Run:
    import dask.array as da
    import zarr

    peers.use_dask_threads(threads)
    peers.use_zarr_threads(threads)

    def run() -> Callable[[], Any]:
        array = da.from_zarr(str(paths["zarr"]))
        target = _zarr_target(paths, array.shape, array.chunksize)
        da.store(array, target, lock=False)
        return lambda: zarr.open_array(target.store, mode="r")

    return run


def _prepare_cubed(chunks: tuple[int, ...], paths: Paths, threads: int) -> Run:
    import cubed
    import zarr

    peers.use_zarr_threads(threads)
    spec = cubed.Spec(
        work_dir=str(paths[TARGET] / "work"),
        # of a task, and each thread has one
        allowed_mem=MAX_MEMORY // threads,
        reserved_mem=0,
        executor_name="threads",
        executor_options={"max_workers": threads},
    )

    def run() -> Callable[[], Any]:
        array = cubed.from_zarr(str(paths["zarr"]), spec=spec)
        target = _zarr_target(paths, array.shape, chunks)
        cubed.to_zarr(array.rechunk(chunks), target)
        return lambda: zarr.open_array(target.store, mode="r")

    return run
