"""Dense float64 data that several cases work on, and the same compression for every library."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from benchmarks.model import Dataset

CHUNK = 1_000_000
BLOCK = 31_250
NCHUNKS = 144
QUICK_NCHUNKS = 16
ITEM = 8
SEED = 20240229


@dataclass(frozen=True)
class Compression:
    """With shuffle, in the terms of each library."""

    codec: Literal["zstd", "lz4"]
    clevel: int

    @property
    def name(self) -> str:
        return f"{self.codec}-{self.clevel}"

    def blosc2_params(self, **others: Any) -> dict[str, Any]:
        import blosc2

        codec = blosc2.Codec[self.codec.upper()]
        return {
            "codec": codec,
            "clevel": self.clevel,
            "filters": [blosc2.Filter.SHUFFLE],
            **others,
        }

    def zarr_codec(self) -> Any:
        from zarr.codecs import BloscCodec

        return BloscCodec(
            cname=self.codec,
            clevel=self.clevel,
            shuffle="shuffle",
            typesize=ITEM,
            blocksize=BLOCK * ITEM,
        )


COMPRESSIONS = (Compression("zstd", 1), Compression("lz4", 5))


def nchunks(quick: bool) -> int:
    return QUICK_NCHUNKS if quick else NCHUNKS


def title(how: Compression, count: int) -> str:
    return (
        f"{count * CHUNK * ITEM / 1e9:.2f} GB float64, {how.codec} level {how.clevel}, shuffle, "
        f"chunks of {CHUNK * ITEM / 1e6:g} MB, blocks of {BLOCK * ITEM / 1e3:g} kB"
    )


def datasets(how: Compression, count: int) -> tuple[Dataset, Dataset]:
    """The data as a frame ("b2nd") and in zarr's format ("zarr")."""
    recipe = {
        "data": "random walk of steps of -4/8 .. 4/8",
        "seed": SEED,
        "codec": how.codec,
        "clevel": how.clevel,
        "filter": "shuffle",
        "nchunks": count,
        "chunk": CHUNK,
        "block": BLOCK,
    }
    return (
        Dataset("b2nd", "dense.b2nd", recipe, partial(_write_b2nd, how, count)),
        Dataset("zarr", "dense.zarr", recipe, partial(_write_zarr, how, count)),
    )


def values(count: int) -> Iterator[tuple[slice, NDArray[np.float64]]]:
    """A random walk, as a slowly drifting sensor writes it, chunk by chunk."""
    rng = np.random.default_rng(SEED)
    last = 0
    for i in range(count):
        walk = last + np.cumsum(rng.integers(-4, 5, CHUNK))
        last = int(walk[-1])
        yield slice(i * CHUNK, (i + 1) * CHUNK), walk / 8


def in_memory(count: int) -> NDArray[np.float64]:
    array = np.empty(count * CHUNK)
    for where, items in values(count):
        array[where] = items
    return array


def _write_b2nd(how: Compression, count: int, path: Path) -> None:
    import blosc2

    array = blosc2.empty(
        (count * CHUNK,),
        np.float64,
        chunks=(CHUNK,),
        blocks=(BLOCK,),
        cparams=blosc2.CParams(**how.blosc2_params()),
        urlpath=str(path),
    )
    for where, items in values(count):
        array[where] = items


def _write_zarr(how: Compression, count: int, path: Path) -> None:
    import zarr

    array = zarr.create_array(
        str(path),
        shape=(count * CHUNK,),
        chunks=(CHUNK,),
        dtype=np.float64,
        compressors=how.zarr_codec(),
    )
    for where, items in values(count):
        array[where] = items
