"""What of URLs may be shown: never a password, a signature or a token."""

from __future__ import annotations

import re

_PLAIN_NAMES = {"abfs", "abfss", "az", "file", "gcs", "gs", "local", "memory", "s3", "s3a", "zip"}
"""Schemes whose paths are names, in which ``#`` and ``;`` are characters like others."""

HIDDEN = "[hidden]"
"""Stands where something is left out."""

_LINK = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://([^\s'\"]*)")
_END_OF_AUTHORITY = re.compile(r"[/?#]")
_PORT = re.compile(r"\[.*|[^:]*(:[0-9]*)?")
_PARAM = re.compile(r";[^/]*")


def public_url(url: str) -> str:
    """Take user names, passwords, parameters, queries and fragments out of a URL.

    Parameters
    ----------
    url : str
        May be chained.

    Returns
    -------
    str

    Examples
    --------
    >>> public_url("https://user:secret@host/a.b2nd;v=1?signature=secret#token=secret")
    'https://host/a.b2nd'
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
    """Whether a password that holds "::" was taken for a host and another link."""
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
        # No port: the first part of a password that holds "/", "?" or "#", where it ends unknown.
        return HIDDEN
    if "@" in behind and (":" in authority or "@" in authority):
        # What looks like a port, or like a host, may be such a first part, too.
        return HIDDEN
    path = behind.partition("?")[0]
    if plain:
        return host + path
    return _PARAM.sub("", host + path.partition("#")[0])


def public_text(text: str) -> str:
    """Take the same out of each URL in a text.

    Parameters
    ----------
    text : str

    Returns
    -------
    str
    """
    return _LINK.sub(lambda link: f"{link[1]}://{_public_rest(link[1], link[2])}", text)
