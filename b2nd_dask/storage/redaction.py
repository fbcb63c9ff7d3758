"""Texts without secrets: of URLs what may be shown, of messages all but values of storage options.

`public_url` gives the label of an object. `Secrets` takes the values of storage options, and the
parts of a URL that its label leaves out, out of any text, however a client may have spelled them.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
from collections.abc import Callable, Iterator, Mapping, Set
from contextlib import suppress
from functools import cached_property
from types import FunctionType, MethodType, ModuleType
from typing import Any
from urllib.parse import quote, quote_plus, unquote

#: Characters of queries with values.
_VALUES = frozenset("=%&#")
_PLAIN_NAMES = {"abfs", "abfss", "az", "file", "gcs", "gs", "local", "memory", "s3", "s3a", "zip"}
"""Schemes whose paths are names, in which ``#`` and ``;`` are characters like others."""

HIDDEN = "[hidden]"
"""Stands where something is left out."""

_LINK = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://([^\s'\"]*)")
_END_OF_AUTHORITY = re.compile(r"[/?#]")
_PORT = re.compile(r"\[.*|[^:]*(:[0-9]*)?")
_PARAM = re.compile(r";[^/]*")

_SHORTEST = 4
"""Shorter texts would be found inside of ordinary words: they are replaced where they stand alone,
as the first part of a password with a slash may. Such a value of an option is no secret."""

_AUTHORITY = re.compile(r"://([^/?#]*)")
_SEPARATORS = re.compile(r"[:/?#@;&=]+")

#: Shorter ones are ports, limits and times, without which messages say little.
_LONG_NUMBER = 10**5
#: Characters of a text that a file chose, as a key of a store, that are shown.
_MOST_SHOWN = 500
_DEEPEST = 8
_FEWEST_ENCODED = 8
"""Shorter ones would be found inside of ordinary words."""
_SCHEME = re.compile(r"(?i)(basic|bearer|token|apikey|negotiate|digest)\s+(.+)", re.DOTALL)
_NO_VALUES = (type, ModuleType, FunctionType, MethodType, float, complex, range)


def public_url(url: str) -> str:
    """Take user names, passwords, parameters, queries and fragments out of a URL.

    Parameters
    ----------
    url : str
        May be chained.

    Examples
    --------
    >>> public_url("https://user:secret@host/a.b2nd;v=1?signature=secret#token=secret")
    'https://host/a.b2nd'
    >>> public_url("s3://bucket/part?.b2nd")
    's3://bucket/part?.b2nd'
    """
    shown: list[str] = []
    for link in url.split("::"):
        if shown and _may_go_on(shown[-1], link):
            shown[-1] = HIDDEN
        else:
            shown.append(_public_link(link))
        if shown[-1].endswith(HIDDEN):
            break  # what follows may belong to the same password
    return "::".join(shown)


def _may_go_on(host: str, link: str) -> bool:
    """Whether a password that contains "::" was split into a host and another link."""
    scheme, separator, rest = host.partition("://")
    is_host = separator and "/" not in rest and scheme.lower() not in _PLAIN_NAMES
    return bool(is_host) and "://" not in link and "@" in link


def _public_link(link: str) -> str:
    scheme, separator, rest = link.partition("://")
    return f"{scheme}://{_public_rest(scheme, rest)}" if separator else link.partition("?")[0]


def _public_rest(scheme: str, rest: str) -> str:
    """What may be shown of what follows ``scheme://``."""
    plain = scheme.lower() in _PLAIN_NAMES
    authority = _END_OF_AUTHORITY.split(rest, maxsplit=1)[0]
    host = authority.rpartition("@")[2]
    behind = rest[len(authority) :]
    if not _PORT.fullmatch(host) and ("@" in rest or not plain):
        # No port: the first part of a password with "/", "?" or "#", whose end is unknown.
        return HIDDEN
    if "@" in behind and (":" in authority or "@" in authority):
        # What looks like a port, or like a host, may be such a first part, too.
        return HIDDEN
    path, mark, query = behind.partition("?")
    if plain:
        # s3fs takes a ? for a character of the name, unless a value follows
        in_name = scheme.lower() in ("s3", "s3a") and _VALUES.isdisjoint(query)
        return host + path + (mark + query if in_name else "")
    return _PARAM.sub("", host + path.partition("#")[0])


def public_text(text: str) -> str:
    """Replace each URL in a text by its public form."""
    return _LINK.sub(lambda link: f"{link[1]}://{_public_rest(link[1], link[2])}", text)


class Secrets:
    """Texts that must not be shown: parts of a URL, and values of storage options."""

    def __init__(self, url: str, options: Mapping[str, Any] | None = None) -> None:
        self._url, self._options = url, dict(options or {})

    @cached_property
    def _shown(self) -> dict[str, str]:
        """The replacement of each text; made when something fails."""
        shown = dict.fromkeys(_parts(self._url), HIDDEN)
        for text in texts_in(self._options):
            # an endpoint helps to see what is wrong, and may have a password all the same
            if len(text) >= _SHORTEST:
                shown[text] = public_url(text) if "://" in text else HIDDEN
        # clients show texts quoted and unquoted
        spelled = [(form, known) for text, known in shown.items() for form in spellings(text)]
        return {form: known for form, known in reversed(spelled) if form} | shown

    def hide(self, text: str) -> str:
        """Replace the texts, and what URLs must not show, in a text."""
        # the longest first: one may contain another
        for secret in sorted(self._shown, key=len, reverse=True):
            if len(secret) >= _SHORTEST:
                text = text.replace(secret, self._shown[secret])
            elif secret:
                alone = rf"(?<![A-Za-z0-9]){re.escape(secret)}(?![A-Za-z0-9])"
                text = re.sub(alone, HIDDEN, text)
        return public_text(text)


def _parts(url: str) -> Iterator[str]:
    """The parts of a URL that its label leaves out, whole and divided."""
    if public_url(url) == url:
        return
    for link in url.split("::"):
        hidden = public_url(link).endswith(HIDDEN) or HIDDEN in public_url(url)
        rest = link.partition("://")[2] or link
        found = _AUTHORITY.search(link)
        user = found[1].rpartition("@")[0] if found else ""
        shown = public_url(link)
        query = [q for q in re.split(r"[?#;]", rest, maxsplit=1)[1:] if not shown.endswith(q)]
        for text in [rest] if hidden else [user, *query]:
            yield text
            yield from _SEPARATORS.split(text)


def texts_in(value: Any, depth: int = 0) -> Iterator[str]:
    """Find the texts in a value: in bytes, containers and the attributes of objects, too.

    Parameters
    ----------
    depth : int
        Number of containers and objects that it lies in.

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
    """How a text may stand in a message: as it is, in a URL, in a `repr`, in base64."""
    raw = text.encode("utf-8", "surrogateescape")
    # headers are read as Latin-1
    yield from (text, raw.decode("latin-1"))
    plain = unquote(text).encode("utf-8", "surrogateescape")
    yield plain.decode("utf-8", "surrogateescape")
    # clients quote anew what came quoted: in capital digits, or more of it
    for once_quoted in (raw, plain):
        yield from (quote(once_quoted, safe=""), quote(once_quoted), quote_plus(once_quoted))
    inner: Callable[[object], str] = lambda value: repr(value)[1:-1]  # noqa: E731
    for once in (inner(text), repr(raw)[2:-1], json.dumps(text)[1:-1]):
        # the `repr` of a container, or of an error, that holds it
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
    """Texts of an object's `repr` and attributes: a pair of name and password, for instance."""
    for show in (repr, str):
        with suppress(Exception):
            yield show(value)
    names = getattr(type(value), "__slots__", ())
    names = (names,) if isinstance(names, str) else names
    values = [*getattr(value, "__dict__", {}).values(), *(getattr(value, n, None) for n in names)]
    for inner in values:
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


def printable(text: str) -> str:
    r"""Show text that a file chose: in one line, of some length, and no code for a terminal.

    Examples
    --------
    >>> print(printable("/x\n\x1b[31mred"))
    /x\n\x1b[31mred
    """
    cut = text if len(text) <= _MOST_SHOWN else f"{text[:_MOST_SHOWN]}..."
    return "".join(each if each.isprintable() else ascii(each)[1:-1] for each in cut)
