"""Byte ranges from stores: web servers, S3, other file systems of fsspec, copies of simplecache.

HTTP and S3 send size and etag with the bytes. Elsewhere `info` gives the state of an object.
"""

from __future__ import annotations

import asyncio
import errno
import itertools
from functools import cached_property, partial
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING, Any
from weakref import WeakValueDictionary

from fsspec.asyn import AsyncFileSystem

from b2nd_dask.storage.byte_reader import Identity, Response, Span
from b2nd_dask.storage.failures import store_code
from b2nd_dask.storage.read.connection import Connection
from b2nd_dask.storage.read.ranged import (
    ATTEMPTS,
    PassingError,
    RangeRequest,
    RemoteStore,
    received,
    require_short,
    token_of,
    unknown_size,
)
from b2nd_dask.storage.read.traffic import called_alone, in_time

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from b2nd_dask.storage.read.location import Location

_MISSING = (HTTPStatus.NOT_FOUND, HTTPStatus.GONE)
_WHOLE = (HTTPStatus.OK, HTTPStatus.NON_AUTHORITATIVE_INFORMATION)
_RANGE = (HTTPStatus.PARTIAL_CONTENT, HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE)
#: Encodings that aiohttp decodes. Some servers send others, such as "binary", which are none.
_COMPRESSED = ("gzip", "deflate", "br", "zstd")
#: Statuses of a server or proxy that is overloaded or restarts.
_PASSING = (
    HTTPStatus.TOO_MANY_REQUESTS,
    HTTPStatus.BAD_GATEWAY,
    HTTPStatus.SERVICE_UNAVAILABLE,
    HTTPStatus.GATEWAY_TIMEOUT,
)

_copied: dict[str, Identity] = {}
"""By the path of each copy: the state of the copied object."""


class HttpRanges(RemoteStore):
    """Request byte ranges from web servers, through the session of an fsspec file system.

    Requests send a strong etag (If-Match). Some servers ignore it, so each response is compared
    with the known state: size and etag, or size and date of the last change.
    """

    async def fetch(self, request: RangeRequest) -> Response:
        """Request a range; see `RemoteStore.fetch`."""
        # fsspec's file system has imported it already
        import aiohttp

        session = await self.fs.set_session()
        options = dict(self.fs.kwargs)
        headers = dict(options.pop("headers", None) or {})
        # identity: a range of compressed bytes is of no use
        headers |= {"Range": request.header(), "Accept-Encoding": "identity"}
        if etag := request.object.etag:
            headers["If-Match"] = etag
        if session.timeout == aiohttp.client.DEFAULT_TIMEOUT:
            # replaces 5 minutes for any response by limits for its length (`in_time`)
            options.setdefault("timeout", aiohttp.ClientTimeout(total=None, sock_connect=30))
        url = self.fs.encode_url(request.object.path)
        try:
            async with in_time():
                answered = await session.get(url, headers=headers, **options)
        except (aiohttp.ServerDisconnectedError, aiohttp.ClientOSError) as error:
            if getattr(error, "errno", None) not in (None, errno.ECONNRESET, errno.EPIPE):
                raise
            raise PassingError(f"the server closed the connection: {error}") from error
        async with answered as response:
            if response.url.path.endswith("/") and not url.path.endswith("/"):
                raise IsADirectoryError(request.object.path)
            return await _read_response(response, request)


async def _read_response(response: Any, request: RangeRequest) -> Response:
    status, headers = response.status, response.headers
    if status in _MISSING:
        raise FileNotFoundError(request.object.path)
    if status == HTTPStatus.PRECONDITION_FAILED:
        raise request.changed()
    if status in _PASSING:
        wanted = headers.get("Retry-After", "")
        problem = f"the server sent status {status} ({response.reason}) for {ATTEMPTS} requests"
        raise PassingError(problem, float(wanted) if wanted.isdecimal() else None)
    if status not in _WHOLE + _RANGE:
        response.raise_for_status()
        raise OSError(f"the server sent status {status} ({response.reason}), not the object")
    is_past_the_end = status == HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE
    if not is_past_the_end and headers.get("Content-Encoding", "").lower() in _COMPRESSED:
        raise OSError("the server compresses the object and its ranges; read a local copy of it")
    content_range = headers.get("Content-Range", "") if status in _RANGE else None
    # closing the connection drops the rest of the body
    length = response.content_length
    return await received(request, headers, content_range, length, response.content)


class S3Ranges(RemoteStore):
    """Request byte ranges from S3, through the client of an fsspec file system.

    Requests send the known etag (IfMatch). A store may ignore it, so size and etag of each response
    are compared with the known ones.
    """

    def has_directory(self) -> bool:
        """Whether objects lie below the path; needs one more request."""
        # cached listings may be out of date
        self.call(lambda: self.fs.invalidate_cache(self.path))
        return self.call(lambda: bool(self.fs.isdir(self.path)))

    async def fetch(self, request: RangeRequest) -> Response:
        """Request a range; see `RemoteStore.fetch`."""
        try:
            async with in_time():
                found = await self._get_object(request)
        except OSError as error:
            if store_code(error.__cause__) in ("PreconditionFailed", "412"):
                raise request.changed() from error
            if store_code(error.__cause__) in ("InvalidRange", "416"):
                # such a response has no details of the object
                info = await self.fs._info(request.object.path, refresh=True)
                return Response(request.span.start, b"", identity_in(info))
            raise
        body = found["Body"]
        try:
            lengths = found.get("ContentRange"), found.get("ContentLength")
            return await received(request, found, *lengths, body)
        finally:
            # closes the connection, too, if bytes are left
            body.close()

    async def _get_object(self, request: RangeRequest) -> dict[str, Any]:
        bucket, key, version = self.fs.split_path(request.object.path)
        if not key:
            raise FileNotFoundError(
                errno.ENOENT, "the URL names a bucket, but no object in it", request.object.path
            )
        options = {"VersionId": version, "IfMatch": request.object.etag}
        options = {name: value for name, value in options.items() if value}
        found: dict[str, Any] = await self.fs._call_s3(
            "get_object", Bucket=bucket, Key=key, Range=request.header(), **options
        )
        return found


class AnyRanges(RemoteStore):
    """Request byte ranges from any file system.

    Bytes come without the state of the object, so `info` is requested after them, and also before
    them if no state is known. If the file system reports no version, digest or time, only a change
    of the size is detected.
    """

    @cached_property
    def _looks(self) -> WeakValueDictionary[str, _Look]:
        return WeakValueDictionary()

    async def fetch(self, request: RangeRequest) -> Response:
        """Request a range; see `RemoteStore.fetch`."""
        identity = request.object.known or await self._identity(request.object.path)
        start, stop = request.bytes_of(identity.size)
        data = await self._read(request, Span(start, stop), identity)
        if len(data) == stop - start:
            return Response(start, data, identity)
        if len(data) == identity.size:
            require_short(identity.size, identity.size, request.object.label)
            return Response(0, data, identity, ranges_ignored=True)
        raise request.changed()

    async def _read(self, request: RangeRequest, span: Span, identity: Identity) -> bytes:
        """Read a span of a state of the object; raise StaleFrameError if it has another one."""
        path, data = request.object.path, b""
        if span.start < span.stop:
            data = await self._ask("cat_file", path, start=span.start, end=span.stop)
        look = self._looks.setdefault(path, _Look())
        if await look.after_now(partial(self._identity, path)) != identity:
            raise request.changed()
        return data

    async def _identity(self, path: str) -> Identity:
        """Request the current state of an object, not the state in the file system's cache."""
        if self.fs.cachable:
            # all of the cache: some file systems keep details of a file in the listing of its
            # parent, which invalidate_cache(path) does not drop
            self.fs.invalidate_cache()
        return identity_in(await self._ask("info", path))

    async def _ask(self, method: str, *args: Any, **keywords: Any) -> Any:
        """Call the file system, in a thread if it has no event loop."""
        if isinstance(self.fs, AsyncFileSystem):
            return await getattr(self.fs, f"_{method}")(*args, **keywords)
        return await called_alone(getattr(self.fs, method), *args, **keywords)


class _Look:
    """Lookups of an object's state; each serves all callers that waited for its start."""

    def __init__(self) -> None:
        self._clock = itertools.count(1)
        self._lock = asyncio.Lock()
        self._begun = 0

    async def after_now(self, look: Callable[[], Awaitable[Identity]]) -> Identity:
        """Return the state of the object at a moment after this call."""
        now = next(self._clock)
        async with self._lock:
            if self._begun < now:
                begun = next(self._clock)
                self._found = await look()
                self._begun = begun
            return self._found


class CopyRanges(AnyRanges):
    """Request byte ranges from simplecache: from copies of the known state of each object.

    If another process made a copy (in an existing ``cache_storage``), only its size is compared.
    """

    async def _read(self, request: RangeRequest, span: Span, identity: Identity) -> bytes:
        """Read a span; copies do not change, so there is no second lookup of `info`."""
        data: bytes = await called_alone(self._read_copy, request, span, identity)
        return data

    def _read_copy(self, request: RangeRequest, span: Span, identity: Identity) -> bytes:
        self._prepare(request, identity)
        # not cat_file, which first checks that the object exists
        paths = [request.object.path]
        (data,) = self.fs.cat_ranges(paths, [span.start], [span.stop], on_error="raise")
        return bytes(data)

    def _prepare(self, request: RangeRequest, identity: Identity) -> None:
        path = request.object.path
        copy: str | None = self.fs._check_file(path)
        if copy is not None:
            if copy not in _copied and Path(copy).stat().st_size == identity.size:
                _copied[copy] = identity
            if _copied.get(copy) == identity:
                return
            if request.object.known is not None and copy in _copied:
                raise request.changed()
            self._drop(copy)
        self.fs.cat_ranges([path], [0], [0], on_error="raise")
        copy = str(self.fs._check_file(path))
        if identity_in(self.fs.info(path)) != identity:
            self._drop(copy)
            raise request.changed()
        _copied[copy] = identity

    def _drop(self, copy: str) -> None:
        _copied.pop(copy, None)
        Path(copy).unlink(missing_ok=True)


def identity_in(info: Mapping[str, Any]) -> Identity:
    """State of an object, from its `info`.

    Raises IsADirectoryError for a directory, OSError if the file system does not report the size.
    """
    if info.get("type") == "directory":
        raise IsADirectoryError(info.get("name"))
    size = info.get("size")
    if not isinstance(size, int):
        raise unknown_size()
    return Identity(size, token_of(info))


def remote_store(location: Location) -> RemoteStore:
    """Connect to the store of a URL, for reads."""
    found = Connection.of(location)
    kind: type[RemoteStore] = AnyRanges
    if found.has_protocol("https") and hasattr(found.fs, "set_session"):
        kind = HttpRanges
    elif found.has_protocol("s3") and hasattr(found.fs, "call_s3"):
        kind = S3Ranges
    elif found.has_protocol("simplecache"):
        kind = CopyRanges
    return kind(**vars(found))
