"""Byte ranges of objects, each with the identity that the store's response gives the object."""

from __future__ import annotations

import asyncio
import errno
import math
import re
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from fsspec.asyn import sync

from b2nd_dask.errors import StaleFrameError
from b2nd_dask.storage.byte_reader import Identity, Response
from b2nd_dask.storage.read.settings import CONCURRENCY, LOW_SPEED, setting
from b2nd_dask.storage.spans import Span

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
    from concurrent.futures import Future

ATTEMPTS = 3
"""Requests for a range whose response breaks off. Other failures are left to the file system, which
knows which of them pass."""

MAX_WHOLE = 16 * 1024 * 1024
"""Most bytes to fetch for a range from a server that ignores ranges and sends from the start."""

#: Requests that a client has under way at once, at least: botocore keeps so many connections.
_CONNECTIONS = 10

_CONTENT_RANGE = re.compile(r"bytes ([0-9]{1,19})-([0-9]{1,19})/([0-9]{1,19})")
_TOTAL = re.compile(r"bytes \*/([0-9]{1,19})")
_TOKENS = (
    ("etag", "e_tag"),
    ("versionid", "generation", "version_id", "version"),
    ("content_md5", "content-md5", "md5hash", "digest", "checksum", "crc", "sha"),
    ("last-modified", "last_modified", "lastmodified", "mtime", "modified", "modify", "created"),
)


class RangeRequest(NamedTuple):
    """A request for a range of one object."""

    path: str
    span: Span
    """May go past the end of the object; not empty."""
    known: Identity | None
    """The state of the object that the bytes must come from; None for whichever it has."""
    label: str
    """Of the object, for errors."""

    def __repr__(self) -> str:
        # without the path, which may hold secrets
        return f"<request of {self.span} of {self.label}>"


class BrokenResponseError(OSError):
    """A response that ends too early."""


class SlowServerError(TimeoutError):
    """A response that takes longer than it may."""


class FailedRequest(NamedTuple):
    """The first request of several that failed."""

    request: RangeRequest
    error: Exception


class RangeSource(Protocol):
    """Requests byte ranges of the objects of one store."""

    def get(self, requests: Sequence[RangeRequest]) -> list[Response] | FailedRequest:
        """Request ranges, concurrently where the store supports it.

        Returns
        -------
        list of Response or FailedRequest
            One response for each request, in order; or the first request that failed, with
            FileNotFoundError where no object is, IsADirectoryError for a directory,
            StaleFrameError where the object is not the known one any more.
        """

    @property
    def can_begin(self) -> bool:
        """Whether `begin` works."""

    def begin(self, request: RangeRequest) -> Future[Response]:
        """Request a range, and do not wait for it."""

    def has_directory(self, path: str) -> bool:
        """Whether a path that is no object begins the names of others."""


#: The first requests of each read of this process, as many as run at once; only the one event loop
#: of fsspec changes it.
_under_way: list[RangeRequest] = []


def get_concurrently(
    fs: Any, get: Callable[[RangeRequest], Awaitable[Response]], requests: Sequence[RangeRequest]
) -> list[Response] | FailedRequest:
    """Serve `RangeSource.get` by a coroutine for each request, some of them at the same time.

    Parameters
    ----------
    fs : fsspec.asyn.AsyncFileSystem
    get : callable
        Returns the coroutine of a request.
    requests : sequence of RangeRequest

    Returns
    -------
    list of Response or FailedRequest
        After a failure no more requests are begun.
    """
    responses: dict[int, Response] = {}
    failed: list[FailedRequest] = []
    waiting = iter(enumerate(requests))

    async def work() -> None:
        for i, request in waiting:
            try:
                responses[i] = await _persistently(get, request)
            except Exception as error:  # noqa: BLE001 - the caller raises it, with a name
                failed.append(FailedRequest(request, error))
            if failed:
                return

    async def work_together() -> None:
        together = requests[:CONCURRENCY]
        _under_way.extend(together)
        try:
            await asyncio.gather(*(work() for _ in together))
        finally:
            for request in together:
                _under_way.remove(request)

    sync(fs.loop, work_together)
    return failed[0] if failed else [responses[i] for i in range(len(requests))]


def begin_one(
    fs: Any, get: Callable[[RangeRequest], Awaitable[Response]], request: RangeRequest
) -> Future[Response]:
    """Serve `RangeSource.begin` by the coroutine of a request."""

    async def work() -> Response:
        _under_way.append(request)
        try:
            return await _persistently(get, request)
        finally:
            _under_way.remove(request)

    return asyncio.run_coroutine_threadsafe(work(), fs.loop)


async def _persistently(
    get: Callable[[RangeRequest], Awaitable[Response]], request: RangeRequest
) -> Response:
    for _ in range(ATTEMPTS - 1):
        try:
            return await get(request)
        except BrokenResponseError:
            continue
    return await get(request)


@asynccontextmanager
async def in_time(nbytes: int = 0) -> AsyncIterator[None]:
    """Wait for the begin of a response, or so many bytes of it, no longer than a slow server needs.

    All requests of the process share its connections, and what these carry.

    Raises
    ------
    TimeoutError
        It takes longer.
    """
    limit, pause = map(setting, LOW_SPEED)
    shared = sum(request.span.stop - request.span.start for request in _under_way)
    rounds = math.ceil(len(_under_way) / _CONNECTIONS)
    seconds = rounds * pause + max(shared, nbytes) / limit
    try:
        async with asyncio.timeout(seconds) as waiting:
            yield
    except TimeoutError as error:
        if not waiting.expired():
            raise
        raise SlowServerError(
            errno.ETIMEDOUT,
            f"{nbytes or 'the first'} bytes of a response took more than {seconds:.3g} s, by "
            f"low_speed_time ({pause:g} s) and low_speed_limit ({limit:g} bytes a second); other "
            'values: fsspec.config.conf["b2nd"] = {"low_speed_time": ...}',
        ) from error


async def read_body(read: Callable[[], Awaitable[bytes]], nbytes: int) -> bytes:
    """Read the body of a response.

    Parameters
    ----------
    read : callable
        Returns the coroutine that reads.
    nbytes : int
        Its length.

    Raises
    ------
    BrokenResponseError, SlowServerError
    """
    try:
        async with in_time(nbytes):
            data = await read()
    except SlowServerError:
        raise
    except Exception as error:  # noqa: BLE001 - the trees of several libraries meet here
        problem = f"{type(error).__name__}: {error}"
    else:
        if len(data) == nbytes:
            return data
        problem = f"{len(data)} of {nbytes} bytes arrived"
    raise BrokenResponseError(f"the response broke off: {problem}")


def token_of(details: Mapping[str, Any]) -> str:
    """Choose the strongest detail that changes with an object.

    Parameters
    ----------
    details : mapping
        From `info` of fsspec, or headers of a response.

    Returns
    -------
    str
        Empty where there is none.
    """
    by_name = {key.lower(): value for key, value in details.items()}
    for keys in _TOKENS:
        found = [str(by_name[key]) for key in keys if by_name.get(key)]
        if found:
            return "-".join(found)
    return ""


def size_in(content_range: str, span: Span) -> int:
    """Size of an object, from the header Content-Range of a response.

    Parameters
    ----------
    content_range : str
        Such as ``bytes 0-99/1234``.
    span : Span
        The requested range.

    Raises
    ------
    OSError
        The response does not say the size, or its range is not the requested one.
    """
    found = _CONTENT_RANGE.fullmatch(content_range.strip())
    if found is None:
        raise unknown_size()
    first, last, size = map(int, found.groups())
    if (first, last + 1) != (span.start, min(span.stop, size)):
        raise OSError(
            f"the server sent the range {content_range!r} "
            f"for a request of bytes {span.start}-{span.stop - 1}"
        )
    return size


def size_past_end(content_range: str) -> int:
    """Size of an object, from the header Content-Range of a response with status 416.

    Parameters
    ----------
    content_range : str
        Such as ``bytes */1234``.

    Raises
    ------
    OSError
        The response does not say the size.
    """
    found = _TOTAL.fullmatch(content_range.strip())
    if found is None:
        raise unknown_size()
    return int(found[1])


def unknown_size() -> OSError:
    """Error for a server that does not report sizes."""
    return OSError(
        "the server does not report the size of the object; "
        "copy it to a local file, or open it through simplecache::"
    )


def require_known(request: RangeRequest, identity: Identity) -> None:
    """Check that the bytes come from the known state of an object.

    Raises
    ------
    StaleFrameError
    """
    if request.known not in (None, identity):
        raise changed(request)


def changed(request: RangeRequest) -> StaleFrameError:
    """Error for an object that is not the known one any more."""
    return StaleFrameError(
        "it changed while it was open; open it again",
        path=request.label,
        offset=request.span.start,
    )


def require_short(size: int, stop: int, label: str) -> None:
    """Check that an object is short enough to fetch from its start, where a server ignores ranges.

    Parameters
    ----------
    size : int
        Of the object.
    stop : int
        Where the range ends.
    label : str
        Of the object, for the error.

    Raises
    ------
    OSError
    """
    if min(size, stop) > MAX_WHOLE:
        raise OSError(
            f"{label}: the server ignores byte ranges, so that each read transfers up to {size} "
            "bytes; copy the object to a local file, or open it through simplecache::"
        )
