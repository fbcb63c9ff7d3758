"""Errors of file systems as they may be raised: with the name of the object, without secrets.

An error of a file system's library may show secrets in its text, in attributes such as a request,
and in the variables of each function in its traceback. So the original is never raised and never
referred to: what is raised is made anew, and its cause is a copy of the original as text.

Hints say in a message why a frame is missing, or what is there instead, and what to do.
"""

from __future__ import annotations

import errno
import logging
import os
import re
import traceback
from collections.abc import Collection, Mapping
from pathlib import Path

from b2nd_dask.errors import OPEN_STORE, B2ndError
from b2nd_dask.storage.redaction import Secrets

logger = logging.getLogger(__name__)

_OS_ERRORS = (
    FileNotFoundError,
    FileExistsError,
    IsADirectoryError,
    NotADirectoryError,
    PermissionError,
    TimeoutError,
    ConnectionError,
)
"""Kinds of OSError that callers distinguish."""
_PLAIN_ERRORS = (NotImplementedError, TypeError, ValueError)
"""Errors of wrong arguments, which keep their class."""

NO_BUCKET = "No such bucket"
"""Not the same as a missing object, which is no failure for many callers."""

_HINTS = {
    "NoCredentialsError": "for public data pass storage_options={'anon': True}",
}

#: How several frames become one array.
TOGETHER = (
    "from_b2nd takes a list of paths or a pattern such as 'data/*.b2nd', and concatenates or, with "
    "stack=True, stacks the frames"
)

#: Labels end in the offset of a frame, as in ``a.zip[38:]``.
_PATTERN = re.compile(r"[*?]|\[(?!\d+:\])[^\]]+\]")
_ZARR = {"zarr.json", ".zarray", ".zgroup", ".zmetadata"}


class OriginalError(Exception):
    """The traceback of an error of a library, and of what led to it, as text without secrets.

    The cause of errors of stores, for those who read tracebacks; it is never raised.
    """


def public_error(error: Exception, label: str, secrets: Secrets) -> Exception:
    """Make the error to raise: it names the object, and neither it nor its cause holds secrets.

    Parameters
    ----------
    error : Exception
        From a file system; each has a tree of its own. It goes to the log at DEBUG, as text without
        secrets.
    label : str
        Of the object.
    secrets : Secrets
        Of its URL and its storage options.

    Returns
    -------
    Exception
        To be raised outside of an except clause, and where no variable refers to the original:
        tools that show variables must not find it. Errors that are no builtin ones become OSError.
    """
    raised = _raised(error, label, secrets)
    if not _says_all(error):
        original = secrets.hide("".join(traceback.format_exception(error)).rstrip())
        logger.debug("%s: the store failed; without secrets:\n%s", label, original)
        raised.__cause__ = OriginalError(original)
    return raised


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


def _raised(error: Exception, label: str, secrets: Secrets) -> Exception:
    if isinstance(error, B2ndError):
        # not copy.copy, which copies the traceback, too, where tblib is imported
        make, values, *_ = error.__reduce__()
        anew: Exception = make(*values)
        return anew
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
    if type(error) is kind and label in str(error):
        made = _of_same_class(error, secrets)
        if made is not None and label in str(made):
            return made
    return _named(error, kind, label, secrets)


def _named(error: Exception, kind: type[Exception], label: str, secrets: Secrets) -> Exception:
    name = type(error).__name__
    # the package's own errors say all in their text
    ours = type(error) is kind or type(error).__module__.startswith("b2nd_dask.")
    parts = [label, None if ours else name, secrets.hide(_text(error)), _HINTS.get(name)]
    raised = kind(": ".join(part for part in parts if part))
    if isinstance(error, OSError) and isinstance(raised, OSError):
        # of an error with one argument, which its text is
        raised.errno = error.errno
    return raised


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


def _says_all(error: Exception) -> bool:
    """Whether an error was raised on purpose by this package, so that its text is the message."""
    if isinstance(error, B2ndError):
        return True
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    module = frames[-1].f_globals.get("__name__", "") if frames else ""
    return isinstance(error, OSError) and module.startswith("b2nd_dask.")


def _of_same_class(error: BaseException, secrets: Secrets) -> Exception | None:
    """A new error of the same builtin class; None where its class or its arguments forbid that."""
    if type(error).__module__ != "builtins" or not isinstance(error, Exception):
        return None
    kind = type(error)
    values: tuple[object, ...] = (_text(error),)
    if isinstance(error, OSError) and error.errno is not None and error.strerror is not None:
        values = (error.errno, error.strerror, error.filename)
    elif all(isinstance(value, str) for value in error.args):
        values = error.args
    try:
        made = kind(*(secrets.hide(v) if isinstance(v, str) else v for v in values))
    except TypeError:
        # of UnicodeError and groups of errors
        return None
    shown = f"{made}\n{made!r}"
    return made if type(made) is kind and secrets.hide(shown) == shown else None


def _text(error: BaseException) -> str:
    try:
        return str(error)
    except Exception as failure:  # noqa: BLE001 - of a class that this package does not know
        return f"<an error without a text: str() raises {type(failure).__name__}>"


def why_missing(path: str) -> str:
    """Reason why nothing is at a local path: the first folder that is missing, or a pattern.

    Parameters
    ----------
    path : str
        An absolute path.

    Returns
    -------
    str
        To be put behind a message; empty where there is nothing to say.
    """
    for folder in reversed(Path(path).parents):
        # not Path.is_dir, which raises where a folder may not be looked into
        if not os.path.isdir(folder):  # noqa: PTH112
            there = os.path.lexists(folder)
            reason = f"{folder} is no folder" if there else f"there is no folder {folder}"
            return f": {reason}{if_pattern(path)}"
    return if_pattern(path)


def if_pattern(name: str) -> str:
    """Say that patterns are not expanded, where the missing name looks like one.

    Parameters
    ----------
    name : str
        Path, or URL without secrets.

    Returns
    -------
    str
        To be put behind a message.
    """
    if not _PATTERN.search(name):
        return ""
    url = "in URLs only * is expanded; " if "://" in name and "*" not in name else ""
    return f"; if it is a pattern: {url}{TOGETHER}"


def what_directory(path: str, names: Collection[str] = ()) -> str:
    """Say what a directory probably is that is no sparse frame.

    Parameters
    ----------
    path : str
        Path, or URL without secrets.
    names : collection of str
        What is in it, as far as it is known.

    Returns
    -------
    str
        To be put behind a message.
    """
    if not _ZARR.isdisjoint(names):
        return " (it is a Zarr array or group: da.from_zarr reads an array)"
    if any(name.endswith(".chunk") for name in names):
        return " (there are chunks, but the index of a sparse frame is missing)"
    if "embed.b2e" in names or path.rstrip("/").endswith(".b2d"):
        return f" (a .b2d is a store of python-blosc2: {OPEN_STORE})"
    frames = sorted(name for name in names if name.endswith(".b2nd"))
    if frames:
        return f" (there are frames in it, such as {frames[0]}: pass the path of one)"
    return ""
