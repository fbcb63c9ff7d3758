"""Secrets removed from messages.

`Secrets` removes values of storage options, and the parts of a URL that its label omits, in all
spellings that clients use.
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

from b2nd_dask.storage.urls import HIDDEN, links_of, public_link, public_url

_LINK = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://[^\s'\"]*")
#: Parts of a URL that labels omit: user and password, parameters, query, fragment.
_LEFT_OUT = re.compile(r"(?<=://)[^/?#]*(?=@)|(?<=[?#;]).*", re.DOTALL)
_SEPARATORS = re.compile(r"[:/?#@;&=]+")

#: Shorter texts occur in ordinary words, so they are replaced as whole words only. They may be the
#: first part of a password with a slash. Shorter values of options are not secret.
_SHORTEST = 4
#: Shorter texts in base64 or hexadecimal occur in ordinary words, too.
_FEWEST_ENCODED = 8
#: Smaller numbers are ports, limits and times, which messages need.
_LONG_NUMBER = 10**5
_SCHEME = re.compile(r"(?i)(basic|bearer|token|apikey|negotiate|digest)\s+(.+)", re.DOTALL)
_NO_VALUES = (type, ModuleType, FunctionType, MethodType, float, complex, range, type(None))
#: Depth up to which containers are searched; contents of an object count as this deep already.
_DEEPEST, _IN_OBJECT = 10, 8
#: Longest text from a file, such as a key of a store, that messages show.
_MOST_SHOWN = 500


class Secrets:
    """Texts that must not be shown: parts of a URL, and values of storage options."""

    def __init__(self, url: str, options: Mapping[str, Any] | None = None) -> None:
        self._url, self._options = url, dict(options or {})

    @cached_property
    def _forms(self) -> list[str]:
        """Secrets in all spellings, longest first, since one may contain another."""
        texts = {*_parts(self._url), *filter(_is_secret, _texts_in(self._options))}
        forms = {form for text in texts for form in (text, *_spellings(text)) if form}
        return sorted(forms, key=len, reverse=True)

    def hide(self, text: str) -> str:
        """Replace the secrets, and the secret parts of all URLs, in a text."""
        for secret in self._forms:
            if len(secret) >= _SHORTEST:
                text = text.replace(secret, HIDDEN)
            else:
                alone = rf"(?<![A-Za-z0-9]){re.escape(secret)}(?![A-Za-z0-9])"
                text = re.sub(alone, HIDDEN, text)
        return _LINK.sub(lambda link: public_link(link[0]), text)


def _is_secret(text: str) -> bool:
    """Whether an option's value is secret; plain URLs are not: an endpoint helps users."""
    return len(text) >= _SHORTEST and ("://" not in text or public_url(text) != text)


def _parts(url: str) -> Iterator[str]:
    """List the parts of a URL that its label omits, whole and split at separators."""
    label = public_url(url)
    for link in links_of(url) if label != url else ():
        rest = link.partition("://")[2] or link
        for text in [rest] if HIDDEN in label else _LEFT_OUT.findall(link):
            if HIDDEN in label or not public_url(link).endswith(text):
                yield from (text, *_SEPARATORS.split(text))


def _texts_in(value: Any, depth: int = 0) -> Iterator[str]:
    """Find the texts in a value, also in bytes, containers and attributes of objects."""
    if isinstance(value, str):
        yield str(value)
        if found := _SCHEME.fullmatch(value):
            # the value of a header: messages may have only the credentials behind the scheme
            yield found[2]
            with suppress(ValueError):
                pair = base64.b64decode(found[2], validate=True).decode("utf-8")
                yield from (pair, *pair.split(":", 1))
    elif isinstance(value, bytes | bytearray | memoryview):
        raw = bytes(value)
        yield from _texts_in(raw.decode("utf-8", "surrogateescape"))
        # spellings of bytes that are not UTF-8
        yield from (raw.decode("utf-8", errors) for errors in ("replace", "backslashreplace"))
        yield raw.decode("latin-1")
    elif isinstance(value, int):
        yield from [str(int(value))] if abs(value) >= _LONG_NUMBER else []
    elif isinstance(value, Mapping | list | tuple | Set):
        if depth <= _DEEPEST:
            for inner in list(value.values() if isinstance(value, Mapping) else value):
                yield from _texts_in(inner, depth + 1)
    elif depth < _IN_OBJECT and not isinstance(value, _NO_VALUES):
        # such as a pair of name and password; not its inner objects, whose number has no bound
        for show in (repr, str, vars, methodcaller("__getstate__")):
            with suppress(Exception):
                yield from _texts_in(show(value), _IN_OBJECT)


def _spellings(text: str) -> Iterator[str]:
    """List spellings of a text in messages: plain, in a URL, in a `repr`, in base64."""
    raw, unquoted = text.encode("utf-8", "surrogateescape"), unquote_to_bytes(text)
    # clients decode headers as Latin-1
    yield from (raw.decode("latin-1"), unquoted.decode("utf-8", "surrogateescape"))
    # clients quote a quoted text again, with capital digits or more quoted characters
    for once in (raw, unquoted):
        yield from (quote(once, safe=""), quote(once), quote_plus(once))
    # the `repr` of a container or an error may contain the `repr` of the text
    for each in (repr(text)[1:-1], repr(raw)[2:-1], json.dumps(text)[1:-1]):
        yield from (each, repr(each)[1:-1])
    yield from (part for part in _encoded(raw) if len(part) >= _FEWEST_ENCODED)


def _encoded(raw: bytes) -> Iterator[str]:
    """Encode bytes in hexadecimal, and in base64 at each of its three alignments."""
    yield raw.hex()
    for encode in (base64.b64encode, base64.urlsafe_b64encode):
        for shift in range(3):
            encoded = encode(bytes(shift) + raw).decode("ascii")
            # without digits that share bits with the bytes before or behind
            yield encoded[-(-8 * shift // 6) : 8 * (shift + len(raw)) // 6]


def printable(text: str) -> str:
    r"""Make text from a file safe to show: one line, limited length, no terminal codes.

    Examples
    --------
    >>> print(printable("/x\n\x1b[31mred"))
    /x\n\x1b[31mred
    """
    cut = text if len(text) <= _MOST_SHOWN else f"{text[:_MOST_SHOWN]}..."
    return "".join(each if each.isprintable() else ascii(each)[1:-1] for each in cut)
