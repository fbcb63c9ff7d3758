"""Functions that compute each element from the elements at its index, and do nothing else.

This is the only definition of functions whose result does not depend on the blocks. Functions are
known by name, and their arguments are checked: an unknown function may work in place, draw random
numbers or have other side effects, and a known one may work in place (``out=``, ``copy=False``).
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Container, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from b2nd_dask.graph._dask_compat import _enforce_dtype, chunk

#: Stands for an argument whose value is known only when the graph runs.
UNKNOWN = object()

#: Dtype kinds of booleans and numbers.
NUMBERS = "biufc"

#: NumPy's own ufuncs with one result. Other ufuncs may do anything: `np.frompyfunc` makes one of
#: any function.
_NAMES_OF_UFUNCS = """
    absolute add arccos arccosh arcsin arcsinh arctan arctan2 arctanh bitwise_and bitwise_count
    bitwise_or bitwise_xor cbrt ceil conjugate copysign cos cosh deg2rad degrees divide equal exp
    exp2 expm1 fabs float_power floor floor_divide fmax fmin fmod gcd greater greater_equal
    heaviside hypot invert isfinite isinf isnan isnat lcm ldexp left_shift less less_equal log
    log10 log1p log2 logaddexp logaddexp2 logical_and logical_not logical_or logical_xor maximum
    minimum multiply negative nextafter not_equal positive power rad2deg radians reciprocal
    remainder right_shift rint sign signbit sin sinh spacing sqrt square subtract tan tanh trunc
"""
#: Operators, and their ufuncs for arrays. The ufunc of `**` depends on the exponent.
UFUNCS: dict[Any, np.ufunc] = {
    abs: np.absolute,
    operator.abs: np.absolute,
    operator.add: np.add,
    operator.and_: np.bitwise_and,
    operator.eq: np.equal,
    operator.floordiv: np.floor_divide,
    operator.ge: np.greater_equal,
    operator.gt: np.greater,
    operator.invert: np.invert,
    operator.le: np.less_equal,
    operator.lshift: np.left_shift,
    operator.lt: np.less,
    operator.mod: np.remainder,
    operator.mul: np.multiply,
    operator.ne: np.not_equal,
    operator.neg: np.negative,
    operator.or_: np.bitwise_or,
    operator.pos: np.positive,
    operator.rshift: np.right_shift,
    operator.sub: np.subtract,
    operator.truediv: np.true_divide,
    operator.xor: np.bitwise_xor,
}

#: Types of plain values, and the integers with a NumPy dtype: larger ones become Python
#: objects.
_PLAIN = (bool, int, float, complex, str)
_INTEGERS = range(-(1 << 63), 1 << 64)

#: Functions that select the elements at which a mask is true.
FILTERS = frozenset({operator.getitem, chunk.getitem})

#: Names of arguments that are dtypes.
DTYPES = frozenset({"dtype", "astype_dtype", "enforce_dtype"})


def is_among(func: Any, functions: Container[Any]) -> bool:
    """Whether a function, which may be unhashable, is in a container."""
    try:
        return func in functions
    except TypeError:
        return False


def is_scalar(value: Any) -> bool:
    """Whether a value broadcasts to any shape and leaves the result an ndarray."""
    # operators of a user's subclass may do anything
    if type(value) in _PLAIN:
        return type(value) is not int or value in _INTEGERS
    if isinstance(value, np.generic):
        return value.dtype.type is type(value) and not value.dtype.hasobject
    # the mask of a masked value would get into the result
    return type(value) is np.ndarray and value.ndim == 0 and not value.dtype.hasobject


def _is_dtype(value: Any) -> bool:
    """Whether a value names a dtype that is no subarray and holds no Python objects."""
    if not isinstance(value, np.dtype | str | type):
        return False
    try:
        dtype: np.dtype[Any] = np.dtype(value)
    except TypeError:
        return False
    return not dtype.hasobject and dtype.subdtype is None


def _is_a(kind: type) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, kind)


_Signature = tuple[range, Mapping[str, Callable[[Any], bool]]]
"""The number of positional arguments of an elementwise call, and the check of each keyword's value.
Other calls may do more, or work in place."""


def _signature(least: int, most: int, **keywords: Callable[[Any], bool]) -> _Signature:
    return range(least, most + 1), keywords


_SIGNATURES: dict[Callable[..., Any], _Signature] = {
    **{
        ufunc: _signature(ufunc.nin, ufunc.nin, dtype=_is_dtype, casting=_is_a(str))
        for ufunc in (getattr(np, name) for name in _NAMES_OF_UFUNCS.split())
    },
    **{func: _signature(ufunc.nin, ufunc.nin) for func, ufunc in UFUNCS.items()},
    operator.pow: _signature(2, 2),
    chunk.astype: _signature(1, 1, astype_dtype=_is_dtype, casting=_is_a(str), copy=_is_a(bool)),
    np.clip: _signature(1, 3, a_min=is_scalar, a_max=is_scalar, min=is_scalar, max=is_scalar),
    np.imag: _signature(1, 1),
    np.isclose: _signature(2, 4, rtol=is_scalar, atol=is_scalar, equal_nan=_is_a(bool)),
    np.nan_to_num: _signature(
        1, 1, copy=lambda value: value is True, nan=is_scalar, posinf=is_scalar, neginf=is_scalar
    ),
    np.real: _signature(1, 1),
    np.round: _signature(1, 2, decimals=is_scalar),
    np.where: _signature(3, 3),
}

#: Elementwise functions that may return their argument, or a view of it.
VIEW_FUNCTIONS = frozenset({chunk.astype, np.imag, np.real, np.round})


def is_elementwise(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Whether a call is elementwise; positional arguments from other tasks are `UNKNOWN`."""
    func, kwargs = unwrapped(func, kwargs)
    kwargs = dict(kwargs)
    if not _is_dtype(kwargs.pop("enforce_dtype", np.dtype(bool))):
        return False
    if not is_among(func, _SIGNATURES):
        return False
    operands, keywords = _SIGNATURES[func]
    return len(args) in operands and all(
        name in keywords and keywords[name](value) for name, value in kwargs.items()
    )


def parse_call(
    func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> tuple[Any, Mapping[str, Any], bool] | None:
    """The function of an elementwise call, its keywords, and whether it is a filter.

    A filter selects the elements at which a mask is true. Returns None for any other call.
    """
    if func is _enforce_dtype:
        # dask wraps the function if a result is 0-d
        func, kwargs = partial(func, **kwargs), {}
    if not all(value is UNKNOWN or value is None or is_scalar(value) for value in args):
        return None
    function, rest = unwrapped(func, kwargs)
    filters = is_among(function, FILTERS) and rest.keys() <= {"enforce_dtype"}
    if filters and len(args) == 2 and all(value is UNKNOWN for value in args):
        return func, kwargs, True
    return (func, kwargs, False) if is_elementwise(func, args, kwargs) else None


def is_number(value: Any) -> bool:
    """Whether a value is a boolean or a number, which broadcasts to any shape."""
    return is_scalar(value) and np.asarray(value).dtype.kind in NUMBERS


def unwrapped(func: Any, kwargs: Mapping[str, Any]) -> tuple[Any, Mapping[str, Any]]:
    """Return the function inside dask's wrapper that casts results, or the function itself."""
    if isinstance(func, partial) and func.func is _enforce_dtype and not func.args:
        func, kwargs = _enforce_dtype, {**func.keywords, **kwargs}
    if func is not _enforce_dtype:
        return func, kwargs
    rest = {name: value for name, value in kwargs.items() if name != "enforce_dtype_function"}
    return kwargs.get("enforce_dtype_function"), rest
