"""Byte ranges of objects, each with the identity that the store's response gives the object."""

from __future__ import annotations

import asyncio
import errno
import math
import random
import re
from abc import ABC, abstractmethod
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple
from weakref import WeakKeyDictionary

from fsspec.asyn import AsyncFileSystem, get_loop

from b2nd_dask.errors import StaleFrameError
from b2nd_dask.storage.byte_reader import Identity, Response
from b2nd_dask.storage.read.connection import LOW_SPEED, alone, requests_at_once, setting
from b2nd_dask.storage.spans import Span, clip

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
    from concurrent.futures import Future

ATTEMPTS = 4
"""Requests for a range where the failure may pass (`PassingError`)."""

#: Seconds before the second request for a range, the third twice as long ...
_PAUSE = 0.25
#: ... unless the server says how long, up to so many seconds.
_LONGEST_PAUSE = 60.0

MAX_WHOLE = 16 * 1024 * 1024
"""Most bytes to fetch for a range from a server that ignores ranges and sends from the start."""

#: Responses that one read waits for at once: each costs memory before it is under way.
_MOST_WAITING = 256

#: Requests that a client has under way at once, at least: botocore's own number of connections.
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
    from_end: bool = False
    """Whether the last bytes of the object are meant, as many as the span has."""

    def bytes_of(self, size: int) -> Span:
        """The bytes that are meant, of an object of some size."""
        start, stop = clip(self.span, size)
        return Span(size - (stop - start), size) if self.from_end else Span(start, stop)

    def header(self) -> str:
        """For the header Range."""
        start, stop = self.span
        return f"bytes=-{stop - start}" if self.from_end else f"bytes={start}-{stop - 1}"

    def __repr__(self) -> str:
        # without the path, which may hold secrets
        return f"<request of {self.span} of {self.label}>"


class PassingError(OSError):
    """A failure that may be gone when the range is requested again.

    Parameters
    ----------
    problem : str
    after : float, optional
        Seconds that the server wants to be left alone.
    """

    def __init__(self, problem: str, after: float | None = None) -> None:
        super().__init__(problem)
        self.after = after


class SlowServerError(TimeoutError):
    """A response that takes longer than it may."""


class RangeSource(ABC):
    """Requests byte ranges of the objects of one store.

    Parameters
    ----------
    fs : object
        The file system of fsspec.
    """

    def __init__(self, fs: Any) -> None:
        self.fs = fs

    @abstractmethod
    async def fetch(self, request: RangeRequest) -> Response:
        """Request a range.

        Raises
        ------
        FileNotFoundError
            There is no object.
        IsADirectoryError
        StaleFrameError
            The object is not the known one any more.
        PassingError
            The response ended too early, or the server has too much to do; later it may not.
        """

    def has_directory(self, path: str) -> bool:
        """Whether a path that is no object begins the names of others; most say so in `fetch`."""
        return False


class _Traffic:
    """The requests of one event loop; only that loop changes it."""

    def __init__(self) -> None:
        # not the loop's own threads, which look up names: all of them could wait in `alone`
        self.caller = ThreadPoolExecutor(1, "b2nd-dask-store")
        self.under_way: list[RangeRequest] = []
        # by their number, which users may change
        self._slots: dict[float, asyncio.Semaphore] = {}

    @asynccontextmanager
    async def one_more(self, request: RangeRequest) -> AsyncIterator[None]:
        """Wait for a place among the requests that are under way."""
        most = requests_at_once()
        async with self._slots.setdefault(most, asyncio.Semaphore(most)):
            self.under_way.append(request)
            try:
                yield
            finally:
                self.under_way.remove(request)


#: By event loop: a forked child has another one.
_traffic: WeakKeyDictionary[asyncio.AbstractEventLoop, _Traffic] = WeakKeyDictionary()


def _own_traffic() -> _Traffic:
    loop = asyncio.get_running_loop()
    if loop not in _traffic:
        _traffic[loop] = _Traffic()
    return _traffic[loop]


def begin(
    source: RangeSource, request: RangeRequest, *, after: float = 0.0, attempts: int = ATTEMPTS
) -> Future[Response]:
    """Request a range, and do not wait for it; all threads share the places for requests.

    Parameters
    ----------
    after : float
        Seconds from now; nothing is requested where the future is cancelled before.
    attempts : int
        Requests at most.
    """
    fs = source.fs
    loop = fs.loop if isinstance(fs, AsyncFileSystem) else get_loop()
    return asyncio.run_coroutine_threadsafe(_in_turn(source, request, after, attempts), loop)


async def _in_turn(
    source: RangeSource, request: RangeRequest, after: float, attempts: int
) -> Response:
    if after:
        await asyncio.sleep(after)
    for number in range(attempts - 1):
        try:
            return await _fetched(source, request)
        except PassingError as error:
            pause = _PAUSE * 2**number if error.after is None else error.after
        # not all at the same time
        await asyncio.sleep(min(pause * random.uniform(1, 1.5), _LONGEST_PAUSE))  # noqa: S311
    return await _fetched(source, request)


async def _fetched(source: RangeSource, request: RangeRequest) -> Response:
    async with _own_traffic().one_more(request):
        return await source.fetch(request)


async def called_alone(function: Callable[..., Any], *args: Any, **keywords: Any) -> Any:
    """Call a file system without an event loop in a thread, and never two of them at once."""
    call = partial(alone, function, *args, **keywords)
    return await asyncio.get_running_loop().run_in_executor(_own_traffic().caller, call)


def get_all(source: RangeSource, requests: Sequence[RangeRequest]) -> Iterator[Response]:
    """Request ranges at the same time, and return the responses in order.

    Raises
    ------
    Exception
        Of the first that fails, in order; no more are begun then.
    """
    futures: deque[Future[Response]] = deque()
    try:
        for request in requests:
            if len(futures) == _MOST_WAITING:
                yield futures[0].result()
                futures.popleft()
            futures.append(begin(source, request))
        while futures:
            yield futures[0].result()
            futures.popleft()
    finally:
        for future in futures:
            future.cancel()


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
    under_way = _own_traffic().under_way
    shared = sum(request.span.stop - request.span.start for request in under_way)
    rounds = math.ceil(len(under_way) / _CONNECTIONS)
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
    PassingError
        Fewer bytes arrive.
    SlowServerError
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
    raise PassingError(f"the response broke off: {problem}")


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


def size_in(content_range: str, request: RangeRequest) -> int:
    """Size of an object, from the header Content-Range of a response.

    Parameters
    ----------
    content_range : str
        Such as ``bytes 0-99/1234``.

    Raises
    ------
    OSError
        The response does not say the size, or its range is not the requested one.
    """
    found = _CONTENT_RANGE.fullmatch(content_range.strip())
    if found is None:
        raise unknown_size()
    first, last, size = map(int, found.groups())
    if (first, last + 1) != request.bytes_of(size):
        raise OSError(
            f"the server sent the range {content_range!r} for a request of {request.header()}"
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
