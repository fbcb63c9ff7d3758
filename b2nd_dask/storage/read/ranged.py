"""Requests for byte ranges of objects; each response includes the identity of the object."""

from __future__ import annotations

import asyncio
import errno
import math
import random
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
    from collections.abc import AsyncIterator, Callable, Iterator, Sequence
    from concurrent.futures import Future

ATTEMPTS = 4
"""Most requests for a range after transient failures (`PassingError`)."""

#: Seconds before the second request for a range; each further pause is twice as long.
_PAUSE = 0.25
#: Most seconds of a pause that the server requests.
_LONGEST_PAUSE = 60.0

#: Most pending responses of one read: each costs memory before its request is sent.
_MOST_WAITING = 256

#: Least number of concurrent requests of a client: botocore's default for connections.
_CONNECTIONS = 10


class RangeRequest(NamedTuple):
    """A request for a range of one object."""

    path: str
    span: Span
    """May go past the end of the object; not empty."""
    known: Identity | None
    """Required state of the object; None for any."""
    label: str
    """Label of the object, for errors."""
    from_end: bool = False
    """Whether to request the last bytes of the object, as many as the span has."""

    def bytes_of(self, size: int) -> Span:
        """Requested bytes in an object of `size` bytes."""
        start, stop = clip(self.span, size)
        return Span(size - (stop - start), size) if self.from_end else Span(start, stop)

    def header(self) -> str:
        """Value of the header Range."""
        start, stop = self.span
        return f"bytes=-{stop - start}" if self.from_end else f"bytes={start}-{stop - 1}"

    def __repr__(self) -> str:
        # without the path, which may hold secrets
        return f"<request of {self.span} of {self.label}>"


class PassingError(OSError):
    """A transient failure: another request for the range may succeed.

    `after`: seconds until the next request, if the server says so.
    """

    def __init__(self, problem: str, after: float | None = None) -> None:
        super().__init__(problem)
        self.after = after


class SlowServerError(TimeoutError):
    """A response exceeds its time limit."""


class RangeSource(ABC):
    """Requests byte ranges of the objects of one store, through a file system of fsspec."""

    def __init__(self, fs: Any) -> None:
        self.fs = fs

    @abstractmethod
    async def fetch(self, request: RangeRequest) -> Response:
        """Request a range.

        Raises FileNotFoundError if the object does not exist, IsADirectoryError, `StaleFrameError`
        if it has changed since its known state, `PassingError` if the response ended too early, or
        the server is overloaded.
        """

    def has_directory(self, path: str) -> bool:
        """Whether objects lie below a path that is none; most stores report this in `fetch`."""
        return False


class _Traffic:
    """The requests of one event loop; only that loop changes it."""

    def __init__(self) -> None:
        # not the loop's own threads, which also resolve host names: all could wait in `alone`
        self.caller = ThreadPoolExecutor(1, "b2nd-dask-store")
        self.under_way: list[RangeRequest] = []
        # by the limit, which users may change
        self._slots: dict[float, asyncio.Semaphore] = {}

    @asynccontextmanager
    async def one_more(self, request: RangeRequest) -> AsyncIterator[None]:
        """Wait until one more request may start; it counts as in flight during the block."""
        most = requests_at_once()
        async with self._slots.setdefault(most, asyncio.Semaphore(most)):
            self.under_way.append(request)
            try:
                yield
            finally:
                self.under_way.remove(request)


#: By event loop: a forked child has its own.
_traffic: WeakKeyDictionary[asyncio.AbstractEventLoop, _Traffic] = WeakKeyDictionary()


def _own_traffic() -> _Traffic:
    loop = asyncio.get_running_loop()
    if loop not in _traffic:
        _traffic[loop] = _Traffic()
    return _traffic[loop]


def begin(
    source: RangeSource, request: RangeRequest, *, after: float = 0.0, attempts: int = ATTEMPTS
) -> Future[Response]:
    """Request a range without waiting for the response; all threads share one limit of requests.

    The request starts after `after` seconds, unless the future is cancelled before.
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
    """Call a file system that has no event loop in a thread, one call at a time."""
    call = partial(alone, function, *args, **keywords)
    return await asyncio.get_running_loop().run_in_executor(_own_traffic().caller, call)


def get_all(source: RangeSource, requests: Sequence[RangeRequest]) -> Iterator[Response]:
    """Request ranges concurrently; yield the responses in order.

    Raises the error of the first failed request, in order; no more requests start then.
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
    """Limit the time until a response starts, or until `nbytes` of its body have arrived.

    The limit grows with the requests in flight, which share connections and bandwidth. Raises
    `SlowServerError` if it is exceeded.
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
            f"{nbytes or 'the first'} bytes of a response took more than {seconds:.3g} s, limited "
            f"by low_speed_time ({pause:g} s) and low_speed_limit ({limit:g} bytes a second); for "
            'other values set fsspec.config.conf["b2nd"] = {"low_speed_time": ...}',
        ) from error


def changed(request: RangeRequest) -> StaleFrameError:
    """Error for an object that has changed since its known state."""
    return StaleFrameError(
        "the object changed while it was open; open it again",
        path=request.label,
        offset=request.span.start,
    )
