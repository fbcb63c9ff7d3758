"""Sizes and times of filters for each dtype: the figures behind the advice in docs/recipes.md.

Run ``python -m benchmarks.filters``: a table, in Markdown. Times are CPU times of one thread, the
best of some runs, so that a busy machine changes them little; sizes are the same everywhere.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import blosc2
import click
import numpy as np

SHAPE, CHUNKS = (16, 360, 720), (4, 360, 720)
FILTERS = {
    "shuffle": [blosc2.Filter.SHUFFLE],
    "bitshuffle": [blosc2.Filter.BITSHUFFLE],
    "none": [],
}
CODECS = {
    "zstd 5": (blosc2.Codec.ZSTD, 5),
    "zstd 1": (blosc2.Codec.ZSTD, 1),
    "lz4": (blosc2.Codec.LZ4, 5),
}


class Measured(NamedTuple):
    """What one filter makes of one array."""

    size: float
    """Compressed bytes, in percent of the array's."""
    write: float
    """Seconds per GB of the array."""
    read: float


def smooth_field(shape: tuple[int, ...]) -> np.ndarray:
    """Make waves of all lengths that wander, as of temperatures in degrees Celsius."""
    rng = np.random.default_rng(20)
    days, latitudes, longitudes = shape
    day = np.arange(days)[:, None, None]
    latitude = np.linspace(-np.pi / 2, np.pi / 2, latitudes)[None, :, None]
    longitude = np.linspace(0, 2 * np.pi, longitudes, endpoint=False)[None, None, :]
    field = 35 * np.cos(latitude) - 10 + 0 * (day + longitude)
    for waves in (1, 2, 3, 5, 8, 13, 21, 34, 55):
        along, across, turn = rng.uniform(-1, 1, 3)
        phase = waves * (longitude + across * latitude) + turn * day + 6 * along
        field += 8 * waves**-1.2 * np.sin(phase) * np.cos(latitude)
    return field


def arrays(shape: tuple[int, ...] = SHAPE) -> Iterator[tuple[str, str, np.ndarray]]:
    """Give the dtype, the kind and the elements of each array."""
    smooth = smooth_field(shape)
    noisy = smooth + np.random.default_rng(21).normal(0, 0.5, shape)
    for dtype in ("float64", "float32"):
        yield dtype, "smooth, all digits", smooth.astype(dtype)
        yield dtype, "noisy, all digits", noisy.astype(dtype)
        yield dtype, "smooth, rounded to 0.01", np.round(smooth, 2).astype(dtype)
        yield dtype, "noisy, rounded to 0.01", np.round(noisy, 2).astype(dtype)
        yield dtype, "noisy, rounded to 0.5", (np.round(noisy * 2) / 2).astype(dtype)
    for dtype in ("int32", "int16"):
        yield dtype, "smooth, in steps of 0.01", np.round(smooth * 100).astype(dtype)
        yield dtype, "noisy, in steps of 0.01", np.round(noisy * 100).astype(dtype)
    yield "bool", "smooth mask", smooth > 15
    yield "bool", "noisy mask", noisy > 15


def measure(items: np.ndarray, codec: str, filters: list[Any], repeat: int) -> Measured:
    """Compress and decompress an array some times."""
    kind, level = CODECS[codec]
    cparams = {"codec": kind, "clevel": level, "filters": filters, "nthreads": 1}

    def write() -> Any:
        chunks = tuple(map(min, CHUNKS, items.shape))
        return blosc2.asarray(items, chunks=chunks, cparams=cparams, dparams={"nthreads": 1})

    packed = write()
    if not np.array_equal(packed[...], items):
        raise AssertionError(f"{codec} {filters} gave other elements back")
    per_gb = 1e9 / items.nbytes
    return Measured(
        100 * packed.schunk.cbytes / items.nbytes,
        per_gb * best(write, repeat),
        per_gb * best(lambda: packed[...], repeat),
    )


def best(call: Callable[[], object], repeat: int) -> float:
    """CPU seconds of the fastest run."""
    times = []
    for _ in range(repeat):
        before = time.process_time()
        call()
        times.append(time.process_time() - before)
    return min(times)


@click.command()
@click.option("--repeat", type=click.IntRange(min=1), default=5, show_default=True)
def main(repeat: int) -> None:
    """Measure each filter with each codec on arrays of each dtype."""
    blosc2.set_nthreads(1)
    print("| dtype | elements | codec | " + " | ".join(FILTERS) + " |")
    print("| --- | --- | --- |" + " --- |" * len(FILTERS))
    for dtype, kind, items in arrays():
        for codec in CODECS:
            cells = [measure(items, codec, filters, repeat) for filters in FILTERS.values()]
            told = [f"{m.size:.1f} %, {m.write:.1f} + {m.read:.1f} s/GB" for m in cells]
            print(f"| {dtype} | {kind} | {codec} | " + " | ".join(told) + " |", flush=True)


if __name__ == "__main__":
    main()
