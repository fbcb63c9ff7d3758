"""Functions that tasks of an optimized graph run: read, compute, reduce or index blocks.

A task carries a reference to the frame, the region to read, and the program for its elements.
This module does not know graphs of layers.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from b2nd_dask.frame.joined import JoinedReference, Readable
from b2nd_dask.frame.read.buffers import result_pool, writable
from b2nd_dask.frame.read.positions import read_outer, read_pointwise
from b2nd_dask.frame.read.region import LEAST_OF_A_THREAD, in_threads, own_threads
from b2nd_dask.graph.expression.chunk_steps import Fold
from b2nd_dask.graph.expression.elementwise import NUMBERS, is_number, is_scalar
from b2nd_dask.graph.expression.program import Program
from b2nd_dask.graph.expression.tiles import is_plain, run_on_block
from b2nd_dask.graph.read.blocks import BlockRead, Chunks, regions_of


def compute_block(*blocks: Any, program: Program, views: bool) -> Any:
    """Run a program on its elements and inputs: blocks to read, and results of other tasks.

    With `views` the result may be a read-only view of a constant block. Otherwise it is writable,
    as user functions may expect.
    """
    arrays = [each.elements() if isinstance(each, BlockRead) else each for each in blocks]
    if not program.steps:
        made = arrays.pop()
    elif np.ndim(arrays[0]):
        made = run_on_block(program, arrays, is_own=isinstance(blocks[0], BlockRead))
    else:
        are_read = (isinstance(each, BlockRead) for each in blocks[1:])
        made = _run_on_single(program, arrays, [True, *are_read])
    return made if views else writable(made)


def _run_on_single(program: Program, arrays: list[Any], are_read: list[bool]) -> Any:
    """Run a program on a single element as on an array of length 1.

    NumPy treats single elements differently: an integer overflow warns, a comparison of strings
    returns Python's booleans, and a power of a boolean has 8 bytes. `are_read` marks arrays that
    count as read by this task; the others are single elements for dask, too.
    """
    is_array = isinstance(arrays[0], np.ndarray)
    elements, *inputs = (
        np.asarray(each)[None] if is_read and not np.ndim(each) else each
        for each, is_read in zip(arrays, are_read, strict=True)
    )
    one = program.run(elements, inputs)
    if any(map(np.ndim, arrays)):
        # another input has an axis
        return one
    # the element of a masked array may be `numpy.ma.masked`
    return one.reshape(()) if is_array else one[0]


def read_at_once(block: BlockRead, program: Program, chunks: Chunks, threads: int) -> Any:
    """Compute a whole result in one task, with own threads unless other tasks need them.

    The program runs on pieces of the lengths `chunks`. It has no inputs and returns booleans or
    numbers; with steps, the block must be in the order of the frame. The result is writable, in C
    order. `threads` is the number of threads of dask's threaded scheduler.
    """
    if threading.current_thread() is threading.main_thread():
        # main thread: the synchronous scheduler, or a process of the multiprocessing scheduler
        threads = min(threads, own_threads())
    if not program.steps:
        found = block.elements(threads)
        if isinstance(found, np.ndarray) and not found.flags.c_contiguous:
            return found.copy(order="C")
        return writable(found)
    shape = tuple(map(len, block.axes))
    dtype = program.dtype([np.empty((0,) * len(shape), block.source.dtype)])
    out = result_pool.empty(shape, dtype)

    def compute(piece: tuple[tuple[slice, ...], BlockRead]) -> None:
        box, part = piece
        run_on_block(program, [part.elements()], out[box], is_own=True)

    in_threads(compute, pieces_of(block, chunks), min(threads, 1 + out.nbytes // LEAST_OF_A_THREAD))
    return out


def pieces_of(block: BlockRead, chunks: Chunks) -> Iterator[tuple[tuple[slice, ...], BlockRead]]:
    """Cut a block, in the order of the frame: the slices of each piece, and its read."""
    for box in regions_of(chunks):
        axes = (axis[along] for axis, along in zip(block.axes, box, strict=True))
        yield box, BlockRead(block.source, tuple(axes), predicate=block.predicate)


def reduce_block(block: BlockRead, fold: Fold, inputs: Sequence[Any]) -> Any:
    """Compute dask's chunk step of a reduction chunk by chunk while a block is read.

    The block must be in the order of the frame. Inputs of the chunk step's program are numbers,
    arrays, and blocks to read.
    """
    inputs = [each.elements() if isinstance(each, BlockRead) else each for each in inputs]
    if all(map(is_number, inputs)) and all(block.axes):
        fold, dtype, ndim = fold.bound(inputs), block.source.dtype, len(block.axes)
        total = block.source.reduce(block.axes, fold.reduction(dtype, ndim))
        return fold.result(total, dtype, ndim)
    return reduce_elements(np.asarray(block.elements()), fold, inputs)


def reduce_elements(elements: Any, fold: Fold, inputs: Sequence[Any] = ()) -> Any:
    """Compute dask's chunk step of a reduction of a block in memory."""
    are_plain = all(map(is_plain, (elements, *inputs)))
    if are_plain and elements.size and elements.dtype.kind in NUMBERS:
        return fold.of_block(elements, inputs)
    return fold.step(fold.program.run(elements, inputs))


def index_block(
    block: BlockRead, func: Any, program: Program, inputs: Sequence[Any], *arguments: Any
) -> Any:
    """Index a block of a frame, then run the program that dask would run before the index.

    `func` indexes its first argument by the other `arguments`. The block must be in the order of
    the frame; the result is writable.
    """
    if not all(map(is_scalar, inputs)):
        elements = np.asarray(block.elements())
        return func(run_on_block(program, [elements, *inputs], is_own=True), *arguments)
    elements = func(Window(block.source, block.axes), *arguments)
    return writable(run_on_block(program, [elements, *inputs], is_own=True))


class Window:
    """A block of a frame that is read by indexing."""

    def __init__(self, frame: Readable, axes: tuple[range, ...]) -> None:
        self._frame = frame
        self._axes = axes

    def __repr__(self) -> str:
        return f"<Window {self._axes} of {self._frame!r}>"

    def __getitem__(self, index: Any) -> NDArray[Any]:
        """Read a part of the block, indexed as in NumPy.

        Indices are points, or a list along one axis; dask passes no others. Only the blocks that
        they touch are read, or the whole block if a list touches most of it.
        """
        axes, full = self._axes, index if isinstance(index, tuple) else (index,)
        lists = [number for number, part in enumerate(full) if _is_positions(part)]
        if len(lists) == len(full) == len(axes):
            return read_pointwise(self._frame, full, axes)
        rest = (part for number, part in enumerate(full) if number not in lists)
        # slices that ascend
        if len(lists) == 1 and all(isinstance(p, slice) and (p.step or 1) > 0 for p in rest):
            full = (*full, *(slice(None),) * (len(axes) - len(full)))
            return read_outer(self._read, self._frame, full, axes)
        elements: NDArray[Any] = self._read(axes)[index]
        return elements

    def _read(self, axes: tuple[range, ...]) -> NDArray[Any]:
        return np.asarray(self._frame.read_axes(axes))


def regions_of_index(
    block: BlockRead, func: Any, program: Program, inputs: Sequence[Any], *arguments: Any
) -> list[tuple[Readable, tuple[range, ...]]]:
    """Regions that `index_block` reads; the whole block if arguments are unknown.

    Reads of single elements become one element of each block that they touch.
    """
    whole, recorder = [(block.source, block.axes)], _Recorder(block.source)
    try:
        func(Window(recorder, block.axes), *arguments)  # type: ignore[arg-type]
    except Exception:  # noqa: BLE001 - results of other tasks are unknown
        return whole
    return recorder.regions if all(map(is_scalar, inputs)) else whole


class _Recorder:
    """Stands in for a frame in `Window`, and records the regions that it reads."""

    def __init__(self, frame: Readable) -> None:
        self.shape, self.dtype = frame.shape, frame.dtype
        self.chunks, self.blocks = frame.chunks, frame.blocks
        self.regions: list[tuple[Readable, tuple[range, ...]]] = []
        self._frame = frame

    def read_axes(self, axes: tuple[range, ...]) -> NDArray[Any]:
        """Record a region; return elements of its shape."""
        self.regions.append((self._frame, axes))
        return np.broadcast_to(np.zeros((), self.dtype), tuple(map(len, axes)))

    def read_points(self, coords: tuple[NDArray[np.int64], ...]) -> NDArray[Any]:
        """Record the blocks of single elements, each by one element."""
        parts = [(self._frame, coords)]
        if isinstance(self._frame, JoinedReference):
            parts = [(frame, own) for frame, own, _ in self._frame.split_points(coords)]
        for frame, own in parts:
            sizes = zip(own, frame.grid.chunks, frame.grid.blocks, strict=True)
            corners = [at - at % chunk % block for at, chunk, block in sizes]
            for corner in np.unique(corners, axis=1).T.tolist():
                self.regions.append((frame, tuple(range(at, at + 1) for at in corner)))
        return np.zeros(len(coords[0]), self.dtype)


def _is_positions(part: Any) -> bool:
    """Whether an entry of an index is a 1-D list of integers."""
    return isinstance(part, list | np.ndarray) and (
        np.ndim(part) == 1 and np.asarray(part).dtype.kind in "iu"
    )
