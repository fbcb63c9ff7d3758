"""Arrays of `dask_array` that read frames, and their conversion to arrays of `dask.array`.

Writes need the conversion. Reads, moves and functions of blocks become layers, which the optimizer
and bounded writes understand; other expressions keep the tasks of `dask_array`.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable
from typing import Any

import dask.array as da
import numpy as np
from dask.highlevelgraph import HighLevelGraph

from b2nd_dask.frame.joined import Readable
from b2nd_dask.graph._dask_compat import only_layer
from b2nd_dask.graph.array_expr import compat
from b2nd_dask.graph.array_expr.compat import dask_original
from b2nd_dask.graph.array_expr.rules import constant_of
from b2nd_dask.graph.array_expr.source import FrameExpr, selected, source_of
from b2nd_dask.graph.expression.elementwise import FILTERS, is_among
from b2nd_dask.graph.expression.nodes import Read
from b2nd_dask.graph.read.blocks import Chunks, ReadBlocks, reading_of
from b2nd_dask.graph.read.from_b2nd import array_of

logger = logging.getLogger("b2nd_dask")

#: Keywords of `dask.array.blockwise` that are not passed to its function.
_BLOCKWISE = frozenset(
    ["name", "token", "dtype", "adjust_chunks", "new_axes", "align_arrays", "concatenate", "meta"]
)

#: Functions that move an array as an expression does, by the name of the expression's class.
_MOVES: dict[str, Callable[[da.Array, Any], da.Array]] = {
    "SliceSlicesIntegers": lambda array, moving: array[moving.index],
    "Rechunk": lambda array, moving: array.rechunk(moving.chunks),
    "Transpose": lambda array, moving: array.transpose(moving.axes),
    "ExpandDims": lambda array, moving: da.expand_dims(array, tuple(moving.axes)),
    "Reshape": lambda array, moving: array.reshape(moving.shape),
}


def expression_reading(source: Readable, sizes: Chunks, name: str | None = None) -> Any:
    """Make an array of `dask_array` of a frame or joined frames, in blocks of given lengths."""
    expression = source_of(Read.of(ReadBlocks.whole(source, sizes), ""), source.dtype, name)
    return compat.source_names().new_collection(expression)


def expression_of(array: da.Array) -> Any:
    """Convert an array of `dask.array`, which may read a frame, to one of `dask_array`."""
    reading = reading_of(only_layer(array))
    if reading is not None:
        return expression_reading(reading.source, array.chunks)
    numbers = itertools.product(*map(range, array.numblocks))
    keys = [(array.name, *number) for number in numbers]
    graph = dict(array.__dask_graph__())
    from_graph = compat.names_of("from_graph").from_graph
    return from_graph(graph, array._meta, array.chunks, keys, array.name)


def classic_array(array: Any) -> da.Array:
    """Convert an array of `dask_array` to an equal one of `dask.array`."""
    return _Conversion().of(array.expr)


class _Conversion:
    """Converts expressions, each only once."""

    def __init__(self) -> None:
        self._done: dict[str, da.Array] = {}

    def of(self, expression: Any) -> da.Array:
        """The array of an expression, in the same blocks."""
        name = expression._name
        if name not in self._done:
            try:
                made = self._converted(expression)
            except Exception:  # in any case the tasks of dask_array are right
                logger.debug("%s: dask_array makes its tasks", name, exc_info=True)
                made = None
            if made is None or made.shape != expression.shape or made.dtype != expression.dtype:
                made = _of_tasks(expression)
            has_lengths = not np.isnan(expression.size)
            self._done[name] = made.rechunk(expression.chunks) if has_lengths else made
        return self._done[name]

    def _converted(self, expression: Any) -> Any:
        """The array as functions of `dask.array` make it; None if they cannot."""
        names, kind = compat.rule_names(), type(expression)
        if names is None:
            return None
        if kind is FrameExpr:
            return _of_read(expression.top) if isinstance(expression.top, Read) else None
        if kind is getattr(names, kind.__name__, None) and kind.__name__ in _MOVES:
            return _MOVES[kind.__name__](self.of(expression.array), expression)
        if isinstance(expression, names.BroadcastTrick):
            return _constant(expression)
        if getattr(kind, "_lower", None) is names.Reduction._lower:
            return self._reduction(expression)
        if kind is names.Elemwise and (expression.where is not True or expression.out is not None):
            return None
        # a filter returns fewer elements than its blocks say
        if kind is names.Elemwise and is_among(expression.op, FILTERS):
            return None
        is_call = kind in (names.Elemwise, names.Blockwise)
        return self._blockwise(expression) if is_call else None

    def _blockwise(self, expression: Any) -> Any:
        pairs = list(zip(expression.args[::2], expression.args[1::2], strict=True))
        arrays = [one for one, labels in pairs if labels is not None]
        plain = all(hasattr(one, "_name") and hasattr(one, "chunks") for one in arrays)
        if not plain or len(expression.dependencies()) > len(arrays):
            return None
        # dask.array broadcasts an axis of one element, even if it has several blocks
        if any(sum(along) == 1 < len(along) for one in arrays for along in one.chunks):
            return None
        keywords = {name: dask_original(value) for name, value in expression.kwargs.items()}
        if _BLOCKWISE & keywords.keys() or expression.new_axes:
            return None
        converted = [((one if labels is None else self.of(one)), labels) for one, labels in pairs]
        return da.blockwise(
            dask_original(expression.func), expression.out_ind,
            *itertools.chain.from_iterable(converted),
            token=expression.token, dtype=expression.dtype, adjust_chunks=expression.adjust_chunks,
            align_arrays=expression.align_arrays, concatenate=expression.concatenate,
            meta=expression._meta, **keywords,
        )  # fmt: skip

    def _reduction(self, expression: Any) -> Any:
        if expression.weights is not None:
            return None
        combine = None if expression.combine is None else dask_original(expression.combine)
        return da.reduction(
            self.of(expression.array), dask_original(expression.chunk),
            dask_original(expression.aggregate), combine=combine, axis=expression.axis,
            keepdims=expression.keepdims, dtype=expression.operand("dtype"),
            split_every=expression.split_every, name=expression.operand("name"),
            concatenate=expression.concatenate, output_size=expression.output_size,
            meta=expression.meta,
        )  # fmt: skip


def _constant(expression: Any) -> Any:
    found = constant_of(expression)
    if found is None:
        return None
    element, shape = found.value[()], expression.shape
    return da.full(shape, element, chunks=expression.chunks, dtype=expression.dtype)


def _of_read(read: Read) -> Any:
    """The array of a frame or joined frames, with the moves of a read applied."""
    source = read.source
    if read.is_box and read.positions == tuple(map(range, source.shape)):
        return array_of(source, read.chunks)
    return selected(array_of(source, None), read.positions, read.axes)


def _of_tasks(expression: Any) -> da.Array:
    """An array with the tasks that `dask_array` makes of an expression."""
    tasks = dict(compat.source_names().new_collection(expression).__dask_graph__())
    name, meta = expression._name, expression._meta
    layers, below = {name: tasks}, {name: set[str]()}
    # an expression that reads neither frames nor other expressions is an ordinary array
    if expression.dependencies() or type(expression) is FrameExpr:
        inputs = f"inputs-{name}"
        layers[inputs] = {key: tasks.pop(key) for key in list(tasks) if key[0] != name}
        below |= {name: {inputs}, inputs: set()}
    graph = HighLevelGraph(layers, below)
    return da.Array(graph, name, expression.chunks, dtype=expression.dtype, meta=meta)
