"""Elementwise work on what one read gives, as steps that are carried out one after the other."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from dask.typing import Key
from numpy.typing import NDArray

from b2nd_dask.graph.optimize.calls.elementwise import UNKNOWN, gives_numbers, is_elementwise
from b2nd_dask.graph.optimize.calls.expression import Call, Literal, Node, Outer, Read, is_scalar


@dataclass(frozen=True)
class Result:
    """The result of an earlier step; 0 is what was read."""

    number: int


Operand = Result | Outer | Literal


@dataclass(frozen=True)
class Step:
    """A call of a function."""

    func: Any
    args: tuple[Operand, ...]
    kwargs: Mapping[str, Literal]

    @property
    def keywords(self) -> dict[str, Any]:
        """Their values."""
        return {name: literal.value for name, literal in self.kwargs.items()}


@dataclass(frozen=True)
class Program:
    """Elementwise steps."""

    steps: tuple[Step, ...]
    top: Operand
    outer: tuple[Key, ...]
    """Tasks whose results are needed."""

    @property
    def gives_numbers(self) -> bool:
        """Whether it makes booleans or numbers of booleans and numbers."""
        return all(
            gives_numbers(step.func, list(map(_known, step.args)), step.keywords)
            for step in self.steps
        )

    def run(self, elements: NDArray[Any], outer: Mapping[Key, Any]) -> Any:
        """Carry the steps out.

        Parameters
        ----------
        elements : ndarray
            What was read, or a part of it.
        outer : mapping
            Results of other tasks.
        """
        needed_until = self._last_uses()
        results: dict[int, Any] = {0: elements}

        def value(operand: Operand) -> Any:
            if isinstance(operand, Result):
                return results[operand.number]
            return outer[operand.key] if isinstance(operand, Outer) else operand.value

        for number, step in enumerate(self.steps, start=1):
            results[number] = step.func(*map(value, step.args), **step.keywords)
            for old in [n for n in results if needed_until.get(n, 0) <= number]:
                del results[old]
        return value(self.top)

    def _last_uses(self) -> dict[int, int]:
        """After which step nobody needs the result of each."""
        last: dict[int, int] = {}
        for number, step in enumerate(self.steps, start=1):
            last |= {a.number: number for a in step.args if isinstance(a, Result)}
        if isinstance(self.top, Result):
            last[self.top.number] = len(self.steps) + 1
        return last


def program_of(top: Node) -> tuple[Read, Program] | None:
    """Turn an expression into steps.

    Returns
    -------
    (Read, Program) or None
        None where a call is not elementwise, a value is no scalar, or there is not just one read.
    """
    maker = _Maker()
    operand = maker.operand(top)
    if operand is None or len(maker.reads) != 1:
        return None
    return maker.reads[0], Program(tuple(maker.steps), operand, tuple(maker.outer))


class _Maker:
    def __init__(self) -> None:
        self.reads: list[Read] = []
        self.outer: list[Key] = []
        self.steps: list[Step] = []
        # by identity: a node that is used twice is computed once
        self._done: dict[int, Result | None] = {}

    def operand(self, node: Node) -> Operand | None:
        if isinstance(node, Literal):
            return node if is_scalar(node.value) else None
        if isinstance(node, Outer):
            if node.key not in self.outer:
                self.outer.append(node.key)
            return node
        if isinstance(node, Read):
            if node not in self.reads:
                self.reads.append(node)
            return Result(0)
        if id(node) not in self._done:
            self._done[id(node)] = self._call(node)
        return self._done[id(node)]

    def _call(self, node: Call) -> Result | None:
        if not is_elementwise(node.func, list(map(_known, node.args)), node.kwargs):
            return None
        args = [operand for arg in node.args if (operand := self.operand(arg)) is not None]
        if len(args) < len(node.args):
            return None
        named = {name: Literal(value) for name, value in node.kwargs.items()}
        self.steps.append(Step(node.func, tuple(args), named))
        return Result(len(self.steps))


def _known(argument: Node | Operand) -> Any:
    return argument.value if isinstance(argument, Literal) else UNKNOWN
