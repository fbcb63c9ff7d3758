"""Connections to fsspec file systems: made by the process that uses them, silent about secrets."""

from __future__ import annotations

import math
import os
import threading
import weakref
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self, TypeVar

from fsspec.asyn import AsyncFileSystem
from fsspec.config import conf
from fsspec.core import url_to_fs

from b2nd_dask.storage.failures import public_error
from b2nd_dask.storage.redaction import Secrets, public_url
from b2nd_dask.system import at_fork

if TYPE_CHECKING:
    from collections.abc import Callable

    from b2nd_dask.storage.read.location import Location

_Result = TypeVar("_Result")

#: Extras of this package that bring the file systems of protocols.
_EXTRAS = {"s3": "s3", "s3a": "s3", "http": "http", "https": "http"}

CONCURRENCY = "concurrency"
"""Name of a setting: requests that a process has under way at the same time, of all its threads."""

LOW_SPEED = {"low_speed_limit": 10_000, "low_speed_time": 60}
"""A response may take so many seconds, and one more for each so many bytes: key "b2nd" of fsspec's
configuration, from its files or as FSSPEC_B2ND_LOW_SPEED_LIMIT and FSSPEC_B2ND_LOW_SPEED_TIME."""

READ_AHEAD = "read_ahead"
"""Name of a setting: bytes of requests and responses that a process may hold before
anybody reads them; 0 for no prefetch."""

SETTINGS = {**LOW_SPEED, CONCURRENCY: 64, READ_AHEAD: 64 << 20}
"""Numbers that users set: key "b2nd" of fsspec's configuration, which comes from its files or from
the environment, as FSSPEC_B2ND_READ_AHEAD."""

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


at_fork(before=_before_fork, after_in_parent=_after_in_parent, after_in_child=_after_in_child)


@dataclass(frozen=True, eq=False, repr=False)
class Connection:
    """A file system of this process, and what a URL names in it."""

    pid: int
    """The process that made it. File systems with an event loop do not survive a fork."""
    fs: Any
    """Of fsspec."""
    path: str
    """May hold secrets: a web server's is the whole URL."""
    secrets: Secrets
    """What errors must not show."""
    label: str
    """The URL without secrets."""

    @classmethod
    def of(cls, location: Location, *, private: bool = False) -> Self:
        """Find the file system of a URL, and what the URL names in it.

        Parameters
        ----------
        location : Location
            A URL, with the arguments of the file system. No message shows them.
        private : bool
            Whether to make a file system that nobody else uses.
        """
        # URL and options are variables of no function that raises: tools may show those
        secrets = location.secrets
        fs, path = _call(
            None, lambda: _filesystem(location, private), public_url(location.url), secrets
        )
        _live[id(fs)] = fs
        return cls(os.getpid(), fs, path, secrets, location.label)

    def __repr__(self) -> str:
        return f"<connection of process {self.pid}, {type(self.fs).__name__}>"

    def member(self, name: str) -> str:
        """Path of what lies in the directory that the URL names."""
        path, mark, query = self.path, "", ""
        if self.has_protocol("https"):
            path, mark, query = path.partition("?")
        return f"{path.rstrip('/')}/{name}{mark}{query}"

    def has_protocol(self, protocol: str) -> bool:
        """Whether the file system is the one of a protocol."""
        own = self.fs.protocol
        return protocol in ((own,) if isinstance(own, str) else own)

    def call(self, function: Callable[[], _Result]) -> _Result:
        """Call the file system, with errors that name the URL and hold no secrets.

        Parameters
        ----------
        function : callable
            Takes nothing. It must not use `call` itself.
        """
        return _call(self.fs, function, self.label, self.secrets)


def _filesystem(location: Location, private: bool) -> tuple[Any, str]:
    options = dict(location.storage_options or {})
    scheme = location.url.partition("://")[0]
    if scheme in ("s3", "s3a"):
        ours = {
            # some servers send the checksum of the whole object with a range, where S3 sends none
            "response_checksum_validation": "when_required",
            # else 10, and all other requests wait for these
            "max_pool_connections": requests_at_once(),
        }
        given = {**conf.get("s3", {}), **options}.get("config_kwargs") or {}
        options["config_kwargs"] = ours | given
    if private:
        options["skip_instance_cache"] = True
    try:
        found: tuple[Any, str] = url_to_fs(location.url, **options)
    except ImportError as error:
        extra = _EXTRAS.get(scheme)
        if extra is None:
            raise
        how = f"{error.name or extra} is not installed; install it with: "
        raise ImportError(f"{how}pip install 'b2nd-dask[{extra}]'") from error
    return found


def _call(fs: Any, function: Callable[[], _Result], label: str, secrets: Secrets) -> _Result:
    try:
        return function() if isinstance(fs, AsyncFileSystem) else alone(function)
    except Exception as error:  # noqa: BLE001 - every backend has its own tree; raised below
        failure = public_error(error, label, secrets)
    # Outside of the except clause, after which nothing here refers to the original.
    raise failure


def alone(function: Callable[..., _Result], *args: Any, **keywords: Any) -> _Result:
    """Call a file system without an event loop while no other thread does.

    Such file systems may share a connection or a half-written cache file between instances.
    """
    with _locks.setdefault(os.getpid(), threading.Lock()):
        return function(*args, **keywords)


def requests_at_once() -> int:
    """The setting `CONCURRENCY` as a number of requests."""
    # infinite, too
    return math.ceil(min(setting(CONCURRENCY), 1 << 20))


def setting(name: str) -> float:
    """A number of this package in fsspec's configuration.

    Parameters
    ----------
    name : str
        One of `SETTINGS`.

    Raises
    ------
    ValueError
        It is set to something else.
    """
    given = conf.get("b2nd", {}).get(name, SETTINGS[name])
    with suppress(TypeError, ValueError):
        if (number := float(given)) > 0 or (name == READ_AHEAD and number == 0):
            return number
    raise ValueError(f'{name}={given!r} in fsspec.config.conf["b2nd"] is no positive number')
