"""Byte ranges through what every fsspec file system has, and of the copies of simplecache."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from fsspec.asyn import AsyncFileSystem

from b2nd_dask.storage.byte_reader import Identity, Response
from b2nd_dask.storage.read.ranged import (
    FailedRequest,
    RangeRequest,
    begin_one,
    changed,
    get_concurrently,
    require_known,
    require_short,
    token_of,
    unknown_size,
)
from b2nd_dask.storage.spans import Span, clip

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence
    from concurrent.futures import Future

_copied: dict[str, Identity] = {}
"""By the path of each copy: the state of the object that this process made it of."""


class AnyRanges:
    """Request byte ranges from any file system.

    Bytes come without the state of the object. So `info` of each object is looked up after its
    bytes were read, and before, where its state is not known. A change shows where the file system
    reports a version, a digest or a time; else only where the size changed.
    """

    def __init__(self, fs: Any) -> None:
        self._fs = fs

    def get(self, requests: Sequence[RangeRequest]) -> list[Response] | FailedRequest:
        """Request ranges; see `RangeSource.get`."""
        found = self._read(requests)
        if isinstance(found, FailedRequest):
            return found
        # each object once, however many ranges of it were read
        read = {
            request.path: request._replace(known=response.identity)
            for request, response in zip(requests, found, strict=True)
        }
        self._forget()
        checked = self._each(list(read.values()), self._check_soon, self._check_now)
        return checked if isinstance(checked, FailedRequest) else found

    @property
    def can_begin(self) -> bool:
        """Whether the file system has an event loop."""
        return isinstance(self._fs, AsyncFileSystem)

    def begin(self, request: RangeRequest) -> Future[Response]:
        """Request a range, and look whether the object is the same; see `RangeSource.begin`."""
        return begin_one(self._fs, self._get_checked, request)

    async def _get_checked(self, request: RangeRequest) -> Response:
        found = await self._get_soon(request)
        self._forget()
        await self._check_soon(request._replace(known=found.identity))
        return found

    def _read(self, requests: Sequence[RangeRequest]) -> list[Response] | FailedRequest:
        if any(request.known is None for request in requests):
            self._forget()
        return self._each(requests, self._get_soon, self._get_now)

    def _each(
        self,
        requests: Sequence[RangeRequest],
        soon: Callable[[RangeRequest], Awaitable[Response]],
        now: Callable[[RangeRequest], Response],
    ) -> list[Response] | FailedRequest:
        """Call one of two functions for each request, concurrently where the store supports it."""
        if isinstance(self._fs, AsyncFileSystem):
            return get_concurrently(self._fs, soon, requests)
        responses = []
        for request in requests:
            try:
                responses.append(now(request))
            except Exception as error:  # noqa: BLE001 - the caller raises it, with a name
                return FailedRequest(request, error)
        return responses

    def has_directory(self, path: str) -> bool:
        """Not needed: `get` recognizes directories."""
        return False

    async def _get_soon(self, request: RangeRequest) -> Response:
        identity = request.known or identity_in(await self._fs._info(request.path))
        start, stop = clip(request.span, identity.size)
        data = b""
        if start < stop:
            data = await self._fs._cat_file(request.path, start=start, end=stop)
        return _checked(data, Span(start, stop), identity, request)

    def _get_now(self, request: RangeRequest) -> Response:
        identity = request.known or identity_in(self._fs.info(request.path))
        self._prepare(request, identity)
        start, stop = clip(request.span, identity.size)
        data = b""
        if start < stop:
            # not cat_file, for which simplecache first looks whether the object exists
            (data,) = self._fs.cat_ranges([request.path], [start], [stop], on_error="raise")
        return _checked(data, Span(start, stop), identity, request)

    async def _check_soon(self, request: RangeRequest) -> Response:
        return _unchanged(request, await self._fs._info(request.path))

    def _check_now(self, request: RangeRequest) -> Response:
        return _unchanged(request, self._fs.info(request.path))

    def _forget(self) -> None:
        """Drop cached details of objects, so that `info` requests them."""
        if self._fs.cachable:
            # All of it: some file systems keep the details of a file in the listing of its
            # parent, which invalidate_cache(path) leaves as it is.
            self._fs.invalidate_cache()

    def _prepare(self, request: RangeRequest, identity: Identity) -> None:
        """Do what must be done before bytes are read."""


class CopyRanges(AnyRanges):
    """Request byte ranges from simplecache, out of copies of the known state of the object.

    Of a copy that this process did not make (in a ``cache_storage`` that was there before) only
    the size can be compared.
    """

    def get(self, requests: Sequence[RangeRequest]) -> list[Response] | FailedRequest:
        """Request ranges; a copy does not change, so that `info` is not looked up again."""
        return self._read(requests)

    def _prepare(self, request: RangeRequest, identity: Identity) -> None:
        copy: str | None = self._fs._check_file(request.path)
        if copy is not None:
            if copy not in _copied and Path(copy).stat().st_size == identity.size:
                _copied[copy] = identity
            if _copied.get(copy) == identity:
                return
            if request.known is not None and copy in _copied:
                raise changed(request)
            self._drop(copy)
        self._fs.cat_ranges([request.path], [0], [0], on_error="raise")
        copy = str(self._fs._check_file(request.path))
        if identity_in(self._fs.info(request.path)) != identity:
            self._drop(copy)
            raise changed(request)
        _copied[copy] = identity

    def _drop(self, copy: str) -> None:
        _copied.pop(copy, None)
        Path(copy).unlink(missing_ok=True)


def identity_in(info: Mapping[str, Any]) -> Identity:
    """State of an object, from what `info` says.

    Raises
    ------
    IsADirectoryError
    OSError
        The file system does not report the size.
    """
    if info.get("type") == "directory":
        raise IsADirectoryError(info.get("name"))
    size = info.get("size")
    if not isinstance(size, int):
        raise unknown_size()
    return Identity(size, token_of(info))


def _unchanged(request: RangeRequest, info: Mapping[str, Any]) -> Response:
    """Check that an object is still in the known state."""
    identity = identity_in(info)
    require_known(request, identity)
    return Response(0, b"", identity)


def _checked(data: bytes, span: Span, identity: Identity, request: RangeRequest) -> Response:
    if len(data) == span.stop - span.start:
        return Response(span.start, data, identity)
    if len(data) == identity.size:
        require_short(identity.size, identity.size, request.label)
        return Response(0, data, identity, ranges_ignored=True)
    raise changed(request)
