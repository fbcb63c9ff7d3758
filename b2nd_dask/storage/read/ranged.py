"""Requests for byte ranges of objects, and their responses with the identity of the object."""

from __future__ import annotations

import asyncio
import itertools
import random
import re
import sys
from abc import ABC, abstractmethod
from collections import deque
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from fsspec.asyn import AsyncFileSystem, get_loop

from b2nd_dask.errors import StaleFrameError
from b2nd_dask.storage.byte_reader import Identity, Response, Span, clip
from b2nd_dask.storage.failures import public_error
from b2nd_dask.storage.read.connection import Connection
from b2nd_dask.storage.read.traffic import in_flight, in_time

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from concurrent.futures import Future

ATTEMPTS = 4
"""Most requests for a range after transient failures (`TransientError`)."""

#: Seconds before the second request for a range; each further pause is twice as long.
_PAUSE = 0.25
#: Most seconds of a pause that the server requests.
_LONGEST_PAUSE = 60.0

#: Most pending responses of one read: each costs memory before its request is sent.
_MOST_PENDING = 256

MAX_WHOLE = 16 * 1024 * 1024
"""Most bytes to transfer for a range, if the server ignores ranges."""

_STRONG_ETAG = re.compile(r'"[^"]*"')
_CONTENT_RANGE = re.compile(r"bytes (?:([0-9]{1,19})-([0-9]{1,19})|\*)/([0-9]{1,19})")
#: Headers that describe the whole object, in HTTP and in the client of S3.
_OF_OBJECT = ("ETag", "Last-Modified", "LastModified")
_TOKENS = (
    ("etag", "e_tag"),
    ("versionid", "generation", "version_id", "version"),
    ("content_md5", "content-md5", "md5hash", "digest", "checksum", "crc", "sha"),
    ("last-modified", "last_modified", "lastmodified", "mtime", "modified", "modify", "created"),
)


@dataclass(eq=False, repr=False)  # a path may hold secrets
class RemoteObject:
    """An object of a store. All reads see one state of it; errors show its label."""

    path: str
    label: str
    known: Identity | None = None
    """State in the first response with bytes; all later responses must have it."""
    ends: tuple[Response, ...] = ()
    """Kept responses of the known state: the first bytes and, of a larger object, the last ones."""

    def __repr__(self) -> str:
        return self.label

    @property
    def size(self) -> int:
        """Bytes of the known state; if there is none, a bound, since stores clip ranges."""
        return sys.maxsize if self.known is None else self.known.size

    @property
    def etag(self) -> str | None:
        """Strong etag of the known state."""
        token = "" if self.known is None else self.known.token
        return token if _STRONG_ETAG.fullmatch(token) else None


class RangeRequest(NamedTuple):
    """A request for a range of one object."""

    object: RemoteObject
    span: Span
    """Not empty; may go past the end of the object. ``Span(-n, 0)`` are its last n bytes."""

    def bytes_of(self, size: int) -> Span:
        """Requested bytes in an object of `size` bytes."""
        start, _ = self.span
        return clip(self.span, size) if start >= 0 else Span(max(0, size + start), size)

    def header(self) -> str:
        """Value of the header Range."""
        start, stop = self.span
        return f"bytes={start}" if start < 0 else f"bytes={start}-{stop - 1}"

    def changed(self) -> StaleFrameError:
        """Build the error for an object that has changed since its known state."""
        return StaleFrameError(
            "the object changed while it was open; open it again",
            path=self.object.label,
            offset=self.span.start,
        )

    def require_known(self, identity: Identity) -> None:
        """Raise StaleFrameError unless a response comes from the known state of the object."""
        if self.object.known not in (None, identity):
            raise self.changed()


class TransientError(OSError):
    """A transient failure: the request may succeed later, `after` some seconds if known."""

    def __init__(self, problem: str, after: float | None = None) -> None:
        super().__init__(problem)
        self.after = after


class RemoteStore(Connection, ABC):
    """Connection of one process for reads from the store of a URL."""

    @abstractmethod
    async def fetch(self, request: RangeRequest) -> Response:
        """Request a range.

        Raises FileNotFoundError if the object does not exist, IsADirectoryError, `StaleFrameError`
        if it has changed since its known state, `TransientError` if the response ended too early,
        or the server is overloaded.
        """

    def has_directory(self) -> bool:
        """Whether objects lie below the path; False if `fetch` of the store reports this."""
        return False

    def begin(self, request: RangeRequest, attempts: int = ATTEMPTS) -> Future[Response]:
        """Request a range without waiting; all threads share one limit of requests.

        The error of the future names the object and holds no secrets.
        """
        loop = self.fs.loop if isinstance(self.fs, AsyncFileSystem) else get_loop()
        return asyncio.run_coroutine_threadsafe(self._request(request, attempts), loop)

    @contextmanager
    def get(self, requests: Iterable[RangeRequest]) -> Iterator[Iterator[Response]]:
        """Request ranges concurrently; yield an iterator over the responses, in order.

        The iterator raises the error of the first failed request. No more requests start when the
        block ends.
        """
        rest = iter(requests)
        pending = deque(map(self.begin, itertools.islice(rest, _MOST_PENDING)))

        def responses() -> Iterator[Response]:
            while pending:
                response = pending.popleft().result()
                pending.extend(map(self.begin, itertools.islice(rest, 1)))
                yield response

        try:
            yield responses()
        finally:
            for future in pending:
                future.cancel()

    async def _request(self, request: RangeRequest, attempts: int) -> Response:
        try:
            return await self._with_retries(request, attempts)
        except Exception as error:  # noqa: BLE001 - every backend has its own tree; raised below
            failure = public_error(error, request.object.label, self.secrets)
        # outside of the except clause: nothing refers to the original any more
        raise failure

    async def _with_retries(self, request: RangeRequest, attempts: int) -> Response:
        for number in range(attempts - 1):
            try:
                return await self._attempt(request)
            except TransientError as error:
                pause = _PAUSE * 2**number if error.after is None else error.after
            # not all at the same time
            await asyncio.sleep(min(pause * random.uniform(1, 1.5), _LONGEST_PAUSE))  # noqa: S311
        return await self._attempt(request)

    async def _attempt(self, request: RangeRequest) -> Response:
        async with in_flight(request.span.nbytes):
            response = await self.fetch(request)
        # no race of first responses: the event loop handles one after the other
        request.require_known(response.identity)
        if response.data:
            request.object.known = response.identity
        return response


async def parse_response(
    request: RangeRequest,
    headers: Mapping[str, Any],
    content_range: str | None,
    length: int | None,
    body: Any,
) -> Response:
    """Check a response by its headers, then read its body.

    `content_range` is None if the server ignores ranges; `length` is that of the body. Raises
    OSError if the response lacks the size, has another range, or is a whole large object;
    `StaleFrameError` if the object has changed; `TransientError` and TimeoutError as `_read_body`.
    """
    if content_range is None and (length is None or request.span.start < 0):
        raise unknown_size()
    size = length or 0 if content_range is None else size_in(content_range, request)
    token = token_of({name: headers[name] for name in _OF_OBJECT if name in headers})
    identity = Identity(size, token)
    request.require_known(identity)
    if content_range is not None:
        start, stop = request.bytes_of(size)
        return Response(start, await _read_body(body, stop - start), identity)
    require_small(size, request.span.stop, request.object.label)
    data = await _read_body(body, min(request.span.stop, size))
    return Response(0, data, identity, ranges_ignored=True)


async def _read_body(body: Any, nbytes: int) -> bytes:
    """Read `nbytes` bytes of a body, no more, whatever the server sends.

    Raises `TransientError` if fewer bytes arrive, TimeoutError if they take too long.
    """
    parts, left, problem = [], nbytes, ""
    async with in_time(nbytes):
        try:
            while left and (part := await body.read(left)):
                parts.append(part)
                left -= len(part)
        except Exception as error:  # noqa: BLE001 - several libraries have their own error trees
            problem = f"{type(error).__name__}: {error}"
    if left:
        problem = problem or f"{nbytes - left} of {nbytes} bytes arrived"
        raise TransientError(f"the response broke off: {problem}")
    return b"".join(parts)


def token_of(details: Mapping[str, Any]) -> str:
    """Choose the strongest detail that changes with an object; empty if there is none.

    `details` are the `info` of fsspec, or headers of a response.
    """
    by_name = {key.lower(): value for key, value in details.items()}
    for keys in _TOKENS:
        found = [str(by_name[key]) for key in keys if by_name.get(key)]
        if found:
            return "-".join(found)
    return ""


def size_in(content_range: str, request: RangeRequest) -> int:
    """Size of an object, from a header such as ``bytes 0-99/1234``, or ``bytes */1234`` for none.

    Raises OSError if the header lacks the size, or its range is not the requested one.
    """
    found = _CONTENT_RANGE.fullmatch(content_range.strip())
    if found is None:
        raise unknown_size()
    first, last, size = found.groups()
    start, stop = request.bytes_of(int(size))
    if (start < stop) if first is None else (int(first), int(last) + 1) != (start, stop):
        raise OSError(
            f"the server sent the range {content_range!r} for a request of {request.header()}"
        )
    return int(size)


def unknown_size() -> OSError:
    """Error for a server that does not report sizes."""
    return OSError(
        "the server does not report the size of the object; "
        "copy it to a local file, or open it through simplecache::"
    )


def require_small(size: int, stop: int, label: str) -> None:
    """Check that a transfer up to `stop` is small, for a server that ignores ranges."""
    if min(size, stop) > MAX_WHOLE:
        raise OSError(
            f"{label}: the server ignores byte ranges, so that each read transfers up to {size} "
            "bytes; copy the object to a local file, or open it through simplecache::"
        )
