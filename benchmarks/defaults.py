"""Codecs, filters and blocks on data of many kinds: the figures behind the defaults of a new frame.

Run ``python -m benchmarks.defaults``: it writes DEFAULTS.md. Times are CPU times of one thread, the
best of some runs, so that a busy machine changes them little; sizes are the same everywhere.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import blosc2
import click
import dask
import numpy as np

from b2nd_dask import open_b2nd, to_b2nd
from b2nd_dask.format.chunk.compression import default_blocks
from benchmarks.analyst import PACKED, dataset

HERE = Path(__file__).parent
SEED = 20261127
#: Compressions compared with the default, zstd at level 1 after a shuffle.
COMPRESSIONS: dict[str, dict[str, Any]] = {
    "default": {},
    "level 5": {"clevel": 5},
    "level 3": {"clevel": 3},
    "bitshuffle": {"filters": ["bitshuffle"]},
    "no filter": {"filters": []},
    "lz4, level 5": {"codec": "lz4", "clevel": 5},
}
#: Rules for blocks: the factor of the item size that the default rule gets; None for the choice of
#: python-blosc2.
BLOCKS = {"default": 1, "a quarter": 4, "four times": 0.25, "python-blosc2's": None}

HEAD = """\
# Defaults: compression and blocks

Made by `python -m benchmarks.defaults` with python-blosc2 {version}: frames of synthetic data of
many kinds, written by `to_b2nd` and read by `open_b2nd`, with CPU times of one thread, the best of
{repeat}. Sizes are the same on every machine. What follows from them stands in
[docs/recipes.md](../docs/recipes.md).

## Compression

A cell has the compressed size in percent of the array, then the CPU times of writing and of
reading, in seconds for 1 GB of the array. All have the default blocks. "default" is zstd at level 1
behind a shuffle (of elements of one byte: no filter); the other columns change what they name.
"""
BETWEEN = """
## Blocks

Compression is the default's. Milliseconds of writing and reading all elements; of reading one
position along each axis ("planes"); and all positions along each axis at one point ("series"), of
arrays of three axes. "a quarter" and "four times" are the default's rule for blocks of 32 and
512 KiB.
"""


class Kind(NamedTuple):
    """Data of one kind."""

    name: str
    elements: np.ndarray
    chunks: tuple[int, ...]


class Measured(NamedTuple):
    """The figures of one choice for one kind of data."""

    size: float
    """Compressed bytes, in percent of those of the array."""
    write: float
    """Milliseconds for all elements, like `read`."""
    read: float
    planes: list[float]
    """Milliseconds to read the elements at one position along each axis."""
    series: list[float]
    """Milliseconds to read all elements along one axis, at one position of the others."""


def kinds(quick: bool = False) -> Iterator[Kind]:
    """Make the data; small for tests."""
    days = 16 if quick else 122
    side = 64 if quick else 192
    made = dataset((days, 91, 180) if quick else (days, 181, 360))
    maps = (min(days, 61), *made.t2m.shape[1:])
    t2m = made.t2m.fillna(0).values
    packed = np.round((t2m - PACKED["add_offset"]) / PACKED["scale_factor"])
    yield Kind("temperature, all digits, float32", t2m, maps)
    yield Kind("temperature to 0.01, float32", t2m.round(2), maps)
    yield Kind("temperature, packed, int16", np.clip(packed, -32767, 32767).astype("i2"), maps)
    yield Kind("geopotential to 0.25, float32", made.z500.values, maps)
    yield Kind("rain, mostly zeros, float32", made.pr.values, maps)

    rng = np.random.default_rng(SEED)
    image, half = texture(rng, (16 * side,) * 2, 1.5), (8 * side,) * 2
    noisy = 128 + 40 * image + rng.normal(0, 1, image.shape)
    yield Kind("photo, uint8", np.clip(noisy, 0, 255).astype("u1"), half)
    yield Kind(
        "microscopy, uint16", rng.poisson(np.maximum(500 + 200 * image, 20)).astype("u2"), half
    )
    volume, cube = texture(rng, (side,) * 3, 2.0), (side // 2,) * 3
    yield Kind("volume, float32", volume, cube)
    yield Kind("volume, float64", volume * np.float64(1.1), cube)
    yield Kind("volume to 0.01, float64", (volume * np.float64(10)).round(2), cube)
    yield Kind("mask, bool", volume > 0.5, cube)
    labels = 37 * np.digitize(volume, [-1, -0.5, 0, 0.5, 1, 1.5])
    yield Kind("labels, int32", labels.astype("i4"), cube)
    yield Kind("labels, uint8", labels.astype("u1"), cube)
    yield Kind("noise, float64", rng.normal(size=volume.shape), cube)
    yield Kind("counts, int64", rng.poisson(1000, image.shape), half)
    gaps = rng.integers(900, 1100, side**3).astype("m8[ms]")
    times = np.datetime64("2001-01-01", "ns") + np.cumsum(gaps)
    yield Kind("times, datetime64", times, (side**3 // 4,))
    yield Kind("noise, int8", rng.normal(0, 10, image.shape).astype("i1"), half)
    words = [bytes(rng.integers(97, 123, length)) for length in rng.integers(2, 10, 3000)]
    chosen = np.minimum(rng.zipf(1.3, image.size // 5), len(words)) - 1
    text = b" ".join([words[number] for number in chosen.tolist()])
    yield Kind("text, uint8", np.resize(np.frombuffer(text, "u1"), image.shape), half)


def texture(rng: np.random.Generator, shape: Sequence[int], slope: float) -> np.ndarray:
    """Make a random field of variance 1 in which shorter waves are weaker."""
    along = [np.fft.fftfreq(n) for n in shape[:-1]] + [np.fft.rfftfreq(shape[-1])]
    square = sum(axis**2 for axis in np.meshgrid(*along, indexing="ij", sparse=True))
    square.flat[0] = np.inf
    waves = np.fft.rfftn(rng.normal(size=shape)) * square ** (-slope / 2)
    field = np.fft.irfftn(waves, shape, range(len(shape)))
    return (field / field.std()).astype("f4")


def blocks_of(rule: str, kind: Kind) -> tuple[int, ...]:
    """The blocks of a rule."""
    elements, width = kind.elements, BLOCKS[rule]
    if width is not None:
        return default_blocks(kind.chunks, elements.dtype.itemsize * width)
    sizes = blosc2.compute_chunks_blocks(elements.shape, kind.chunks, dtype=elements.dtype)
    blocks: tuple[int, ...] = sizes[1]
    return blocks


def measure(kind: Kind, blocks: tuple[int, ...], cparams: dict[str, Any], repeat: int) -> Measured:
    """Write a frame and read it, whole and in parts."""
    elements, ndim = kind.elements, kind.elements.ndim
    with TemporaryDirectory() as folder, dask.config.set(scheduler="sync"):
        path = Path(folder, "elements.b2nd")
        options = {"chunks": kind.chunks, "blocks": blocks, "cparams": cparams, "fsync": False}
        write = best(lambda: to_b2nd(elements, path, mode="w", **options), repeat)
        frame = open_b2nd(path)
        if not np.array_equal(frame[...], elements):
            raise AssertionError(
                f"{kind.name} in blocks {blocks} with {cparams} came back otherwise"
            )
        middle = tuple(n // 2 - 3 for n in elements.shape)
        planes = [(*[slice(None)] * axis, middle[axis]) for axis in range(ndim)]
        series = [(*middle[:axis], slice(None), *middle[axis + 1 :]) for axis in range(ndim)]
        return Measured(
            size=100 * path.stat().st_size / elements.nbytes,
            write=write,
            read=best(lambda: frame[...], repeat),
            planes=[best(lambda at=at: frame[at], repeat) for at in planes],
            # for two axes they equal the planes
            series=[best(lambda at=at: frame[at], repeat) for at in series if ndim > 2],
        )


def best(call: Callable[[], object], repeat: int) -> float:
    """CPU milliseconds of the fastest run."""
    times = []
    for _ in range(repeat):
        before = time.process_time()
        call()
        times.append(time.process_time() - before)
    return 1e3 * min(times)


def compressions_table(every: Sequence[Kind], repeat: int) -> Iterator[str]:
    """Each compression, with the default blocks."""
    yield f"| data | {' | '.join(COMPRESSIONS)} |"
    yield "| --- |" + " --- |" * len(COMPRESSIONS)
    for kind in every:
        cells = []
        for cparams in COMPRESSIONS.values():
            found = measure(kind, blocks_of("default", kind), cparams, repeat)
            write, read = (1e6 * ms / kind.elements.nbytes for ms in (found.write, found.read))
            cells.append(f"{found.size:.1f} %, {write:.1f} + {read:.1f}")
        yield f"| {kind.name} | {' | '.join(cells)} |"


def blocks_table(every: Sequence[Kind], repeat: int) -> Iterator[str]:
    """Each rule for blocks, with the default compression."""
    yield "| data, chunks | blocks | size | write | read | planes | series |"
    yield "| --- |" + " --- |" * 6
    for kind in every:
        for rule in BLOCKS:
            blocks = blocks_of(rule, kind)
            found = measure(kind, blocks, {}, repeat)
            planes, series = (" ".join(f"{n:.1f}" for n in part) for part in found[3:])
            yield (
                f"| {kind.name}, {_shape(kind.chunks)} | {rule}: {_shape(blocks)} | "
                f"{found.size:.1f} % | {found.write:.0f} | {found.read:.0f} | {planes} | {series} |"
            )


def _shape(sizes: tuple[int, ...]) -> str:
    return " x ".join(map(str, sizes))


@click.command()
@click.option("--repeat", type=click.IntRange(min=1), default=3, show_default=True)
@click.option("--quick", is_flag=True, help="Small sizes: a trial of the code, not a measurement.")
@click.option("--output", type=click.Path(path_type=Path), default=HERE / "DEFAULTS.md")
def main(repeat: int, quick: bool, output: Path) -> None:
    """Measure each compression and each rule for blocks on data of each kind."""
    every = list(kinds(quick))
    lines = [
        *HEAD.format(version=blosc2.__version__, repeat=repeat).splitlines(),
        "",
        *compressions_table(every, repeat),
        *BETWEEN.splitlines(),
        "",
        *blocks_table(every, repeat),
    ]
    output.write_text("\n".join(lines) + "\n")
    click.echo(f"{output} is written")


if __name__ == "__main__":
    main()
