"""Programs: elementwise calls as ordered steps on the elements of a read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from b2nd_dask.graph.expression.elementwise import (
    DTYPES,
    FILTERS,
    NUMBERS,
    UFUNCS,
    is_number,
    unwrapped,
)
from b2nd_dask.graph.expression.nodes import (
    Elemwise,
    Literal,
    Node,
    Opaque,
    Read,
    computed_in,
    nodes_of,
)


@dataclass(frozen=True)
class Result:
    """The result of an earlier step; number 0 stands for the read elements."""

    number: int


@dataclass(frozen=True)
class Input:
    """An input beside the elements: a number, an array, or another read."""

    number: int


Operand = Result | Input | Literal


def value_of(operand: Operand, results: Any, inputs: Sequence[Any]) -> Any:
    """The value of an operand, from results by their numbers and inputs."""
    if isinstance(operand, Result):
        return results[operand.number]
    return inputs[operand.number] if isinstance(operand, Input) else operand.value


@dataclass(frozen=True)
class Step:
    """A call of a function."""

    func: Any
    args: tuple[Operand, ...]
    kwargs: Mapping[str, Literal | Input]

    @property
    def keywords(self) -> dict[str, Any]:
        """Values of the keywords, except for `out`."""
        return {name: arg.value for name, arg in self.kwargs.items() if isinstance(arg, Literal)}

    @property
    def call(self) -> tuple[Any, Mapping[str, Any]]:
        """The function, unwrapped (for an operator its ufunc), and the keywords."""
        func, keywords = unwrapped(self.func, self.keywords)
        return UFUNCS.get(func, func), keywords

    @property
    def returns_numbers(self) -> bool:
        """Whether the step maps booleans and numbers to booleans or numbers."""
        keywords = self.call[1]
        dtypes = [np.dtype(value) for name, value in keywords.items() if name in DTYPES]
        values = [arg.value for arg in self.args if isinstance(arg, Literal)]
        values += [value for name, value in keywords.items() if name not in DTYPES | {"casting"}]
        return all(dtype.kind in NUMBERS for dtype in dtypes) and all(map(is_number, values))


@dataclass(frozen=True, eq=False)
class Program:
    """Ordered elementwise steps on the elements of one read; the last one makes the result."""

    steps: tuple[Step, ...]
    inputs: int = 0
    """Number of inputs beside the elements."""

    @property
    def filters(self) -> bool:
        """Whether the last step selects elements by a mask."""
        return bool(self.steps) and self.steps[-1].call[0] in FILTERS

    def bound(self, inputs: Sequence[Any]) -> Program:
        """A copy with values as its inputs."""

        def value(arg: Operand) -> Operand:
            return Literal(inputs[arg.number]) if isinstance(arg, Input) else arg

        steps = (replace(step, args=tuple(map(value, step.args))) for step in self.steps)
        return Program(tuple(steps))

    def run(self, elements: NDArray[Any], inputs: Sequence[Any] = ()) -> Any:
        """Run the steps on elements that were read."""
        values: list[Any] = [elements]
        # free the elements when no step needs them any more
        del elements
        for step, last_uses in zip(self.steps, self.last_uses, strict=True):
            args = [value_of(arg, values, inputs) for arg in step.args]
            keywords = {name: value_of(arg, values, inputs) for name, arg in step.kwargs.items()}
            values.append(step.func(*args, **keywords))
            del args, keywords
            for old in last_uses:
                values[old] = None
        return values[-1]

    def dtype(self, arrays: Sequence[Any]) -> np.dtype[Any]:
        """The dtype of the result; arguments as for `examples`."""
        return self.examples(arrays)[-1].dtype

    def examples(self, arrays: Sequence[Any]) -> list[NDArray[Any]]:
        """Empty examples of the elements and of each step's result; `arrays`: elements, inputs."""
        # not of one element: a step may raise for a value that no frame has
        values = [each[(slice(0),) * np.ndim(each)] if np.ndim(each) else each for each in arrays]
        elements, inputs = np.asarray(values[0]), values[1:]
        made = [elements]

        def recorded(func: Any, *args: Any, **keywords: Any) -> Any:
            made.append(np.asarray(func(*args, **keywords)))
            return made[-1]

        steps = (replace(step, func=partial(recorded, step.func)) for step in self.steps)
        replace(self, steps=tuple(steps)).run(elements, inputs)
        return made

    # cached, since a program runs many times on tiles
    @cached_property
    def last_uses(self) -> tuple[list[int], ...]:
        """For each step the results that no later step needs."""
        last = {0: 1}
        for number, step in enumerate(self.steps, start=1):
            last |= {a.number: number for a in step.args if isinstance(a, Result)}
        numbers = range(1, len(self.steps) + 1)
        return tuple([n for n in last if last[n] == number] for number in numbers)


#: The program without steps.
ELEMENTS = Program(())


class Compiled(NamedTuple):
    """A tree as a program: the read of its elements, and its inputs."""

    read: Any
    """A `Read`, or another leaf for a tree without reads."""
    program: Program
    inputs: tuple[Node, ...]

    @property
    def reads(self) -> list[Read]:
        """The reads among its leaves."""
        return [leaf for leaf in (self.read, *self.inputs) if isinstance(leaf, Read)]

    @property
    def is_remote(self) -> bool:
        """Whether one of the reads is from a store."""
        return any(each.source.is_remote for each in self.reads)

    @property
    def is_numeric(self) -> bool:
        """Whether it computes booleans or numbers from booleans or numbers.

        Other elements cannot be added, or only in a given order.
        """
        kinds = {each.source.dtype.kind for each in self.reads}
        return kinds.issubset(NUMBERS) and all(s.returns_numbers for s in self.program.steps)


def compile_tree(top: Node, *, reading: bool = True) -> Compiled | None:
    """Compile a tree of elementwise calls to a program.

    Returns None if the tree reads no frame and, without `reading`, has no opaque leaf either.
    """
    kinds = Read if reading else Read | Opaque
    reads = [node for node in nodes_of(top) if isinstance(node, kinds)]
    if not reads:
        return None
    # a read with the blocks of the result, not one that is broadcast
    read = next((each for each in reads if each.chunks == computed_in(top)), reads[0])
    found = _Compiler(read)
    found.operand(top)
    return Compiled(read, Program(tuple(found.steps), len(found.inputs)), tuple(found.inputs))


class _Compiler:
    def __init__(self, read: Read | Opaque) -> None:
        self.read = read
        self.inputs: list[Node] = []
        self.steps: list[Step] = []
        # operands by identity, calls also by value: a repeated subtree is computed once
        self._done: dict[int, Operand] = {}
        self._calls: dict[int, list[int]] = {}

    def operand(self, node: Node | Literal) -> Operand:
        if isinstance(node, Literal):
            return node
        if id(node) not in self._done:
            self._done[id(node)] = (
                self._call(node) if isinstance(node, Elemwise) else self._leaf(node)
            )
        return self._done[id(node)]

    def _leaf(self, node: Node) -> Operand:
        if same_leaf(self.read, node):
            return Result(0)
        for number, known in enumerate(self.inputs):
            if same_leaf(known, node):
                return Input(number)
        self.inputs.append(node)
        return Input(len(self.inputs) - 1)

    def _call(self, node: Elemwise) -> Result:
        args = tuple(map(self.operand, node.args))
        named = {name: Literal(value) for name, value in node.kwargs.items()}
        step = Step(node.func, args, named)
        same_function = self._calls.setdefault(id(node.func), [])
        for number in same_function:
            if self.steps[number] == step:
                return Result(number + 1)
        same_function.append(len(self.steps))
        self.steps.append(step)
        return Result(len(self.steps))


def _leaf_key(leaf: Node) -> tuple[Any, ...]:
    """A key that is equal for leaves with the same elements in the same blocks."""
    if isinstance(leaf, Read):
        # a frame that was opened twice has two references
        return leaf.source.__dask_tokenize__(), leaf.positions, leaf.axes, leaf.chunks
    return type(leaf), leaf.layers[0]


def same_leaf(one: Node, other: Node) -> bool:
    """Whether two leaves of a tree have the same elements in the same blocks."""
    return one is other or _leaf_key(one) == _leaf_key(other)
