"""Connections to fsspec file systems: made by the process that uses them, silent about secrets."""

from __future__ import annotations

import errno
import os
import re
import threading
import weakref
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from fsspec.asyn import AsyncFileSystem
from fsspec.core import url_to_fs

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

_Result = TypeVar("_Result")

_locks: dict[int, threading.Lock] = {}
"""One for each process, since a fork may copy a lock that another thread holds."""

# A forked child must never finalize the file systems of its parent: they would take the parent's
# connections out of an event queue (epoll) that both share, and the parent would wait for ever.
# fsspec drops its own references in the child, so others are taken before.
_live: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()
_held: list[Any] = []
_inherited: list[Any] = []
os.register_at_fork(
    before=lambda: _held.extend(_live.values()),
    after_in_parent=_held.clear,
    after_in_child=lambda: _inherited.extend(_held),
)


class Connection(NamedTuple):
    """A file system of this process, and what a URL names in it."""

    pid: int
    """The process that made it. File systems with an event loop do not survive a fork."""
    fs: Any
    path: str

    def member(self, name: str) -> str:
        """Path of what lies in the directory that the URL names."""
        return f"{self.path.rstrip('/')}/{name}"

    def ask(self, call: Callable[[], _Result], label: str) -> _Result:
        """Call the file system, with errors that name the object and hold no secrets.

        Parameters
        ----------
        call : callable
            Takes nothing. It must not call `ask`.
        label : str
            Of the object, for errors.
        """
        return _ask(self.fs, call, label)


def connect(url: str, options: Mapping[str, Any] | None, *, private: bool = False) -> Connection:
    """Find the file system of a URL.

    Parameters
    ----------
    url : str
    options : mapping or None
        Arguments of the file system. They appear in no message.
    private : bool
        Whether to make a file system that nobody else uses.

    Returns
    -------
    Connection
    """
    kwargs = dict(options or {})
    if private:
        kwargs["skip_instance_cache"] = True
    fs, path = _ask(None, lambda: url_to_fs(url, **kwargs), public_url(url))
    _live[id(fs)] = fs
    return Connection(os.getpid(), fs, path)


def public_url(url: str) -> str:
    """Take user names, passwords and queries out of a URL."""
    return _USERINFO.sub("", url.partition("?")[0])


def _ask(fs: Any, call: Callable[[], _Result], label: str) -> _Result:
    try:
        if isinstance(fs, AsyncFileSystem):
            return call()
        # The others may share a connection or a half-written cache file between instances.
        with _locks.setdefault(os.getpid(), threading.Lock()):
            return call()
    except Exception as error:  # noqa: BLE001 - every backend has its own tree; raised below
        failure = _translated(error, label)
    # Outside of the except clause, so that the original is not shown along with its secrets.
    raise failure


_USERINFO = re.compile(r"(?<=://)[^/\s'\"?]*@")
_QUERY = re.compile(r"(://[^\s'\"?]*)\?[^\s'\"]*")


def _without_secrets(text: str) -> str:
    return _USERINFO.sub("", _QUERY.sub(r"\1", text))


def _translated(error: Exception, label: str) -> Exception:
    """Give the error to raise: a missing object by name, others as they are or without secrets."""
    cause = error.__cause__
    if isinstance(error, FileNotFoundError) and isinstance(cause, Exception):
        # fsspec's http reports every failure of `info` as a missing file; the cause knows.
        missing = _status(cause) == 404 or isinstance(cause, LookupError | FileNotFoundError)
        if not missing and not hasattr(cause, "response"):
            error = cause
    if isinstance(error, FileNotFoundError) or _status(error) == 404:
        return FileNotFoundError(errno.ENOENT, "No such object", label)
    if not _holds_secrets(error):
        return error
    denied = _status(error) in (401, 403)
    kind = PermissionError if denied else OSError
    return kind(f"{label}: {type(error).__name__}: {_without_secrets(str(error))}")


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
