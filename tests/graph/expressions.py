"""Frames as arrays of `dask_array`, for tests of the expressions that read them."""

import functools
import importlib
import itertools

import blosc2
import dask
import numpy as np
from hypothesis import strategies as st

from b2nd_dask import from_b2nd

#: What `dask_array` changes for all of dask when it is imported.
_CHANGED = "array.rechunk.threshold"


@functools.cache
def library():
    """The library, imported without its effects on the tests of `dask.array`."""
    with dask.config.set({_CHANGED: dask.config.get(_CHANGED)}):
        return importlib.import_module("dask_array")


def written(folder, array, **options):
    """A frame of some chunks, opened as an array of `dask_array`."""
    library()
    path = folder / "frame.b2nd"
    blosc2.asarray(np.asarray(array), urlpath=str(path), **options)
    return from_b2nd(path, array_type="dask-array")


def kinds(array):
    """Types of the expressions that an array is optimized to, each once, from the top."""
    return list(dict.fromkeys(type(each).__name__ for each in array.optimize().expr.walk()))


def tasks(array):
    """The tasks that compute an array."""
    optimized = array.optimize()
    return dask.optimization.cull(
        dict(optimized.__dask_graph__()), list(dask.core.flatten(optimized.__dask_keys__()))
    )[0]


def reads(array):
    """How many blocks of frames the tasks of an array read."""
    return sum(
        type(argument).__name__ in ("BlockRead", "FrameReference", "JoinedReference")
        for task in tasks(array).values()
        for argument in _arguments(task)
    )


def _arguments(task):
    for argument in getattr(task, "args", ()):
        argument = getattr(argument, "value", argument)
        if isinstance(argument, dict):
            yield from itertools.chain.from_iterable(map(_arguments, argument.values()))
        elif hasattr(argument, "args"):
            yield from _arguments(argument)
        else:
            yield argument


@st.composite
def steps(draw, shape):
    """A function of an array that moves or changes its elements, and the shape that it makes."""
    kind = draw(st.sampled_from(["slice", "slice", "transpose", "new", "rechunk", "call", "other"]))
    if kind == "slice" and shape:
        index = tuple(draw(_index(n)) for n in shape)
        return (lambda x: x[index]), np.empty(shape, "V0")[index].shape
    if kind == "transpose" and shape:
        axes = draw(st.permutations(range(len(shape))))
        return (lambda x: x.transpose(axes)), tuple(shape[axis] for axis in axes)
    if kind == "new" and len(shape) < 4:
        index = (*(slice(None),) * draw(st.integers(0, len(shape))), None)
        return (lambda x: x[index]), np.empty(shape, "V0")[index].shape
    if kind == "rechunk" and 0 not in shape:
        sizes = tuple(draw(st.integers(1, n)) for n in shape)
        return (lambda x: x if isinstance(x, np.ndarray) else x.rechunk(sizes)), shape
    if kind == "other" and 0 not in shape:
        return (lambda x: x - x.mean(axis=-1 if x.ndim else None, keepdims=True)), shape
    return draw(st.sampled_from(_CALLS)), shape


_CALLS = (
    lambda x: x * 2 + 1,
    lambda x: x * x - x,
    lambda x: np.abs(x).astype("f4") if isinstance(x, np.ndarray) else abs(x).astype("f4"),
    lambda x: (x > 0) * x,
    lambda x: -x[::-1] if x.ndim else -x,
)


def _index(n):
    bounds = st.none() | st.integers(-n - 1, n + 1)
    some = st.builds(slice, bounds, bounds, st.sampled_from([None, 1, 2, 3, -1, -2]))
    return some | st.integers(-n, n - 1) if n else some
