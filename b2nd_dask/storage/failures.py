"""Errors of file systems, converted to errors that name the object and hold no secrets.

An error of a file system's library may hold secrets in its text, in attributes such as a request,
and in the variables of its traceback. So the package raises a new error and never refers to the
original. The cause of the new error is the text of the original, without secrets.

Hints are appended to messages: why a frame is missing, what the path holds instead, what to do.
Their arguments are paths, or URLs without secrets.
"""

from __future__ import annotations

import errno
import logging
import os
import re
import traceback
from collections.abc import Collection, Mapping
from http import HTTPStatus
from pathlib import Path

from b2nd_dask.errors import OPEN_STORE, B2ndError
from b2nd_dask.storage.redaction import Secrets

logger = logging.getLogger(__name__)

#: Errors of wrong arguments, which keep their class.
_PLAIN_ERRORS = (NotImplementedError, TypeError, ValueError)

NO_BUCKET = "No such bucket"
"""Unlike a missing object, a failure for all callers."""

#: Of S3 and of Azure.
_NO_BUCKET_CODES = frozenset({"NoSuchBucket", "ContainerNotFound"})

_NO_CREDENTIALS = "configure AWS credentials; for public data pass storage_options={'anon': True}"
#: Advice for several frames that are to become one array.
TOGETHER = (
    "from_b2nd takes a list of paths or a pattern such as 'data/*.b2nd', and concatenates the "
    "frames, or stacks them with stack=True"
)

#: Text of FileExistsError if the target was created after the start of the write.
MEANWHILE = (
    "another writer has created this meanwhile, and it is not replaced: look at it, then write "
    "again, or choose another name"
)

#: Labels end in the offset of a frame, as in ``a.zip[38:]``.
_PATTERN = re.compile(r"[*?]|\[(?!\d+:\])[^\]]+\]")
_ZARR = {"zarr.json", ".zarray", ".zgroup", ".zmetadata"}
_STORE = {"dataset.json", "embed.b2e"}


class OriginalError(Exception):
    """Traceback of a library's error and its causes, as text without secrets.

    It is the cause of store errors, for readers of tracebacks; it is never raised.
    """


def public_error(error: Exception, label: str, secrets: Secrets) -> Exception:
    """Make an error to raise: it names the object, and neither it nor its cause holds secrets.

    Raise it outside of the except clause, where no variable refers to the original: some tools show
    all variables. The original is logged at DEBUG, as text without secrets. Errors of classes that
    are not builtin become OSError.
    """
    if isinstance(error, B2ndError):
        # not copy.copy: with tblib imported it copies the traceback, too
        make, values, *_ = error.__reduce__()
        copy: Exception = make(*values)
        return copy
    raised = _without_secrets(error, label, secrets)
    original = secrets.hide("".join(traceback.format_exception(error)).rstrip())
    logger.debug("%s: the store failed; without secrets:\n%s", label, original)
    raised.__cause__ = OriginalError(original)
    return raised


def store_code(cause: BaseException | None) -> str:
    """Return S3's error code, which s3fs keeps in the cause of its errors."""
    response = getattr(cause, "response", None)
    error = response.get("Error") if isinstance(response, Mapping) else None
    return str(error.get("Code", "")) if isinstance(error, Mapping) else ""


def memory_hint(label: str) -> str:
    """Hint for a missing object that may exist in another process."""
    if "memory://" not in label:
        return ""
    return "; memory:// is visible to one process only, not to workers in other processes"


def _without_secrets(error: Exception, label: str, secrets: Secrets) -> Exception:
    cause = error.__cause__
    # Azure's errors have this attribute, and are of no builtin class
    azure = getattr(error, "status_code", None)
    if isinstance(error, FileNotFoundError) or azure == HTTPStatus.NOT_FOUND:
        # fsspec's http reports every failure of `info` as a missing file; the cause is specific
        missing = isinstance(cause, LookupError | FileNotFoundError) or hasattr(cause, "response")
        missing = missing or azure is not None or getattr(cause, "status", None) == 404
        if missing or not isinstance(cause, Exception):
            problem = "No such object" + memory_hint(label) + if_pattern(label)
            codes = store_code(cause), getattr(error, "error_code", None)
            problem = problem if _NO_BUCKET_CODES.isdisjoint(codes) else NO_BUCKET
            return FileNotFoundError(errno.ENOENT, problem, label)
        error = cause
    kind, name = _kind_of(error), type(error).__name__
    # not str(error), which may raise an error with the original as its context
    text = secrets.hide(traceback.format_exception_only(error)[0].rstrip("\n").partition(": ")[2])
    if azure is not None:
        # the rest is the response
        text = text.partition("\n")[0]
    hint = _NO_CREDENTIALS if name == "NoCredentialsError" else None
    # the text of the package's own errors needs no class name
    ours = type(error) is kind or type(error).__module__.startswith("b2nd_dask.")
    parts = (None if label in text else label, None if ours else name, text, hint)
    raised = kind(": ".join(filter(None, parts)))
    if isinstance(error, OSError) and isinstance(raised, OSError):
        # an OSError with a single argument, its text, has no errno
        raised.errno = error.errno
    return raised


def _kind_of(error: Exception) -> type[Exception]:
    """Choose the builtin class of the error to raise."""
    status = getattr(error, "status", None) or getattr(error, "status_code", None)
    if status in (401, 403):
        return PermissionError
    if isinstance(error, OSError | ImportError):
        return next(kind for kind in type(error).__mro__ if kind.__module__ == "builtins")
    return type(error) if type(error) in _PLAIN_ERRORS else OSError


def why_missing(path: str) -> str:
    """Explain why nothing is at a local path: the first missing folder, or a pattern."""
    for folder in reversed(Path(path).parents):
        # not Path.is_dir, which raises without permission for a folder
        if not os.path.isdir(folder):  # noqa: PTH112
            there = os.path.lexists(folder)
            reason = f"{folder} is not a folder" if there else f"there is no folder {folder}"
            return f": {reason}{if_pattern(path)}"
    return if_pattern(path)


def if_pattern(name: str) -> str:
    """Hint that patterns are not expanded, if the missing name looks like one."""
    if not _PATTERN.search(name):
        return ""
    url = "in URLs only * is expanded; " if "://" in name and "*" not in name else ""
    return f"; if it is a pattern: {url}{TOGETHER}"


def what_directory(path: str, names: Collection[str] = ()) -> str:
    """Guess the kind of a directory that is no sparse frame."""
    if not _ZARR.isdisjoint(names):
        return " (it is a Zarr array or group: da.from_zarr reads an array)"
    if any(name.endswith(".chunk") for name in names):
        return " (there are chunks, but the index of a sparse frame is missing)"
    if not _STORE.isdisjoint(names) or path.endswith(".b2d"):
        kind = "a dataset or a store of python-blosc2"
        return f" (it is {kind}: xarray.open_dataset opens it, {OPEN_STORE})"
    frames = sorted(name for name in names if name.endswith(".b2nd"))
    if frames:
        return f" (it contains frames, such as {frames[0]}: pass the path of one)"
    return ""
