"""Byte ranges from the store of a URL; HTTP and S3 send size and etag with the bytes."""

from __future__ import annotations

import errno
import re
from functools import cached_property
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

from b2nd_dask.storage.byte_reader import Identity, Response
from b2nd_dask.storage.failures import public_error, store_code
from b2nd_dask.storage.read.connection import Connection
from b2nd_dask.storage.read.ranged import (
    ATTEMPTS,
    PassingError,
    RangeRequest,
    RangeSource,
    changed,
    get_all,
    in_time,
    read_body,
    require_known,
    require_short,
    size_in,
    size_past_end,
    token_of,
    unknown_size,
)
from b2nd_dask.storage.read.ranged_any import AnyRanges, CopyRanges

if TYPE_CHECKING:
    from collections.abc import Sequence

_STRONG_ETAG = re.compile(r'"[^"]*"')
_MISSING = (HTTPStatus.NOT_FOUND, HTTPStatus.GONE)
#: Statuses of a server or proxy that is overloaded or restarts.
_PASSING = (
    HTTPStatus.TOO_MANY_REQUESTS,
    HTTPStatus.BAD_GATEWAY,
    HTTPStatus.SERVICE_UNAVAILABLE,
    HTTPStatus.GATEWAY_TIMEOUT,
)


class HttpRanges(RangeSource):
    """Request byte ranges from web servers, through the session of an fsspec file system.

    Requests send a strong etag (If-Match). Some servers ignore it, so each response is compared
    with the known state: size and etag, or size and date of the last change.
    """

    async def fetch(self, request: RangeRequest) -> Response:
        """Request a range; see `RangeSource.fetch`."""
        # fsspec's file system has imported it already
        import aiohttp

        session = await self.fs.set_session()
        options = dict(self.fs.kwargs)
        headers = dict(options.pop("headers", None) or {})
        # identity: a range of compressed bytes is of no use
        headers |= {"Range": request.header(), "Accept-Encoding": "identity"}
        if request.known is not None and _STRONG_ETAG.fullmatch(request.known.token):
            headers["If-Match"] = request.known.token
        if session.timeout == aiohttp.client.DEFAULT_TIMEOUT:
            # replaces 5 minutes for any response by limits for its length (`in_time`)
            options.setdefault("timeout", aiohttp.ClientTimeout(total=None, sock_connect=30))
        url = self.fs.encode_url(request.path)
        try:
            async with in_time():
                answered = await session.get(url, headers=headers, **options)
        except (aiohttp.ServerDisconnectedError, aiohttp.ClientOSError) as error:
            if getattr(error, "errno", None) not in (None, errno.ECONNRESET, errno.EPIPE):
                raise
            raise PassingError(f"the server closed the connection: {error}") from error
        async with answered as response:
            if response.url.path.endswith("/") and not url.path.endswith("/"):
                raise IsADirectoryError(request.path)
            return await _read_response(response, request)


async def _read_response(response: Any, request: RangeRequest) -> Response:
    status, headers, span = response.status, response.headers, request.span
    if status in _MISSING:
        raise FileNotFoundError(request.path)
    if status == HTTPStatus.PRECONDITION_FAILED:
        raise changed(request)
    if status in _PASSING:
        wanted = headers.get("Retry-After", "")
        problem = f"the server sent status {status} ({response.reason}) for {ATTEMPTS} requests"
        raise PassingError(problem, float(wanted) if wanted.isdecimal() else None)
    # no digests: those of a 206 are of its part
    token = token_of({name: headers[name] for name in ("ETag", "Last-Modified") if name in headers})
    if status == HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE:
        size = size_past_end(headers.get("Content-Range", ""))
        return Response(span.start, b"", Identity(size, token))
    response.raise_for_status()
    if status == HTTPStatus.PARTIAL_CONTENT:
        size = size_in(headers.get("Content-Range", ""), request)
        require_known(request, Identity(size, token))
        start, stop = request.bytes_of(size)
        data = await _http_body(response, stop - start)
        return Response(start, data, Identity(size, token))
    if response.content_length is None or request.from_end:
        raise unknown_size()
    size = response.content_length
    require_known(request, Identity(size, token))
    require_short(size, span.stop, request.label)
    # closing the connection drops the rest
    data = await _http_body(response, min(span.stop, size))
    return Response(0, data, Identity(size, token), ranges_ignored=True)


async def _http_body(response: Any, nbytes: int) -> bytes:
    """Read `nbytes` bytes and no more, whatever the server sends."""
    return await read_body(lambda: response.content.readexactly(nbytes), nbytes)


class S3Ranges(RangeSource):
    """Request byte ranges from S3, through the client of an fsspec file system.

    Requests send the known etag (IfMatch). A store may ignore it, so size and etag of each response
    are compared with the known ones.
    """

    def has_directory(self, path: str) -> bool:
        """Whether objects lie below the path; needs one more request."""
        # cached listings may be out of date
        self.fs.invalidate_cache(path)
        return bool(self.fs.isdir(path))

    async def fetch(self, request: RangeRequest) -> Response:
        """Request a range; see `RangeSource.fetch`."""
        try:
            async with in_time():
                found = await self._get_object(request)
        except OSError as error:
            if store_code(error.__cause__) in ("PreconditionFailed", "412"):
                raise changed(request) from error
            if store_code(error.__cause__) in ("InvalidRange", "416"):
                return await self._past_the_end(request)
            raise
        body = found["Body"]
        try:
            described, nbytes = _described(found, request)
            data = await read_body(lambda: _read(body, nbytes), nbytes)
            return described._replace(data=data)
        finally:
            # closes the connection, too, if bytes are left
            body.close()

    async def _get_object(self, request: RangeRequest) -> dict[str, Any]:
        bucket, key, version = self.fs.split_path(request.path)
        if not key:
            raise FileNotFoundError(
                errno.ENOENT, "the URL names a bucket, but no object in it", request.path
            )
        known = request.known
        options = {"VersionId": version} if version else {}
        if known is not None and known.token.startswith('"'):
            options["IfMatch"] = known.token
        found: dict[str, Any] = await self.fs._call_s3(
            "get_object",
            Bucket=bucket,
            Key=key,
            Range=request.header(),
            **options,
        )
        return found

    async def _past_the_end(self, request: RangeRequest) -> Response:
        # a response with status 416 has no details of the object
        info = await self.fs._info(request.path, refresh=True)
        identity = Identity(int(info["size"]), token_of(info))
        require_known(request, identity)
        return Response(request.span.start, b"", identity)


async def _read(body: Any, nbytes: int) -> bytes:
    """Read `nbytes` bytes and no more, whatever the server sends."""
    parts = []
    while nbytes and (part := await body.read(nbytes)):
        parts.append(part)
        nbytes -= len(part)
    return parts[0] if len(parts) == 1 else b"".join(parts)


def _described(found: dict[str, Any], request: RangeRequest) -> tuple[Response, int]:
    """Return the response without its body, and the number of bytes to read from the body."""
    token = token_of({name: found[name] for name in ("ETag", "LastModified") if name in found})
    if "ContentRange" in found:
        identity = Identity(size_in(found["ContentRange"], request), token)
        require_known(request, identity)
        start, stop = request.bytes_of(identity.size)
        return Response(start, b"", identity), stop - start
    if "ContentLength" not in found or request.from_end:
        raise unknown_size()
    identity = Identity(int(found["ContentLength"]), token)
    require_known(request, identity)
    require_short(identity.size, identity.size, request.label)
    return Response(0, b"", identity, ranges_ignored=True), identity.size


class RemoteStore(Connection):
    """Connection of one process for reads from the store of a URL."""

    @cached_property
    def source(self) -> RangeSource:
        """Source of byte ranges for this kind of store."""
        if self.has_protocol("https") and hasattr(self.fs, "set_session"):
            return HttpRanges(self.fs)
        if self.has_protocol("s3") and hasattr(self.fs, "call_s3"):
            return S3Ranges(self.fs)
        return CopyRanges(self.fs) if self.has_protocol("simplecache") else AnyRanges(self.fs)

    def get(self, requests: Sequence[RangeRequest]) -> list[Response]:
        """Request ranges, with errors that name the object and hold no secrets."""
        responses: list[Response] = []
        try:
            responses.extend(get_all(self.source, requests))
        except Exception as error:  # noqa: BLE001 - every backend has its own tree; raised below
            request = requests[len(responses)]
            failure = public_error(error, request.label, self.secrets)
        else:
            return responses
        # outside of the except clause: nothing refers to the original any more
        raise failure
