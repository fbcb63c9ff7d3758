"""Comparison of two results: types, dtypes, shapes, masks, values, errors."""

from __future__ import annotations

import re
from typing import Any

import numpy as np

_FIRST = (
    r"(?<=reduction operation )(min|max)imum|(?<=ufunc ')(fmin|minimum|fmax|maximum)(?=')"
    r"|np\.(str|bytes)_\(.*\)"
    r"|(?<=could not convert string to float: ).*|(?<=with base 10: ).*|-?\d+(?= out of bounds)"
    r"|(?<=Error parsing datetime string ).*"
    r"|'\w+'(?= object is not subscriptable)|'[<>]=?'(?= not supported between)"
    # of a function, or of the tiles that it runs in
    r"|operands could not be broadcast together with shapes .*"
    r"|could not broadcast input array from shape .*|cannot reshape array of size .*"
    r"|shape mismatch: objects cannot be broadcast to a single shape.*"
    # an array without axes, or a scalar
    r"|too many indices for array: array is 0-dim.*|invalid index to scalar variable\."
)
#: Maximum and minimum of blocks that dask leaves without elements fail in dask, and in dask-array.
#: Whether such blocks exist depends on the order of dask-array's rewrites.
_EMPTY_BLOCKS = "array dimensions except for the concatenation axis must match exactly"


class Difference(AssertionError):  # noqa: N818 - it is no error of the test
    """What a program over frames gives otherwise than over arrays in memory."""


def assert_alike(got: Any, want: Any, rtol: float, atol: float) -> None:
    """Compare two results; exactly where `rtol` is 0.

    Raises
    ------
    Difference
    """
    if _are_errors_that_may_differ(got, want):
        return
    if isinstance(want, Exception) or isinstance(got, Exception):
        _assert_same(_error(got), _error(want), "errors")
        return
    _assert_same(_type(got), _type(want), "types")
    if isinstance(want, dict | list | tuple):
        _assert_same(len(got), len(want), "lengths")
        for one, other in zip(got, want, strict=True):
            assert_alike(one, other, rtol, atol)
        return
    if hasattr(want, "dims"):
        _assert_same(got.dims, want.dims, "dims")
        _assert_same(sorted(map(str, got.coords)), sorted(map(str, want.coords)), "coords")
        got, want = got.data, want.data
    if want is np.ma.masked:
        return
    if isinstance(want, np.ma.MaskedArray):
        hidden = np.ma.getmaskarray(want)
        _assert_same(np.ma.getmaskarray(got).tolist(), hidden.tolist(), "masks")
        _assert_same(got.dtype, want.dtype, "dtypes")
        if not want.dtype.fields:
            got, want = (_without_hidden(array, hidden) for array in (got, want))
    one, other = np.asarray(got), np.asarray(want)
    if not other.shape:  # scalars have the byte order of the machine
        one, other = (array.astype(array.dtype.newbyteorder("=")) for array in (one, other))
    if one.dtype.kind == other.dtype.kind and other.dtype.kind in "US":
        # NumPy's scalar of a string has the length of its value, so that dask loses that of the
        # array where it indexes an element; frames keep it
        other = other.astype(max(one.dtype, other.dtype, key=lambda dtype: dtype.itemsize))
    _assert_same(one.dtype, other.dtype, "dtypes")
    _assert_same(one.shape, other.shape, "shapes")
    _assert_values(one, other, rtol, atol)
    arrays = isinstance(want, np.ndarray) and isinstance(got, np.ndarray)
    if arrays and want.flags.writeable and not got.flags.writeable:
        raise Difference("the result is read-only")


def _are_errors_that_may_differ(got: Any, want: Any) -> bool:
    if any(isinstance(one, ValueError) and _EMPTY_BLOCKS in str(one) for one in (got, want)):
        return True
    # NumPy's imaginary part of real numbers is read-only; blocks of frames never are
    refused = isinstance(want, ValueError) and "read-only" in str(want)
    return refused and not isinstance(got, Exception)


def _type(result: Any) -> type:
    # an index that dask fuses with any read returns 0-d arrays
    return np.ndarray if isinstance(result, np.generic) else type(result)


def _without_hidden(array: Any, hidden: np.ndarray) -> np.ndarray:
    return np.where(hidden, np.zeros((), array.dtype), np.ma.getdata(array)).astype(array.dtype)


def _assert_values(got: np.ndarray, want: np.ndarray, rtol: float, atol: float) -> None:
    if want.dtype.fields:
        for name in want.dtype.names:
            _assert_values(got[name], want[name], rtol, atol)
    elif want.dtype.kind in "fc" and want.dtype.itemsize <= 16:
        wide = np.result_type(want.dtype, "f8")
        got, want = got.astype(wide), want.astype(wide)
        with np.errstate(all="ignore"):
            near = np.isclose(got, want, rtol=rtol, atol=atol, equal_nan=True)
            if want.dtype.kind == "c":
                # infinite parts: of parts of NaNs nothing is said
                near |= np.isnan(got) & np.isnan(want)
        if not near.all():
            raise Difference(f"values: {got[~near][:5]} instead of {want[~near][:5]}")
    elif want.dtype.kind == "O":
        _assert_same(repr(got.tolist()), repr(want.tolist()), "objects")
    elif got.tobytes() != want.tobytes():
        wrong = got != want
        raise Difference(f"values: {got[wrong][:5]} instead of {want[wrong][:5]}")


def _assert_same(got: Any, want: Any, what: str) -> None:
    if got != want:
        raise Difference(f"{what}: {got} instead of {want}")


def _error(outcome: Any) -> str:
    """Type and text of an error; names of tasks and places in memory differ in each run.

    NumPy gives a single text a dtype of its own length.
    """
    if not isinstance(outcome, Exception):
        return f"no error, {type(outcome).__name__}"
    differs = r"[0-9a-f]{16,}|0x[0-9a-f]+|(?<=dask.array<)[^,]+|(?<='[<>]U)\d+|(?<='S)\d+"
    text = re.sub(differs, "#", str(outcome))
    # whichever is computed first, of two reductions or of elements
    return f"{type(outcome).__name__}: {re.sub(_FIRST, '#', text)}"
