"""Reads and writes of the tasks of an optimized graph, from the objects that the tasks carry.

Needs private names of dask, so it is imported for the first plan.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from dask.optimization import cull

from b2nd_dask.format.grid import Grid
from b2nd_dask.frame.read.read_cost import Region
from b2nd_dask.frame.read.reduce import group_nbytes
from b2nd_dask.frame.rechunk.work import FlatSource, IntermediateFrame, Source, rechunk_region
from b2nd_dask.frame.write.transaction import Transaction
from b2nd_dask.graph._dask_compat import (
    DataNode,
    FinalizeCompute,
    collections_to_expr,
    convert_legacy_graph,
)
from b2nd_dask.graph.expression.chunk_steps import Fold
from b2nd_dask.graph.expression.elementwise import FILTERS, is_among, is_number
from b2nd_dask.graph.expression.program import ELEMENTS, Program
from b2nd_dask.graph.expression.tiles import largest_tile, tiles_of
from b2nd_dask.graph.plan.memory import (
    Piece,
    ReadEstimate,
    ReadFrame,
    TaskEstimate,
    nbytes_of_program,
    nbytes_of_results,
    read_of,
)
from b2nd_dask.graph.plan.plan import FrameReads, Plan, Target, total_of
from b2nd_dask.graph.prefetch import TaskCalls, block_read
from b2nd_dask.graph.read.blocks import BlockRead, Chunks
from b2nd_dask.graph.tasks import (
    index_block,
    pieces_of,
    read_at_once,
    reduce_block,
    regions_of_index,
)
from b2nd_dask.graph.write.write_tasks import write_task

_WRITERS = (write_task, rechunk_region)
#: Functions of blocks whose result is no new block: they write the block, or share its memory.
_WITHOUT_NEW_BLOCK = (write_task, *FILTERS)
#: The tiles of a block, equal for most tasks of a layer.
_tiles_of = functools.lru_cache(tiles_of)


def plan_of(collections: Iterable[Any]) -> Plan:
    """Add up the reads, decoded bytes, memory and writes of the tasks of collections."""
    graph = _optimized(collections)
    calls, targets = TaskCalls(graph), dict[Any, Transaction]()
    every = (_estimate(list(calls.of(node)), targets) for node in graph.values())
    tasks = [task for task in every if task.reads or task.writes]
    # also adds the cost of each piece to its read
    frames = tuple(map(_read_of_frame, _by_frame(tasks)))
    return Plan(
        **total_of(frames),
        tasks=sum(not isinstance(node, DataNode) for node in graph.values()),
        frames=frames,
        targets=tuple(map(_target, targets.values())),
        writing_tasks=sum(task.writes is not None for task in tasks),
        peak_nbytes=int(max((task.peak for task in tasks), default=0)),
    )


def _optimized(collections: Iterable[Any]) -> Mapping[Any, Any]:
    """The tasks that `compute` runs, including those that join the blocks of a result."""
    expression: Any = FinalizeCompute(collections_to_expr(collections))
    optimized = expression.optimize()
    # dask leaves tasks in the graph that no result needs; no scheduler runs them
    graph, _ = cull(dict(optimized.__dask_graph__()), optimized.__dask_keys__())
    nodes: Mapping[Any, Any] = convert_legacy_graph(graph)
    return nodes


def _by_frame(tasks: Iterable[TaskEstimate]) -> Iterable[list[tuple[ReadEstimate, Piece]]]:
    """Group the pieces by frame, each with its read."""
    groups: dict[Any, list[tuple[ReadEstimate, Piece]]] = {}
    token_of = functools.cache(_token)
    for task in tasks:
        for read in task.reads:
            for piece in read.pieces:
                groups.setdefault(token_of(piece.frame), []).append((read, piece))
    return groups.values()


def _token(frame: ReadFrame) -> Any:
    """A token that is equal for references to the same version of a frame."""
    return frame if isinstance(frame, IntermediateFrame) else frame.__dask_tokenize__()


def _read_of_frame(pieces: list[tuple[ReadEstimate, Piece]]) -> FrameReads:
    """Sum up the reads from a frame; add the cost of each piece to its read."""
    frame = pieces[0][1].frame
    costs = frame.read_costs([piece.region for _, piece in pieces])
    grid = frame.grid if isinstance(frame, IntermediateFrame) else frame.stored_grid
    group = group_nbytes(frame.grid)
    for row, (read, piece) in enumerate(pieces):
        read.add(piece, costs, row, group)
    return FrameReads(
        **_described(frame.location.label, grid, frame.dtype),
        reads=len(pieces),
        chunks=costs.nchunks,
        visits=costs.visits,
        blocks=costs.blocks,
        constants=costs.constants,
        fetch_nbytes=round(costs.fetched.sum()),
        decode_nbytes=costs.blocks * frame.grid.block_nbytes,
        is_intermediate=isinstance(frame, IntermediateFrame),
    )


def _target(write: Transaction) -> Target:
    plan = write.plan
    return Target(
        **_described(write.staging.label, plan.grid, plan.dtype),
        chunks=plan.grid.nchunks,
        contiguous=not plan.sparse,
        is_intermediate=isinstance(write, IntermediateFrame),
    )


def _described(label: str, grid: Grid, dtype: np.dtype[Any]) -> dict[str, Any]:
    """The common fields of `FrameReads` and `Target`."""
    cells = {"chunk_shape": grid.chunks, "block_shape": grid.blocks}
    return {"path": label, "shape": grid.shape, "dtype": dtype, **cells}


def _read_of(*blocks: BlockRead, held: float = 0.0) -> ReadEstimate:
    return read_of(((each.source, Region(each.axes)) for each in blocks), held)


def _estimate(calls: list[tuple[Any, list[Any]]], targets: dict[Any, Transaction]) -> TaskEstimate:
    """The reads and the write of a task's calls; adds the frames that it writes to the targets."""
    reads: list[ReadEstimate] = []
    first_block: ReadEstimate | None = None
    writes: Transaction | None = None
    makes_more = False
    for func, args in calls:
        found = _reads(func, args)
        if found and func is not reduce_block:
            first_block = first_block or found[0]
        reads += found
        makes_more |= not found and not is_among(func, _WITHOUT_NEW_BLOCK)
        for write in (arg for arg in args if isinstance(arg, Transaction)):
            # several tasks may start the same transaction
            targets.setdefault((write.staging.label, write.staging.key), write)
            writes = write if is_among(func, _WRITERS) else writes
    if first_block and makes_more:
        # one more block for the function's result
        first_block.held = max(first_block.held, 1.0)
    return TaskEstimate(reads, writes)


def _reads(func: Any, args: list[Any]) -> list[ReadEstimate]:
    """The reads of a function call."""
    first: Any = args[0] if args else None
    if func is reduce_block:
        return _of_reduction(*args)
    if func is read_at_once:
        return [_of_result(*args)]
    if func is index_block:
        dtype, program = first.source.dtype, args[2]
        dtypes = (dtype,) * (1 + program.inputs)
        held = nbytes_of_program(program, dtypes, is_own=True)[0] / dtype.itemsize
        return [read_of([(f, Region(axes))], held) for f, axes in regions_of_index(*args)]
    if isinstance(first, Source) and func is not FlatSource:
        read = read_of(first.regions(args[1]))
        read.is_copied = isinstance(first, FlatSource)
        return [read]
    blocks = [block for each in args if (block := block_read(each, func, args))]
    return _of_blocks(func, args, blocks) if blocks else []


def _of_blocks(func: Any, args: list[Any], blocks: list[BlockRead]) -> list[ReadEstimate]:
    """The reads of `compute_block`; the largest block has the program's memory."""
    reads = list(map(_read_of, blocks))
    program = getattr(func, "keywords", {}).get("program", ELEMENTS)
    if program.steps:
        shapes = [tuple(map(len, each.axes)) for each in blocks]
        at = max(range(len(blocks)), key=lambda number: math.prod(shapes[number]))
        # the dtype of other tasks' results is unknown: assume the block's
        known = [each if isinstance(each, BlockRead) else blocks[at] for each in args]
        dtypes = tuple(each.source.dtype for each in known)
        is_own = isinstance(args[0], BlockRead) and not args[0].is_reversed
        held, in_tile = nbytes_of_program(program, dtypes, is_own=is_own)
        reads[at].held = held / blocks[at].source.dtype.itemsize
        if not program.filters:
            reads[at].temporary = largest_tile(_tiles_of(shapes[at], ())) * in_tile
    return reads


def _of_result(block: BlockRead, program: Program, chunks: Chunks, threads: int) -> ReadEstimate:
    """The read of `read_at_once`, with its result and the work on each piece."""
    if not program.steps:
        # reversed elements are copied to C order
        return _read_of(block, held=float(block.is_reversed))
    pieces = (piece for _, piece in pieces_of(block, chunks))
    read = _read_of(*pieces)
    read.is_joined = False
    nelements, dtypes = math.prod(map(len, block.axes)), (block.source.dtype,)
    read.temporary = nelements * nbytes_of_program(program, dtypes, is_own=False)[0]
    running = min(threads, math.prod(map(len, chunks)))
    tile = largest_tile(_tiles_of(tuple(map(max, chunks)), ()))
    read.temporary += running * tile * nbytes_of_program(program, dtypes, is_own=True)[1]
    return read


def _of_reduction(block: BlockRead, fold: Fold, inputs: list[Any]) -> list[ReadEstimate]:
    """The reads of `reduce_block`; none if statistics answer the reduction."""
    frame, axes = block.source, block.axes
    prunes = fold.prunes and not inputs and all(axes)
    if prunes and frame.unanswered_nbytes(axes, fold.reduction(frame.dtype, len(axes))) == 0:
        return []
    read, shape = _read_of(block), tuple(map(len, axes))
    read.is_streamed = all(map(is_number, inputs))
    kept = math.prod(n for axis, n in enumerate(shape) if axis not in fold.axes(len(shape)))
    read.temporary = kept * nbytes_of_results(fold, frame.dtype, len(axes))
    if fold.program.steps:
        dtypes = (frame.dtype,) * (1 + fold.program.inputs)
        # a filter selects from whole chunks
        box = tuple(map(min, shape, frame.chunks)) if read.is_streamed else shape
        tile = largest_tile(_tiles_of(shape, fold.axis))
        count = math.prod(box) if fold.program.filters else tile
        read.temporary += count * nbytes_of_program(fold.program, dtypes, is_own=False)[1]
    others = (each for each in inputs if isinstance(each, BlockRead))
    return [read, *map(_read_of, others)]
