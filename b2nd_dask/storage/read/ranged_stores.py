"""Byte ranges from stores: web servers, S3, other file systems of fsspec, copies of simplecache.

HTTP and S3 send size and etag with the bytes. In other stores `info` returns an object's state.
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
    RangeRequest,
    RemoteStore,
    TransientError,
    parse_response,
    require_small,
    token_of,
    unknown_size,
)
from b2nd_dask.storage.read.traffic import call_in_thread, in_time

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from b2nd_dask.storage.read.location import Location

_MISSING = (HTTPStatus.NOT_FOUND, HTTPStatus.GONE)
_WHOLE = (HTTPStatus.OK, HTTPStatus.NON_AUTHORITATIVE_INFORMATION)
_RANGE = (HTTPStatus.PARTIAL_CONTENT, HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE)
#: Encodings that aiohttp decodes. Some servers send others, such as "binary", which are none.
_COMPRESSED = ("gzip", "deflate", "br", "zstd")
#: Statuses of a server or proxy that is overloaded or restarts.
_TRANSIENT = (
    HTTPStatus.TOO_MANY_REQUESTS,
    HTTPStatus.BAD_GATEWAY,
    HTTPStatus.SERVICE_UNAVAILABLE,
    HTTPStatus.GATEWAY_TIMEOUT,
)

_copy_states: dict[str, Identity] = {}
"""State of the copied object, by the path of the copy."""


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
                request_sent = await session.get(url, headers=headers, **options)
        except (aiohttp.ServerDisconnectedError, aiohttp.ClientOSError) as error:
            if getattr(error, "errno", None) not in (None, errno.ECONNRESET, errno.EPIPE):
                raise
            raise TransientError(f"the server closed the connection: {error}") from error
        async with request_sent as response:
            if response.url.path.endswith("/") and not url.path.endswith("/"):
                raise IsADirectoryError(request.object.path)
            return await _read_response(response, request)


async def _read_response(response: Any, request: RangeRequest) -> Response:
    status, headers = response.status, response.headers
    if status in _MISSING:
        raise FileNotFoundError(request.object.path)
    if status == HTTPStatus.PRECONDITION_FAILED:
        raise request.changed()
    if status in _TRANSIENT:
        retry_after = headers.get("Retry-After", "")
        problem = f"the server sent status {status} ({response.reason}) for {ATTEMPTS} requests"
        raise TransientError(problem, float(retry_after) if retry_after.isdecimal() else None)
    if status not in _WHOLE + _RANGE:
        response.raise_for_status()
        raise OSError(f"the server sent status {status} ({response.reason}), not the object")
    is_past_the_end = status == HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE
    if not is_past_the_end and headers.get("Content-Encoding", "").lower() in _COMPRESSED:
        raise OSError("the server compresses the object and its ranges; read a local copy of it")
    content_range = headers.get("Content-Range", "") if status in _RANGE else None
    # the end of the `async with` block closes the connection and drops the rest of the body
    length = response.content_length
    return await parse_response(request, headers, content_range, length, response.content)


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
            return await parse_response(request, found, *lengths, body)
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

    The bytes come without the state of the object. So `info` is requested after them and, if no
    state is known, also before them. If the file system reports no version, digest or time, only a
    change of the size is detected.
    """

    @cached_property
    def _lookups(self) -> WeakValueDictionary[str, _StateLookup]:
        return WeakValueDictionary()

    async def fetch(self, request: RangeRequest) -> Response:
        """Request a range; see `RemoteStore.fetch`."""
        identity = request.object.known or await self._identity(request.object.path)
        start, stop = request.bytes_of(identity.size)
        data = await self._read(request, Span(start, stop), identity)
        if len(data) == stop - start:
            return Response(start, data, identity)
        if len(data) == identity.size:
            require_small(identity.size, identity.size, request.object.label)
            return Response(0, data, identity, ranges_ignored=True)
        raise request.changed()

    async def _read(self, request: RangeRequest, span: Span, identity: Identity) -> bytes:
        """Read a span of a state of the object; raise StaleFrameError if it has another one."""
        path, data = request.object.path, b""
        if span.start < span.stop:
            data = await self._call_fs("cat_file", path, start=span.start, end=span.stop)
        lookup = self._lookups.setdefault(path, _StateLookup())
        if await lookup.after_call(partial(self._identity, path)) != identity:
            raise request.changed()
        return data

    async def _identity(self, path: str) -> Identity:
        """Request the current state of an object, not the state in the file system's cache."""
        if self.fs.cachable:
            # all of the cache: some file systems keep details of a file in the listing of its
            # parent, which invalidate_cache(path) does not drop
            self.fs.invalidate_cache()
        return identity_in(await self._call_fs("info", path))

    async def _call_fs(self, method: str, *args: Any, **keywords: Any) -> Any:
        """Call the file system, in a thread if it has no event loop."""
        if isinstance(self.fs, AsyncFileSystem):
            return await getattr(self.fs, f"_{method}")(*args, **keywords)
        return await call_in_thread(getattr(self.fs, method), *args, **keywords)


class _StateLookup:
    """Lookups of an object's state; one serves all callers that wait when it starts."""

    def __init__(self) -> None:
        self._clock = itertools.count(1)
        self._lock = asyncio.Lock()
        self._started = 0

    async def after_call(self, lookup: Callable[[], Awaitable[Identity]]) -> Identity:
        """Look the state up, or wait for a lookup that starts after this call."""
        now = next(self._clock)
        async with self._lock:
            if self._started < now:
                started = next(self._clock)
                self._found = await lookup()
                self._started = started
            return self._found


class CopyRanges(AnyRanges):
    """Request byte ranges from simplecache: from copies of the known state of each object.

    If another process made a copy (in an existing ``cache_storage``), only its size is compared.
    """

    async def _read(self, request: RangeRequest, span: Span, identity: Identity) -> bytes:
        """Read a span; no second `info` is needed, since copies do not change."""
        data: bytes = await call_in_thread(self._read_copy, request, span, identity)
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
            if copy not in _copy_states and Path(copy).stat().st_size == identity.size:
                _copy_states[copy] = identity
            if _copy_states.get(copy) == identity:
                return
            if request.object.known is not None and copy in _copy_states:
                raise request.changed()
            self._drop(copy)
        self.fs.cat_ranges([path], [0], [0], on_error="raise")
        copy = str(self.fs._check_file(path))
        if identity_in(self.fs.info(path)) != identity:
            self._drop(copy)
            raise request.changed()
        _copy_states[copy] = identity

    def _drop(self, copy: str) -> None:
        _copy_states.pop(copy, None)
        Path(copy).unlink(missing_ok=True)


def identity_in(info: Mapping[str, Any]) -> Identity:
    """Convert the `info` of an object to its identity.

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
