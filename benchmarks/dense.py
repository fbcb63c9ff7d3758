"""Dense float64 data of several cases."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from benchmarks.arrays import ArrayData
from benchmarks.compression import Compression

CHUNK = 1_000_000
BLOCK = 31_250
NCHUNKS = 144
QUICK_NCHUNKS = 16
ITEM = 8
SEED = 20240229


def nchunks(quick: bool) -> int:
    return QUICK_NCHUNKS if quick else NCHUNKS


def title(how: Compression, count: int) -> str:
    return (
        f"{count * CHUNK * ITEM / 1e9:.2f} GB float64, {how.codec} level {how.clevel}, shuffle, "
        f"chunks of {CHUNK * ITEM / 1e6:g} MB, blocks of {BLOCK * ITEM / 1e3:g} kB"
    )


def array(how: Compression, count: int) -> ArrayData:
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
    return ArrayData(
        "dense",
        (count * CHUNK,),
        (CHUNK,),
        (BLOCK,),
        np.dtype(np.float64),
        how,
        recipe,
        lambda: (((where,), items) for where, items in values(count)),
    )


def values(count: int) -> Iterator[tuple[slice, NDArray[np.float64]]]:
    """A random walk, like data of a slowly drifting sensor, chunk by chunk."""
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
