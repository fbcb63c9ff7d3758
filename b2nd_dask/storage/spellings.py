"""Values of storage options as texts, and how clients may spell a text in their messages."""

from __future__ import annotations

import base64
import binascii
import json
import re
from collections.abc import Callable, Iterator, Mapping, Set
from contextlib import suppress
from types import FunctionType, MethodType, ModuleType
from typing import Any
from urllib.parse import quote, quote_plus, unquote

_LONG_NUMBER = 10**5
"""Shorter ones are ports, limits and times, without which messages say little."""
_DEEPEST = 8
_FEWEST_ENCODED = 8
"""Shorter ones would be found inside of ordinary words."""
_SCHEME = re.compile(r"(?i)(basic|bearer|token|apikey|negotiate|digest)\s+(.+)", re.DOTALL)
_NO_VALUES = (type, ModuleType, FunctionType, MethodType, float, complex, range)


def texts_in(value: Any, depth: int = 0) -> Iterator[str]:
    """Find the texts in a value: in bytes, containers and the attributes of objects, too.

    Parameters
    ----------
    value : object
    depth : int
        Of containers and objects around it.

    Yields
    ------
    str
        Without those that are part of every value of a kind, such as booleans.
    """
    if isinstance(value, str):
        yield from _parts_of_text(str(value))
    elif isinstance(value, bytes | bytearray | memoryview):
        yield from _texts_of_bytes(bytes(value))
    elif isinstance(value, int):
        if abs(value) >= _LONG_NUMBER:
            yield str(int(value))
    elif depth > _DEEPEST or value is None or isinstance(value, _NO_VALUES):
        return
    elif isinstance(value, Mapping):
        for inner in list(value.values()):
            yield from texts_in(inner, depth + 1)
    elif isinstance(value, list | tuple | Set):
        for inner in list(value):
            yield from texts_in(inner, depth + 1)
    else:
        yield from _texts_of_object(value, depth)


def spellings(text: str) -> Iterator[str]:
    """How a text may stand in a message: as it is, in a URL, in a `repr`, in base64.

    Parameters
    ----------
    text : str

    Yields
    ------
    str
    """
    raw = text.encode("utf-8", "surrogateescape")
    # headers are read as Latin-1
    yield from (text, raw.decode("latin-1"))
    yield unquote(text)
    yield from (quote(raw, safe=""), quote(raw), quote_plus(raw))
    inner: Callable[[object], str] = lambda value: repr(value)[1:-1]  # noqa: E731
    for once in (inner(text), repr(raw)[2:-1], json.dumps(text)[1:-1]):
        # the `repr` of a container, or of an error, around it
        yield from (once, inner(once))
    yield from (part for part in _encoded(raw) if len(part) >= _FEWEST_ENCODED)


def _parts_of_text(text: str) -> Iterator[str]:
    yield text
    if (found := _SCHEME.fullmatch(text)) is None:
        return
    # the value of a header: the client may quote what follows the scheme
    yield found[2]
    with suppress(binascii.Error, ValueError):
        pair = base64.b64decode(found[2], validate=True).decode("utf-8")
        yield from (pair, *pair.split(":", 1))


def _texts_of_bytes(raw: bytes) -> Iterator[str]:
    yield from _parts_of_text(raw.decode("utf-8", "surrogateescape"))
    # those that are not UTF-8 are shown in one of these ways
    for errors in ("replace", "backslashreplace"):
        yield raw.decode("utf-8", errors)
    yield raw.decode("latin-1")


def _texts_of_object(value: Any, depth: int) -> Iterator[str]:
    """What an object shows of itself, and holds: a pair of name and password, for instance."""
    for show in (repr, str):
        with suppress(Exception):
            yield show(value)
    names = getattr(type(value), "__slots__", ())
    names = (names,) if isinstance(names, str) else names
    held = [*getattr(value, "__dict__", {}).values(), *(getattr(value, n, None) for n in names)]
    for inner in held:
        # no further objects, whose number nothing bounds
        if isinstance(inner, str | bytes | bytearray | memoryview | Mapping | list | tuple | Set):
            yield from texts_in(inner, max(depth, _DEEPEST))


def _encoded(raw: bytes) -> Iterator[str]:
    """Bytes in hexadecimal, and in base64, wherever they begin in what was encoded."""
    yield raw.hex()
    for encode in (base64.b64encode, base64.urlsafe_b64encode):
        for shift in range(3):
            encoded = encode(bytes(shift) + raw).decode("ascii")
            # digits that hold bits of what stands before or behind are another's
            bits = 8 * (shift + len(raw))
            part = encoded[-(-8 * shift // 6) : bits // 6]
            yield part
