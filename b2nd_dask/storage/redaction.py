"""Texts without secrets: of URLs what may be shown, of messages all but values of storage options.

`public_url` gives the label of an object. `Secrets` takes the values of storage options, and the
parts of a URL that its label leaves out, out of any text, however a client may have spelled them.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterator, Mapping, Set
from contextlib import suppress
from functools import cached_property
from operator import methodcaller
from types import FunctionType, MethodType, ModuleType
from typing import Any
from urllib.parse import quote, quote_plus, unquote_to_bytes

HIDDEN = "[hidden]"
"""Stands where something is left out."""

#: Characters of queries with values.
_VALUES = frozenset("=%&#")
#: Schemes whose paths are names, in which ``#`` and ``;`` are characters like others.
_PLAIN_NAMES = {"abfs", "abfss", "az", "file", "gcs", "gs", "local", "memory", "s3", "s3a", "zip"}
_LINK = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://([^\s'\"]*)")
_END_OF_AUTHORITY = re.compile(r"[/?#]")
_PORT = re.compile(r"\[.*|[^:]*(:[0-9]*)?")
_PARAM = re.compile(r";[^/]*")
#: What labels leave out: user and password, and what begins with a query, and its parts.
_LEFT_OUT = re.compile(r"(?<=://)[^/?#]*(?=@)|(?<=[?#;]).*", re.DOTALL)
_SEPARATORS = re.compile(r"[:/?#@;&=]+")

#: Shorter texts would be found inside of ordinary words: they are replaced where they stand alone,
#: as the first part of a password with a slash may. Such a value of an option is no secret.
_SHORTEST = 4
#: So would be shorter ones in base64 or hexadecimal.
_FEWEST_ENCODED = 8
#: Smaller ones are ports, limits and times, without which messages say little.
_LONG_NUMBER = 10**5
_SCHEME = re.compile(r"(?i)(basic|bearer|token|apikey|negotiate|digest)\s+(.+)", re.DOTALL)
_NO_VALUES = (type, ModuleType, FunctionType, MethodType, float, complex, range, type(None))
#: Depth of containers that are looked into, and of what is in an object, which lies deep already.
_DEEPEST, _IN_OBJECT = 10, 8
#: Characters of a text that a file chose, as a key of a store, that are shown.
_MOST_SHOWN = 500


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


class Secrets:
    """Texts that must not be shown: parts of a URL, and values of storage options."""

    def __init__(self, url: str, options: Mapping[str, Any] | None = None) -> None:
        self._url, self._options = url, dict(options or {})

    @cached_property
    def _spelled(self) -> list[str]:
        """In all spellings; made when something fails. The longest first: one may have another."""
        texts = {*_parts(self._url), *filter(_is_secret, _texts_in(self._options))}
        forms = {form for text in texts for form in (text, *_spellings(text)) if form}
        return sorted(forms, key=len, reverse=True)

    def hide(self, text: str) -> str:
        """Replace the texts, and what URLs must not show, in a text."""
        for secret in self._spelled:
            if len(secret) >= _SHORTEST:
                text = text.replace(secret, HIDDEN)
            else:
                alone = rf"(?<![A-Za-z0-9]){re.escape(secret)}(?![A-Za-z0-9])"
                text = re.sub(alone, HIDDEN, text)
        return _LINK.sub(lambda link: f"{link[1]}://{_public_rest(link[1], link[2])}", text)


def _is_secret(text: str) -> bool:
    """Whether a value of an option is one: an endpoint helps to see what is wrong."""
    return len(text) >= _SHORTEST and ("://" not in text or public_url(text) != text)


def _parts(url: str) -> Iterator[str]:
    """The parts of a URL that its label leaves out, whole and divided."""
    label = public_url(url)
    for link in url.split("::") if label != url else ():
        rest = link.partition("://")[2] or link
        for text in [rest] if HIDDEN in label else _LEFT_OUT.findall(link):
            if HIDDEN in label or not public_url(link).endswith(text):
                yield from (text, *_SEPARATORS.split(text))


def _texts_in(value: Any, depth: int = 0) -> Iterator[str]:
    """Find the texts in a value: in bytes, containers and the attributes of objects, too."""
    if isinstance(value, str):
        yield str(value)
        if found := _SCHEME.fullmatch(value):
            # the value of a header: the client may quote what follows the scheme
            yield found[2]
            with suppress(ValueError):
                pair = base64.b64decode(found[2], validate=True).decode("utf-8")
                yield from (pair, *pair.split(":", 1))
    elif isinstance(value, bytes | bytearray | memoryview):
        raw = bytes(value)
        yield from _texts_in(raw.decode("utf-8", "surrogateescape"))
        # those that are not UTF-8 are shown in one of these ways
        yield from (raw.decode("utf-8", errors) for errors in ("replace", "backslashreplace"))
        yield raw.decode("latin-1")
    elif isinstance(value, int):
        yield from [str(int(value))] if abs(value) >= _LONG_NUMBER else []
    elif isinstance(value, Mapping | list | tuple | Set):
        if depth <= _DEEPEST:
            for inner in list(value.values() if isinstance(value, Mapping) else value):
                yield from _texts_in(inner, depth + 1)
    elif depth < _IN_OBJECT and not isinstance(value, _NO_VALUES):
        # a pair of name and password, for instance; no objects in it, whose number nothing bounds
        for show in (repr, str, vars, methodcaller("__getstate__")):
            with suppress(Exception):
                yield from _texts_in(show(value), _IN_OBJECT)


def _spellings(text: str) -> Iterator[str]:
    """How a text may stand in a message: as it is, in a URL, in a `repr`, in base64."""
    raw, unquoted = text.encode("utf-8", "surrogateescape"), unquote_to_bytes(text)
    # headers are read as Latin-1
    yield from (raw.decode("latin-1"), unquoted.decode("utf-8", "surrogateescape"))
    # clients quote anew what came quoted: in capital digits, or more of it
    for once in (raw, unquoted):
        yield from (quote(once, safe=""), quote(once), quote_plus(once))
    # the `repr` of a container, or of an error, may hold that of the text
    for each in (repr(text)[1:-1], repr(raw)[2:-1], json.dumps(text)[1:-1]):
        yield from (each, repr(each)[1:-1])
    yield from (part for part in _encoded(raw) if len(part) >= _FEWEST_ENCODED)


def _encoded(raw: bytes) -> Iterator[str]:
    """Bytes in hexadecimal, and in base64, wherever they begin in what was encoded."""
    yield raw.hex()
    for encode in (base64.b64encode, base64.urlsafe_b64encode):
        for shift in range(3):
            encoded = encode(bytes(shift) + raw).decode("ascii")
            # digits that hold bits of what stands before or behind are another's
            yield encoded[-(-8 * shift // 6) : 8 * (shift + len(raw)) // 6]


def printable(text: str) -> str:
    r"""Show text that a file chose: in one line, of some length, and no code for a terminal.

    Examples
    --------
    >>> print(printable("/x\n\x1b[31mred"))
    /x\n\x1b[31mred
    """
    cut = text if len(text) <= _MOST_SHOWN else f"{text[:_MOST_SHOWN]}..."
    return "".join(each if each.isprintable() else ascii(each)[1:-1] for each in cut)
