"""Lengths that regions may have along one axis, and what regions of each length touch."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from b2nd_dask.frame.read.decode_cost import block_number

#: Regions of the larger lengths differ by this factor at least.
_GROWTH = 1.25
#: An axis is also divided into so many equal regions, and all fewer.
_DIVISIONS = 12
#: Of more regions along an axis only so many are counted, and the others taken to be like them.
_COUNTED = 1 << 16


class Choices(NamedTuple):
    """One row for each length, as columns of float64: products of axes may exceed int64."""

    length: NDArray[np.float64]
    """Elements of a region."""
    regions: NDArray[np.float64]
    """How many there are."""
    blocks: NDArray[np.float64]
    """Blocks that all of them touch, counted once for each region."""
    chunks: NDArray[np.float64]
    """Chunks that they touch, counted in the same way."""
    most_blocks: NDArray[np.float64]
    """Blocks of one chunk that one region touches at most."""
    most_chunks: NDArray[np.float64]
    """Chunks that one region touches at most."""


def choices(size: int, unit: int, chunk: int, block: int, most: int) -> Choices:
    """List lengths of regions along one axis.

    Parameters
    ----------
    size : int
        Elements of the axis; at least 1.
    unit : int
        Elements of a chunk of the target, of which regions are made.
    chunk, block : int
        Elements of a chunk and of a block of the source.
    most : int
        How many lengths.

    Examples
    --------
    >>> found = choices(100, unit=10, chunk=50, block=25, most=50)
    >>> found.length
    array([ 10.,  20.,  30.,  40.,  50.,  60.,  70.,  80., 100.])
    >>> found.regions[4], found.blocks[4], found.blocks[0]
    (np.float64(2.0), np.float64(4.0), np.float64(12.0))
    """
    lengths = _thinned(_lengths(size, unit, chunk, block), most)
    rows = [_touched(size, length, chunk, block) for length in lengths]
    columns = np.array(rows, np.float64).reshape(-1, 5).T
    return Choices(np.minimum(np.array(lengths, np.float64), size), *columns)


def _lengths(size: int, unit: int, chunk: int, block: int) -> list[int]:
    """Multiples of the unit: those that end where blocks or chunks end, and some between them."""
    count = -(-size // unit)
    multiples = {1, count}
    multiples |= {-(-count // parts) for parts in range(1, min(count, _DIVISIONS) + 1)}
    for cell in (block, chunk):
        step = math.lcm(unit, cell) // unit
        while step < count:
            multiples.add(step)
            step *= 2
    step = 1
    while step < count:
        multiples.add(step)
        step = max(step + 1, int(step * _GROWTH))
    return [unit * multiple for multiple in sorted(multiples)]


def _thinned(lengths: list[int], most: int) -> list[int]:
    """At most so many, evenly, with the first and the last."""
    if len(lengths) <= most:
        return lengths
    at = np.linspace(0, len(lengths) - 1, max(2, most)).round().astype(int)
    return [lengths[i] for i in sorted(set(at.tolist()))]


def _touched(size: int, length: int, chunk: int, block: int) -> tuple[float, ...]:
    """Regions, and what they touch, as the columns of `Choices`."""
    regions = -(-size // length)
    counted = min(regions, _COUNTED)
    first = np.arange(counted, dtype=np.int64) * length
    last = np.minimum(first + length, size) - 1
    blocks = block_number(last, chunk, block) - block_number(first, chunk, block) + 1
    chunks = last // chunk - first // chunk + 1
    like_them = regions / counted
    in_chunk = min(int(blocks.max()), -(-chunk // block))
    return (
        regions,
        float(blocks.sum()) * like_them,
        float(chunks.sum()) * like_them,
        in_chunk,
        int(chunks.max()),
    )
