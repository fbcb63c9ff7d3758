"""Blocks that tasks read: how they are computed by a program, returned at once, or reduced."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from b2nd_dask.frame.joined import Readable
from b2nd_dask.frame.read.buffers import result_pool, writable
from b2nd_dask.frame.read.pruning import Predicate
from b2nd_dask.frame.read.region import LEAST_OF_A_THREAD, in_threads, own_threads
from b2nd_dask.frame.reference import FrameReference
from b2nd_dask.graph.expression.chunk_steps import Fold
from b2nd_dask.graph.expression.elementwise import is_number
from b2nd_dask.graph.expression.program import Program
from b2nd_dask.graph.expression.tiles import computed

#: Kinds of dtypes whose scalars lose the length of the elements.
_OF_LENGTH = "SUV"


@dataclass(frozen=True)
class Finish:
    """How the elements that were read become a block: axes dropped, reversed, exchanged, added."""

    index: tuple[int | slice, ...]
    order: tuple[int, ...]
    expand: tuple[slice | None, ...]

    def of(self, elements: NDArray[Any]) -> Any:
        """Finish elements; a view of them."""
        # with the ellipsis a single element stays an array: strings would lose their length
        found: Any = elements[(*self.index, ...)]
        if len(self.order) > 1:
            found = found.transpose(self.order)
        found = found[self.expand] if None in self.expand else found
        # a single element is a scalar, as NumPy has it, but for those with a length of their own
        return found[()] if not found.ndim and found.dtype.kind not in _OF_LENGTH else found


@dataclass(frozen=True, eq=False)
class BlockRead:
    """A block of a frame that a task reads."""

    source: Readable
    axes: tuple[range, ...]
    """Ascending positions along each axis."""
    finish: Finish | None = None
    """None where the elements are the block."""
    predicate: Predicate | None = None
    """Prunes chunks whose elements cannot change the result; of a single frame."""

    @property
    def is_reversed(self) -> bool:
        """Whether the elements lie in memory in the reverse order of an axis."""
        index = () if self.finish is None else self.finish.index
        return any(isinstance(part, slice) and part.step == -1 for part in index)

    def elements(self, threads: int = 1) -> Any:
        """Read it; read-only and of zero strides where one element fills it."""
        if self.predicate is not None and isinstance(self.source, FrameReference):
            elements = self.source.read_pruned(self.axes, self.predicate)
        else:
            elements = self.source.read_axes(self.axes, threads)
        return elements if self.finish is None else self.finish.of(elements)


def compute_block(*blocks: Any, program: Program | None, views: bool) -> Any:
    """Read a block and compute a program on it.

    Parameters
    ----------
    *blocks
        The elements of the program, and its inputs: blocks to read, and results of other tasks.
    program : Program or None
        None where the block is all that is wanted.
    views : bool
        Whether the result may be a read-only view, of a constant block. Otherwise it is writable,
        as functions of the user may expect.
    """
    arrays = [each.elements() if isinstance(each, BlockRead) else each for each in blocks]
    made = arrays.pop() if program is None else _computed(program, arrays)
    return made if views else writable(made)


def read_at_once(block: BlockRead, threads: int) -> Any:
    """Read all that a computation returns, with threads of the task unless somebody else has them.

    Parameters
    ----------
    block : BlockRead
        What to read.
    threads : int
        Of dask's threaded scheduler.

    Returns
    -------
    ndarray or scalar
        Writable, in C order.
    """
    found = block.elements(_threads_of(threads))
    if isinstance(found, np.ndarray) and not (found.flags.writeable and found.flags.c_contiguous):
        return found.copy(order="C")
    return found


def _threads_of(threads: int) -> int:
    """Threads of a task, unless somebody else has them."""
    # the main thread of a program computes for the synchronous scheduler, or for that of processes
    in_main = threading.current_thread() is threading.main_thread()
    return min(threads, own_threads()) if in_main else threads


def compute_at_once(
    block: BlockRead, program: Program, chunks: tuple[tuple[int, ...], ...], threads: int
) -> NDArray[Any]:
    """Compute all that a computation returns, piece by piece, with threads of the task.

    Parameters
    ----------
    block : BlockRead
        What to read, in the order of the frame.
    program : Program
        To run on it, without inputs; it makes booleans or numbers.
    chunks : tuple of tuple of int
        Sizes of the pieces.
    threads : int
        Of dask's threaded scheduler.
    """
    shape = tuple(map(len, block.axes))
    dtype = program.dtype([np.empty((0,) * len(shape), block.source.dtype)])
    out = result_pool.empty(shape, dtype)

    def compute(piece: tuple[tuple[slice, ...], BlockRead]) -> None:
        box, part = piece
        elements = part.elements()
        if _is_repeated(elements):
            out[box] = _computed(program, [elements])
        else:
            computed(program, [elements], out[box])

    threads = min(_threads_of(threads), 1 + out.nbytes // LEAST_OF_A_THREAD)
    in_threads(compute, pieces_of(block, chunks), threads)
    return out


def pieces_of(
    block: BlockRead, chunks: tuple[tuple[int, ...], ...]
) -> Iterator[tuple[tuple[slice, ...], BlockRead]]:
    """Cut a block, in the order of the frame: where each piece lies in it, and what to read."""
    ends = (itertools.accumulate(along, initial=0) for along in chunks)
    along_axes = (itertools.starmap(slice, itertools.pairwise(along)) for along in ends)
    for box in itertools.product(*along_axes):
        axes = (axis[along] for axis, along in zip(block.axes, box, strict=True))
        yield box, BlockRead(block.source, tuple(axes), predicate=block.predicate)


def _computed(program: Program, arrays: list[Any]) -> Any:
    """Run a program; the arrays are taken out of the list, so that they go when they are used."""
    if not np.ndim(arrays[0]) and program.steps:
        # single elements behave otherwise than arrays: integers that overflow warn, and strings
        # compare to Python's booleans
        is_array = isinstance(arrays[0], np.ndarray)
        one = program.run(np.asarray(arrays.pop(0))[None], arrays)
        if any(map(np.ndim, arrays)):
            # of an axis that another array has
            return one
        # of a masked array the element may be `numpy.ma.masked`
        return one.reshape(()) if is_array else one[0]
    if program.filters or not all(map(_is_plain, arrays)):
        return program.run(arrays.pop(0), arrays)
    if not all(map(_is_repeated, arrays)):
        return computed(program, arrays)
    shape = np.broadcast_shapes(*map(np.shape, arrays))
    first, *others = (each[(slice(0, 1),) * np.ndim(each)] for each in map(np.asarray, arrays))
    return np.broadcast_to(program.run(first, others), shape)


def _is_plain(array: Any) -> bool:
    """Whether an array, or a scalar, is of NumPy's own type."""
    return type(array) is np.ndarray or isinstance(array, np.generic)


def _is_repeated(array: Any) -> bool:
    """Whether a plain array repeats one element."""
    if isinstance(array, np.generic):
        return True
    return array.size > 0 and not any(
        step for step, n in zip(array.strides, array.shape, strict=True) if n > 1
    )


def reduce_block(block: BlockRead, fold: Fold, inputs: Sequence[Any]) -> Any:
    """Compute the chunk step of a reduction chunk by chunk, while the block is read.

    Parameters
    ----------
    block : BlockRead
        Its elements in the order of the frame.
    inputs : sequence
        Inputs of the program of the chunk step: numbers, arrays, and blocks to read.

    Returns
    -------
    ndarray or dict of ndarray
        The result of dask's own chunk step for the block.
    """
    dtype, ndim = block.source.dtype, len(block.axes)
    inputs = [each.elements() if isinstance(each, BlockRead) else each for each in inputs]
    if all(map(is_number, inputs)) and all(block.axes):
        fold = fold.bound(inputs)
        total = block.source.reduce(block.axes, fold.reduction(dtype))
        return fold.result(total, dtype, ndim)
    elements = np.asarray(block.elements())
    if not all(map(_is_plain, inputs)) or not all(block.axes):
        return fold.whole(elements, inputs)
    return fold.result(fold.partial_result(elements, inputs), dtype, ndim, inputs)
