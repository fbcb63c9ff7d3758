"""Errors of file systems as they may be raised: with the name of the object, without secrets."""

from __future__ import annotations

import errno
import re
from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import Any

from b2nd_dask.errors import B2ndError
from b2nd_dask.storage.hints import if_pattern
from b2nd_dask.storage.labels import HIDDEN, public_text, public_url
from b2nd_dask.storage.spellings import spellings, texts_in

_SHORTEST = 4
"""Shorter texts would be found inside of ordinary words: they are taken out where they stand alone,
as the first part of a password with a slash may. Such a value of an option is no secret."""

_AUTHORITY = re.compile(r"://([^/?#]*)")
_SEPARATORS = re.compile(r"[:/?#@;&=]+")

_OS_ERRORS = (
    FileNotFoundError,
    FileExistsError,
    IsADirectoryError,
    NotADirectoryError,
    PermissionError,
    TimeoutError,
    ConnectionError,
)
"""Kinds of OSError that callers tell apart."""
_PLAIN_ERRORS = (NotImplementedError, TypeError, ValueError)
"""Errors of wrong arguments, which keep their class."""

NO_BUCKET = "No such bucket"
"""Told apart from a missing object, which a write may go on without."""

_HINTS = {
    "NoCredentialsError": "for public data pass storage_options={'anon': True}",
}


class Secrets:
    """Texts that must not be shown: parts of a URL, and values of storage options.

    Parameters
    ----------
    url : str
    options : mapping or None
    """

    def __init__(self, url: str, options: Mapping[str, Any] | None = None) -> None:
        self._url, self._options = url, dict(options or {})

    @cached_property
    def _shown(self) -> dict[str, str]:
        """What stands for each text; made when something fails."""
        shown = dict.fromkeys(_parts(self._url), HIDDEN)
        for text in texts_in(self._options):
            # an endpoint tells what went wrong, and may hold a password all the same
            if len(text) >= _SHORTEST:
                shown[text] = public_url(text) if "://" in text else HIDDEN
        # clients quote what they were given, and tell what they have unquoted
        spelled = [(form, known) for text, known in shown.items() for form in spellings(text)]
        return {form: known for form, known in reversed(spelled) if form} | shown

    def hide(self, text: str) -> str:
        """Take the texts, and what URLs must not show, out of a text."""
        # the longest first: one may hold another
        for secret in sorted(self._shown, key=len, reverse=True):
            if len(secret) >= _SHORTEST:
                text = text.replace(secret, self._shown[secret])
            elif secret:
                alone = rf"(?<![A-Za-z0-9]){re.escape(secret)}(?![A-Za-z0-9])"
                text = re.sub(alone, HIDDEN, text)
        return public_text(text)


def _parts(url: str) -> Iterator[str]:
    """What of a URL its label leaves out, whole and in parts."""
    if public_url(url) == url:
        return
    for link in url.split("::"):
        hidden = public_url(link).endswith(HIDDEN) or HIDDEN in public_url(url)
        rest = link.partition("://")[2] or link
        found = _AUTHORITY.search(link)
        user = found[1].rpartition("@")[0] if found else ""
        query = re.split(r"[?#;]", rest, maxsplit=1)[1:]
        for text in [rest] if hidden else [user, *query]:
            yield text
            yield from _SEPARATORS.split(text)


def public_error(error: Exception, label: str, secrets: Secrets) -> Exception:
    """Give the error to raise: one that names the object and holds no secrets.

    Parameters
    ----------
    error : Exception
        From a file system; each has a tree of its own.
    label : str
        Of the object.
    secrets : Secrets
        Of its URL and its storage options.

    Returns
    -------
    Exception
        To be raised outside of an except clause, so that the original is not shown with it. Errors
        that are no builtin ones become OSError.
    """
    if isinstance(error, B2ndError):
        return error
    cause = error.__cause__
    if isinstance(error, FileNotFoundError) and isinstance(cause, Exception):
        # fsspec's http reports every failure of `info` as a missing file; the cause knows.
        missing = _status(cause) == 404 or isinstance(cause, LookupError | FileNotFoundError)
        if not missing and not hasattr(cause, "response"):
            error = cause
    if isinstance(error, FileNotFoundError):
        if store_code(cause) == "NoSuchBucket":
            return FileNotFoundError(errno.ENOENT, NO_BUCKET, label)
        problem = "No such object" + only_here(label) + if_pattern(label)
        return FileNotFoundError(errno.ENOENT, problem, label)
    kind = _kind_of(error)
    if type(error) is kind and label in str(error) and not _holds_secrets(error, secrets):
        return error
    return _rebuilt(error, kind, label, secrets)


def store_code(cause: BaseException | None) -> str:
    """S3's own name of a failure, which s3fs keeps in the cause of its errors."""
    response = getattr(cause, "response", None)
    error = response.get("Error") if isinstance(response, Mapping) else None
    return str(error.get("Code", "")) if isinstance(error, Mapping) else ""


def only_here(label: str) -> str:
    """What to add to a message where something is missing that another process may have."""
    if "memory://" not in label:
        return ""
    return "; memory:// is seen by one process only, not by workers in other processes"


def _rebuilt(error: Exception, kind: type[Exception], label: str, secrets: Secrets) -> Exception:
    name = type(error).__name__
    # the package's own errors say all in their text
    ours = type(error) is kind or type(error).__module__.startswith("b2nd_dask.")
    told = [label, None if ours else name, secrets.hide(str(error)), _HINTS.get(name)]
    shown = kind(": ".join(part for part in told if part))
    if isinstance(error, OSError) and isinstance(shown, OSError):
        # of an error with one argument, which its text is
        shown.errno = error.errno
    return shown


def _kind_of(error: Exception) -> type[Exception]:
    """The builtin class that an error is raised as."""
    if _status(error) in (401, 403):
        return PermissionError
    if isinstance(error, OSError):
        return next((kind for kind in _OS_ERRORS if isinstance(error, kind)), OSError)
    if isinstance(error, ImportError):
        return ImportError
    return type(error) if type(error) in _PLAIN_ERRORS else OSError


def _status(error: BaseException) -> int | None:
    return getattr(error, "status", None)


def _holds_secrets(error: BaseException | None, secrets: Secrets) -> bool:
    if error is None:
        return False
    shown = "\n".join([str(error), repr(error), *map(str, getattr(error, "__notes__", []))])
    return (
        hasattr(error, "request_info")  # aiohttp: its repr shows the headers of the request
        or secrets.hide(shown) != shown
        or _holds_secrets(error.__cause__, secrets)
        or _holds_secrets(error.__context__, secrets)
    )
