"""The source of expressions: elements of frames and elementwise work on them, as one node."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import numpy as np
from dask.base import tokenize
from dask.typing import Key

from b2nd_dask.graph._dask_compat import Task
from b2nd_dask.graph.array_expr import compat
from b2nd_dask.graph.expression.nodes import (
    Node,
    Opaque,
    Read,
    Selection,
    computed_in,
    with_nodes,
)
from b2nd_dask.graph.expression.program import Compiled, compile_tree
from b2nd_dask.graph.expression.pruning import predicate_of
from b2nd_dask.graph.optimize.at_once import task_at_once
from b2nd_dask.graph.optimize.lower import input_of, own_block
from b2nd_dask.graph.optimize.optimizer import active_rules
from b2nd_dask.graph.prefetch import prefetching
from b2nd_dask.graph.read.blocks import Chunks, Finish
from b2nd_dask.graph.task_names import read_name
from b2nd_dask.graph.tasks import compute_block

Dependents = Mapping[str, Iterable[Any]]
"""Weak references to the dependents of each expression."""
TaskMaker = Callable[[Key, tuple[int, ...]], Any]
"""Makes the task of a block, from its key and its number."""

#: Prefix of names of sources whose blocks have their own tasks.
UNFUSED = "read-apart"

_IO: Any = compat.source_names().IO


@dataclass(frozen=True, eq=False)
class Argument(Opaque):
    """Another expression as a leaf; it accepts selections itself."""

    expression: Any

    @classmethod
    def of(cls, expression: Any) -> Argument:
        """The leaf of an expression, in the expression's blocks."""
        return cls(expression._name, expression.chunks, expression)

    def accept(self, selection: Selection, layer: str) -> Argument:
        """Slice, rechunk or transpose the expression."""
        array = compat.source_names().new_collection(self.expression)
        found = selected(array, selection.positions, selection.axes).expr
        return Argument.of(_in_blocks(found, selection.chunks))


def _in_blocks(expression: Any, chunks: Chunks) -> Any:
    return expression if expression.chunks == chunks else expression.rechunk(chunks)


def selected(array: Any, positions: tuple[range, ...], axes: tuple[int | None, ...]) -> Any:
    """Select elements of an array of `dask_array` or `dask.array`; see `Selection`."""
    index = tuple(
        slice(along.start, along.stop if along.stop >= 0 else None, along.step)
        if axis in axes
        else along[0]
        for axis, along in enumerate(positions)
    )
    return Finish(index, axes).of(array)


@dataclass(frozen=True, eq=False)
class Tree:
    """A node that reads, as an operand of expressions; its inputs are opaque leaves."""

    top: Node
    """The node; the name of each opaque leaf is the number of an input."""
    grids: tuple[Chunks, ...]
    """The blocks of each input."""

    def __reduce__(self) -> tuple[Any, ...]:
        return Tree, (self.top, self.grids)

    @cached_property
    def compiled(self) -> Compiled:
        """The program of the tree."""
        found = compile_tree(self.top)
        assert found is not None, "a source reads"  # noqa: S101
        return found

    def __dask_tokenize__(self) -> Any:
        # of the program: dask would recurse into a deep tree, and repeat shared subtrees
        read, program, inputs = self.compiled
        return "b2nd_dask.Tree", [_token_of_leaf(leaf) for leaf in (read, *inputs)], program.steps


def _token_of_leaf(leaf: Node) -> Any:
    if not isinstance(leaf, Read):
        return leaf.layers[0]
    positions = [(along.start, along.stop, along.step) for along in leaf.positions]
    # dask would visit the length of each of many thousand blocks
    lengths = [np.asarray(along, np.int64).tobytes() for along in leaf.chunks]
    return tokenize(leaf.source), positions, leaf.axes, lengths


def operands_of(top: Node) -> tuple[Tree, list[Any]]:
    """A node as an operand, and its distinct inputs."""
    inputs: dict[str, tuple[int, Any]] = {}

    def numbered(node: Node) -> Node:
        if not isinstance(node, Argument):
            return node
        number, _ = inputs.setdefault(node.name, (len(inputs), node.expression))
        return Opaque(str(number), node.chunks)

    top = with_nodes(top, numbered)
    found = [expression for _, expression in inputs.values()]
    return Tree(top, tuple(each.chunks for each in found)), found


class ReadingExpr(_IO):  # type: ignore[misc]
    """An expression that reads blocks of frames and runs the program of its operand `tree`.

    The operands after the named ones are the inputs: other expressions that the program needs.
    """

    _pickle_excluded_cached_properties = frozenset({"_makers", "_cached_keys"})

    @property
    def inputs(self) -> list[Any]:
        """The inputs, in the blocks that the program needs; a rewrite may have rechunked them."""
        own = self.operands[len(self._parameters) :]
        return list(map(_in_blocks, own, self.tree.grids))

    @property
    def top(self) -> Any:
        """The node of all elements, with the inputs as leaves."""
        return with_nodes(self.tree.top, self._bind())

    @property
    def compiled(self) -> Compiled:
        """The program, with the inputs as leaves."""
        found: Compiled = self.tree.compiled
        return found._replace(inputs=tuple(map(self._bind(), found.inputs)))

    def _bind(self) -> Callable[[Node], Node]:
        """Return the function that replaces numbered leaves by the inputs."""
        leaves = list(map(Argument.of, self.inputs))
        return lambda node: leaves[int(node.name)] if isinstance(node, Opaque) else node

    def with_top(self, top: Node) -> Any:
        """The same expression with another node for the same elements."""
        tree, inputs = operands_of(top)
        return type(self)(tree, *self.operands[1 : len(self._parameters)], *inputs)

    @property
    def label(self) -> str:
        """Label of the frame for names of tasks."""
        label: str = self.tree.compiled.read.source.label
        return label

    @cached_property
    def dtype(self) -> np.dtype[Any]:
        """Dtype of the result."""
        dtype: np.dtype[Any] = np.dtype(self.operand("dtype"))
        return dtype

    @cached_property
    def _meta(self) -> Any:
        return np.empty((0,) * len(self.chunks), self.dtype)

    def _lower(self) -> Any:
        own = self.operands[len(self._parameters) :]
        is_ready = all(one is other for one, other in zip(own, self.inputs, strict=True))
        return None if is_ready else self.with_top(self.top)

    @cached_property
    def _makers(self) -> dict[bool, TaskMaker]:
        return {}

    @property
    def _task(self) -> TaskMaker:
        # also called for tasks that dask_array fuses into others
        self._announce()
        prunes = "statistics" in active_rules()
        if prunes not in self._makers:
            self._makers[prunes] = self._maker(prunes=prunes)
        return self._makers[prunes]

    def _maker(self, *, prunes: bool) -> TaskMaker:
        raise NotImplementedError

    def _announce(self) -> None:
        """Announce reads of a store, so that they are prefetched."""
        if self.tree.compiled.is_remote:
            prefetching.announce()

    def _layer(self) -> dict[Key, Any]:
        make = self._task
        numbers = itertools.product(*map(range, self.numblocks))
        return {(self._name, *n): make((self._name, *n), n) for n in numbers}


class FrameExpr(ReadingExpr):
    """Elements of frames and elementwise work on them; one task for each block."""

    _parameters = ("tree", "dtype", "prefix")
    _can_rechunk_pushdown = True

    @property
    def chunks(self) -> Chunks:
        """The blocks; a filter selects fewer elements than their lengths say."""
        return computed_in(self.tree.top) or ()

    @cached_property
    def _name(self) -> str:
        token = self.deterministic_token
        return f"{self.prefix}-{token}" if self.prefix else read_name(self.label, token)

    # imported late, since the rules make sources
    def _simplify_up(self, parent: Any, dependents: Dependents) -> Any:
        from b2nd_dask.graph.array_expr.absorb import absorbed

        return absorbed(self, parent, dependents)

    def _accept_rechunk(self, chunks: Chunks, **_: Any) -> FrameExpr | None:
        """Called by expressions that change blocks, also during their lowering."""
        from b2nd_dask.graph.array_expr.absorb import lowered_in_blocks

        return lowered_in_blocks(self, chunks)

    # attributes by which dask_array fuses functions of blocks with a read
    @property
    def _is_blockwise_fusable(self) -> bool:
        return bool(self.prefix != UNFUSED)

    @property
    def out_ind(self) -> tuple[int, ...]:
        """Labels of the axes."""
        return tuple(range(self.ndim))[::-1]

    @property
    def args(self) -> tuple[Any, ...]:
        """Inputs, each with the labels of its axes."""
        return tuple(
            itertools.chain.from_iterable((e, tuple(range(e.ndim))[::-1]) for e in self.inputs)
        )

    def _input_block_id(self, dep: Any, block_id: tuple[int, ...]) -> tuple[int, ...]:
        return own_block(dep.chunks, block_id)

    def _maker(self, *, prunes: bool) -> TaskMaker:
        read, program, leaves = self.compiled
        predicate = predicate_of(self.compiled) if prunes else None
        inputs = [input_of(read, predicate), *map(input_of, leaves)]
        # dependents of the blocks are unknown here and may write into them
        compute = partial(compute_block, program=program, views=False)

        def make(key: Key, block: tuple[int, ...]) -> Any:
            own = (of_block(block) for of_block in inputs)
            return Task(key, compute, *own, _data_producer=True)

        return make


def source_of(top: Node, dtype: Any, prefix: str | None = None) -> FrameExpr:
    """Make the source of a node."""
    tree, inputs = operands_of(top)
    return FrameExpr(tree, dtype, prefix, *inputs)


def unfused(source: FrameExpr, parent: Any) -> Any:
    """The same expression above a copy of the source whose blocks have their own tasks."""
    if source.prefix == UNFUSED:
        return "its blocks have their own tasks"
    apart = source_of(source.top, source.dtype, UNFUSED)
    operands = (apart if getattr(o, "_name", "") == source._name else o for o in parent.operands)
    return type(parent)(*operands)


class ReadAtOnce(ReadingExpr):
    """A result of `compute()` from a source: one task and one block."""

    _parameters = ("tree", "dtype", "chunks", "threads")

    @cached_property
    def _name(self) -> str:
        return read_name(self.label, self.deterministic_token)

    def __dask_keys__(self) -> list[Key]:
        return [self._name]

    def _layer(self) -> dict[Key, Any]:
        self._announce()
        prunes = "statistics" in active_rules()
        task = task_at_once(self._name, self.compiled, self.threads, prunes=prunes)
        return {self._name: task}
