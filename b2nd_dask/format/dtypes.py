"""Parse and format the dtype strings of the b2nd metalayer, without evaluating them."""

from __future__ import annotations

import ast
import re
from contextlib import suppress
from typing import Any

import numpy as np
from numpy.lib.format import drop_metadata

from b2nd_dask.errors import FrameFormatError, UnsupportedFrameError

#: Longest accepted dtype string; real ones are below 1 kB (a struct of 100 fields: 2 kB).
MAX_DTYPE_STRING = 1 << 16
#: Widest element. The format allows 512 MiB, but a single such element would fill the memory.
MAX_ITEMSIZE = 1 << 26
#: Levels of nested structured dtypes.
MAX_NESTING = 16

#: `repr` of a dtype, as in the early format text: ``dtype('int32')``, ``dtype([('a', '<i4')])``.
_REPR = re.compile(r"dtype\((?P<quote>['\"]?)(?P<inner>.*)(?P=quote)\)", re.DOTALL)

#: A plain dtype: ``<f8``, ``|S5``, ``<M8[25us]``, or a name such as ``datetime64[ns]``. NumPy's own
#: parser also accepts comma lists, repeat counts and ``O``, which are unsafe and occur in no file.
#: It also crashes on times of 0 units, and warns about ``a``.
_PLAIN = re.compile(
    r"[<>|=]?(?!a[0-9]*$)[A-Za-z?][A-Za-z]*[0-9]{0,9}(\[([1-9][0-9]{0,8})?[A-Za-zμ]{1,3}\])?"
)

#: A text whose only escapes are those that `repr` writes.
_ESCAPED = re.compile(r"(?:[^\\]|\\['\"\\nrtxuU])*", re.DOTALL)


def parse_dtype(raw: bytes) -> np.dtype[Any]:
    """Parse the dtype field of the metalayer, which is UTF-8.

    Accepts the spellings found in real files: ``dtype.str`` (``<f8``), names (``int32``),
    ``dtype('int32')``, the `repr` of ``dtype.descr`` for structured dtypes, and ``('<f8', (10,))``
    for elements that are arrays. Raises `FrameFormatError` if the text is not UTF-8, too long or
    not a dtype, or the elements are empty or too wide, and `UnsupportedFrameError` for object
    dtypes: their elements are pointers, not data.
    """
    if not 0 < len(raw) <= MAX_DTYPE_STRING:
        raise FrameFormatError(
            f"the dtype string has {len(raw)} bytes, not 1 to {MAX_DTYPE_STRING}"
        )
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise FrameFormatError(f"the dtype string is not UTF-8: {raw[:40]!r}") from error
    if match := _REPR.fullmatch(text):
        text = match["inner"]
    if not text.startswith(("[", "(")):
        return _dtype_from(text, text)
    # Python warns about escapes that `repr` does not write
    descr = None
    if _ESCAPED.fullmatch(text):
        # literal_eval only parses: unhashable sets and keys are TypeError, deep nesting is
        # RecursionError or MemoryError
        with suppress(ValueError, TypeError, SyntaxError, RecursionError, MemoryError):
            descr = ast.literal_eval(text)
    return _dtype_from(descr if isinstance(descr, list | tuple) else None, text)


def dtype_of_descr(descr: object) -> np.dtype[Any]:
    """Build a structured dtype from its ``descr``, with fields as tuples or (msgpack) as lists.

    Each field has a name, a dtype string or nested `descr`, and optionally a shape. Raises
    `FrameFormatError` if it does not describe a dtype, `UnsupportedFrameError` for a field of
    Python objects.
    """
    return _dtype_from(descr if isinstance(descr, list) else None, repr(descr))


def format_dtype(dtype: np.dtype[Any]) -> bytes:
    """Format a dtype as python-blosc2 does: ``dtype.str``, or the `repr` of ``dtype.descr``.

    Metadata of dtypes, such as h5py's, is left out. Raises `UnsupportedFrameError` if `parse_dtype`
    refuses the dtype.

    Examples
    --------
    >>> format_dtype(np.dtype([("a", "<i4")]))
    b"[('a', '<i4')]"
    """
    text = dtype.str
    try:
        if dtype.fields is not None:
            fields = drop_metadata(dtype).descr
            # raises, as in python-blosc2, if a field has the name that NumPy gives to padding (f1)
            np.dtype(fields)
            text = repr(fields)
        encoded = text.encode("utf-8")
        # do not write a text that reads as another dtype
        if parse_dtype(encoded) == dtype:
            return encoded
        error = "it has no text form"
    except ValueError as caught:
        error = str(caught)
    raise UnsupportedFrameError(
        f"a frame cannot hold the dtype {dtype}: {error}; for a structured dtype "
        "numpy.lib.recfunctions.repack_fields may help"
    )


def not_stored(dtype: np.dtype[Any]) -> str | None:
    """Explain why a frame cannot hold a dtype, and what to do; None if it can.

    Examples
    --------
    >>> not_stored(np.dtype("V0"))
    '0 bytes long, which a frame cannot hold'
    """
    if dtype.char == "T":
        return (
            "strings of variable length, which a frame cannot hold; convert them to a fixed "
            'length, such as .astype("U20") for 20 characters or .astype("S20") for ASCII'
        )
    if dtype.hasobject:
        return (
            "Python objects, which a frame cannot hold; convert them by .astype(float), which "
            "turns None into NaN, or replace None by a text, and convert them by .astype(str)"
        )
    if not dtype.itemsize:
        return "0 bytes long, which a frame cannot hold"
    return None


def _dtype_from(description: object, text: str) -> np.dtype[Any]:
    """Build a dtype from a text or its description, and check that a frame can hold it."""
    try:
        dtype = _build(description, 0)
    except (TypeError, ValueError) as error:
        what = "a dtype" if isinstance(description, str) else "the description of a dtype"
        raise FrameFormatError(f"{text[:80]!r} is not {what}: {error}") from error
    if not 0 < dtype.itemsize <= MAX_ITEMSIZE:
        raise FrameFormatError(
            f"the dtype {text[:80]!r} has elements of {dtype.itemsize} bytes, "
            f"not 1 to {MAX_ITEMSIZE}"
        )
    if dtype.hasobject:
        raise UnsupportedFrameError(
            f"the dtype {text[:80]!r} holds Python objects, which are not supported"
        )
    return dtype


def _build(description: object, depth: int) -> np.dtype[Any]:
    """Build a dtype from a text, a list of fields, or a tuple of the dtype and shape of arrays.

    Raises ValueError or TypeError; the message does not contain the text.
    """
    if isinstance(description, list) and description and depth < MAX_NESTING:
        return _without_padding([_field(field, depth) for field in description])
    if isinstance(description, tuple):
        _, *array = _field(("", *description), depth)
        return np.dtype(tuple(array))
    if isinstance(description, str) and _PLAIN.fullmatch(description):
        return np.dtype(description)
    if isinstance(description, list) and description:
        raise ValueError(f"its fields are nested more than {MAX_NESTING} deep")
    is_text = isinstance(description, str)
    raise ValueError("it is no name of a dtype" if is_text else "it is no list of fields")


def _without_padding(fields: list[tuple[Any, ...]]) -> np.dtype[Any]:
    """Build a structured dtype; entries of ``descr`` such as ``('', '|V3')`` become padding."""
    gaps = [name == "" and kind.kind == "V" and not kind.names for name, kind, *_ in fields]
    # NumPy would name the padding f1, which may also be the name of a field
    numbered = [
        (f"\0{at}", *rest) if gaps[at] else (name, *rest) for at, (name, *rest) in enumerate(fields)
    ]
    dtype = np.dtype(numbered)
    named = [name for name, is_gap in zip(dtype.names or (), gaps, strict=True) if not is_gap]
    return dtype[named] if named else dtype


def _field(field: object, depth: int) -> tuple[Any, ...]:
    if not isinstance(field, tuple | list) or len(field) not in (2, 3):
        raise ValueError("a field is not (name, dtype[, shape])")
    name, kind, *shapes = field
    # NumPy warns about a bare number
    shapes = [[shape] if isinstance(shape, int) else shape for shape in shapes]
    # NumPy turns an empty text into a dtype that does not match its own description
    if not all(isinstance(shape, tuple | list) for shape in shapes) or not all(
        isinstance(n, int) for shape in shapes for n in shape
    ):
        raise ValueError(f"a field has the invalid shape {shapes[0]!r:.80}")
    inner = _build(kind if isinstance(kind, list) else str(kind), depth + 1)
    return (tuple(name) if isinstance(name, list) else name, inner, *map(tuple, shapes))
