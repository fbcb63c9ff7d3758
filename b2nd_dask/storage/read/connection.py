"""Connections to fsspec file systems: made by the process that uses them, silent about secrets."""

from __future__ import annotations

import os
import threading
import weakref
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from fsspec.asyn import AsyncFileSystem
from fsspec.core import url_to_fs

from b2nd_dask.storage.failures import public_error
from b2nd_dask.storage.redaction import Secrets, public_url

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

_Result = TypeVar("_Result")

_locks: dict[int, threading.Lock] = {}
"""One for each process, since a fork may copy a lock that another thread holds."""

_fork_lock = threading.RLock()
"""Held over each fork, so that forks of two threads do not share `_held`. Reentrant: a finalizer
that runs while it is held may fork too."""

# A forked child must never finalize the file systems of its parent: they would take the parent's
# connections out of an event queue (epoll) that both share, and the parent would wait for ever.
# fsspec drops its own references in the child, so others are taken before.
_live: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()
_held: list[Any] = []
_inherited: list[Any] = []


def _before_fork() -> None:
    _fork_lock.acquire()
    # valuerefs() copies at once; to iterate the values would fail when another thread connects.
    _held.extend(fs for ref in _live.valuerefs() if (fs := ref()) is not None)


def _after_in_parent() -> None:
    # What was the last reference to a file system goes after the lock: it closes connections.
    held = _held[:]
    _held.clear()
    _fork_lock.release()
    del held


def _after_in_child() -> None:
    _inherited.extend(_held)
    _held.clear()
    _fork_lock.release()


os.register_at_fork(
    before=_before_fork, after_in_parent=_after_in_parent, after_in_child=_after_in_child
)


class Connection(NamedTuple):
    """A file system of this process, and what a URL names in it."""

    pid: int
    """The process that made it. File systems with an event loop do not survive a fork."""
    fs: Any
    path: str
    secrets: Secrets
    """What errors must not show."""

    def member(self, name: str) -> str:
        """Path of what lies in the directory that the URL names."""
        path, mark, query = self.path, "", ""
        if self.speaks("https"):
            path, mark, query = path.partition("?")
        return f"{path.rstrip('/')}/{name}{mark}{query}"

    def speaks(self, protocol: str) -> bool:
        """Whether the file system is the one of a protocol."""
        own = self.fs.protocol
        return protocol in ((own,) if isinstance(own, str) else own)

    def ask(self, call: Callable[[], _Result], label: str) -> _Result:
        """Call the file system, with errors that name the object and hold no secrets.

        Parameters
        ----------
        call : callable
            Takes nothing. It must not call `ask`.
        label : str
            Of the object, for errors.
        """
        return _ask(self.fs, call, label, self.secrets)


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
    secrets = Secrets(url, options)
    fs, path = _ask(None, lambda: url_to_fs(url, **kwargs), public_url(url), secrets)
    _live[id(fs)] = fs
    return Connection(os.getpid(), fs, path, secrets)


def _ask(fs: Any, call: Callable[[], _Result], label: str, secrets: Secrets) -> _Result:
    try:
        if isinstance(fs, AsyncFileSystem):
            return call()
        # The others may share a connection or a half-written cache file between instances.
        with _locks.setdefault(os.getpid(), threading.Lock()):
            return call()
    except Exception as error:  # noqa: BLE001 - every backend has its own tree; raised below
        failure = public_error(error, label, secrets)
    # Outside of the except clause, so that the original is not shown along with its secrets.
    raise failure
