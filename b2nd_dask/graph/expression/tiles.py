"""Programs and reductions in tiles: boxes of a block that fit in the processor's cache.

Each step of a program is a pass over its elements: through memory for a whole block, through
the cache for a tile. Steps also avoid new arrays, whose pages the system must allocate: a step
writes into an earlier result that is no longer needed, or into the elements. The result is the
same bit for bit.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from b2nd_dask.format.grid import steps
from b2nd_dask.frame.read.buffers import result_pool
from b2nd_dask.frame.read.reduction import Accumulation, PartialResult
from b2nd_dask.graph._dask_compat import chunk
from b2nd_dask.graph.expression.chunk_kernels import Kernel
from b2nd_dask.graph.expression.elementwise import NUMBERS, UFUNCS
from b2nd_dask.graph.expression.program import Input, Program, Result, Step, value_of
from b2nd_dask.graph.read.blocks import Chunks, regions_of

Box = tuple[slice, ...]

#: Elements of a tile: few enough for the shared cache of the threads, and enough that a step takes
#: longer than reacquiring the GIL after it.
TILE = 1 << 19
#: Fewest elements of a block whose steps write into existing memory. For smaller blocks choosing
#: that memory takes longer than allocating new arrays.
LEAST_IN_PLACE = 1 << 17
#: Dtype kinds of a fixed item size; that of text depends on the elements.
_FIXED = NUMBERS + "mM"
#: Minimum length of a tile along the last axis before it grows along other axes.
_RUN = 512


def tiles_of(shape: tuple[int, ...], axis: tuple[int, ...]) -> Chunks:
    """The tiles of a block, which contain the whole reduced axes if these fit."""
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
    counts = [max(1, -(-n // length)) for n, length in zip(shape, lengths, strict=True)]
    # tiles of one length; the last tile may be shorter
    return tuple(steps(n, -(-n // count) or 1) for n, count in zip(shape, counts, strict=True))


def largest_tile(tiles: Chunks) -> int:
    """Number of elements of the largest tile."""
    return math.prod(max(along, default=0) for along in tiles)


def run_on_block(
    program: Program, arrays: list[Any], out: NDArray[Any] | None = None, *, is_own: bool = False
) -> Any:
    """Run a program on a block: in tiles, or on one element if the arrays are constant.

    `arrays` are the elements and the inputs, which broadcast to each other. Steps may write into
    the elements if they are the caller's own (`is_own`); without tiles they are removed from the
    list, so that they can be freed early. The result is that for whole arrays, bit for bit. It is
    `out` if given, and may be a read-only view.
    """
    plain = not program.filters and all(map(is_plain, arrays))
    shape = np.broadcast_shapes(*map(np.shape, arrays)) if plain else ()
    if plain and out is None and _are_transposed(arrays, shape):
        return _run_in_memory_order(program, arrays, is_own=is_own)
    if plain and all(map(_is_constant, arrays)):
        first, *others = (each[(slice(0, 1),) * np.ndim(each)] for each in map(np.asarray, arrays))
        made = np.broadcast_to(program.run(first, others), shape)
    else:
        if (
            program.steps
            and math.prod(shape) >= LEAST_IN_PLACE
            and all(array.dtype.kind in _FIXED for array in arrays)
        ):
            work = in_place(program, arrays, shape, is_own=is_own)
            # the result of a single step that makes its own array would be copied
            if program.steps[1:] or work.result is not None:
                return _run_in_tiles(work, arrays, shape, out)
        made = program.run(arrays.pop(0), arrays)
    if out is not None and made is not out:
        out[...] = made
    return made


def _run_in_tiles(
    work: InPlace, arrays: Sequence[Any], shape: tuple[int, ...], out: NDArray[Any] | None
) -> Any:
    """Run a program tile by tile; the result is `out`, the elements, or a new array."""
    tiles = tiles_of(shape, ())
    buffers = work.buffers(tiles)
    if out is None and work.result != 0:
        out = result_pool.empty(shape, work.dtype)
    for box in regions_of(tiles):
        work.run([_part(array, box) for array in arrays], buffers, out if out is None else out[box])
    return arrays[0] if out is None else out


def _run_in_memory_order(program: Program, arrays: list[Any], *, is_own: bool) -> Any:
    """Run a program on transposed elements in the order of their memory; the result has it, too."""
    strides = arrays[0].strides
    order = sorted(range(len(strides)), key=lambda axis: -abs(strides[axis]))
    arrays[:] = [
        array[(None,) * (len(order) - array.ndim)].transpose(order) if np.ndim(array) else array
        for array in arrays
    ]
    return run_on_block(program, arrays, is_own=is_own).transpose(np.argsort(order))


def reduce_in_tiles(
    program: Program,
    arrays: Sequence[Any],
    kernel: Kernel,
    axis: tuple[int, ...],
    accumulation: Accumulation,
) -> PartialResult:
    """Reduce the result of a program; the first array has the shape of the result."""
    shape = arrays[0].shape
    tiles = tiles_of(shape, axis)
    if math.prod(map(len, tiles)) == 1:
        return kernel(program.run(arrays[0], arrays[1:]), axis)
    cells = tuple(map(len, tiles))
    kept = [n if i in axis else shape[i] for i, n in enumerate(cells)]
    fields: dict[str, NDArray[Any]] = {}
    work = in_place(program, arrays, shape)
    buffers = work.buffers(tiles)
    for cell, box in zip(np.ndindex(cells), regions_of(tiles), strict=True):
        elements = work.run([_part(array, box) for array in arrays], buffers)
        found = kernel(elements, axis, scratch=work.result is not None)
        where = tuple(slice(n, n + 1) if i in axis else box[i] for i, n in enumerate(cell))
        for name, values in found.items():
            if name not in fields:
                fields[name] = np.empty([*kept, *values.shape[len(kept) :]], values.dtype)
            fields[name][where] = values
    seen = np.ones(kept, np.bool_)
    merged: PartialResult = fields
    for i in axis:
        merged, seen = accumulation.merge_along(i, merged, seen)
    return merged


def is_plain(array: Any) -> bool:
    """Whether an array, or a scalar, is of NumPy's own type."""
    return type(array) is np.ndarray or isinstance(array, np.generic)


def _are_transposed(arrays: Sequence[Any], shape: tuple[int, ...]) -> bool:
    """Whether the elements and all other arrays of the result's shape are transposed."""
    full = [array for array in arrays if np.shape(array) == shape]
    return np.shape(arrays[0]) == shape and all(map(_is_transposed, full))


def _is_transposed(array: Any) -> bool:
    """Whether an earlier axis has smaller strides than a later one."""
    own = [abs(step) for step, n in zip(array.strides, array.shape, strict=True) if step and n > 1]
    return own != sorted(own, reverse=True)


def _is_constant(array: Any) -> bool:
    """Whether a plain array, or a scalar, is constant, by its strides."""
    return array.size > 0 and not any(
        step for step, n in zip(array.strides, array.shape, strict=True) if n > 1
    )


def _part(array: Any, box: Box) -> Any:
    """The part of an array that is broadcast to a box."""
    if not np.ndim(array):
        return array
    own = box[len(box) - array.ndim :]
    return array[tuple(slice(0, 1) if n == 1 else s for n, s in zip(array.shape, own, strict=True))]


class InPlace(NamedTuple):
    """A program whose steps write into buffers, or into the elements."""

    program: Program
    """Its inputs are those of the given program, the output array, the elements, the buffers."""
    dtype: np.dtype[Any]
    """Dtype of the result."""
    memory: tuple[np.dtype[Any], ...]
    """Dtypes of the buffers."""
    result: int | None
    """Array with the result: 0 are the elements; None if the last step makes its own array."""

    def buffers(self, tiles: Chunks) -> list[NDArray[Any]]:
        """Allocate the buffers for a tile."""
        return [np.empty(largest_tile(tiles), dtype) for dtype in self.memory]

    def run(
        self, arrays: Sequence[Any], flat: Sequence[NDArray[Any]], out: NDArray[Any] | None = None
    ) -> Any:
        """Run the steps with flat buffers; the result is `out`, the elements, a buffer, or new."""
        elements, *inputs = arrays
        shape = np.broadcast_shapes(*map(np.shape, arrays))
        count = math.prod(shape)
        memory = [elements, *(one[:count].reshape(shape) for one in flat)]
        target = memory[self.result] if out is None and self.result is not None else out
        found = self.program.run(elements, [*inputs, target, *memory])
        if out is not None and found is not out:
            out[...] = found
        return found


def in_place(
    program: Program, arrays: Sequence[Any], shape: tuple[int, ...], *, is_own: bool = False
) -> InPlace:
    """Choose the array that each step of a program writes to.

    `arrays` are the elements and the inputs, which broadcast to `shape`, or examples of these with
    their dtypes and axes. Steps may write into the elements if `is_own` and they are in C order:
    otherwise the result would not have NumPy's order.
    """
    examples, inputs = program.examples(arrays), list(arrays[1:])
    is_full = [np.shape(arrays[0]) == shape]
    steps: list[Step] = []
    # memory of results without other views, by step; the result is reused after its last use
    owned = {0: 0} if is_own and is_full[0] and arrays[0].flags.carray else {}
    memory: list[np.dtype[Any]] = [arrays[0].dtype]
    free: set[int] = set()
    for number, step in enumerate(program.steps, start=1):
        dtype, used = examples[number].dtype, {a.number for a in step.args if isinstance(a, Result)}
        others = (inputs[a.number] for a in step.args if isinstance(a, Input))
        is_full.append(any(is_full[n] for n in used) or shape in map(np.shape, others))
        args = [value_of(arg, examples, inputs) for arg in step.args]
        func = _writing(step, args, dtype) if is_full[number] else None
        if func is None:
            # the result may be a view of an operand, which must not be overwritten from now on
            for each in used & owned.keys():
                del owned[each]
            steps.append(step)
            continue
        free |= {owned.pop(each) for each in used & owned.keys() & {*program.last_uses[number - 1]}}
        own = next((each for each in free if memory[each] == dtype), len(memory))
        memory += [dtype] * (own == len(memory))
        free.discard(own)
        owned[number] = own
        target = Input(len(inputs) + (0 if number == len(program.steps) else 1 + own))
        steps.append(Step(func, step.args, {**step.kwargs, "out": target}))
    result = owned.get(len(program.steps))
    return InPlace(Program(tuple(steps)), examples[-1].dtype, tuple(memory[1:]), result)


def _writing(step: Step, args: Sequence[Any], dtype: np.dtype[Any]) -> Callable[..., Any] | None:
    """The function of a step with an argument `out`; None if there is none."""
    kinds = [np.asarray(arg).dtype.kind for arg in args]
    if not all(kind in NUMBERS for kind in (*kinds, dtype.kind)):
        # operators compare numbers to text and dates, which ufuncs do not
        return None
    if step.func is chunk.astype:
        return _cast
    if step.func is np.where and not step.keywords:
        single = [np.ndim(choice) == 0 for choice in args[1:]]
        # a result of booleans could share the memory of the mask
        is_mask = kinds[0] == "b" and np.ndim(args[0]) > 0 and dtype.kind != "b"
        return _choose if is_mask and single.count(True) == 1 else None
    return step.func if isinstance(step.func, np.ufunc) else UFUNCS.get(step.func)


def _cast(
    elements: Any, *, out: Any, astype_dtype: Any, casting: Any = "unsafe", copy: bool = True
) -> Any:
    np.copyto(out, elements, casting=casting)
    return out


def _choose(mask: Any, one: Any, other: Any, *, out: Any) -> Any:
    """`numpy.where` of one array and one element; the output may be the array itself."""
    array, element, chosen = (one, other, ~mask) if np.ndim(one) else (other, one, mask)
    if out is not array:
        np.copyto(out, array)
    np.copyto(out, element, where=chosen)
    return out
