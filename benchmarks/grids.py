"""Arrays of two and three axes of several cases."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.arrays import ArrayData, Index, chunk_slices
from benchmarks.compression import ZSTD, Compression

SEED = 20240301
VOLUME_CHUNK = 128
VOLUME_BLOCK = 32
VOLUME_SIDE = 512
QUICK_VOLUME_SIDE = 256

IMAGE_SIDE = 12_000
QUICK_IMAGE_SIDE = 3_000
IMAGE_CHUNKS = (1000, 1000)
#: The choice of python-blosc2 for these chunks.
IMAGE_BLOCKS = (50, 1000)

TILE_SIDE, TILES, QUICK_TILES = 512, 16, 12

MATRIX_SIDE = 8_000
QUICK_MATRIX_SIDE = 3_000
MATRIX_CHUNKS = (1000, 1000)
#: Along the whole last axis of a chunk: its elements are in the order of its blocks.
MATRIX_BLOCKS = (50, 1000)
#: Sizes of chunks that users have: 128 MB is dask's default.
CHUNK_MEGABYTES = (1, 8, 32, 128)
#: About the size of the default; whole rows, so that no reader has to reorder elements.
ROW_BLOCK_NBYTES = 128_000

SPECIAL_CHUNK = 200
SPECIAL_GRID = 100
QUICK_SPECIAL_GRID = 20
#: One chunk of so many is stored.
DENSE_EVERY = 50

#: Days, latitudes, longitudes.
DAYS_SHAPE = (1461, 180, 360)
QUICK_DAYS_SHAPE = (365, 60, 120)
DAYS_CHUNKS = (120, 90, 180)
DAYS_BLOCKS = (12, 90, 180)

ROWS_CHUNKS = (1000, 1000)
ROWS_BLOCKS = (50, 1000)


def volume(how: Compression, quick: bool) -> ArrayData:
    """A smooth field with noise, as from a simulation or a scanner."""
    side = QUICK_VOLUME_SIDE if quick else VOLUME_SIDE
    return _field("volume", (side,) * 3, (VOLUME_CHUNK,) * 3, (VOLUME_BLOCK,) * 3, how)


def image(quick: bool) -> ArrayData:
    side = QUICK_IMAGE_SIDE if quick else IMAGE_SIDE
    return _field("image", (side, side), IMAGE_CHUNKS, IMAGE_BLOCKS, ZSTD)


def tiles(quick: bool) -> ArrayData:
    """An image as stores have them: many chunks of 1 MB."""
    side = TILE_SIDE * (QUICK_TILES if quick else TILES)
    return _field("tiles", (side, side), (TILE_SIDE, TILE_SIDE), (128, TILE_SIDE), ZSTD)


def days(quick: bool) -> ArrayData:
    """A field for each day of some years, as from a climate model."""
    shape = QUICK_DAYS_SHAPE if quick else DAYS_SHAPE
    chunks, blocks = (tuple(map(min, sizes, shape)) for sizes in (DAYS_CHUNKS, DAYS_BLOCKS))
    return _field("days", shape, chunks, blocks, ZSTD)


def matrix(
    how: Compression,
    quick: bool,
    chunks: tuple[int, int] = MATRIX_CHUNKS,
    blocks: tuple[int, int] = MATRIX_BLOCKS,
) -> ArrayData:
    """Measured values: a smooth field with noise, in steps of 1/4096, far from constant."""
    side = QUICK_MATRIX_SIDE if quick else MATRIX_SIDE
    shape = (side, side)
    recipe = {
        "data": "sum of sines along each axis, uniform noise of 8 bits, in steps of 1/4096",
        "seed": SEED,
        "shape": shape,
        "chunks": chunks,
        "blocks": blocks,
        "codec": how.codec,
        "clevel": how.clevel,
    }
    pieces = partial(_matrix_pieces, shape, chunks)
    dtype = np.dtype(np.float64)
    return ArrayData("matrix", shape, chunks, blocks, dtype, how, recipe, pieces)


def matrix_of_rows(how: Compression, quick: bool, megabytes: int) -> ArrayData:
    """The same in chunks of whole rows of about so many megabytes."""
    side = QUICK_MATRIX_SIDE if quick else MATRIX_SIDE
    # all chunks are whole, and of whole blocks: contenders that just decode need no more
    rows = _divisor(side, megabytes * 1_000_000 // (side * 8))
    block = _divisor(rows, ROW_BLOCK_NBYTES // (side * 8))
    return matrix(how, quick, (rows, side), (block, side))


def _divisor(number: int, most: int) -> int:
    return next(n for n in range(min(number, most), 0, -1) if number % n == 0)


def mostly_special(quick: bool) -> ArrayData:
    """Zeros except for one chunk in `DENSE_EVERY`, spread over all rows and columns of chunks."""
    grid = QUICK_SPECIAL_GRID if quick else SPECIAL_GRID
    return special((grid, grid), grid**2 // DENSE_EVERY)


def special(counts: tuple[int, int], ndense: int, side: int = SPECIAL_CHUNK) -> ArrayData:
    """A grid of square chunks, zeros except for `ndense` of them."""
    shape = (counts[0] * side, counts[1] * side)
    chunks = (side, side)
    recipe = {
        "data": "zeros, some chunks of uniform random numbers in steps of 1/256",
        "seed": SEED,
        "shape": shape,
        "chunks": chunks,
        "ndense": ndense,
        "codec": ZSTD.codec,
        "clevel": ZSTD.clevel,
    }
    pieces = partial(_dense_pieces, shape, chunks, ndense)
    dtype = np.dtype(np.float64)
    return ArrayData("special", shape, chunks, chunks, dtype, ZSTD, recipe, pieces)


def rows(nchunks: int) -> ArrayData:
    """A column of chunks of 8 MB, with noise that makes the file about half as large."""
    shape = (nchunks * ROWS_CHUNKS[0], ROWS_CHUNKS[1])
    recipe = {
        "data": "uniform random numbers of 32 bits, in steps of 1/65536",
        "seed": SEED,
        "shape": shape,
        "chunks": ROWS_CHUNKS,
        "blocks": ROWS_BLOCKS,
        "codec": ZSTD.codec,
        "clevel": ZSTD.clevel,
    }
    dtype = np.dtype(np.float64)
    pieces = partial(_rows_pieces, shape)
    return ArrayData("rows", shape, ROWS_CHUNKS, ROWS_BLOCKS, dtype, ZSTD, recipe, pieces)


def _rows_pieces(shape: tuple[int, ...]) -> Iterator[tuple[Index, NDArray[Any]]]:
    rng = np.random.default_rng(SEED)
    for where in chunk_slices(shape, ROWS_CHUNKS):
        yield where, rng.integers(0, 2**32, ROWS_CHUNKS) / 2**16


def _matrix_pieces(
    shape: tuple[int, ...], chunks: tuple[int, ...]
) -> Iterator[tuple[Index, NDArray[Any]]]:
    rng = np.random.default_rng(SEED)
    for where in chunk_slices(shape, chunks):
        waves = (np.round(409_600 * np.sin(np.arange(one.start, one.stop) / 50)) for one in where)
        noise = rng.integers(0, 256, [one.stop - one.start for one in where], np.uint8)
        yield where, (sum(np.ix_(*waves)) + noise) / 4096


def _dense_pieces(
    shape: tuple[int, ...], chunks: tuple[int, ...], ndense: int
) -> Iterator[tuple[Index, NDArray[Any]]]:
    rng = np.random.default_rng(SEED)
    slices = chunk_slices(shape, chunks)
    for place in sorted(rng.choice(len(slices), ndense, replace=False)):
        yield slices[place], rng.integers(1, 256, chunks) / 256


def _field(
    stem: str,
    shape: tuple[int, ...],
    chunks: tuple[int, ...],
    blocks: tuple[int, ...],
    how: Compression,
) -> ArrayData:
    recipe = {
        "data": "sum of sines along each axis, noise of -2/8 .. 2/8, in steps of 1/8",
        "seed": SEED,
        "shape": shape,
        "chunks": chunks,
        "blocks": blocks,
        "codec": how.codec,
        "clevel": how.clevel,
    }
    pieces = partial(_field_pieces, shape, chunks)
    return ArrayData(stem, shape, chunks, blocks, np.dtype(np.float32), how, recipe, pieces)


def _field_pieces(
    shape: tuple[int, ...], chunks: tuple[int, ...]
) -> Iterator[tuple[Index, NDArray[Any]]]:
    rng = np.random.default_rng(SEED)
    for where in chunk_slices(shape, chunks):
        axes = np.ix_(*(np.arange(one.start, one.stop) / 50 for one in where))
        smooth = sum(100 * np.sin(axis) for axis in axes)
        noise = rng.integers(-2, 3, np.shape(smooth))
        yield where, ((np.round(smooth * 8) + noise) / 8).astype(np.float32)
