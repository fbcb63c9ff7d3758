"""Programs whose steps write where earlier results lay that are not needed any more.

A fresh array for what a step makes costs more than the step: its pages have to be found, and are
not in the processor's caches. What a step writes is bit for bit what it would return.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from b2nd_dask.graph._dask_compat import chunk
from b2nd_dask.graph.expression.elementwise import NUMBERS, UFUNCS
from b2nd_dask.graph.expression.program import Input, Program, Result, Step, value_of


class InPlace(NamedTuple):
    """A program that runs in memory which it is given."""

    program: Program
    """Behind its own inputs it takes where the result goes, and the memory."""
    dtype: np.dtype[Any]
    """Of the result."""
    memory: tuple[np.dtype[Any], ...]
    """Dtypes of the arrays that steps write to."""
    result: int | None
    """The one that the result lies in; None where its step makes an array of its own."""

    def room(self, nelements: int) -> list[NDArray[Any]]:
        """Memory for arrays of so many elements."""
        return [np.empty(nelements, dtype) for dtype in self.memory]

    def run(
        self, arrays: Sequence[Any], room: Sequence[NDArray[Any]], out: NDArray[Any] | None = None
    ) -> Any:
        """Run the steps on the elements and the inputs.

        Returns
        -------
        ndarray
            It is `out`, or may lie in the room.
        """
        elements, *inputs = arrays
        shape = np.broadcast_shapes(*map(np.shape, arrays))
        count = math.prod(shape)
        memory = [one[:count].reshape(shape) for one in room]
        target = memory[self.result] if out is None and self.result is not None else out
        found = self.program.run(elements, [*inputs, target, *memory])
        if out is not None and found is not out:
            out[...] = found
        return found


def in_place(program: Program, arrays: Sequence[Any], shape: tuple[int, ...]) -> InPlace:
    """Choose where each step of a program writes.

    Parameters
    ----------
    arrays : sequence
        The elements and the inputs: of the dtypes, and with the axes, of those that will be given.
    shape : tuple of int
        To which they broadcast.
    """
    dtypes, last, inputs = program.dtypes(arrays), program.last_uses(), len(arrays) - 1
    made, steps = [arrays[0]], list[Step]()
    # where results lie that nothing else is a view of, and what is needed no more
    owned: dict[int, int] = {}
    memory, free = list[np.dtype[Any]](), set[int]()
    for number, step in enumerate(program.steps, start=1):
        args = [value_of(arg, made, arrays[1:]) for arg in step.args]
        lengths = np.broadcast_shapes(*map(np.shape, args))
        made.append(np.broadcast_to(np.zeros((), dtypes[number]), lengths))
        func = _writing(step, args, dtypes[number]) if lengths == shape else None
        used = {arg.number for arg in step.args if isinstance(arg, Result)}
        if func is None:
            # what it returns may be a view of an operand, which nothing may write over from now on
            for each in used & owned.keys():
                del owned[each]
            steps.append(step)
            continue
        free |= {owned.pop(each) for each in used & owned.keys() if last[each] == number}
        own = next((each for each in free if memory[each] == dtypes[number]), len(memory))
        memory += [dtypes[number]] * (own == len(memory))
        free.discard(own)
        owned[number] = own
        target = Input(inputs + (0 if number == len(program.steps) else 1 + own))
        steps.append(Step(func, step.args, {**step.kwargs, "out": target}))
    result = owned.get(len(program.steps))
    return InPlace(Program(tuple(steps)), dtypes[-1], tuple(memory), result)


def _writing(step: Step, args: Sequence[Any], dtype: np.dtype[Any]) -> Callable[..., Any] | None:
    """The function of a step with an argument `out`; None where there is none."""
    kinds = [np.asarray(arg).dtype.kind for arg in args]
    if not all(kind in NUMBERS for kind in (*kinds, dtype.kind)):
        # operators compare numbers to text and dates, which ufuncs refuse
        return None
    if step.func is chunk.astype:
        return _cast
    if step.func is np.where and not step.keywords:
        single = [np.ndim(choice) == 0 for choice in args[1:]]
        # the result of a choice among booleans could lie where the mask does
        is_mask = kinds[0] == "b" and np.ndim(args[0]) > 0 and dtype.kind != "b"
        return _choose if is_mask and single.count(True) == 1 else None
    return step.func if isinstance(step.func, np.ufunc) else UFUNCS.get(step.func)


def _cast(
    elements: Any, *, out: Any, astype_dtype: Any, casting: Any = "unsafe", copy: bool = True
) -> Any:
    np.copyto(out, elements, casting=casting)
    return out


def _choose(mask: Any, one: Any, other: Any, *, out: Any) -> Any:
    """As `numpy.where` of one array and one element; it may lie where the array does."""
    array, element, chosen = (one, other, ~mask) if np.ndim(one) else (other, one, mask)
    if out is not array:
        np.copyto(out, array)
    np.copyto(out, element, where=chosen)
    return out
