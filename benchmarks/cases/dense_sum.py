"""`dense_sum`: add up all items of an array that has no constant chunks."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from benchmarks import peers
from benchmarks.model import Case, Dataset, Scenario
from benchmarks.targets import speedup_over, times_as_long_as

CHUNK = 1_000_000
BLOCK = 31_250
NCHUNKS = 144
QUICK_NCHUNKS = 16
ITEM = 8
SEED = 20240229

Codec = Literal["zstd", "lz4"]


def scenarios(quick: bool) -> list[Scenario]:
    nchunks = QUICK_NCHUNKS if quick else NCHUNKS
    return [_scenario("zstd", 1, nchunks), _scenario("lz4", 5, nchunks)]


CASE = Case("dense_sum", "sum of a dense float64 array", scenarios)


def _scenario(codec: Codec, clevel: int, nchunks: int) -> Scenario:
    recipe = {
        "data": "random walk of steps of -4/8 .. 4/8",
        "seed": SEED,
        "codec": codec,
        "clevel": clevel,
        "filter": "shuffle",
        "nchunks": nchunks,
        "chunk": CHUNK,
        "block": BLOCK,
    }
    return Scenario(
        name=f"{codec}-{clevel}",
        title=f"{nchunks * CHUNK * ITEM / 1e9:.2f} GB float64, {codec} level {clevel}, shuffle, "
        f"chunks of {CHUNK * ITEM / 1e6:g} MB, blocks of {BLOCK * ITEM / 1e3:g} kB",
        datasets=(
            Dataset("b2nd", "dense.b2nd", recipe, partial(_write_b2nd, codec, clevel, nchunks)),
            Dataset("zarr", "dense.zarr", recipe, partial(_write_zarr, codec, clevel, nchunks)),
        ),
        contenders=(
            peers.b2nd_dask(_dask_sum),
            peers.b2nd_dask(_dask_sum, chunks="auto"),
            peers.python_blosc2(lambda array: array.sum()),
            peers.dask_from_array(_dask_sum),
            peers.dask_from_zarr(_dask_sum),
            peers.raw_limit_of_sum(),
        ),
        targets=(
            speedup_over(peers.PYTHON_BLOSC2, 1.0),
            speedup_over(peers.PYTHON_BLOSC2, 1.3),
            speedup_over(peers.FROM_ZARR, 2.0),
            speedup_over(peers.FROM_ZARR, 2.5),
            times_as_long_as(peers.RAW_LIMIT, 1.2),
        ),
        rtol=1e-12,
    )


def _dask_sum(array: Any) -> float:
    return float(array.sum().compute())


def _values(nchunks: int) -> Iterator[tuple[slice, NDArray[np.float64]]]:
    """A random walk, as a slowly drifting sensor writes it, chunk by chunk."""
    rng = np.random.default_rng(SEED)
    last = 0
    for i in range(nchunks):
        walk = last + np.cumsum(rng.integers(-4, 5, CHUNK))
        last = int(walk[-1])
        yield slice(i * CHUNK, (i + 1) * CHUNK), walk / 8


def _write_b2nd(codec: Codec, clevel: int, nchunks: int, path: Path) -> None:
    import blosc2

    cparams = blosc2.CParams(
        codec=blosc2.Codec[codec.upper()], clevel=clevel, filters=[blosc2.Filter.SHUFFLE]
    )
    array = blosc2.empty(
        (nchunks * CHUNK,),
        np.float64,
        chunks=(CHUNK,),
        blocks=(BLOCK,),
        cparams=cparams,
        urlpath=str(path),
    )
    for where, values in _values(nchunks):
        array[where] = values


def _write_zarr(codec: Codec, clevel: int, nchunks: int, path: Path) -> None:
    import zarr
    from zarr.codecs import BloscCodec

    compressor = BloscCodec(
        cname=codec, clevel=clevel, shuffle="shuffle", typesize=ITEM, blocksize=BLOCK * ITEM
    )
    array = zarr.create_array(
        str(path),
        shape=(nchunks * CHUNK,),
        chunks=(CHUNK,),
        dtype=np.float64,
        compressors=compressor,
    )
    for where, values in _values(nchunks):
        array[where] = values
