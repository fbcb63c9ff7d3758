"""What a fused dask task computes, as a tree of reads, calls and values."""

from __future__ import annotations

from collections.abc import Container, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from dask.typing import Key

from b2nd_dask.graph._dask_compat import (
    Alias,
    DataNode,
    GraphNode,
    List,
    Task,
    TaskRef,
    _enforce_dtype,
    _execute_subgraph,
    getter,
)
from b2nd_dask.graph.read.blocks import ConstantRegion, FrameRegion

#: Types of plain values, and the integers that NumPy has a dtype for: of larger ones it makes
#: Python objects.
_PLAIN = (bool, int, float, complex, str)
_INTEGERS = range(-(1 << 63), 1 << 64)


@dataclass(frozen=True)
class Read:
    """The task's own block of a frame."""

    region: FrameRegion | ConstantRegion
    index: Any

    @property
    def selects_slices(self) -> bool:
        """Whether the index is one slice with a positive step for each axis."""
        return (
            isinstance(self.index, tuple)
            and 0 < len(self.index) == self.region.frame.ndim
            and all(isinstance(s, slice) and (s.step is None or s.step > 0) for s in self.index)
        )

    @property
    def shape(self) -> tuple[int, ...] | None:
        """Shape of what is read; None where it is not selected by slices alone."""
        if not self.selects_slices:
            return None
        lengths = zip(self.index, self.region.frame.shape, strict=True)
        return tuple(len(range(n)[index]) for index, n in lengths)


@dataclass(frozen=True)
class Dependency:
    """The result of another task."""

    key: Key


@dataclass(frozen=True, eq=False)
class Literal:
    """A value in the graph."""

    value: Any

    def __eq__(self, other: object) -> bool:
        """Whether two values compute alike: 1, True and np.int64(1) differ, and 0.0 and -0.0."""
        return isinstance(other, Literal) and self._identity() == other._identity()

    __hash__ = None  # type: ignore[assignment]

    def _identity(self) -> tuple[Any, ...]:
        if not isinstance(self.value, float | complex | np.generic | np.ndarray):
            return type(self.value), self.value
        array = np.asarray(self.value)
        return type(self.value), array.dtype, array.tobytes()


@dataclass(frozen=True, eq=False)
class Call:
    """A function of other nodes."""

    func: Any
    args: tuple[Node, ...]
    kwargs: Mapping[str, Any]


Node = Read | Dependency | Literal | Call

#: More steps than this are left to dask: a chain of calls is followed by recursion.
MAX_STEPS = 100


class NotUnderstoodError(Exception):
    """A task holds other nodes than calls, references and values, or more than `MAX_STEPS`."""


class Scope:
    """The tasks inside a fused task, as expressions."""

    def __init__(
        self, inner: Mapping[Any, GraphNode], known: Mapping[Any, Node], steps: list[None]
    ) -> None:
        self._inner = inner
        self._known: dict[Any, Node] = dict(known)
        self._steps = steps

    @classmethod
    def of(cls, task: Task) -> Scope:
        """Parse a fused task, one that executes a subgraph."""
        return cls({}, {}, [])._inside(task)

    def _inside(self, task: Task) -> Scope:
        inner, _, names, *values = task.args
        self._steps += [None] * len(inner)
        if len(self._steps) > MAX_STEPS:
            raise NotUnderstoodError
        known = {n: self.node(v) for n, v in zip(names, values, strict=True)}
        return Scope(inner, known, self._steps)

    def call(self, task: Task) -> Node:
        """Return the expression of a task in this scope."""
        if task.func is _execute_subgraph:
            return self._inside(task).named(task.args[1])
        if task.func is getter and len(task.args) == 2 and not task.kwargs:
            source, index = (self.node(arg) for arg in task.args)
            if (
                isinstance(source, Literal)
                and isinstance(source.value, FrameRegion | ConstantRegion)
                and isinstance(index, Literal)
            ):
                return Read(source.value, index.value)
        func, kwargs = task.func, task.kwargs
        if func is _enforce_dtype:
            # where a result is 0-d, dask wraps the function
            func, kwargs = partial(func, **kwargs), {}
        return Call(func, tuple(map(self.node, task.args)), kwargs)

    def node(self, value: Any) -> Node:
        """Return the expression of an argument."""
        if isinstance(value, TaskRef):
            return self.named(value.key)
        if isinstance(value, DataNode):
            return Literal(value.value)
        if isinstance(value, Alias):
            return self.named(value.target)
        if type(value) is Task:
            return self.call(value)
        if type(value) is List:
            return Call(list, tuple(map(self.node, value.args)), {})
        if isinstance(value, GraphNode):
            raise NotUnderstoodError
        return Literal(value)

    def named(self, key: Any) -> Node:
        """Return the expression of a task of this scope, or of a value that it depends on."""
        if key not in self._known:
            self._known[key] = (
                self.node(self._inner[key]) if key in self._inner else Dependency(key)
            )
        return self._known[key]


def expression_of(task: Task) -> Node:
    """Parse a task; raise NotUnderstoodError as `Scope.of`."""
    return Scope({}, {}, []).call(task)


def is_among(func: Any, functions: Container[Any]) -> bool:
    """Whether a function, which need not be hashable, is one of some."""
    try:
        return func in functions
    except TypeError:
        return False


def is_scalar(value: Any) -> bool:
    """Whether a value broadcasts to anything and leaves the result an ndarray."""
    # a class of the user's that is derived from these may do anything in its operators
    if type(value) in _PLAIN:
        return type(value) is not int or value in _INTEGERS
    if isinstance(value, np.generic):
        return value.dtype.type is type(value) and not value.dtype.hasobject
    # a masked one would leave its mask behind
    return type(value) is np.ndarray and value.ndim == 0 and not value.dtype.hasobject
