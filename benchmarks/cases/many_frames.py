"""`many_frames`: many small files as one array."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import peers
from benchmarks.arrays import B2ND, ZARR
from benchmarks.compression import ZSTD
from benchmarks.model import Case, Contender, Dataset, Paths, Run, Scenario
from benchmarks.targets import seconds_below, speedup_over
from benchmarks.work import dask_sum

COUNT = 10_000
QUICK_COUNT = 200
SIDE = 100
SEED = 20240306

OURS = "b2nd_dask, a pattern"
EACH = "da.concatenate(b2nd_dask)"
FROM_ARRAY = "da.concatenate(da.from_array(blosc2))"
FROM_ZARR = "da.concatenate(da.from_zarr)"


def scenarios(quick: bool) -> list[Scenario]:
    count = QUICK_COUNT if quick else COUNT
    return [
        _scenario(
            "open and graph", count, lambda array: list(array.shape), seconds_below(10, OURS)
        ),
        _scenario("sum", count, dask_sum, seconds_below(20, OURS)),
    ]


CASE = Case("many_frames", "10,000 small files as one array", scenarios, False)


def _scenario(name: str, count: int, work: Callable[[Any], Any], fast: Any) -> Scenario:
    recipe = {"data": "uniform random numbers of 8 bits", "seed": SEED, "count": count}
    return Scenario(
        name=name,
        title=f"{count:,} files of {SIDE} x {SIDE} float32, one chunk each, {ZSTD.codec} level "
        f"{ZSTD.clevel}; concatenated along the first axis; {name}",
        datasets=(
            Dataset(B2ND, "frames", recipe, partial(_write_frames, count)),
            Dataset(ZARR, "arrays", recipe, partial(_write_arrays, count)),
        ),
        contenders=(
            Contender(OURS, partial(_prepare, B2ND, work, _pattern), is_ours=True),
            Contender(EACH, partial(_prepare, B2ND, work, _each)),
            Contender(FROM_ARRAY, partial(_prepare, B2ND, work, _opened)),
            Contender(FROM_ZARR, partial(_prepare, ZARR, work, _zarr)),
        ),
        targets=(fast, speedup_over(FROM_ZARR, 3, OURS)),
        rtol=1e-12,
    )


def _prepare(
    name: str, work: Callable[[Any], Any], make: Callable[[Path], Any], paths: Paths, threads: int
) -> Run:
    import dask.array  # noqa: F401

    peers.use_dask_threads(threads)
    if name == ZARR:
        peers.use_zarr_threads(threads)
    return lambda: work(make(paths[name]))


def _pattern(folder: Path) -> Any:
    from b2nd_dask import from_b2nd

    return from_b2nd(str(folder / "*.b2nd"))


def _each(folder: Path) -> Any:
    import dask.array as da

    from b2nd_dask import from_b2nd

    return da.concatenate([from_b2nd(path) for path in sorted(folder.iterdir())])


def _opened(folder: Path) -> Any:
    import blosc2
    import dask.array as da

    arrays = (blosc2.open(str(path), mode="r") for path in sorted(folder.iterdir()))
    return da.concatenate([da.from_array(array, chunks=array.chunks) for array in arrays])


def _zarr(folder: Path) -> Any:
    import dask.array as da

    return da.concatenate([da.from_zarr(str(path)) for path in sorted(folder.iterdir())])


def _items(count: int) -> Any:
    rng = np.random.default_rng(SEED)
    for number in range(count):
        yield number, rng.integers(0, 256, (SIDE, SIDE)).astype(np.float32)


def _write_frames(count: int, path: Path) -> None:
    import blosc2

    path.mkdir()
    for number, items in _items(count):
        blosc2.asarray(
            items,
            chunks=items.shape,
            cparams=blosc2.CParams(**ZSTD.blosc2_params()),
            urlpath=str(path / f"{number:05}.b2nd"),
        )


def _write_arrays(count: int, path: Path) -> None:
    import zarr

    path.mkdir()
    for number, items in _items(count):
        array = zarr.create_array(
            str(path / f"{number:05}.zarr"),
            shape=items.shape,
            chunks=items.shape,
            dtype=items.dtype,
            compressors=ZSTD.zarr_codec(4, 0),
        )
        array[...] = items
