"""Programs and reductions in tiles: boxes of a block that stay in the processor's cache.

Each step of a program is a pass over its elements. Over a whole block that is a way to the memory
and back for each; over a tile it is none.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from b2nd_dask.frame.read.partial_results import Accumulation, PartialResult
from b2nd_dask.graph.expression.chunk_kernels import Kernel
from b2nd_dask.graph.expression.elementwise import NUMBERS
from b2nd_dask.graph.expression.program import Program
from b2nd_dask.graph.expression.tile_program import TileProgram

Box = tuple[slice, ...]

#: Elements of a tile: what steps make of it stays in a cache that threads share, and each costs
#: several times as much as calling its functions.
TILE = 1 << 17
#: Of the last axis a tile has so many before it has several along others.
_RUN = 512


class Tiles:
    """The tiles of a box, which hold whole reduced axes where these fit.

    Parameters
    ----------
    shape : tuple of int
        Of the box.
    axis : tuple of int
        Axes that are reduced.
    """

    def __init__(self, shape: tuple[int, ...], axis: tuple[int, ...]) -> None:
        last = len(shape) - 1
        kept = [i for i in range(len(shape)) if i not in axis]
        lengths = [1] * len(shape)
        # a run along the last axis, then reduced axes, then the others
        for i, most in [
            *((i, _RUN) for i in (last,) if shape),
            *((i, TILE) for i in (*reversed(axis), *reversed(kept))),
        ]:
            room = most // math.prod(length for j, length in enumerate(lengths) if j != i)
            lengths[i] = max(lengths[i], min(shape[i], room))
        self._bounds = [_pieces(*pair) for pair in zip(shape, lengths, strict=True)]
        self.counts = tuple(map(len, self._bounds))
        """How many there are along each axis."""
        self.most = math.prod(max(s.stop - s.start for s in along) for along in self._bounds)
        """Elements of the largest one."""

    @property
    def count(self) -> int:
        """How many there are."""
        return math.prod(self.counts)

    def __iter__(self) -> Iterator[tuple[tuple[int, ...], Box]]:
        """Numbers along each axis, and where the tile lies, in C order."""
        cells = itertools.product(*map(range, self.counts))
        return zip(cells, itertools.product(*self._bounds), strict=True)


def is_tiled(program: Program) -> bool:
    """Whether a program runs in tiles of a large block."""
    return len(program.steps) > 1 and not program.filters


def _pieces(length: int, most: int) -> list[slice]:
    """Cut an axis into equal pieces."""
    count = max(1, -(-length // most))
    ends = [length * number // count for number in range(count + 1)]
    return [slice(*pair) for pair in itertools.pairwise(ends)]


def computed(program: Program, arrays: Sequence[Any], out: NDArray[Any] | None = None) -> Any:
    """Run a program on arrays that broadcast to each other, none of another type than ndarray.

    Parameters
    ----------
    out : ndarray, optional
        Where the result goes, of its shape and dtype.

    Returns
    -------
    ndarray
        Bit for bit what the program makes of whole arrays.
    """
    shape = np.broadcast_shapes(*map(np.shape, arrays))
    tiles = Tiles(shape, ())
    fixed = all(np.asarray(each).dtype.kind in NUMBERS + "mM" for each in arrays)
    # of text the dtype depends on the elements
    if not is_tiled(program) or tiles.count == 1 or not fixed:
        made = program.run(arrays[0], arrays[1:])
        if out is not None:
            out[...] = made
        return made
    if out is None:
        out = np.empty(shape, program.dtype(arrays))
    small = TileProgram(program, arrays, shape, tiles.most)
    for _, box in tiles:
        small.run([_part(array, box) for array in arrays], out[box])
    return out


def reduced(
    program: Program,
    arrays: Sequence[Any],
    kernel: Kernel,
    axis: tuple[int, ...],
    accumulation: Accumulation,
) -> PartialResult:
    """Reduce what a program makes of arrays; the first has the shape of all."""
    shape = arrays[0].shape
    tiles = Tiles(shape, axis)
    if tiles.count == 1:
        return kernel(program.run(arrays[0], arrays[1:]), axis)
    kept = [n if i in axis else shape[i] for i, n in enumerate(tiles.counts)]
    fields: dict[str, NDArray[Any]] = {}
    small = TileProgram(program, arrays, shape, tiles.most)
    for cell, box in tiles:
        elements = small.run([_part(array, box) for array in arrays])
        found = kernel(elements, axis, scratch=small.owns_result)
        where = tuple(slice(n, n + 1) if i in axis else box[i] for i, n in enumerate(cell))
        for name, values in found.items():
            if name not in fields:
                fields[name] = np.empty([*kept, *values.shape[len(kept) :]], values.dtype)
            fields[name][where] = values
    merged: PartialResult = fields
    for i in axis:
        merged = _merged(accumulation, merged, i, tiles.counts[i])
    return merged


def _merged(
    accumulation: Accumulation, fields: PartialResult, axis: int, length: int
) -> PartialResult:
    """Merge partial results along an axis, always two halves: sums lose as little as pairwise."""

    def part(start: int, stop: int) -> PartialResult:
        where = (slice(None),) * axis + (slice(start, stop),)
        return {name: values[where] for name, values in fields.items()}

    while length > 1:
        half, rest = (length + 1) // 2, length // 2
        with np.errstate(all="ignore"):
            both = accumulation.merge(part(0, rest), part(half, length))
        middle = part(rest, half)
        fields = {name: np.concatenate([both[name], middle[name]], axis) for name in both}
        length = half
    return fields


def _part(array: Any, box: Box) -> Any:
    """The part of an array that is broadcast to a box."""
    if not np.ndim(array):
        return array
    own = box[len(box) - array.ndim :]
    return array[tuple(slice(0, 1) if n == 1 else s for n, s in zip(array.shape, own, strict=True))]
