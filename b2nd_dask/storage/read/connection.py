"""Connections of a process to fsspec file systems, with errors that hold no secrets."""

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

from b2nd_dask.lazy import require
from b2nd_dask.storage.failures import public_error
from b2nd_dask.storage.redaction import Secrets
from b2nd_dask.system import at_fork

if TYPE_CHECKING:
    from collections.abc import Callable

    from b2nd_dask.storage.read.location import Location

_Result = TypeVar("_Result")

#: The extra for a protocol, and the package that its file system needs.
_EXTRAS = {
    **dict.fromkeys(("s3", "s3a"), ("s3", "s3fs")),
    **dict.fromkeys(("http", "https"), ("http", "aiohttp")),
}

CONCURRENCY = "concurrency"
"""Name of a setting: most requests in flight in a process, over all its threads."""

LOW_SPEED = {"low_speed_limit": 10_000, "low_speed_time": 60}
"""Settings: a response may take `low_speed_time` seconds, plus one second for each
`low_speed_limit` bytes."""

READ_AHEAD = "read_ahead"
"""Name of a setting: most bytes of prefetch requests and unread responses in a process; 0 for no
prefetch."""

SETTINGS = {**LOW_SPEED, CONCURRENCY: 64, READ_AHEAD: 64 << 20}
"""Defaults of the settings: key "b2nd" of fsspec's configuration, from its files or from the
environment, as FSSPEC_B2ND_READ_AHEAD."""

_locks: dict[int, threading.Lock] = {}
"""By process, since a fork may copy a lock that another thread holds."""

# A forked child must never finalize the file systems of its parent: this would remove the parent's
# connections from the event queue (epoll) that both share, and the parent would wait for ever.
# fsspec drops its references in the child, so `_at_fork` holds more.
_live: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()
_at_fork: dict[tuple[int, int], list[Any]] = {}
"""By process and thread: the file systems at its last fork. A child keeps those of its parents."""


def _before_fork() -> None:
    # valuerefs() copies at once; iteration over values() fails if another thread connects
    live = [fs for ref in _live.valuerefs() if (fs := ref()) is not None]
    _at_fork[os.getpid(), threading.get_ident()] = live


def _after_in_parent() -> None:
    _at_fork.pop((os.getpid(), threading.get_ident()), None)


at_fork(before=_before_fork, after_in_parent=_after_in_parent)


@dataclass(frozen=True, eq=False, repr=False)
class Connection:
    """A file system of this process, and the path of a URL in it."""

    fs: Any
    """File system of fsspec."""
    path: str
    """Path in the file system; may hold secrets: for a web server it is the whole URL."""
    secrets: Secrets
    """Texts that errors must not show."""
    label: str
    """The URL without secrets."""

    @classmethod
    def of(cls, location: Location) -> Self:
        """Connect to the file system of a URL.

        The location holds the arguments of the file system; no message shows them.
        """
        # tools show variables of tracebacks: no function that raises has URL or options in them
        secrets, label = location.secrets, location.label
        fs, path = _call(None, lambda: _filesystem(location), label, secrets)
        _live[id(fs)] = fs
        return cls(fs, path, secrets, label)

    def __repr__(self) -> str:
        return f"<connection to {self.label}, {type(self.fs).__name__}>"

    def has_protocol(self, protocol: str) -> bool:
        """Whether the file system implements a protocol."""
        own = self.fs.protocol
        return protocol in ((own,) if isinstance(own, str) else own)

    def call(self, function: Callable[[], _Result]) -> _Result:
        """Call the file system, with errors that name the URL and hold no secrets.

        The function must not use `call` itself.
        """
        return _call(self.fs, function, self.label, self.secrets)


def _filesystem(location: Location) -> tuple[Any, str]:
    options = dict(location.storage_options or {})
    scheme = location.url.partition("://")[0]
    if location.is_web and "::" in location.url.partition("://")[2]:
        # fsspec would pass the rest to the web server's session
        raise ValueError(":: chains URLs; write %3A%3A in a name, and an IPv6 address in full")
    if scheme in ("s3", "s3a"):
        ours = {
            # unlike S3, some servers send the checksum of the whole object with a range
            "response_checksum_validation": "when_required",
            # the default of 10 would delay further requests
            "max_pool_connections": requests_at_once(),
        }
        chosen = {**conf.get("s3", {}), **options}.get("config_kwargs") or {}
        options["config_kwargs"] = ours | chosen
    try:
        found: tuple[Any, str] = url_to_fs(location.url, **options)
    except ImportError:
        if scheme in _EXTRAS:
            require(*_EXTRAS[scheme])
        raise
    return found


def _call(fs: Any, function: Callable[[], _Result], label: str, secrets: Secrets) -> _Result:
    try:
        return function() if isinstance(fs, AsyncFileSystem) else call_serially(function)
    except Exception as error:  # noqa: BLE001 - every backend has its own tree; raised below
        failure = public_error(error, label, secrets)
    # outside of the except clause: nothing refers to the original any more
    raise failure


def call_serially(function: Callable[..., _Result], *args: Any, **keywords: Any) -> _Result:
    """Call a file system that has no event loop, one thread at a time.

    Such file systems may share a connection or a half-written cache file between instances.
    """
    with _locks.setdefault(os.getpid(), threading.Lock()):
        return function(*args, **keywords)


def requests_at_once() -> int:
    """The setting `CONCURRENCY` as a number of requests."""
    # the setting may be infinite
    return math.ceil(min(setting(CONCURRENCY), 1 << 20))


def setting(name: str) -> float:
    """Read a setting of this package, one of `SETTINGS`, from fsspec's configuration.

    Raises ValueError if the setting is not a positive number.
    """
    chosen = conf.get("b2nd", {}).get(name, SETTINGS[name])
    with suppress(TypeError, ValueError):
        if (number := float(chosen)) > 0 or (name == READ_AHEAD and number == 0):
            return number
    raise ValueError(f'{name}={chosen!r} in fsspec.config.conf["b2nd"] is not a positive number')
