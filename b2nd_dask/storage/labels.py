"""What of URLs and errors may be shown: never a password, a signature or a token."""

from __future__ import annotations

import errno
import re

_PLAIN_NAMES = {"abfs", "abfss", "az", "file", "gcs", "gs", "local", "memory", "s3", "s3a", "zip"}
"""Schemes whose paths are names, in which ``#`` and ``;`` are characters like others."""

_HIDDEN = "[hidden]"
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
            shown[-1] = _HIDDEN
        else:
            shown.append(_public_link(link))
        if shown[-1].endswith(_HIDDEN):
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
    if not _PORT.fullmatch(host) and ("@" in rest or not plain):
        # No port: the first part of a password that holds "/", "?" or "#", where it ends unknown.
        return _HIDDEN
    path = rest[len(authority) :].partition("?")[0]
    if plain:
        return host + path
    return _PARAM.sub("", host + path.partition("#")[0])


def public_error(error: Exception, label: str) -> Exception:
    """Give the error to raise: a missing object by name, others as they are or without secrets.

    Parameters
    ----------
    error : Exception
        From a file system; each has a tree of its own.
    label : str
        Of the object.

    Returns
    -------
    Exception
        To be raised outside of an except clause, so that the original is not shown with it.
    """
    cause = error.__cause__
    if isinstance(error, FileNotFoundError) and isinstance(cause, Exception):
        # fsspec's http reports every failure of `info` as a missing file; the cause knows.
        missing = _status(cause) == 404 or isinstance(cause, LookupError | FileNotFoundError)
        if not missing and not hasattr(cause, "response"):
            error = cause
    if isinstance(error, FileNotFoundError):
        return FileNotFoundError(errno.ENOENT, "No such object", label)
    if not _holds_secrets(error):
        return error
    denied = _status(error) in (401, 403)
    kind = PermissionError if denied else OSError
    return kind(f"{label}: {type(error).__name__}: {_without_secrets(str(error))}")


def _without_secrets(text: str) -> str:
    return _LINK.sub(lambda link: f"{link[1]}://{_public_rest(link[1], link[2])}", text)


def _status(error: BaseException) -> int | None:
    return getattr(error, "status", None)


def _holds_secrets(error: BaseException | None) -> bool:
    if error is None:
        return False
    shown = f"{error} {error!r}"
    return (
        hasattr(error, "request_info")  # aiohttp: its repr shows the headers of the request
        or _without_secrets(shown) != shown
        or _holds_secrets(error.__cause__)
        or _holds_secrets(error.__context__)
    )
