"""Errors of file systems as they may be raised: with the name of the object, without secrets."""

from __future__ import annotations

import errno
from collections.abc import Mapping

from b2nd_dask.errors import B2ndError
from b2nd_dask.storage.hints import if_pattern
from b2nd_dask.storage.redaction import Secrets

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
