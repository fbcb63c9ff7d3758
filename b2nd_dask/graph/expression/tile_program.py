"""Programs that run on many arrays alike, in memory that they use again.

A fresh array for what a step makes costs more than the step: its pages have to be found, and are
not in the processor's caches. Here a step writes where an earlier result lay that is not needed any
more, bit for bit what it would return.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from b2nd_dask.graph._dask_compat import chunk
from b2nd_dask.graph.expression.elementwise import NUMBERS, UFUNCS
from b2nd_dask.graph.expression.nodes import Literal
from b2nd_dask.graph.expression.program import Input, Operand, Program, Result, Step


class _Call(NamedTuple):
    func: Callable[..., Any]
    args: tuple[Operand, ...]
    keywords: dict[str, Any]
    buffer: int | None
    """Where the result goes, by the argument `out`; None where the function makes its own array."""


class TileProgram:
    """A program with memory for what its steps make.

    Parameters
    ----------
    program : Program
        What to run.
    arrays : sequence
        The elements and the inputs: of the dtypes, and with the axes, of those that will be given.
    shape : tuple of int
        To which they broadcast.
    nelements : int
        Of the largest arrays that will be given.
    """

    def __init__(
        self, program: Program, arrays: Sequence[Any], shape: tuple[int, ...], nelements: int
    ) -> None:
        self._nelements = nelements
        self._top = program.top
        self._memory: list[NDArray[Any]] = []
        self._views: dict[tuple[int, ...], list[NDArray[Any]]] = {}
        self._calls: list[_Call] = []
        self._last = program.last_uses()
        self._made = program.dtypes(arrays)
        self._whole = [np.shape(arrays[0]) == shape]
        # numbers of the buffers of results, and of those that no result needs any more
        self._owned: dict[int, int] = {}
        self._free: list[int] = []
        for number, step in enumerate(program.steps, start=1):
            inputs = [arrays[1 + a.number] for a in step.args if isinstance(a, Input)]
            results = [a.number for a in step.args if isinstance(a, Result)]
            self._whole.append(
                any(self._whole[n] for n in results) or any(np.shape(a) == shape for a in inputs)
            )
            self._calls.append(self._call(number, step, arrays))
        del self._made, self._whole

    @property
    def owns_result(self) -> bool:
        """Whether the result lies in memory of the program, and may be written to."""
        return isinstance(self._top, Result) and self._top.number in self._owned

    def run(self, arrays: Sequence[Any], out: NDArray[Any] | None = None) -> Any:
        """Run the steps.

        Parameters
        ----------
        arrays : sequence
            The elements and the inputs.
        out : ndarray, optional
            Where the result goes.

        Returns
        -------
        ndarray
            Valid until the next call, where no `out` is given.
        """
        elements, *inputs = arrays
        values: list[Any] = [elements]
        views = self._views_of(np.broadcast_shapes(*map(np.shape, arrays)))

        def value(operand: Operand) -> Any:
            if isinstance(operand, Result):
                return values[operand.number]
            return inputs[operand.number] if isinstance(operand, Input) else operand.value

        for func, args, keywords, buffer in self._calls:
            given = map(value, args)
            if buffer is None:
                values.append(func(*given, **keywords))
            else:
                is_last = out is not None and self._top == Result(len(values))
                target = out if is_last else views[buffer]
                values.append(func(*given, **keywords, out=target))
        found = value(self._top)
        if out is not None and found is not out:
            out[...] = found
        return found if out is None else out

    def _views_of(self, shape: tuple[int, ...]) -> list[NDArray[Any]]:
        if shape not in self._views:
            count = math.prod(shape)
            self._views[shape] = [one[:count].reshape(shape) for one in self._memory]
        return self._views[shape]

    def _call(self, number: int, step: Step, arrays: Sequence[Any]) -> _Call:
        """Choose where a step writes."""
        dtype = self._made[number]
        func = self._writing(step, arrays) if self._whole[number] else None
        used = {a.number for a in step.args if isinstance(a, Result)}
        if func is None or dtype.kind not in NUMBERS:
            # what it returns may be a view of an operand, which nothing may write over from now on
            for n in used:
                self._owned.pop(n, None)
            return _Call(step.func, step.args, step.keywords, None)
        ended = [n for n in used if self._last[n] == number and n in self._owned]
        freed = {n: self._owned.pop(n) for n in ended}
        # a mask is needed until the end
        kept = [
            freed.pop(a.number, None)
            for a in step.args[:1]
            if func is _choose and isinstance(a, Result)
        ]
        self._free += freed.values()
        self._owned[number] = buffer = self._buffer(dtype)
        self._free += [each for each in kept if each is not None]
        return _Call(func, step.args, step.keywords, buffer)

    def _buffer(self, dtype: np.dtype[Any]) -> int:
        """Take a buffer that is free, or a new one."""
        for buffer in self._free:
            if self._memory[buffer].dtype == dtype:
                self._free.remove(buffer)
                return buffer
        self._memory.append(np.empty(self._nelements, dtype))
        return len(self._memory) - 1

    def _writing(self, step: Step, arrays: Sequence[Any]) -> Callable[..., Any] | None:
        """The function of a step with an argument `out`; None where there is none."""
        if not all(self._kind(arg, arrays) in NUMBERS for arg in step.args):
            # operators compare numbers to text and dates, which ufuncs refuse
            return None
        if step.func is chunk.astype:
            return _cast
        if step.func is np.where and not step.keywords:
            mask, *choices = step.args
            is_mask = isinstance(mask, Result) and self._made[mask.number].kind == "b"
            single = [_is_single(choice, arrays) for choice in choices]
            return _choose if is_mask and single.count(True) == 1 else None
        if isinstance(step.func, np.ufunc):
            return step.func
        return UFUNCS.get(step.func)

    def _kind(self, operand: Operand, arrays: Sequence[Any]) -> str:
        if isinstance(operand, Result):
            return str(self._made[operand.number].kind)
        value = arrays[1 + operand.number] if isinstance(operand, Input) else operand.value
        return str(np.asarray(value).dtype.kind)


def _is_single(operand: Operand, arrays: Sequence[Any]) -> bool:
    if isinstance(operand, Input):
        return not np.ndim(arrays[1 + operand.number])
    return isinstance(operand, Literal) and not np.ndim(operand.value)


def _cast(
    elements: Any, *, astype_dtype: Any, out: Any, casting: Any = "unsafe", copy: bool = True
) -> Any:
    np.copyto(out, elements, casting=casting)
    return out


def _choose(mask: Any, one: Any, other: Any, *, out: Any) -> Any:
    """As `numpy.where` of one array and one element; it may lie where the array does."""
    if np.ndim(one):
        if out is not one:
            np.copyto(out, one)
        np.copyto(out, other, where=~mask)
    else:
        if out is not other:
            np.copyto(out, other)
        np.copyto(out, one, where=mask)
    return out
