"""Byte ranges through what every fsspec file system has, and of the copies of simplecache."""

from __future__ import annotations

import asyncio
import itertools
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any
from weakref import WeakValueDictionary

from fsspec.asyn import AsyncFileSystem

from b2nd_dask.storage.byte_reader import Identity, Response
from b2nd_dask.storage.read.ranged import (
    RangeRequest,
    RangeSource,
    called_alone,
    changed,
    require_known,
    require_short,
    token_of,
    unknown_size,
)
from b2nd_dask.storage.spans import Span

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

_copied: dict[str, Identity] = {}
"""By the path of each copy: the state of the object that this process made it of."""


class AnyRanges(RangeSource):
    """Request byte ranges from any file system.

    Bytes come without the state of the object. So `info` of each object is looked up after its
    bytes were read, and before, where its state is not known. A change shows where the file system
    reports a version, a digest or a time; else only where the size changed.
    """

    def __init__(self, fs: Any) -> None:
        super().__init__(fs)
        self._looks: WeakValueDictionary[str, _Look] = WeakValueDictionary()

    async def fetch(self, request: RangeRequest) -> Response:
        """Request a range; see `RangeSource.fetch`."""
        path = request.path
        identity = request.known or await self._identity(path)
        start, stop = request.bytes_of(identity.size)
        data = b""
        if start < stop:
            data = await self._ask("cat_file", path, start=start, end=stop)
        look = self._looks.setdefault(path, _Look())
        found = await look.after_now(partial(self._identity, path))
        require_known(request._replace(known=identity), found)
        return _response(data, Span(start, stop), identity, request)

    async def _identity(self, path: str) -> Identity:
        """State of an object, of which the file system may have cached another."""
        if self.fs.cachable:
            # All of it: some file systems keep the details of a file in the listing of its
            # parent, which invalidate_cache(path) leaves as it is.
            self.fs.invalidate_cache()
        return identity_in(await self._ask("info", path))

    async def _ask(self, method: str, *args: Any, **keywords: Any) -> Any:
        """Call the file system; one without an event loop in a thread."""
        if isinstance(self.fs, AsyncFileSystem):
            return await getattr(self.fs, f"_{method}")(*args, **keywords)
        return await called_alone(getattr(self.fs, method), *args, **keywords)


class _Look:
    """Looks at the state of an object, each of which serves all who waited for it to begin."""

    def __init__(self) -> None:
        self._clock = itertools.count(1)
        self._lock = asyncio.Lock()
        self._begun = 0

    async def after_now(self, look: Callable[[], Awaitable[Identity]]) -> Identity:
        """The state of the object at a moment after this call."""
        now = next(self._clock)
        async with self._lock:
            if self._begun < now:
                begun = next(self._clock)
                self._found = await look()
                self._begun = begun
            return self._found


class CopyRanges(AnyRanges):
    """Request byte ranges from simplecache, out of copies of the known state of the object.

    Of a copy that this process did not make (in a ``cache_storage`` that was there before) only
    the size can be compared.
    """

    async def fetch(self, request: RangeRequest) -> Response:
        """Request a range; a copy does not change, so that `info` is not looked up again."""
        identity = request.known or await self._identity(request.path)
        response: Response = await called_alone(self._read_copy, request, identity)
        return response

    def _read_copy(self, request: RangeRequest, identity: Identity) -> Response:
        self._prepare(request, identity)
        start, stop = request.bytes_of(identity.size)
        data = b""
        if start < stop:
            # not cat_file, which first looks whether the object exists
            (data,) = self.fs.cat_ranges([request.path], [start], [stop], on_error="raise")
        return _response(data, Span(start, stop), identity, request)

    def _prepare(self, request: RangeRequest, identity: Identity) -> None:
        copy: str | None = self.fs._check_file(request.path)
        if copy is not None:
            if copy not in _copied and Path(copy).stat().st_size == identity.size:
                _copied[copy] = identity
            if _copied.get(copy) == identity:
                return
            if request.known is not None and copy in _copied:
                raise changed(request)
            self._drop(copy)
        self.fs.cat_ranges([request.path], [0], [0], on_error="raise")
        copy = str(self.fs._check_file(request.path))
        if identity_in(self.fs.info(request.path)) != identity:
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


def _response(data: bytes, span: Span, identity: Identity, request: RangeRequest) -> Response:
    if len(data) == span.stop - span.start:
        return Response(span.start, data, identity)
    if len(data) == identity.size:
        require_short(identity.size, identity.size, request.label)
        return Response(0, data, identity, ranges_ignored=True)
    raise changed(request)
