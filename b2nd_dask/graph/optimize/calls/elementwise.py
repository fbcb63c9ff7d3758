"""Elementwise work on the elements of a read: which calls it may have, and a list of its steps.

Calls are functions that are known by name, with arguments that are understood. An unknown function
may act in place, draw random numbers or have other effects, and a known one may act in place by its
arguments (``out=``, ``copy=False``). Both are left to dask.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from dask.typing import Key
from numpy.typing import NDArray

from b2nd_dask.graph._dask_compat import _enforce_dtype, chunk, optional
from b2nd_dask.graph.optimize.calls.expression import (
    Call,
    Dependency,
    Literal,
    Node,
    Read,
    is_among,
    is_scalar,
)

#: Stands for an argument whose value only a running graph has.
UNKNOWN = object()

#: Kinds of booleans and numbers.
NUMBERS = "biufc"

#: NumPy's own ufuncs with one result. Others have the same type, but may do anything:
#: `np.frompyfunc` makes a ufunc of any function.
_UFUNCS = """
    absolute add arccos arccosh arcsin arcsinh arctan arctan2 arctanh bitwise_and bitwise_count
    bitwise_or bitwise_xor cbrt ceil conjugate copysign cos cosh deg2rad degrees divide equal exp
    exp2 expm1 fabs float_power floor floor_divide fmax fmin fmod gcd greater greater_equal
    heaviside hypot invert isfinite isinf isnan isnat lcm ldexp left_shift less less_equal log
    log10 log1p log2 logaddexp logaddexp2 logical_and logical_not logical_or logical_xor maximum
    minimum multiply negative nextafter not_equal positive power rad2deg radians reciprocal
    remainder right_shift rint sign signbit sin sinh spacing sqrt square subtract tan tanh trunc
"""
_UNARY = "abs invert neg pos"
_BINARY = """
    add and_ eq floordiv ge gt le lshift lt mod mul ne or_ pow rshift sub truediv xor
"""

#: Names of arguments that are dtypes.
_DTYPES = frozenset({"dtype", "astype_dtype", "enforce_dtype"})


def _is_dtype(value: Any) -> bool:
    """Whether a value names a dtype of which each element is one value."""
    if not isinstance(value, np.dtype | str | type):
        return False
    try:
        dtype: np.dtype[Any] = np.dtype(value)
    except TypeError:
        return False
    return not dtype.hasobject and dtype.subdtype is None


def _is_flag(value: Any) -> bool:
    return isinstance(value, bool)


def _is_true(value: Any) -> bool:
    return value is True


def _is_casting(value: Any) -> bool:
    return isinstance(value, str)


@dataclass(frozen=True)
class _Signature:
    """Arguments with which a function neither acts in place nor does more than elementwise work."""

    operands: range
    """Allowed numbers of positional arguments."""
    keywords: Mapping[str, Callable[[Any], bool]]
    """The condition that the value of each keyword must meet."""


def _signature(least: int, most: int, **keywords: Callable[[Any], bool]) -> _Signature:
    return _Signature(range(least, most + 1), keywords)


_SIGNATURES: dict[Callable[..., Any], _Signature] = {
    **{
        ufunc: _signature(ufunc.nin, ufunc.nin, dtype=_is_dtype, casting=_is_casting)
        for ufunc in (getattr(np, name) for name in _UFUNCS.split())
    },
    **{getattr(operator, name): _signature(1, 1) for name in _UNARY.split()},
    **{getattr(operator, name): _signature(2, 2) for name in _BINARY.split()},
    abs: _signature(1, 1),
    chunk.astype: _signature(1, 1, astype_dtype=_is_dtype, casting=_is_casting, copy=_is_flag),
    np.clip: _signature(1, 3, a_min=is_scalar, a_max=is_scalar, min=is_scalar, max=is_scalar),
    np.imag: _signature(1, 1),
    np.isclose: _signature(2, 4, rtol=is_scalar, atol=is_scalar, equal_nan=_is_flag),
    np.nan_to_num: _signature(
        1, 1, copy=_is_true, nan=is_scalar, posinf=is_scalar, neginf=is_scalar
    ),
    np.real: _signature(1, 1),
    np.round: _signature(1, 2, decimals=is_scalar),
    np.where: _signature(3, 3),
}

#: What fills the blocks of constant arrays.
_CONSTANTS = frozenset({np.zeros_like, np.ones_like, np.full_like})

#: Elementwise functions that may return their argument, or a view of it.
_VIEWING = frozenset({chunk.astype, np.imag, np.real, np.round})


def is_elementwise(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Whether a call computes each element from the elements at its index, and does nothing else.

    Positional arguments that are results of other tasks are `UNKNOWN`.
    """
    func, kwargs = unwrapped(func, kwargs)
    kwargs = dict(kwargs)
    if not _is_dtype(kwargs.pop("enforce_dtype", np.dtype(bool))):
        return False
    if not is_among(func, _SIGNATURES):
        return False
    signature = _SIGNATURES[func]
    return len(args) in signature.operands and all(
        name in signature.keywords and signature.keywords[name](value)
        for name, value in kwargs.items()
    )


def returns_numbers(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Whether an elementwise call returns booleans or numbers for booleans and numbers."""
    _, kwargs = unwrapped(func, kwargs)
    dtypes = [np.dtype(value) for name, value in kwargs.items() if name in _DTYPES]
    values = [value for name, value in kwargs.items() if name not in _DTYPES | {"casting"}]
    return all(dtype.kind in NUMBERS for dtype in dtypes) and all(
        value is UNKNOWN or is_number(value) for value in (*args, *values)
    )


def may_return_view(func: Any, kwargs: Mapping[str, Any]) -> bool:
    """Whether an elementwise call may return its argument, or a view of it."""
    return is_among(unwrapped(func, kwargs)[0], _VIEWING)


def is_number(value: Any) -> bool:
    """Whether a value is a boolean or a number, which broadcasts to anything."""
    return is_scalar(value) and np.asarray(value).dtype.kind in NUMBERS


def unwrapped(func: Any, kwargs: Mapping[str, Any]) -> tuple[Any, Mapping[str, Any]]:
    """Return the function inside dask's wrapper that casts results, or the function itself."""
    if isinstance(func, partial) and func.func is _enforce_dtype and not func.args:
        func, kwargs = _enforce_dtype, {**func.keywords, **kwargs}
    if func is not _enforce_dtype:
        return func, kwargs
    rest = {name: value for name, value in kwargs.items() if name != "enforce_dtype_function"}
    return kwargs.get("enforce_dtype_function"), rest


@dataclass(frozen=True)
class Result:
    """The result of an earlier step; 0 is the elements read."""

    number: int


Operand = Result | Dependency | Literal


@dataclass(frozen=True)
class Step:
    """A call of a function."""

    func: Any
    args: tuple[Operand, ...]
    kwargs: Mapping[str, Literal]

    @property
    def keywords(self) -> dict[str, Any]:
        """Values of the keywords."""
        return {name: literal.value for name, literal in self.kwargs.items()}


@dataclass(frozen=True)
class ElementwiseWork:
    """Elementwise steps on what one read returns, in order."""

    steps: tuple[Step, ...]
    top: Operand
    dependencies: tuple[Key, ...]
    """Other tasks whose results the steps need."""

    @property
    def returns_numbers(self) -> bool:
        """Whether the steps return booleans or numbers for booleans and numbers."""
        return all(
            returns_numbers(step.func, list(map(_known, step.args)), step.keywords)
            for step in self.steps
        )

    def run(self, elements: NDArray[Any], results: Mapping[Key, Any]) -> Any:
        """Run the steps on elements that were read, with the results of dependencies."""
        needed_until = self._last_uses()
        values: dict[int, Any] = {0: elements}

        def value(operand: Operand) -> Any:
            if isinstance(operand, Result):
                return values[operand.number]
            return results[operand.key] if isinstance(operand, Dependency) else operand.value

        for number, step in enumerate(self.steps, start=1):
            values[number] = step.func(*map(value, step.args), **step.keywords)
            for old in [n for n in values if needed_until.get(n, 0) <= number]:
                del values[old]
        return value(self.top)

    def _last_uses(self) -> dict[int, int]:
        """Map results to the last step that uses them."""
        last: dict[int, int] = {}
        for number, step in enumerate(self.steps, start=1):
            last |= {a.number: number for a in step.args if isinstance(a, Result)}
        if isinstance(self.top, Result):
            last[self.top.number] = len(self.steps) + 1
        return last


@dataclass(frozen=True, eq=False)
class BoundWork:
    """Elementwise work, with the results of the tasks that it depends on."""

    work: ElementwiseWork
    results: Mapping[Key, Any]
    dtype: np.dtype[Any]
    """Of the elements that are read."""

    def __call__(self, elements: NDArray[Any]) -> NDArray[Any]:
        """Run it on elements."""
        made: NDArray[Any] = self.work.run(elements, self.results)
        return made


def elementwise_work_of(top: Node) -> tuple[Read, ElementwiseWork] | None:
    """Turn an expression into one read and steps on its elements.

    None where a call is not elementwise, a value is no scalar, or there is not just one read.
    """
    found = _Steps()
    operand = found.operand(top)
    if operand is None or len(found.reads) != 1:
        return None
    # a scalar in the place of another shape would broadcast to another result
    if found.shapes and found.shapes != {found.reads[0].shape}:
        return None
    return found.reads[0], ElementwiseWork(tuple(found.steps), operand, tuple(found.dependencies))


class _Steps:
    def __init__(self) -> None:
        self.reads: list[Read] = []
        self.dependencies: list[Key] = []
        self.steps: list[Step] = []
        self.shapes: set[tuple[int, ...]] = set()
        """Of blocks of constants, which scalars stand for."""
        # by identity: a node that is used twice is computed once
        self._done: dict[int, Operand | None] = {}

    def operand(self, node: Node) -> Operand | None:
        if isinstance(node, Literal):
            return node if is_scalar(node.value) else None
        if isinstance(node, Dependency):
            if node.key not in self.dependencies:
                self.dependencies.append(node.key)
            return node
        if isinstance(node, Read):
            if node not in self.reads:
                self.reads.append(node)
            return Result(0)
        if id(node) not in self._done:
            self._done[id(node)] = self._constant(node) or self._call(node)
        return self._done[id(node)]

    def _constant(self, node: Call) -> Literal | None:
        """The element of a block that `da.zeros_like` or the like makes, as xarray's sums do."""
        maker = optional("_broadcast_trick_inner")
        if maker is None or not isinstance(node.func, partial):
            return None
        curried: Any = node.func.func
        shape = [getattr(arg, "value", None) for arg in node.args]
        known = getattr(curried, "func", None) is maker.func and not node.kwargs
        if not known or not is_among(curried.args[0], _CONSTANTS) or len(shape) != 1:
            return None
        if not isinstance(shape[0], tuple) or not shape[0]:
            return None
        self.shapes.add(shape[0])
        return Literal(np.asarray(node.func((1,) * len(shape[0]))).reshape(()))

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
